//! The command line of `b70-tour`: the whole lane on a small generated model, no GPU needed.
//!
//! The tour is a scripted example: each step calls the same library functions as the binaries, checks what they promise,
//! and says what it proved. A step that proves something false ends the tour with exit code 1.

mod model;
mod page;
mod report;
mod steps;

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use b70_cli::{CliError, Global, Output, Ui, default_root, exit};
use b70_store::{RelPath, Root, RootKind, replace_bytes};
use clap::Parser;

pub use report::{Report, StepRow};

/// The whole lane on a small generated model: packs, RAM, registry, fixtures, servers. No GPU needed.
#[derive(Debug, Parser)]
#[command(name = "b70-tour", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    /// Keep the files here instead of in a temporary folder; the folder must not exist or be empty.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Where the page goes [default: tour.html in the folder of --keep, else in the state folder]
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The llama-server for the steps with real servers [default: the one on PATH]
    #[arg(long, value_name = "FILE", env = "B70_LLAMA_SERVER", conflicts_with = "no_servers")]
    llama_server: Option<PathBuf>,
    /// Leave out the steps with real servers.
    #[arg(long)]
    no_servers: bool,
}

b70_cli::has_global!(Cli);

/// Runs the tour.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    let workspace = Workspace::create(cli.keep)?;
    let ram = Ram::create(workspace.path())?;
    let server = if cli.no_servers { None } else { cli.llama_server.or_else(on_path) };
    let report = steps::run(workspace.path(), ram.path(), server.as_deref(), ui)?;
    let code = if report.passed { exit::OK } else { exit::CHECK_FAILED };
    let page = match (cli.html, workspace.kept()) {
        (Some(path), _) => path,
        (None, Some(kept)) => kept.join("tour.html"),
        (None, None) => default_root(RootKind::State)?.join("tour.html"),
    };
    let page = publish(&page, &page::html(&report))?;
    let text = report.text(ui, workspace.kept(), Some(&page));
    Output::new(&report, text, code)
}

/// The llama-server that a shell would start.
fn on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join("llama-server")).find(|file| file.is_file())
}

/// Writes the page whole or not at all, over an older one.
fn publish(path: &Path, page: &str) -> Result<PathBuf, CliError> {
    let path = std::path::absolute(path).map_err(|error| CliError::io(path, &error))?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(CliError::usage("usage", format!("{} names no file", path.display())).path(&path));
    };
    std::fs::create_dir_all(folder).map_err(|error| CliError::io(folder, &error))?;
    replace_bytes(&Root::open(folder)?, &RelPath::new(name)?, page.as_bytes(), 0o644)?;
    Ok(path)
}

/// The tour's folder in RAM; without a usable /dev/shm, one in its folder on disk.
enum Ram {
    Memory(tempfile::TempDir),
    Disk(PathBuf),
}

impl Ram {
    fn create(folder: &Path) -> Result<Self, CliError> {
        if let Ok(memory) = tempfile::Builder::new().prefix("b70-tour-").tempdir_in("/dev/shm") {
            return Ok(Self::Memory(memory));
        }
        let path = folder.join("ram");
        std::fs::DirBuilder::new().mode(0o700).create(&path).map_err(|error| CliError::io(&path, &error))?;
        Ok(Self::Disk(path))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Memory(folder) => folder.path(),
            Self::Disk(path) => path,
        }
    }
}

/// The tour's folder: temporary, or the user's.
enum Workspace {
    Temporary(tempfile::TempDir),
    Kept(PathBuf),
}

impl Workspace {
    fn create(keep: Option<PathBuf>) -> Result<Self, CliError> {
        let Some(path) = keep else {
            let temporary = tempfile::Builder::new().prefix("b70-tour-").tempdir();
            return temporary
                .map(Self::Temporary)
                .map_err(|error| CliError::io(&std::env::temp_dir(), &error).hint("set TMPDIR to a writable folder"));
        };
        std::fs::create_dir_all(&path).map_err(|error| CliError::io(&path, &error))?;
        let mut entries = std::fs::read_dir(&path).map_err(|error| CliError::io(&path, &error))?;
        if entries.next().is_some() {
            return Err(CliError::usage("not-empty", format!("{} is not empty", path.display()))
                .path(&path)
                .hint("name a folder that does not exist yet"));
        }
        Ok(Self::Kept(path))
    }

    fn path(&self) -> &Path {
        match self {
            Self::Temporary(folder) => folder.path(),
            Self::Kept(path) => path,
        }
    }

    fn kept(&self) -> Option<&Path> {
        match self {
            Self::Temporary(_) => None,
            Self::Kept(path) => Some(path),
        }
    }
}
