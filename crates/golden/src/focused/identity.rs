//! What a run's outcome depends on, and what differs between two runs.

use std::collections::BTreeMap;
use std::path::Path;

use b70_procguard::redact_variable;
use serde_json::Value;

/// Beginnings of the names of variables that can change a backend's outcome.
const PREFIXES: [&str; 15] = [
    "GGML_", "SYCL_", "ONEAPI_", "ZE_", "ZES_", "ZET_", "UR_", "NEO_", "NEORead", "IGC_", "OCL_ICD_", "LD_", "OMP_",
    "KMP_", "GOMP_",
];

/// Single names.
const NAMES: [&str; 3] = ["FilterBdfPath", "OverrideGpuAddressSpace", "INTEL_DEBUG"];

/// Whether a variable belongs to the key of a run.
pub(super) fn is_relevant(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name)
}

/// The relevant variables of an environment, then the explicit ones, which all count. They are written into the result, so
/// the values of what is named like a secret are removed.
pub(super) fn relevant(
    inherited: impl IntoIterator<Item = (String, String)>,
    removed: &[String],
    explicit: &[(String, String)],
) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> =
        inherited.into_iter().filter(|(name, _)| is_relevant(name) && !removed.contains(name)).collect();
    all.extend(explicit.iter().cloned());
    for (name, value) in &mut all {
        *value = redact_variable(name, value).to_owned();
    }
    all
}

/// Ways in which the loader takes other files than those of the build, which the fingerprint covers.
pub(super) fn loaded_from_elsewhere<'a>(
    environment: &BTreeMap<String, String>,
    libraries: impl IntoIterator<Item = &'a str>,
    build: &Path,
) -> Vec<String> {
    let mut found = Vec::new();
    for variable in ["LD_PRELOAD", "LD_AUDIT"] {
        if let Some(value) = environment.get(variable).filter(|value| !value.is_empty()) {
            found.push(format!("{variable} loads {value}, which the fingerprint does not cover"));
        }
    }
    let folders = environment.get("LD_LIBRARY_PATH").map_or("", String::as_str);
    for library in libraries {
        let name = Path::new(library).file_name().unwrap_or_default();
        let other = folders
            .split([':', ';'])
            .filter(|folder| !folder.is_empty())
            .filter_map(|folder| Path::new(folder).join(name).canonicalize().ok())
            .find(|path| !path.starts_with(build));
        if let Some(other) = other {
            found.push(format!("LD_LIBRARY_PATH puts {} before the build's own {library}", other.display()));
        }
    }
    found
}

/// Longest value that is shown whole.
const SHOWN: usize = 64;

fn shown(value: &Value) -> String {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let is_digest = text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if is_digest {
        format!("{}…", &text[..12])
    } else if text.chars().count() > SHOWN {
        format!("{}…", text.chars().take(SHOWN).collect::<String>())
    } else {
        text
    }
}

/// Every leaf in which two documents differ, as a JSON pointer and both values.
pub(super) fn differences(then: &Value, now: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(then, now, "", &mut found);
    found
}

fn walk(then: &Value, now: &Value, pointer: &str, found: &mut Vec<String>) {
    match (then, now) {
        (Value::Object(one), Value::Object(two)) => {
            let mut keys: Vec<&String> = one.keys().chain(two.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let at = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                match (one.get(key), two.get(key)) {
                    (Some(one), Some(two)) => walk(one, two, &at, found),
                    (Some(one), None) => found.push(format!("{at} was {}, now it is not there", shown(one))),
                    (None, Some(two)) => found.push(format!("{at} was not there, now it is {}", shown(two))),
                    (None, None) => {}
                }
            }
        }
        _ if then != now => found.push(format!("{pointer} was {}, now {}", shown(then), shown(now))),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn secrets_are_not_written_into_a_result() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let inherited = [pair("GGML_RPC_TOKEN", "hunter2"), pair("ZE_AFFINITY_MASK", "1"), pair("HOME", "/root")];
        let explicit = [pair("HF_TOKEN", "hunter2"), pair("GGML_SYCL_DEBUG", "1")];
        let recorded = relevant(inherited, &[], &explicit);
        assert!(recorded.values().all(|value| !value.contains("hunter2")), "{recorded:?}");
        assert_eq!(recorded.len(), 4);
        assert_eq!((&*recorded["ZE_AFFINITY_MASK"], &*recorded["GGML_SYCL_DEBUG"]), ("1", "1"));
    }

    #[test]
    fn every_leaf_that_differs() {
        let then = json!({"a": {"x/y": "1", "z": [1, 2]}, "same": true, "gone": "g".repeat(64)});
        let now = json!({"a": {"x/y": "2", "z": [1, 2]}, "same": true, "new": "f".repeat(64)});
        assert_eq!(
            differences(&then, &now),
            [
                "/a/x~1y was 1, now 2".to_owned(),
                format!("/gone was {}, now it is not there", "g".repeat(64)),
                "/new was not there, now it is ffffffffffff…".to_owned(),
            ]
        );
        assert!(differences(&then, &then).is_empty());
    }

    #[test]
    fn variables_that_count() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let inherited = ["GGML_X", "HOME", "LD_LIBRARY_PATH", "ZE_AFFINITY_MASK", "NEOReadDebugKeys", "PATH"]
            .map(|name| pair(name, "1"));
        let found = relevant(inherited, &["ZE_AFFINITY_MASK".to_owned()], &[pair("ANY", "2"), pair("GGML_X", "3")]);
        let names: Vec<&str> = found.keys().map(String::as_str).collect();
        assert_eq!(names, ["ANY", "GGML_X", "LD_LIBRARY_PATH", "NEOReadDebugKeys"]);
        assert_eq!(found["GGML_X"], "3");
    }
}
