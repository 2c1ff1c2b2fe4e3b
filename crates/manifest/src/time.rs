//! Times as documents hold them: unix seconds, and the same instant as RFC 3339 text in UTC.

use std::cmp::Ordering;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// An instant as unix seconds, from 1970 to the end of the year 9999.
///
/// The kit writes whole seconds; upstream's scripts write Python's `time.time()`, a float with a fraction. Both are read,
/// and written again as they were read.
///
/// ```
/// use b70_manifest::UnixTime;
/// let upstream: UnixTime = serde_json::from_str("1796078798.0607479")?;
/// assert_eq!(upstream.seconds(), 1_796_078_798);
/// assert_eq!(serde_json::to_string(&upstream)?, "1796078798.0607479");
/// assert_eq!(UnixTime::from_seconds(0).rfc3339(), "1970-01-01T00:00:00Z");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct UnixTime(Form);

#[derive(Debug, Clone, Copy)]
enum Form {
    Whole(u64),
    Fraction(f64),
}

/// 9999-12-31T23:59:59Z, the last second that RFC 3339 can write.
const LAST: u64 = 253_402_300_799;

impl UnixTime {
    /// Now, in whole seconds; 0 when the clock stands before the epoch.
    pub fn now() -> Self {
        Self::from_seconds(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |duration| duration.as_secs()))
    }

    /// So many whole seconds after the epoch; what lies beyond the year 9999 becomes its last second.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(Form::Whole(if seconds > LAST { LAST } else { seconds }))
    }

    /// Whole seconds since the epoch.
    pub const fn seconds(self) -> u64 {
        match self.0 {
            Form::Whole(seconds) => seconds,
            Form::Fraction(seconds) => seconds as u64,
        }
    }

    /// The second as RFC 3339 text in UTC, for example `2026-07-12T15:15:54Z`.
    pub fn rfc3339(self) -> String {
        i64::try_from(self.seconds())
            .ok()
            .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
            .and_then(|instant| instant.format(&Rfc3339).ok())
            .unwrap_or_default()
    }

    fn as_f64(self) -> f64 {
        match self.0 {
            Form::Whole(seconds) => seconds as f64,
            Form::Fraction(seconds) => seconds,
        }
    }
}

impl PartialEq for UnixTime {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for UnixTime {}

impl PartialOrd for UnixTime {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for UnixTime {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_f64().total_cmp(&other.as_f64())
    }
}

impl fmt::Display for UnixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Form::Whole(seconds) => seconds.fmt(f),
            Form::Fraction(seconds) => seconds.fmt(f),
        }
    }
}

impl Serialize for UnixTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Form::Whole(seconds) => serializer.serialize_u64(seconds),
            Form::Fraction(seconds) => serializer.serialize_f64(seconds),
        }
    }
}

impl<'de> Deserialize<'de> for UnixTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seconds;

        impl Visitor<'_> for Seconds {
            type Value = UnixTime;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("unix seconds from 0 to the end of the year 9999")
            }

            fn visit_u64<E: Error>(self, seconds: u64) -> Result<UnixTime, E> {
                if seconds > LAST {
                    return Err(E::invalid_value(Unexpected::Unsigned(seconds), &self));
                }
                Ok(UnixTime(Form::Whole(seconds)))
            }

            fn visit_i64<E: Error>(self, seconds: i64) -> Result<UnixTime, E> {
                u64::try_from(seconds)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(seconds), &self))
                    .and_then(|seconds| self.visit_u64(seconds))
            }

            fn visit_f64<E: Error>(self, seconds: f64) -> Result<UnixTime, E> {
                if !(0.0..=LAST as f64).contains(&seconds) {
                    return Err(E::invalid_value(Unexpected::Float(seconds), &self));
                }
                Ok(UnixTime(Form::Fraction(seconds)))
            }
        }

        deserializer.deserialize_any(Seconds)
    }
}

impl JsonSchema for UnixTime {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "UnixTime".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "number", "minimum": 0, "maximum": LAST })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_to_the_digit_and_bad_ones_are_refused() {
        for text in ["0", "1783870000", "1796078798.0607479", "1783870000.0", "253402300799", "0.0037536889999999997"] {
            let time: UnixTime = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&time).unwrap(), text);
        }
        for bad in ["-1", "-0.5", "1e400", "NaN", "253402300800", "1e12", "18446744073709551615", "\"0\"", "null"] {
            assert!(serde_json::from_str::<UnixTime>(bad).is_err(), "{bad} must be refused");
        }
        let order = [0, 7].map(UnixTime::from_seconds);
        assert!(order[0] < order[1] && order[1] < serde_json::from_str("7.5").unwrap());
    }
}
