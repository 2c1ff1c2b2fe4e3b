use std::fmt;
use std::path::{Path, PathBuf};

use b70_manifest::{CanonicalError, ErrorReport, Explain, Sha256Hex, exit};
use thiserror::Error;

use crate::layout::LayoutError;

/// Why a pack-set operation was refused or failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PackError {
    /// A model that is not a well-formed, complete GGUF (or a broken set of shards).
    #[error("{0}")]
    Model(String, PathBuf),
    /// An operation on a file or folder failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A refusal of the admission layer.
    #[error(transparent)]
    Store(b70_store::Error),
    /// The name of a plan that is neither built in nor a file.
    #[error("there is no plan {name:?}")]
    UnknownPlan {
        /// What was asked for.
        name: String,
        /// Those that come with the layout.
        known: Vec<&'static str>,
    },
    /// A plan file that breaks a rule of plans.
    #[error("plan {}: {problem}", path.display())]
    PlanFile {
        /// The file.
        path: PathBuf,
        /// Which rule, and how.
        problem: String,
    },
    /// The plan asks for a layout that the packer does not have.
    #[error("plan {plan:?} asks for layout {found}")]
    PlanLayout {
        /// The plan's name.
        plan: String,
        /// The layout it asks for.
        found: String,
        /// The layout at hand.
        expected: String,
    },
    /// The model does not have what the plan requires, or has something that cannot be packed.
    #[error("the model does not fit plan {plan:?}: {}", summary(problems))]
    PlanMismatch {
        /// The plan's name.
        plan: String,
        /// The model.
        path: PathBuf,
        /// Everything that is wrong, one entry a tensor.
        problems: Vec<TensorProblem>,
        /// The layout's plan that takes whatever the model has.
        every: Option<&'static str>,
    },
    /// A plan without exact shapes, where the keys were asked for without the model.
    #[error("plan {plan:?} has no exact shapes, so its keys depend on the model's directory")]
    PlanNotExact {
        /// The plan's name.
        plan: String,
    },
    /// Nothing to pack.
    #[error("plan {plan:?} selects no tensor of {}", path.display())]
    NothingSelected {
        /// The plan's name.
        plan: String,
        /// The model.
        path: PathBuf,
    },
    /// The model's SHA-256 is not the expected one.
    #[error("{} is not the expected model", path.display())]
    ModelHash {
        /// The model.
        path: PathBuf,
        /// What its bytes hash to.
        found: Sha256Hex,
        /// What was asked for.
        expected: Sha256Hex,
    },
    /// `--skip-source-hash` without a record that names this very file.
    #[error("the recorded hash of {} cannot be trusted: {problem}", path.display())]
    RecordedHash {
        /// The model.
        path: PathBuf,
        /// What is missing or differs.
        problem: String,
    },
    /// A document that cannot be read as what it should be.
    #[error("{}: {problem}", path.display())]
    Document {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
        /// Whether the file is not JSON at all.
        not_json: bool,
    },
    /// No set of that key, or no set at all.
    #[error("there is no pack set {what} under {}", root.display())]
    NoSet {
        /// The key, or `at all`.
        what: String,
        /// The cache root.
        root: PathBuf,
    },
    /// A tensor that the set does not hold.
    #[error("the set {set_key} has no tensor {name:?}")]
    NoTensor {
        /// The set.
        set_key: Sha256Hex,
        /// The name asked for.
        name: String,
    },
    /// A set or stage that failed its checks where a usable one is needed.
    #[error("{} is not admitted: {}", path.display(), failures.join(", "))]
    NotAdmitted {
        /// The set's or stage's folder.
        path: PathBuf,
        /// The failure codes.
        failures: Vec<String>,
    },
    /// A set that would have to be repaired, whose documents another tool wrote.
    #[error("{} was written by {tool} and is not repaired unasked; nothing of it was changed", path.display())]
    OtherTool {
        /// The set's folder.
        path: PathBuf,
        /// The tool, as the set names it.
        tool: String,
        /// What is wrong with the set.
        found: String,
        /// What a ready set would have.
        expected: String,
    },
    /// A look-up whose contract fields differ from the set's.
    #[error("tensor {name:?}: {field} is {found}, the loader expects {expected}")]
    Contract {
        /// The tensor.
        name: String,
        /// Which field of the contract.
        field: &'static str,
        /// The set's value.
        found: String,
        /// The loader's value.
        expected: String,
    },
    /// A payload whose bytes do not hash to what the set records.
    #[error("the payload of {name:?} does not have its recorded digest")]
    PayloadDigest {
        /// The tensor.
        name: String,
        /// Digest of the bytes.
        found: Sha256Hex,
        /// Digest in the set.
        expected: Sha256Hex,
    },
    /// A shape or buffer the layout refuses.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// An identity without a canonical form.
    #[error(transparent)]
    Canonical(#[from] CanonicalError),
    /// The caller asked to stop.
    #[error("interrupted; what was finished is kept and the next run continues")]
    Cancelled,
}

impl From<b70_store::Error> for PackError {
    fn from(error: b70_store::Error) -> Self {
        if error.is_cancelled() { Self::Cancelled } else { Self::Store(error) }
    }
}

impl PackError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_path_buf(), source }
    }

    pub(crate) fn document(path: &Path, problem: impl Into<String>) -> Self {
        Self::Document { path: path.to_path_buf(), problem: problem.into(), not_json: false }
    }
}

fn summary(problems: &[TensorProblem]) -> String {
    const SHOWN: usize = 3;
    let mut text = problems.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    if problems.len() > SHOWN {
        text.push_str(&format!("; and {} more", problems.len() - SHOWN));
    }
    text
}

/// Something that keeps a plan from being carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorProblem {
    /// The model has no such tensor.
    Missing {
        /// The name the plan asks for.
        name: String,
        /// Its slot.
        slot: u64,
    },
    /// The tensor has another type than the layout packs.
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
        /// The layout's type.
        expected: String,
    },
    /// The tensor has another shape than the plan asks for, or one that the layout cannot take.
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// The name cannot stand in a runtime index.
    Name {
        /// The name, escaped.
        name: String,
    },
}

impl fmt::Display for TensorProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { name, slot } => write!(f, "{name} (slot {slot}) is missing"),
            Self::Type { name, found, expected } => write!(f, "{name} has type {found}, expected {expected}"),
            Self::Shape { name, found, expected } => write!(f, "{name} has shape {found}, expected {expected}"),
            Self::Name { name } => {
                write!(
                    f,
                    "the name {name} has a tab, newline or other control character, which a runtime index cannot hold"
                )
            }
        }
    }
}

impl Explain for PackError {
    fn report(&self) -> ErrorReport {
        let report = |kind: &str| ErrorReport::new(kind, self.to_string());
        match self {
            Self::Model(_, path) => report("not-a-valid-gguf").path(path),
            Self::Io { path, .. } => report("io").path(path),
            Self::Store(error) => error.report(),
            Self::UnknownPlan { name, known } => report("unknown-plan")
                .found(name)
                .expected(format!("{}, or the path of a plan file", known.join(", "))),
            Self::PlanFile { path, .. } => {
                report("plan-file").path(path).hint("docs/formats/pack-set.md describes plan files")
            }
            Self::PlanLayout { found, expected, .. } => report("plan-layout").found(found).expected(expected),
            Self::PlanMismatch { path, problems, every, .. } => report("plan-mismatch")
                .path(path)
                .found(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
                .expected("every tensor the plan names, with its shape and type")
                .hint(every.map_or("name another plan".to_owned(), |every| {
                    format!("use --plan {every} to pack what the model has, or name another plan")
                })),
            Self::PlanNotExact { .. } => {
                report("plan-not-exact").hint("run inspect or prepare with the model, or use a plan with exact shapes")
            }
            Self::NothingSelected { path, .. } => report("nothing-selected")
                .path(path)
                .hint("inspect the model: that lists every tensor with the reason it was left out"),
            Self::ModelHash { path, found, expected } => report("model-sha256").path(path).found(found).expected(expected).hint(
                "the file is another model, or damaged: fetch it again, or correct the expected hash if the model was replaced on purpose",
            ),
            Self::RecordedHash { path, .. } => {
                report("recorded-hash").path(path).hint("leave --skip-source-hash out; the model is then hashed")
            }
            Self::Document { path, .. } => report("document").path(path),
            Self::NoSet { root, .. } => {
                report("no-set").path(root).hint("list the sets, or prepare one")
            }
            Self::NoTensor { .. } => report("no-tensor").hint("verify the set: the report lists its tensors"),
            Self::NotAdmitted { path, failures } => report("not-admitted")
                .path(path)
                .found(failures.join(", "))
                .hint("verify the set deeply to see the damage; prepare it again to repair it"),
            Self::OtherTool { path, found, expected, .. } => report("other-tool").path(path).found(found).expected(expected).hint(
                "let the tool that wrote the set repair it, use another --cache-root, or let prepare --force replace what is damaged",
            ),
            Self::Contract { found, expected, .. } => report("loader-contract").found(found).expected(expected),
            Self::PayloadDigest { found, expected, .. } => report("payload-sha256")
                .found(found)
                .expected(expected)
                .hint("prepare the set again: that packs the damaged tensor again"),
            Self::Layout(_) => report("layout"),
            Self::Canonical(_) => report("canonical"),
            Self::Cancelled => report("interrupted"),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::PlanMismatch { .. }
            | Self::PlanNotExact { .. }
            | Self::NothingSelected { .. }
            | Self::ModelHash { .. }
            | Self::RecordedHash { .. }
            | Self::NotAdmitted { .. }
            | Self::OtherTool { .. }
            | Self::Contract { .. }
            | Self::PayloadDigest { .. }
            | Self::Document { not_json: false, .. } => exit::CHECK_FAILED,
            Self::Store(error) => error.exit_code(),
            Self::Cancelled => exit::INTERRUPTED,
            _ => exit::USAGE,
        }
    }
}
