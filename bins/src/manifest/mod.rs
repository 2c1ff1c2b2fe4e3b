//! The command line of `b70-manifest`: kinds of documents, their schemas, validation, editor help, migration.

use std::path::{Path, PathBuf};

use b70_cli::{CliError, EXIT_CODES, Global, Output, Style, Ui};
use b70_manifest::document::{Kind, KindList};
use b70_manifest::{editor, exit, migrate, schema, validate};
use clap::{Parser, Subcommand};
use serde_json::json;

/// Documents of b70kit: list, schema, validate, editor association, migration.
#[derive(Debug, Parser)]
#[command(name = "b70-manifest", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub struct Cli {
    /// Flags every command has.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the kinds of documents.
    List,
    /// Print the JSON Schema (draft-07) of a kind, or write them all.
    Schema {
        /// Kind of document.
        #[arg(value_parser = kind, required_unless_present = "all", conflicts_with = "all")]
        kind: Option<Kind>,
        /// Write every schema into --out.
        #[arg(long, requires = "out")]
        all: bool,
        /// Folder to write into.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Check documents: every error of a file at once, with pointer, line and column; several files also against each other.
    Validate {
        /// Files to check.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Kind of every file, when it cannot be told from the content.
        #[arg(long, value_parser = kind)]
        kind: Option<Kind>,
    },
    /// Print the association of schemas and file names for VS Code, or write it into the workspace.
    Vscode {
        /// Add to .vscode/settings.json and write the schemas beside it.
        #[arg(long)]
        write: bool,
    },
    /// Bring a version 1 document to the current version, without loss.
    Migrate {
        /// The document.
        file: PathBuf,
        /// Where to write it; printed otherwise. May be the document itself.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

b70_cli::has_global!(Cli);

fn kind(name: &str) -> Result<Kind, String> {
    Kind::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        format!("not a kind of document; known are {}", names.join(", "))
    })
}

/// Carries a command out.
pub fn run(cli: Cli, ui: &Ui) -> Result<Output, CliError> {
    match cli.command {
        Command::List => list(ui),
        Command::Schema { kind: Some(kind), out, .. } => one_schema(kind, out.as_deref()),
        Command::Schema { kind: None, out, .. } => every_schema(out.as_deref().unwrap_or(Path::new("."))),
        Command::Validate { files, kind } => check(&files, kind, ui),
        Command::Vscode { write } => vscode(write, ui),
        Command::Migrate { file, out } => bring_forward(&file, out.as_deref(), ui),
    }
}

fn list(ui: &Ui) -> Result<Output, CliError> {
    let list = KindList::every();
    let mut text = String::new();
    for entry in &list.kinds {
        let name = ui.paint(Style::Strong, &format!("{:24}", entry.kind.as_str()));
        text.push_str(&format!("{name} {}\n", entry.about));
        text.push_str(&format!("{:24} {}\n", "", ui.paint(Style::Dim, &entry.file_patterns.join(" "))));
    }
    Output::ok(&list, text)
}

fn one_schema(kind: Kind, out: Option<&Path>) -> Result<Output, CliError> {
    let schema = schema::of(kind);
    let Some(folder) = out else { return Output::ok(schema, schema::text(schema)) };
    editor::write_schemas(folder, &[(kind.schema_file(), schema.clone())])?;
    wrote(folder, &[kind.schema_file()])
}

fn every_schema(folder: &Path) -> Result<Output, CliError> {
    let entries = schema::all();
    editor::write_schemas(folder, &entries)?;
    let names: Vec<String> = entries.into_iter().map(|(name, _)| name).collect();
    wrote(folder, &names)
}

fn wrote(folder: &Path, names: &[String]) -> Result<Output, CliError> {
    let document = json!({ "schema_version": 1, "folder": folder.display().to_string(), "files": names });
    Output::ok(&document, format!("wrote {} files to {}", names.len(), folder.display()))
}

fn check(files: &[PathBuf], kind: Option<Kind>, ui: &Ui) -> Result<Output, CliError> {
    let result = validate::check_files(files, kind);
    let mut text = String::new();
    for file in &result.files {
        let kind = file.kind.map_or("unknown kind", Kind::as_str);
        if file.valid {
            text.push_str(&format!("{}: {} ({kind})\n", file.path, ui.paint(Style::Good, "valid")));
            continue;
        }
        let count = match file.errors.len() {
            1 => "1 error".to_owned(),
            count => format!("{count} errors"),
        };
        text.push_str(&format!("{}: {} ({kind})\n", file.path, ui.paint(Style::Bad, &count)));
        for problem in &file.errors {
            let place = match (problem.line, problem.column) {
                (Some(line), Some(column)) => format!("{}:{line}:{column}", file.path),
                _ => file.path.clone(),
            };
            text.push_str(&format!("  {} {}\n", ui.paint(Style::Strong, &place), problem.pointer));
            text.push_str(&format!("      {}\n", problem.message));
            if !problem.message.contains(&problem.expected) {
                text.push_str(&format!("      found {}, expected {}\n", problem.found, problem.expected));
            }
        }
    }
    Output::new(&result, text, result.exit_code())
}

fn vscode(write: bool, ui: &Ui) -> Result<Output, CliError> {
    let result = editor::write_vscode(Path::new("."), write)?;
    let text = if write {
        format!(
            "{}: {} added, {} kept; schemas in {}\n",
            result.settings,
            result.added.len(),
            result.kept.len(),
            result.schemas
        )
    } else {
        ui.note(&format!(
            "for .vscode/settings.json; the schemas: b70-manifest schema --all --out {}; both at once: b70-manifest vscode --write",
            editor::SCHEMA_FOLDER
        ));
        schema::text(&json!({ "json.schemas": editor::associations(editor::SCHEMA_FOLDER) }))
    };
    Output::ok(&result, text)
}

fn bring_forward(file: &Path, out: Option<&Path>, ui: &Ui) -> Result<Output, CliError> {
    let migration = migrate::migrate_file(file)?;
    let mut remarks = match migration.changes.len() {
        0 => format!("{}: version {} is current, nothing changes", file.display(), migration.to),
        _ => format!("{}: version {} becomes {}", file.display(), migration.from, migration.to),
    };
    for change in &migration.changes {
        remarks.push_str(&format!("\n  {}: {}", change.pointer, change.what));
    }
    let output = Output::new(&migration.output(file), migration.text(), exit::OK)?;
    if let Some(path) = out {
        migration.write(path)?;
        return Ok(Output { text: format!("{remarks}\nwrote {}", path.display()), ..output });
    }
    ui.note(&remarks);
    Ok(output)
}
