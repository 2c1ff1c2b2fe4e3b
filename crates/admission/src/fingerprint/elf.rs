//! Which libraries of the build folder a binary loads, by reading ELF headers as the dynamic loader does: `DT_NEEDED`,
//! looked up in `DT_RPATH` (the loaders' too) or `DT_RUNPATH`, `$ORIGIN` and all; and which it may open by name at run
//! time, as llama.cpp opens the backends beside it. Nothing is executed.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use b70_store::open_source;
use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use object::{Endianness, ReadCache, ReadRef, StringTable, elf};

/// Libraries that are looked at: a build has some ten.
const LIMIT: usize = 4096;

/// Files that are looked at for backends.
const FILES: usize = 200_000;

/// The libraries, each real file once, by the path under which the loader opens it, sorted; and what makes the list
/// uncertain: files that could not be read as ELF, libraries of llama.cpp's that are not below the build folder.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) paths: BTreeSet<PathBuf>,
    pub(super) faults: Vec<(PathBuf, String)>,
}

/// What one object's dynamic section says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dynamic {
    needed: Vec<Vec<u8>>,
    rpath: Vec<Vec<u8>>,
    runpath: Option<Vec<Vec<u8>>>,
}

fn read(path: &Path) -> Result<Dynamic, String> {
    let file = open_source(path).map_err(|e| e.to_string())?;
    // Reads the headers and tables it is asked for, not the gigabyte of device code around them.
    let cache = ReadCache::new(file);
    parse(&cache)
}

fn parse<'data, R: ReadRef<'data>>(data: R) -> Result<Dynamic, String> {
    let error = |e: object::read::Error| format!("not a sound 64-bit ELF file: {e}");
    let header = elf::FileHeader64::<Endianness>::parse(data).map_err(error)?;
    let endian = header.endian().map_err(error)?;
    let segments = header.program_headers(endian, data).map_err(error)?;
    let mut dynamic = Dynamic::default();
    let Some(entries) =
        segments.iter().find_map(|segment| segment.dynamic(endian, data).transpose()).transpose().map_err(error)?
    else {
        return Ok(dynamic);
    };
    let value = |tag: u32| entries.iter().find(|e| e.tag32(endian) == Some(tag)).map(|e| e.d_val(endian));
    let (Some(address), Some(size)) = (value(elf::DT_STRTAB), value(elf::DT_STRSZ)) else { return Ok(dynamic) };
    // The table is given by its address in memory: find the segment that brings it there.
    let start = segments
        .iter()
        .filter(|segment| segment.p_type(endian) == elf::PT_LOAD)
        .find_map(|segment| {
            let into = address.checked_sub(segment.p_vaddr(endian))?;
            (into < segment.p_filesz(endian)).then(|| segment.p_offset(endian).checked_add(into)).flatten()
        })
        .ok_or("its dynamic string table lies in no segment")?;
    let strings = StringTable::new(data, start, start.saturating_add(size));
    for entry in entries {
        let tag = entry.tag32(endian);
        if tag == Some(elf::DT_NULL) {
            break;
        }
        if ![elf::DT_NEEDED, elf::DT_RPATH, elf::DT_RUNPATH].iter().any(|t| tag == Some(*t)) {
            continue;
        }
        let text = u32::try_from(entry.d_val(endian))
            .ok()
            .and_then(|offset| strings.get(offset).ok())
            .ok_or("a name of its dynamic section lies outside the string table")?;
        let folders = || text.split(|&b| b == b':').filter(|f| !f.is_empty()).map(<[u8]>::to_vec).collect();
        match tag {
            Some(elf::DT_NEEDED) => dynamic.needed.push(text.to_vec()),
            Some(elf::DT_RPATH) => dynamic.rpath = folders(),
            _ => dynamic.runpath = Some(folders()),
        }
    }
    Ok(dynamic)
}

fn expand(folder: &[u8], origin: &Path) -> PathBuf {
    for form in [&b"$ORIGIN"[..], b"${ORIGIN}"] {
        if let Some(rest) = folder.strip_prefix(form) {
            let mut path = origin.as_os_str().as_bytes().to_vec();
            path.extend_from_slice(rest);
            return PathBuf::from(OsStr::from_bytes(&path));
        }
    }
    PathBuf::from(OsStr::from_bytes(folder))
}

/// Libraries of llama.cpp's, whatever is built from it: no build is known without them.
fn is_llama_cpp(name: &str) -> bool {
    ["libggml", "libllama", "libmtmd"].iter().any(|family| name.starts_with(family))
}

/// `libx.so` of `libx.so` and of `libx.so.0.1`, if the name is one of llama.cpp's libraries.
fn plain_name(name: &str) -> Option<&str> {
    let end = name.find(".so").map(|at| at + 3).filter(|_| is_llama_cpp(name))?;
    (name.len() == end || name[end..].starts_with('.')).then(|| &name[..end])
}

/// llama.cpp's libraries in a folder (`deep`: and below it). It opens backends by name at run time, which no header
/// mentions, however it was configured. `libx.so.0` counts where no `libx.so` says which version is meant.
fn beside(folder: &Path, deep: bool, loaded: &mut Loaded) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_path_buf()];
    let mut looked_at = 0_usize;
    while let Some(folder) = pending.pop() {
        let entries = match std::fs::read_dir(&folder).and_then(Iterator::collect::<std::io::Result<Vec<_>>>) {
            Ok(entries) => entries,
            Err(e) => {
                loaded.faults.push((folder, format!("the folder cannot be listed: {e}")));
                continue;
            }
        };
        looked_at += entries.len();
        if looked_at > FILES {
            let why = format!("more than {FILES} files lie below it; name the release's own folder");
            loaded.faults.push((folder, why));
            break;
        }
        let names: BTreeSet<_> = entries.iter().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        for entry in entries {
            let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
            if deep && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(path);
            } else if plain_name(&name).is_some_and(|plain| plain == name || !names.contains(plain)) {
                found.push(path);
            }
        }
    }
    found
}

/// All libraries below `build` that `binaries` (real paths) load or may open by name. `modules`: folders beside the
/// binaries' own where backends are looked for. `deep`: nothing says where they are, so subfolders count too.
pub(super) fn libraries(binaries: &[PathBuf], build: &Path, modules: &[PathBuf], deep: bool) -> Loaded {
    let mut loaded = Loaded::default();
    let mut seen = BTreeSet::new();
    // By real file, under the first of the names that headers ask for; otherwise under the name it lies there by.
    let mut needed: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut by_name: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    let mut scanned = BTreeSet::new();
    let mut folders: Vec<PathBuf> = binaries.iter().filter_map(|b| Some(b.parent()?.to_path_buf())).collect();
    folders.extend_from_slice(modules);
    // Each object with the `DT_RPATH` folders it inherits from those that load it.
    let mut pending: Vec<(PathBuf, Vec<PathBuf>)> = binaries.iter().map(|b| (b.clone(), Vec::new())).collect();
    loop {
        while let Some(folder) = folders.pop() {
            if !scanned.insert(folder.clone()) {
                continue;
            }
            for path in beside(&folder, deep, &mut loaded) {
                match path.canonicalize() {
                    Ok(real) if real.is_file() => {
                        insert_first(&mut by_name, real, &path);
                        pending.push((path, Vec::new()));
                    }
                    Ok(real) => loaded.faults.push((path, super::not_a_file(&real))),
                    Err(e) => loaded.faults.push((path, format!("its file cannot be found: {e}"))),
                }
            }
        }
        let Some((path, inherited)) = pending.pop() else { break };
        if !seen.insert(path.clone()) {
            continue;
        }
        if seen.len() > LIMIT {
            loaded.faults.push((path, format!("it is one of more than {LIMIT} libraries, which are not looked at")));
            break;
        }
        let dynamic = match read(&path) {
            Ok(dynamic) => dynamic,
            Err(why) => {
                loaded.faults.push((path, why));
                continue;
            }
        };
        // The loader takes the folder of the path it was given, with links resolved for the program itself.
        let origin = path.parent().unwrap_or(build).to_path_buf();
        let own = |folders: &[Vec<u8>]| folders.iter().map(|f| expand(f, &origin)).collect::<Vec<_>>();
        // DT_RUNPATH switches DT_RPATH off and is not inherited.
        let (search, passed_on) = if let Some(runpath) = &dynamic.runpath {
            (own(runpath), inherited)
        } else {
            let mut folders = own(&dynamic.rpath);
            folders.extend(inherited);
            (folders.clone(), folders)
        };
        for name in &dynamic.needed {
            let name = Path::new(OsStr::from_bytes(name));
            let found = if name.components().count() > 1 {
                Some(name.to_path_buf())
            } else {
                // Beside the binary, last: found there only through LD_LIBRARY_PATH, but then it is what runs.
                search.iter().chain(std::iter::once(&origin)).map(|f| f.join(name)).find(|p| p.is_file())
            };
            let ours = name.file_name().is_some_and(|n| is_llama_cpp(&n.to_string_lossy()));
            if let Some(below) = found.as_deref().and_then(|found| below_build(found, build)) {
                if let Ok(real) = below.canonicalize() {
                    insert_first(&mut needed, real, &below);
                }
                // Backends lie beside libggml-base, too, where a release keeps its libraries in a folder of their own.
                folders.extend(below.parent().filter(|_| ours).map(Path::to_path_buf));
                pending.push((below, passed_on.clone()));
            } else if ours {
                let by = path.strip_prefix(build).unwrap_or(&path).display();
                let place = found.map_or("nowhere".to_owned(), |found| format!("at {}", found.display()));
                let why = format!("{by} needs it, and it is found {place}, not below the build folder");
                loaded.faults.push((build.join(name), why));
            }
        }
    }
    for (real, path) in by_name {
        needed.entry(real).or_insert(path);
    }
    loaded.paths = needed.into_values().collect();
    loaded
}

/// Keeps the first name of a real file in sorted order.
fn insert_first(names: &mut BTreeMap<PathBuf, PathBuf>, real: PathBuf, path: &Path) {
    let name = names.entry(real).or_insert_with(|| path.to_path_buf());
    if path < name.as_path() {
        *name = path.to_path_buf();
    }
}

/// The path below the build folder, if the file lies there: as given where possible, so that `libx.so.0` keeps the name
/// it is loaded by.
fn below_build(path: &Path, build: &Path) -> Option<PathBuf> {
    let folder = path.parent()?.canonicalize().ok()?;
    let direct = folder.join(path.file_name()?);
    if direct.starts_with(build) {
        return Some(direct);
    }
    let real = path.canonicalize().ok()?;
    real.starts_with(build).then_some(real)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_elf_is_a_fault_not_a_panic() {
        for bytes in [&b""[..], b"\x7fELF", b"#!/bin/sh\n", &[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0]] {
            assert!(parse(bytes).is_err());
        }
    }

    #[test]
    fn damage_anywhere_in_the_headers_never_panics() {
        let own = std::fs::read("/proc/self/exe").expect("this test runs from a file");
        let whole = parse(own.as_slice()).expect("this test is an ELF file");
        assert!(whole.needed.iter().any(|n| n.starts_with(b"libc.so")), "{whole:?}");
        let mut damaged = own[..own.len().min(8192)].to_vec();
        for i in 0..damaged.len().min(2048) {
            let old = damaged[i];
            for new in [0, 0xff, old ^ 0x80] {
                damaged[i] = new;
                let _ = parse(damaged.as_slice());
            }
            damaged[i] = old;
        }
    }

    #[test]
    fn origin_is_the_folder_of_the_object() {
        assert_eq!(expand(b"$ORIGIN/../lib", Path::new("/b/bin")), Path::new("/b/bin/../lib"));
        assert_eq!(expand(b"${ORIGIN}", Path::new("/b/bin")), Path::new("/b/bin"));
        assert_eq!(expand(b"/opt/lib", Path::new("/b/bin")), Path::new("/opt/lib"));
    }
}
