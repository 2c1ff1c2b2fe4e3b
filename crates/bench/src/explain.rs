//! How this crate's errors end a binary.

use b70_client::{ClientError, ErrorKind};
use b70_manifest::{ErrorReport, Explain, exit};

use crate::calibrate::CalibrateError;
use crate::compare::CompareError;
use crate::export::ExportError;
use crate::load::LoadError;
use crate::suite::SuiteError;

fn client(error: &ClientError) -> ErrorReport {
    ErrorReport::new(error.code().replace('_', "-"), error.to_string())
}

impl Explain for CalibrateError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Invalid { found, expected, .. } => {
                ErrorReport::new("invalid-calibration", self.to_string()).found(found).expected(expected)
            }
            Self::Blocked { .. } => ErrorReport::new("blocked", self.to_string())
                .hint("run it with --dry-run to see the plan with every reason"),
            Self::Interrupted => ErrorReport::new("interrupted", self.to_string()),
            Self::Publish(error) => error.report(),
            Self::Client(error) => client(error),
            Self::Config(error) => error.report(),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Interrupted => exit::INTERRUPTED,
            Self::Blocked { timed_out: true, .. } => exit::TIMEOUT,
            Self::Blocked { .. } => exit::CHECK_FAILED,
            Self::Publish(error) => error.exit_code(),
            Self::Client(error) if matches!(error.kind(), ErrorKind::Cancelled) => exit::INTERRUPTED,
            Self::Invalid { .. } | Self::Client(_) => exit::USAGE,
            Self::Config(error) => error.exit_code(),
        }
    }
}

impl Explain for LoadError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Document(error) => error.report(),
            Self::Io { path, .. } => ErrorReport::new("unreadable", self.to_string())
                .path(path)
                .hint("name a readable result file or folder"),
            Self::TooLarge { path, found, limit } => ErrorReport::new("too-large", self.to_string())
                .path(path)
                .found(found)
                .expected(format!("at most {limit}")),
            Self::NotJson { path, .. } => ErrorReport::new("not-json", self.to_string()).path(path),
            Self::NotAResult { path, found } => ErrorReport::new("not-a-result", self.to_string())
                .path(path)
                .found(found)
                .hint("name the <endpoint>.json of a calibration, not its result.json"),
            Self::OtherArm { path, found, .. } => ErrorReport::new("other-arm", self.to_string())
                .path(path)
                .found(format!("the file says that it ran the {found}"))
                .hint("the arm is read from the file; name it on its own side"),
            Self::Empty { path } => ErrorReport::new("no-results", self.to_string()).path(path),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Document(error) => error.exit_code(),
            Self::NotAResult { .. } | Self::OtherArm { .. } => exit::CHECK_FAILED,
            _ => exit::USAGE,
        }
    }
}

impl Explain for SuiteError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Document { source, .. } => source.report(),
            other => ErrorReport::new("invalid-suite", other.to_string()),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Document { source, .. } => source.exit_code(),
            Self::Form { .. } | Self::TooLarge { .. } => exit::USAGE,
            _ => exit::CHECK_FAILED,
        }
    }
}

impl Explain for CompareError {
    fn report(&self) -> ErrorReport {
        let Self::Option { found, expected, .. } = self;
        ErrorReport::new("invalid-option", self.to_string()).found(found).expected(expected)
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}

impl Explain for ExportError {
    fn report(&self) -> ErrorReport {
        ErrorReport::new("not-exportable", self.to_string())
            .hint("judge the result by its gates: that tells which it does not pass")
    }

    fn exit_code(&self) -> u8 {
        exit::CHECK_FAILED
    }
}
