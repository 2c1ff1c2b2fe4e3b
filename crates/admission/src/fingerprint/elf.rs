//! Which libraries of the build folder a binary loads, by reading ELF headers as the dynamic loader does: `DT_NEEDED`,
//! looked up in `DT_RPATH` (the loaders' too) or `DT_RUNPATH`, `$ORIGIN` and all. Nothing is executed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use object::read::elf::{Dyn as _, FileHeader, ProgramHeader as _};
use object::{Endianness, ReadCache, ReadRef, StringTable, elf};

/// Libraries that are looked at: a build has some ten.
const LIMIT: usize = 4096;

/// The libraries, by the path under which the loader opens them, sorted; and files that could not be read as ELF.
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
    let file = File::open(path).map_err(|e| e.to_string())?;
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

/// All libraries below `build` that `binaries` load. `modules`: also the `libggml-*.so` beside them, which a build with
/// `GGML_BACKEND_DL` opens by name at run time and no header mentions.
pub(super) fn libraries(binaries: &[PathBuf], build: &Path, modules: bool) -> Loaded {
    let mut loaded = Loaded::default();
    let mut seen = BTreeSet::new();
    // Each object with the `DT_RPATH` folders it inherits from those that load it.
    let mut pending: Vec<(PathBuf, Vec<PathBuf>)> = binaries.iter().map(|b| (b.clone(), Vec::new())).collect();
    if modules {
        let folders: BTreeSet<&Path> = binaries.iter().filter_map(|b| b.parent()).collect();
        for folder in folders {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if name.starts_with("libggml-") && name.ends_with(".so") && entry.path().is_file() {
                    loaded.paths.insert(entry.path());
                    pending.push((entry.path(), Vec::new()));
                }
            }
        }
    }
    while let Some((path, inherited)) = pending.pop() {
        if !seen.insert(path.clone()) || seen.len() > LIMIT {
            continue;
        }
        let dynamic = match read(&path) {
            Ok(dynamic) => dynamic,
            Err(why) => {
                loaded.faults.push((path, why));
                continue;
            }
        };
        // The loader takes the folder of the path it was given, with links resolved for the program itself; in a build
        // folder both lie side by side.
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
            if let Some(found) = found
                && let Some(below) = below_build(&found, build)
            {
                loaded.paths.insert(below.clone());
                pending.push((below, passed_on.clone()));
            }
        }
    }
    loaded
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
