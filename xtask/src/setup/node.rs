//! The JSON language service that editors use, to check the schemas as an editor would.

use std::path::PathBuf;
use std::process::Command;

use super::say;
use crate::cache::Cache;
use crate::failure::Failure;
use crate::process;

const PACKAGE: &str = "vscode-json-languageservice@5.7.2";

/// A folder in which `require("vscode-json-languageservice")` resolves.
pub(super) fn json_language_service(cache: &Cache) -> Result<PathBuf, Failure> {
    let _lock = cache.lock("node")?;
    let folder = cache.path("node");
    if Cache::is_done(&folder, PACKAGE) && folder.join("node_modules/vscode-json-languageservice").is_dir() {
        return Ok(folder);
    }
    say(&format!("{PACKAGE} into {}", folder.display()));
    let folder = cache.fresh("node")?;
    process::run(
        Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix"])
            .arg(&folder)
            .arg(PACKAGE)
            .current_dir(&folder),
        "install Node.js 18 or newer with npm (Debian, Ubuntu: apt-get install nodejs npm) and check that npm reaches its \
         registry",
    )?;
    Cache::mark_done(&folder, PACKAGE)?;
    Ok(folder)
}
