//! Exit codes, the same in every binary.

/// Done, valid, admitted, or a win.
pub const OK: u8 = 0;
/// The check failed: not admitted, invalid document, blocked, gate failed, comparison lost, inconclusive or
/// unqualified; also a dry run whose execution would be refused.
pub const CHECK_FAILED: u8 = 1;
/// Usage error, unreadable input, not JSON, not a well-formed and complete GGUF, missing file, environment problem.
pub const USAGE: u8 = 2;
/// A lock, readiness or stop deadline passed.
pub const TIMEOUT: u8 = 124;
/// Interrupted by a signal.
pub const INTERRUPTED: u8 = 130;

/// The table as every `--help` prints it.
pub const HELP: &str = "\
Exit codes:
  0    done, valid, admitted, win
  1    the check failed: not admitted, invalid, blocked, lost, inconclusive, or would be refused
  2    usage error, unreadable or malformed input, missing file, environment problem
  124  a lock, readiness or stop deadline passed
  130  interrupted";
