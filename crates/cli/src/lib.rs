//! What all b70kit binaries share: global flags, the way a result or an error is printed, exit codes.
//!
//! A binary's `main` is one call of [`run`]: it parses the command line, hands the parsed value and a [`Ui`] to the
//! binary's own function, prints what that returns and gives the exit code. With `--json` standard output carries exactly
//! one JSON document, for errors too (`{"error": {…}}`); everything meant for people goes to standard error then.
//!
//! # Vocabulary
//! - *output*: what a command ends with: a JSON document, the same as text, and an exit code.
//! - *error envelope*: the JSON form of an error, [`b70_manifest::ErrorReport`] under the key `error`.
//!
//! # Example
//! ```
//! use b70_cli::{CliError, Global, Output, Ui};
//! use clap::Parser;
//!
//! #[derive(Parser)]
//! #[command(name = "demo", version, after_help = b70_cli::EXIT_CODES)]
//! struct Demo {
//!     #[command(flatten)]
//!     global: Global,
//! }
//!
//! b70_cli::has_global!(Demo);
//!
//! fn demo(_: Demo, _: &Ui) -> Result<Output, CliError> {
//!     Output::ok(&serde_json::json!({"schema_version": 1}), "all is well")
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     b70_cli::run_from(["demo"], demo)
//! }
//! ```
//!
//! # Limits
//! Used by binaries alone: libraries return typed errors and never print.
#![forbid(unsafe_code)]

mod context;
mod error;
mod interrupt;
mod output;
mod progress;
mod ui;
mod values;

pub use b70_manifest::exit;
pub use b70_manifest::exit::HELP as EXIT_CODES;
pub use context::{Context, default_root, uid, usable_root};
pub use error::CliError;
pub use interrupt::interrupt_flag;
pub use output::{Output, run, run_from};
pub use progress::ByteProgress;
pub use ui::{ColorChoice, Global, HasGlobal, Style, Ui, bytes_text, seconds_text, shown};
pub use values::{digest, size};
