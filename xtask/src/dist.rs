//! `cargo xtask dist`: what a release hands out: binaries, man pages, completions, schemas, documents, in one tarball
//! and, when asked, one Debian package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::failure::{AtPath, Failure};
use crate::{commands, generated, process};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where the results go [default: target/dist].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also build a Debian package with cargo-deb (`cargo install cargo-deb`).
    #[arg(long)]
    deb: bool,
}

/// What stands in a binary with b70-store's feature `fault`, and in no other.
const FAULT_POINTS: &[u8] = b"B70_FAULT_";

/// The only platform there are binaries for.
const PLATFORM: &str = "x86_64-linux";

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let root = process::workspace_root();
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir));
    let out = args.out.clone().unwrap_or_else(|| target.join("dist"));

    process::run(
        process::cargo().current_dir(&root).args(["build", "--release", "--locked", "--workspace", "--bins"]),
        "mend the build",
    )?;

    let name = format!("b70kit-{}-{PLATFORM}", env!("CARGO_PKG_VERSION"));
    let tree = out.join(&name);
    if tree.exists() {
        fs::remove_dir_all(&tree).at("remove", &tree)?;
    }
    fill(&root, &target.join("release"), &tree)?;

    let tarball = out.join(format!("{name}.tar.gz"));
    pack(&root, &out, &name, &tarball)?;
    report(&tarball)?;

    if args.deb {
        report(&debian(&root, &out, &target)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tree as it is unpacked under a prefix: `bin`, `share`.
fn fill(root: &Path, built: &Path, tree: &Path) -> Result<(), Failure> {
    for command in commands::all() {
        let binary = command.get_name();
        let built = built.join(binary);
        let bytes = fs::read(&built).at("read", &built)?;
        if bytes.windows(FAULT_POINTS.len()).any(|window| window == FAULT_POINTS) {
            return Err(Failure::new(
                format!("{} has the fault points of the tests", built.display()),
                "build it without b70-store's feature `fault`: cargo build --release, no --all-targets",
            ));
        }
        copy(&built, &tree.join("bin").join(binary))?;
    }
    let share = tree.join("share");
    for (name, text) in commands::man_pages() {
        put(&share.join("man/man1").join(name), text.as_bytes())?;
    }
    for (path, text) in commands::completions() {
        put(&share.join(path), &text)?;
    }
    let own = share.join("b70kit");
    for (path, text) in generated::texts(generated::SCHEMAS) {
        put(&own.join("schemas").join(path), text.as_bytes())?;
    }
    let documents = share.join("doc/b70kit");
    for name in ["README.md", "CHANGELOG.md", "ARCHITECTURE.md", "SECURITY.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        copy(&root.join(name), &documents.join(name))?;
    }
    copy_pages(&root.join("docs"), &documents.join("docs"))
}

/// The Markdown pages under `from`, folders included.
fn copy_pages(from: &Path, to: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(from).at("list", from)? {
        let path = entry.at("list", from)?.path();
        let Some(name) = path.file_name() else { continue };
        if path.is_dir() {
            copy_pages(&path, &to.join(name))?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

/// A tarball whose bytes depend on its contents alone: names sorted, owner root, time of the last commit.
fn pack(root: &Path, out: &Path, name: &str, tarball: &Path) -> Result<(), Failure> {
    let time = process::answer(Command::new("git").current_dir(root).args(["log", "-1", "--format=%ct"]))
        .unwrap_or_else(|| "0".to_owned());
    let partial = tarball.with_extension("gz.part");
    process::run(
        Command::new("tar")
            .current_dir(out)
            .args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mode=u+rw,go+r,go-w"])
            .arg(format!("--mtime=@{time}"))
            .args(["--use-compress-program=gzip -n -9", "-cf"])
            .arg(&partial)
            .arg(name),
        "install GNU tar and gzip",
    )?;
    fs::rename(&partial, tarball).at("rename", &partial)
}

/// The Debian package, by cargo-deb from the metadata in `bins/Cargo.toml`.
fn debian(root: &Path, out: &Path, target: &Path) -> Result<PathBuf, Failure> {
    // Found by these paths from the metadata, whatever --out says.
    let staged = target.join("dist/deb");
    if staged.exists() {
        fs::remove_dir_all(&staged).at("remove", &staged)?;
    }
    fill(root, &target.join("release"), &staged)?;
    let package = out.join(format!("b70kit_{}_amd64.deb", env!("CARGO_PKG_VERSION")));
    process::run(
        process::cargo()
            .current_dir(root)
            .args(["deb", "--no-build", "--locked", "-p", "b70kit-bins", "--output"])
            .arg(&package),
        "install the tool once: cargo install cargo-deb --locked",
    )?;
    Ok(package)
}

/// Prints what was made with its size, and writes its SHA-256 beside it.
fn report(file: &Path) -> Result<(), Failure> {
    let bytes = fs::read(file).at("read", file)?;
    let digest = b70_manifest::Sha256Hex::of(&bytes);
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let mut sums = file.as_os_str().to_owned();
    sums.push(".sha256");
    put(Path::new(&sums), format!("{digest}  {name}\n").as_bytes())?;
    println!("{}  {} bytes  sha256 {digest}", file.display(), bytes.len());
    Ok(())
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).at("create", folder)?;
    }
    fs::write(path, bytes).at("write", path)
}

fn copy(from: &Path, to: &Path) -> Result<(), Failure> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).at("create", folder)?;
    }
    fs::copy(from, to).at("copy", from).map(|_| ())
}
