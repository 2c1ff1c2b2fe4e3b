use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use b70_manifest::{ErrorReport, exit};
use clap::Parser;
use clap::error::ErrorKind;
use serde::Serialize;
use serde_json::Value;

use crate::interrupt::outlive_file_size_limit;
use crate::{CliError, HasGlobal, Style, Ui};

/// What a command ends with.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// The document `--json` prints.
    pub document: Value,
    /// The same for people.
    pub text: String,
    /// The exit code, one of [`b70_manifest::exit`].
    pub exit: u8,
}

impl Output {
    /// An output with exit code `exit`.
    pub fn new<T: Serialize + ?Sized>(document: &T, text: impl Into<String>, exit: u8) -> Result<Self, CliError> {
        let document = serde_json::to_value(document)
            .map_err(|error| CliError::usage("internal", format!("the result cannot be written as JSON: {error}")))?;
        Ok(Self { document, text: text.into(), exit })
    }

    /// An output with exit code 0.
    pub fn ok<T: Serialize + ?Sized>(document: &T, text: impl Into<String>) -> Result<Self, CliError> {
        Self::new(document, text, exit::OK)
    }
}

/// Parses the process's arguments, runs `command`, prints its output or error, and returns the exit code.
pub fn run<C: Parser + HasGlobal>(command: impl FnOnce(C, &Ui) -> Result<Output, CliError>) -> ExitCode {
    run_from(std::env::args_os(), command)
}

/// The same with given arguments, the program's name first.
pub fn run_from<C: Parser + HasGlobal>(
    arguments: impl IntoIterator<Item = impl Into<OsString>>,
    command: impl FnOnce(C, &Ui) -> Result<Output, CliError>,
) -> ExitCode {
    outlive_file_size_limit();
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let parsed = match C::try_parse_from(&arguments) {
        Ok(parsed) => parsed,
        Err(error) => return usage(&error, &arguments),
    };
    let ui = Ui::new(parsed.global());
    let code = match command(parsed, &ui) {
        Ok(output) => {
            let text = if ui.json() { pretty(&output.document) } else { output.text };
            if let Err(error) = print(&text) {
                // A closed pipe is the reader's choice; anything else is ours to report.
                if error.kind() != io::ErrorKind::BrokenPipe {
                    ui.note(&format!("standard output cannot be written: {error}"));
                    return ExitCode::from(exit::USAGE);
                }
            }
            output.exit
        }
        Err(error) => {
            show_error(&ui, &error.report);
            error.exit
        }
    };
    ExitCode::from(code)
}

fn usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let informative = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if informative {
        // Nothing can be done about a closed standard output here.
        let _ = error.print();
        return ExitCode::from(exit::OK);
    }
    if arguments.iter().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        let message = text.trim().trim_start_matches("error: ").to_owned();
        let _ = print(&envelope(&ErrorReport::new("usage", message)));
    } else {
        let _ = error.print();
    }
    ExitCode::from(exit::USAGE)
}

fn show_error(ui: &Ui, report: &ErrorReport) {
    if ui.json() {
        let _ = print(&envelope(report));
        return;
    }
    let mut text = format!("{} {}", ui.paint_error(Style::Bad, "error:"), report.message);
    for (label, value) in [("found", &report.found), ("expected", &report.expected), ("next", &report.hint)] {
        if let Some(value) = value {
            text.push_str(&format!("\n  {label}: {value}"));
        }
    }
    ui.error(&text);
}

fn envelope(report: &ErrorReport) -> String {
    pretty(&serde_json::json!({ "schema_version": 1, "error": report }))
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
}

fn print(text: &str) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        out.write_all(b"\n")?;
    }
    out.flush()
}
