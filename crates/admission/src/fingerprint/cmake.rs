//! What `CMake` wrote down: `CMakeCache.txt`, and the compiler it found.

use std::collections::BTreeMap;
use std::path::Path;

use b70_store::{Sha256, open_source, read_bounded};

use crate::documents::Known;

/// The largest file of `CMake`'s that is read.
const MAX_BYTES: u64 = 16 << 20;

/// The entries of a `CMakeCache.txt`, `NAME:TYPE=VALUE` each.
#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: BTreeMap<String, String>,
    digest: Option<Known<Sha256>>,
}

fn read(path: &Path) -> Result<Option<String>, String> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = open_source(path).and_then(|file| read_bounded(&file, path, MAX_BYTES)).map_err(|e| e.to_string())?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

impl Cache {
    /// Reads the cache of a build folder; a folder without one has an absent digest and no entries.
    pub(super) fn read(build: &Path) -> Result<Self, String> {
        let Some(text) = read(&build.join("CMakeCache.txt"))? else {
            return Ok(Self { entries: BTreeMap::new(), digest: Some(Known::Absent) });
        };
        let entries = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.starts_with("//"))
            .filter_map(|line| {
                let (key, value) = line.split_once('=')?;
                let (name, _) = key.rsplit_once(':')?;
                Some((name.trim_matches('"').to_owned(), value.to_owned()))
            })
            .collect();
        Ok(Self { entries, digest: Some(Known::Value(Sha256::of(text.as_bytes()))) })
    }

    pub(super) fn digest(&self) -> Known<Sha256> {
        self.digest.clone().unwrap_or_default()
    }

    /// Whether nothing is known of how the build was configured.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(String::as_str)
    }

    /// The first of these entries that is set; absent when the cache was read and has none; unknown without a cache.
    pub(super) fn known(&self, names: &[&str]) -> Result<Known<String>, String> {
        let value = names.iter().find_map(|name| self.get(name).filter(|value| !value.is_empty()));
        match value {
            Some(value) => Ok(Known::Value(value.to_owned())),
            None if self.is_empty() => Err("there is no CMakeCache.txt to read it from".to_owned()),
            None => Ok(Known::Absent),
        }
    }

    /// The compiler's version: `CMake` keeps it in `CMakeFiles/<its version>/CMakeCXXCompiler.cmake`.
    pub(super) fn compiler_version(&self, build: &Path) -> Result<Known<String>, String> {
        if let Some(version) = self.get("CMAKE_CXX_COMPILER_VERSION").filter(|v| !v.is_empty()) {
            return Ok(Known::Value(version.to_owned()));
        }
        let part = |name: &str| {
            self.get(name).filter(|v| !v.is_empty() && v.bytes().all(|b| b.is_ascii_digit())).map(str::to_owned)
        };
        let version =
            [part("CMAKE_CACHE_MAJOR_VERSION"), part("CMAKE_CACHE_MINOR_VERSION"), part("CMAKE_CACHE_PATCH_VERSION")];
        let Some(version) = version.into_iter().collect::<Option<Vec<_>>>().map(|parts| parts.join(".")) else {
            return Err("CMakeCache.txt does not say which CMake wrote it".to_owned());
        };
        let folders = build.join("CMakeFiles");
        // A release candidate has a suffix that the cache does not record.
        let candidates = std::fs::read_dir(&folders).map_err(|e| format!("{}: {e}", folders.display()))?;
        for folder in candidates.flatten() {
            let name = folder.file_name();
            let name = name.to_string_lossy();
            if name != version && !name.starts_with(&format!("{version}-")) {
                continue;
            }
            let Some(text) = read(&folder.path().join("CMakeCXXCompiler.cmake"))? else { continue };
            let set = |key: &str| {
                text.lines().find_map(|line| {
                    line.trim()
                        .strip_prefix("set(")?
                        .strip_prefix(key)?
                        .trim()
                        .strip_suffix(')')
                        .map(|v| v.trim_matches('"').to_owned())
                })
            };
            if let Some(version) = set("CMAKE_CXX_COMPILER_VERSION ").filter(|v| !v.is_empty()) {
                let id = set("CMAKE_CXX_COMPILER_ID ").unwrap_or_default();
                return Ok(Known::Value(format!("{id} {version}").trim().to_owned()));
            }
        }
        Err(format!("no CMakeCXXCompiler.cmake of CMake {version} below {}", folders.display()))
    }

    /// Whether the folder was configured for this source tree; true when it does not say.
    pub(super) fn is_of(&self, source: &Path) -> bool {
        self.get("CMAKE_HOME_DIRECTORY")
            .is_none_or(|home| Path::new(home).canonicalize().is_ok_and(|home| home == source))
    }
}
