use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use thiserror::Error;

use super::Kind;
use crate::report::{ErrorReport, Explain};
use crate::validate::{FileReport, check_text};
use crate::{artifact, calibration, exit, golden, model_pack, pack, state, workers};

/// A type that is the content of a kind of document.
pub trait Document: DeserializeOwned {
    /// The kind.
    const KIND: Kind;
}

macro_rules! documents {
    ($($type:ty => $kind:ident),+ $(,)?) => {
        $(impl Document for $type {
            const KIND: Kind = Kind::$kind;
        })+

        /// Reads the text into the kind's type and forgets it: what the schema lets through must also be readable.
        pub(crate) fn is_readable(kind: Kind, text: &str) -> Result<(), serde_json::Error> {
            match kind {
                $(Kind::$kind => serde_json::from_str::<$type>(text).map(drop),)+
            }
        }
    };
}

documents! {
    workers::Workers => Workers,
    model_pack::ModelPackManifest => ModelPackManifest,
    golden::GoldenCorpusManifest => GoldenCorpusManifest,
    pack::PackPlan => PackPlan,
    calibration::CalibrationSuite => CalibrationSuite,
    pack::PackSet => PackSet,
    pack::TensorPack => TensorPack,
    artifact::DeepValidationV1 => DeepValidation,
    artifact::Receipt => Receipt,
    pack::RamStage => RamStage,
    artifact::CacheEntry => CacheEntry,
    artifact::RegistryRecord => RegistryRecord,
    artifact::Fingerprint => Fingerprint,
    golden::GoldenSet => GoldenSet,
    golden::FocusedResult => FocusedResult,
    golden::LabFocusedResult => LabFocusedResult,
    calibration::CalibrationResult => CalibrationResult,
    calibration::CalibrationRun => CalibrationRun,
    calibration::LabCalibrationResult => LabCalibrationResult,
    calibration::Comparison => Comparison,
    state::WorkerIdentity => WorkerIdentity,
    state::LabWorkerIdentity => LabWorkerIdentity,
    state::StatusDocument => WorkerStatus,
}

/// A document that could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The document is not JSON, or not valid; every error is listed.
    #[error("{}", summary(report))]
    Invalid {
        /// What is wrong with it.
        report: Box<FileReport>,
    },
}

fn summary(report: &FileReport) -> String {
    let mut text = match report.errors.len() {
        1 => format!("{}: not a valid document", report.path),
        count => format!("{}: not a valid document, {count} errors", report.path),
    };
    for problem in &report.errors {
        text.push_str(&format!("\n  {problem}"));
    }
    text
}

impl Explain for DocumentError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Io { path, .. } => {
                ErrorReport::new("unreadable", self.to_string()).path(path).hint("name a readable file")
            }
            Self::Invalid { report } => {
                let mut explained = ErrorReport::new("invalid-document", self.to_string()).path(&report.path);
                if let [only] = report.errors.as_slice() {
                    explained = explained.found(&only.found).expected(&only.expected);
                }
                explained.hint("validate the document: that shows every error with its place")
            }
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Io { .. } => exit::USAGE,
            Self::Invalid { report } => report.exit_code(),
        }
    }
}

/// The largest document that is read, in bytes; calibrations with every raw offset have a few million.
pub const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// The bytes of a document: of a regular file, which answers at once and ends, and no more than a document may have
/// ([`MAX_DOCUMENT_BYTES`]).
///
/// Errors: `InvalidInput` for anything else, such as a FIFO, which is not opened.
pub fn read_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let refused = |why: String| std::io::Error::new(std::io::ErrorKind::InvalidInput, why);
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(refused("not a regular file".into()));
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(refused(format!("{} bytes, a document has at most {MAX_DOCUMENT_BYTES}", metadata.len())));
    }
    Ok(bytes)
}

/// Reads a document of kind `T` of at most [`MAX_DOCUMENT_BYTES`], with every error at once.
pub fn read<T: Document>(path: &Path) -> Result<T, DocumentError> {
    let bytes = read_bytes(path).map_err(|source| DocumentError::Io { path: path.to_owned(), source })?;
    let (report, text) = crate::validate::check_bytes(path, &bytes, Some(T::KIND));
    parse(report, text.unwrap_or_default())
}

/// Reads a document of kind `T` from text; `path` is how errors call it.
///
/// ```
/// use b70_manifest::document::read_text;
/// use b70_manifest::pack::PackPlan;
/// let error = read_text::<PackPlan>("plan.json", r#"{"schema_version": 1, "nam": "x"}"#).unwrap_err();
/// assert!(error.to_string().contains("did you mean \"name\"?"), "{error}");
/// ```
pub fn read_text<T: Document>(path: impl AsRef<Path>, text: &str) -> Result<T, DocumentError> {
    parse(check_text(path.as_ref(), text, Some(T::KIND)), text)
}

fn parse<T: Document>(mut report: FileReport, text: &str) -> Result<T, DocumentError> {
    if report.valid {
        match serde_json::from_str(text) {
            Ok(document) => return Ok(document),
            Err(error) => report.unreadable(&error),
        }
    }
    Err(DocumentError::Invalid { report: Box::new(report) })
}
