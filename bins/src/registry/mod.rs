//! The command line of `b70-registry`: identities of artifacts made elsewhere, and of builds.
//!
//! The clap types live here so that man pages and completions are made from the same definitions; what the commands do
//! lives in `b70-admission`.

mod commands;

use std::path::PathBuf;

use b70_cli::{CliError, Global, Output, Ui};
use b70_manifest::Sha256Hex;
use clap::{Args, Parser, Subcommand};

/// Record identities of artifacts made elsewhere, verify them file by file, and take the fingerprint of a build.
///
/// A record never says that a program can load the artifact: a stock llama.cpp cannot bind serialized reordered weights.
#[derive(Debug, Parser)]
#[command(name = "b70-registry", version, after_help = b70_cli::EXIT_CODES)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

b70_cli::has_global!(Cli);

/// The commands.
#[derive(Debug, Subcommand)]
enum Command {
    /// Identify a build: source, binaries, the libraries they load, compiler, host; and say what it may be used for.
    Fingerprint {
        /// Source tree.
        #[arg(long, value_name = "DIR")]
        runtime: PathBuf,
        /// Build folder, the one with CMakeCache.txt.
        #[arg(long, value_name = "DIR")]
        build: PathBuf,
        /// Binary in bin/ of the build folder, or a path below the folder; repeatable [default: llama-server and
        /// test-backend-ops].
        #[arg(long = "binary", value_name = "NAME")]
        binaries: Vec<String>,
        /// End with exit code 1 unless the fingerprint may stand for a recorded pass.
        #[arg(long)]
        require_fit: bool,
    },
    /// Read every byte of an artifact and record its identities. The payload is not copied.
    Register {
        /// File or folder.
        #[arg(long, value_name = "PATH")]
        artifact: PathBuf,
        /// Revision of the packer that made it.
        #[arg(long, value_name = "REV")]
        packer_revision: String,
        /// Name of its layout.
        #[arg(long, value_name = "NAME")]
        layout: String,
        /// Name of the kernel interface it is for.
        #[arg(long, value_name = "NAME")]
        kernel_abi: String,
        /// SHA-256 of the model it was made from [default: the source that the spec names].
        #[arg(long, value_name = "HEX", value_parser = b70_cli::digest, required_unless_present = "spec", conflicts_with = "spec")]
        sha256: Option<Sha256Hex>,
        /// Source tree of the build it was made for.
        #[arg(long, value_name = "DIR", requires = "build")]
        runtime: Option<PathBuf>,
        /// Build folder of the build it was made for.
        #[arg(long, value_name = "DIR", requires = "runtime")]
        build: Option<PathBuf>,
        #[command(flatten)]
        root: RootArgs,
        /// Seconds to wait for another process that registers.
        #[arg(long, value_name = "S", default_value_t = 60)]
        wait: u64,
    },
    /// Read an artifact again and name every file that changed, is missing or is new.
    Verify {
        /// Key of the record.
        #[arg(long, value_name = "KEY", value_parser = b70_cli::digest)]
        pack_key: Sha256Hex,
        #[command(flatten)]
        root: RootArgs,
    },
    /// List the records; nothing of the artifacts is read.
    List {
        #[command(flatten)]
        root: RootArgs,
    },
    /// Show a record.
    Show {
        /// Key of the record.
        #[arg(value_name = "KEY", value_parser = b70_cli::digest)]
        key: Sha256Hex,
        #[command(flatten)]
        root: RootArgs,
    },
    /// Show records whose artifact is gone, and with --execute remove them. Artifacts are never touched.
    Gc {
        #[command(flatten)]
        root: RootArgs,
        /// Carry the plan out.
        #[arg(long)]
        execute: bool,
    },
}

/// Where the records live.
#[derive(Debug, Args)]
pub(crate) struct RootArgs {
    /// Folder of the registry: records lie in its packs [default: the one the spec names, else the artifact root when it has
    /// packs, else registry in it].
    #[arg(long, value_name = "DIR")]
    registry_root: Option<PathBuf>,
    /// Model-pack manifest that names the registry and the source model.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Allow a root inside a Git work tree.
    #[arg(long)]
    allow_in_repo: bool,
}

/// Carries out a parsed command line.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    let context = b70_cli::Context::new(ui)?;
    match cli.command {
        Command::Fingerprint { runtime, build, binaries, require_fit } => {
            commands::fingerprint(&context, &runtime, &build, &binaries, require_fit)
        }
        Command::Register { artifact, packer_revision, layout, kernel_abi, sha256, runtime, build, root, wait } => {
            commands::register(
                &context,
                &root,
                &commands::RegisterArgs {
                    artifact: &artifact,
                    packer_revision: &packer_revision,
                    layout: &layout,
                    kernel_abi: &kernel_abi,
                    sha256,
                    build: runtime.as_deref().zip(build.as_deref()),
                    wait,
                },
            )
        }
        Command::Verify { pack_key, root } => commands::verify(&context, &root, &pack_key),
        Command::List { root } => commands::list(&context, &root),
        Command::Show { key, root } => commands::show(&root, &key),
        Command::Gc { root, execute } => commands::gc(&root, execute),
    }
}
