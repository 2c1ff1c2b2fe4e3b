//! Times as documents hold them: unix seconds, and the same instant as RFC 3339 text in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Seconds since the epoch, now; 0 when the clock stands before it.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs())
}

/// `unix` as RFC 3339 text in UTC, for example `2026-07-12T15:15:54Z`; empty when it lies beyond the year 9999.
///
/// ```
/// assert_eq!(b70_manifest::rfc3339_utc(0), "1970-01-01T00:00:00Z");
/// ```
pub fn rfc3339_utc(unix: u64) -> String {
    i64::try_from(unix)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .and_then(|instant| instant.format(&Rfc3339).ok())
        .unwrap_or_default()
}
