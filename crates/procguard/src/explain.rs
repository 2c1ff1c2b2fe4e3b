//! How this crate's errors end a binary.

use b70_manifest::{ErrorReport, Explain, exit};

use crate::{
    affinity::{PinError, SelectorError},
    cards::NoSuchCard,
    host::HostError,
    lease::LeaseError,
    process::{SignalError, VerifyError},
    record::RecordError,
};

impl Explain for HostError {
    fn report(&self) -> ErrorReport {
        let (Self::Unreadable { path, .. } | Self::NotARecord { path, .. }) = self;
        ErrorReport::new("host-record", self.to_string()).path(path).hint("record a host and name that directory")
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}

impl Explain for NoSuchCard {
    fn report(&self) -> ErrorReport {
        ErrorReport::new("no-such-card", self.to_string()).found(&self.present).hint("list the cards")
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}

impl Explain for SelectorError {
    fn report(&self) -> ErrorReport {
        ErrorReport::new("device-selector", self.to_string()).found(&self.text)
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}

impl Explain for PinError {
    fn report(&self) -> ErrorReport {
        ErrorReport::new("no-ordinal", self.to_string()).found(&self.reason).hint("the doctor's checks say why")
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}

impl Explain for LeaseError {
    fn report(&self) -> ErrorReport {
        match self {
            Self::Held { .. } => {
                ErrorReport::new("lease-held", self.to_string()).hint("the status of the leases shows who holds what")
            }
            Self::Unsafe { path, found, expected } => {
                ErrorReport::new("lease-unsafe", self.to_string()).path(path).found(found).expected(expected)
            }
            Self::Io { path, .. } => ErrorReport::new("lease-io", self.to_string())
                .path(path)
                .hint("name a directory you may write with --lease-root"),
        }
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Held { waited, .. } if waited.is_zero() => exit::CHECK_FAILED,
            Self::Held { .. } => exit::TIMEOUT,
            Self::Unsafe { .. } | Self::Io { .. } => exit::USAGE,
        }
    }
}

impl Explain for RecordError {
    fn report(&self) -> ErrorReport {
        let report = ErrorReport::new("record", self.to_string());
        match self {
            Self::Exists { path } | Self::Write { path, .. } => report.path(path),
            Self::Cards(_) => report,
        }
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}

impl Explain for VerifyError {
    fn report(&self) -> ErrorReport {
        let kind = if matches!(self, Self::NotIt { .. }) { "not-that-process" } else { "process-unverifiable" };
        ErrorReport::new(kind, self.to_string())
    }

    fn exit_code(&self) -> u8 {
        exit::CHECK_FAILED
    }
}

impl Explain for SignalError {
    fn report(&self) -> ErrorReport {
        ErrorReport::new("signal-refused", self.to_string())
    }

    fn exit_code(&self) -> u8 {
        exit::USAGE
    }
}
