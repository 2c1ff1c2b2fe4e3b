//! Prompt suites: what is asked, in which order, under which hash.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use b70_manifest::Sha256Hex;
use b70_manifest::calibration::{
    CalibrationSuite, SuiteIdentity, SuitePromptIdentity, UNCLASSIFIED, fixed_suite_classes,
};
use b70_manifest::document::{DocumentError, read_bytes, read_text};
use b70_manifest::gate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The text of the project's own suite.
const BUILTIN: &[u8] = include_bytes!("../suites/b70-cold-v1.json");

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SuitePrompt {
    /// Its name, unique in the suite.
    pub id: String,
    /// Its class; [`UNCLASSIFIED`] if it has none.
    pub prompt_class: String,
    /// The text.
    pub prompt: String,
}

impl SuitePrompt {
    /// SHA-256 of the text's UTF-8 bytes.
    pub fn sha256(&self) -> Sha256Hex {
        Sha256Hex::of(self.prompt.as_bytes())
    }
}

/// A suite of prompts, each sent once, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Suite {
    /// Its name.
    pub suite_id: String,
    /// Its version, if it has one.
    #[serde(default)]
    pub version: Option<Value>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// The metric it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// A system message before every prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The prompts.
    pub prompts: Vec<SuitePrompt>,
    /// SHA-256 of the file it was read from.
    #[serde(skip, default = "nothing")]
    #[schemars(skip)]
    pub file_sha256: Sha256Hex,
}

fn nothing() -> Sha256Hex {
    Sha256Hex::of(b"")
}

/// Why a suite was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuiteError {
    /// Not JSON, or JSON of another form.
    #[error(
        "not a suite: {reason}; expected a list of prompts, or an object with `prompts`, each a text or {{id, prompt, prompt_class}}"
    )]
    Form {
        /// What was found.
        reason: String,
    },
    /// The file cannot be read, or does not fit the schema.
    #[error("{source}")]
    Document {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<DocumentError>,
    },
    /// Larger than [`Suite::MAX_BYTES`].
    #[error("the suite has {found} bytes, at most {limit} are read")]
    TooLarge {
        /// Its size.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// No prompts.
    #[error("the suite has no prompts")]
    Empty,
    /// A prompt without text.
    #[error("prompt {index} ({id}) is empty")]
    EmptyPrompt {
        /// Its position, from 0.
        index: usize,
        /// Its id.
        id: String,
    },
    /// Two prompts with one id.
    #[error("prompts {first} and {second} share the id {id:?}; ids must be unique")]
    DuplicateId {
        /// The earlier position.
        first: usize,
        /// The later position.
        second: usize,
        /// The id.
        id: String,
    },
    /// Two prompts with the same text: the second would not be a first response.
    #[error("prompts {first} and {second} have the same text; every prompt must be asked only once")]
    DuplicatePrompt {
        /// The earlier position.
        first: usize,
        /// The later position.
        second: usize,
    },
}

impl Suite {
    /// The most bytes of a suite file.
    pub const MAX_BYTES: usize = 4 << 20;

    /// The project's own suite, `b70-cold-v1`.
    pub fn builtin() -> Self {
        Self::from_json(BUILTIN, "b70-cold-v1").expect("a test reads the built-in suite")
    }

    /// Reads a suite: an object with `prompts`, or a bare list, which takes `fallback_id` (the file's stem) as its name.
    /// A prompt without an id is named `prompt-N` by its position, from 0.
    ///
    /// # Errors
    /// See [`SuiteError`].
    pub fn from_json(bytes: &[u8], fallback_id: &str) -> Result<Self, SuiteError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(SuiteError::TooLarge { found: bytes.len(), limit: Self::MAX_BYTES });
        }
        let form = |reason: String| SuiteError::Form { reason };
        let value: Value = serde_json::from_slice(bytes).map_err(|error| form(error.to_string()))?;
        let text = |name: &str| match value.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(form(format!("{name} is not a text"))),
        };
        let items = match &value {
            Value::Array(items) => items,
            Value::Object(object) => match object.get("prompts") {
                Some(Value::Array(items)) => items,
                _ => return Err(form("no list `prompts`".to_owned())),
            },
            _ => return Err(form("neither a list nor an object".to_owned())),
        };
        let prompts: Result<Vec<_>, _> =
            items.iter().enumerate().map(|(index, item)| read_prompt(index, item)).collect();
        let mut prompts = prompts?;
        if prompts.iter().all(|prompt| prompt.prompt_class == UNCLASSIFIED)
            && let Some(classes) = fixed_suite_classes(prompts.iter().map(|prompt| prompt.id.as_str()))
        {
            for (prompt, class) in prompts.iter_mut().zip(classes) {
                class.clone_into(&mut prompt.prompt_class);
            }
        }
        let suite = Self {
            suite_id: text("suite_id")?.unwrap_or_else(|| fallback_id.to_owned()),
            version: value.get("version").filter(|version| !version.is_null()).cloned(),
            description: text("description")?,
            metric: text("metric")?,
            system_prompt: text("system_prompt")?,
            prompts,
            file_sha256: Sha256Hex::of(bytes),
        };
        suite.check()?;
        Ok(suite)
    }

    /// Reads a suite's file: its form by the schema, with every error at once, then what no schema says.
    ///
    /// # Errors
    /// See [`SuiteError`]; [`SuiteError::Document`] for a file that cannot be read or does not fit the schema.
    pub fn read(path: &Path) -> Result<Self, SuiteError> {
        let refused = |source| SuiteError::Document { path: path.to_owned(), source: Box::new(source) };
        let io = |source| refused(DocumentError::Io { path: path.to_owned(), source });
        let size = std::fs::metadata(path).map_err(io)?.len();
        if size > Self::MAX_BYTES as u64 {
            return Err(SuiteError::TooLarge { found: size as usize, limit: Self::MAX_BYTES });
        }
        let bytes = read_bytes(path).map_err(io)?;
        let text = String::from_utf8(bytes)
            .map_err(|error| SuiteError::Form { reason: format!("not UTF-8 text: {error}") })?;
        let stem = path.file_stem().map_or_else(|| "suite".into(), |stem| stem.to_string_lossy());
        // An empty list or a twin is said in our words; the schema says the rest.
        match Self::from_json(text.as_bytes(), &stem) {
            Err(SuiteError::Form { .. }) | Ok(_) => {
                read_text::<CalibrationSuite>(path, &text).map_err(refused)?;
                Self::from_json(text.as_bytes(), &stem)
            }
            refused => refused,
        }
    }

    /// The suite as a result names it; `selected` are the ids that were asked for, `None` for all.
    pub fn identity(&self, selected: Option<Vec<String>>) -> SuiteIdentity {
        let prompt = |prompt: &SuitePrompt| SuitePromptIdentity {
            id: prompt.id.clone(),
            prompt_class: prompt.prompt_class.clone(),
            sha256: prompt.sha256(),
            extra: Map::new(),
        };
        let extra = [("content_sha256".to_owned(), serde_json::json!(self.sha256()))];
        SuiteIdentity {
            suite_id: self.suite_id.clone(),
            version: self.version.clone().unwrap_or_else(|| "unversioned".into()),
            sha256: self.file_sha256,
            prompts: self.prompts.iter().map(prompt).collect(),
            selected,
            extra: extra.into_iter().collect(),
        }
    }

    /// SHA-256 over what is asked: the system message and, in order, ids, classes and texts. Two files that ask the same
    /// have the same hash, whatever their layout and description.
    pub fn sha256(&self) -> Sha256Hex {
        let asked = serde_json::json!({ "system_prompt": self.system_prompt, "prompts": self.prompts });
        b70_manifest::canonical_sha256(&asked).expect("only texts, which have a canonical form")
    }

    /// The classes, without [`UNCLASSIFIED`], each with its number of prompts.
    pub fn classes(&self) -> BTreeMap<&str, usize> {
        let mut classes = BTreeMap::new();
        for prompt in self.prompts.iter().filter(|prompt| prompt.prompt_class != UNCLASSIFIED) {
            *classes.entry(prompt.prompt_class.as_str()).or_insert(0) += 1;
        }
        classes
    }

    fn check(&self) -> Result<(), SuiteError> {
        if self.prompts.is_empty() {
            return Err(SuiteError::Empty);
        }
        let mut ids = BTreeMap::new();
        let mut texts = BTreeMap::new();
        for (index, prompt) in self.prompts.iter().enumerate() {
            if prompt.prompt.trim().is_empty() {
                return Err(SuiteError::EmptyPrompt { index, id: prompt.id.clone() });
            }
            if let Some(first) = ids.insert(prompt.id.as_str(), index) {
                return Err(SuiteError::DuplicateId { first, second: index, id: prompt.id.clone() });
            }
            // White space at the ends does not make another prompt of it.
            if let Some(first) = texts.insert(prompt.prompt.trim(), index) {
                return Err(SuiteError::DuplicatePrompt { first, second: index });
            }
        }
        Ok(())
    }
}

/// What `suite show` and `suite validate` print.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "Suite")]
pub struct SuiteReport {
    /// Version of this document's form, 1.
    pub schema_version: u64,
    /// Always true: an invalid suite is an error.
    pub valid: bool,
    /// SHA-256 of what is asked, whatever the file's layout.
    pub content_sha256: Sha256Hex,
    /// SHA-256 of the file.
    pub file_sha256: Sha256Hex,
    /// Prompts by class.
    pub classes: BTreeMap<String, usize>,
    /// Whether prompts and classes suffice for the final gate.
    pub fit_for_promotion: bool,
    /// The suite.
    pub suite: Suite,
}

impl SuiteReport {
    /// About a suite.
    pub fn of(suite: &Suite) -> Self {
        let classes: BTreeMap<String, usize> =
            suite.classes().into_iter().map(|(class, count)| (class.to_owned(), count)).collect();
        Self {
            schema_version: 1,
            valid: true,
            content_sha256: suite.sha256(),
            file_sha256: suite.file_sha256,
            fit_for_promotion: suite.prompts.len() >= gate::PROMOTION_PROMPTS
                && classes.len() >= gate::PROMOTION_CLASSES,
            classes,
            suite: suite.clone(),
        }
    }
}

fn read_prompt(index: usize, item: &Value) -> Result<SuitePrompt, SuiteError> {
    let form = |what: &str| SuiteError::Form { reason: format!("prompt {index}: {what}") };
    let named = |name: &str, default: String| match item.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::String(text)) if !text.is_empty() => Ok(text.clone()),
        Some(_) => Err(form(&format!("{name} is not a non-empty text"))),
    };
    let prompt = match item {
        Value::String(text) => text.clone(),
        Value::Object(object) => {
            object.get("prompt").and_then(Value::as_str).ok_or_else(|| form("no text `prompt`"))?.to_owned()
        }
        _ => return Err(form("neither a text nor an object")),
    };
    Ok(SuitePrompt {
        id: named("id", format!("prompt-{index}"))?,
        prompt_class: named("prompt_class", UNCLASSIFIED.to_owned())?,
        prompt,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Suite, SuiteError> {
        Suite::from_json(text.as_bytes(), "file")
    }

    #[test]
    fn the_built_in_suite() {
        let suite = Suite::builtin();
        assert_eq!(suite.suite_id, "b70-cold-v1");
        assert!(suite.prompts.len() >= 12 && suite.classes().len() >= 5, "{:?}", suite.classes());
        for prompt in &suite.prompts {
            let words = prompt.prompt.split_whitespace().count();
            assert!((45..=80).contains(&words), "{}: {words} words", prompt.id);
        }
        // The first words differ as well: no prompt is a prefix of another's cache.
        let openings: std::collections::BTreeSet<&str> =
            suite.prompts.iter().map(|prompt| &prompt.prompt[..12]).collect();
        assert_eq!(openings.len(), suite.prompts.len());
    }

    #[test]
    fn the_hash_covers_what_is_asked() {
        let suite = Suite::builtin();
        let mut other = suite.clone();
        other.description = Some("another".to_owned());
        assert_eq!(suite.sha256(), other.sha256());
        other.prompts.swap(0, 1);
        assert_ne!(suite.sha256(), other.sha256());
        other = suite.clone();
        other.system_prompt = Some("x".to_owned());
        assert_ne!(suite.sha256(), other.sha256());
    }

    #[test]
    fn lists_and_objects() {
        let list = read(r#"["a", {"prompt": "b", "id": "second", "prompt_class": "code"}]"#).unwrap();
        assert_eq!((list.suite_id.as_str(), list.prompts[0].id.as_str()), ("file", "prompt-0"));
        assert_eq!(
            (list.prompts[0].prompt_class.as_str(), list.prompts[1].prompt_class.as_str()),
            (UNCLASSIFIED, "code")
        );
        let object = read(r#"{"suite_id": "s", "version": 2, "system_prompt": "be brief", "prompts": ["a"]}"#).unwrap();
        assert_eq!((object.version, object.system_prompt.as_deref()), (Some(2.into()), Some("be brief")));
    }

    #[test]
    fn upstreams_fixed_suite_has_its_classes() {
        let ids = "incident-retrospective release-plan bug-report-synthesis code-review sql-debugging customer-email \
                   decision-memo benchmark-analysis architecture-tradeoff performance-hypotheses technical-guide risk-register";
        let item = |id: &str| serde_json::json!({"id": id, "prompt": format!("about {id}")});
        let mut items: Vec<Value> = ids.split_whitespace().map(item).collect();
        let suite = read(&serde_json::json!({"suite_id": "fixed", "prompts": items}).to_string()).unwrap();
        let sizes: Vec<(&str, usize)> = suite.classes().into_iter().collect();
        let expected = [
            ("analysis", 3),
            ("code", 2),
            ("documentation", 1),
            ("operations", 3),
            ("prose", 2),
            ("structured-writing", 1),
        ];
        assert_eq!(sizes, expected);
        assert!(SuiteReport::of(&suite).fit_for_promotion);
        // A suite that names a class itself is taken at its word.
        items[0]["prompt_class"] = "mine".into();
        let suite = read(&Value::from(items.clone()).to_string()).unwrap();
        assert_eq!(suite.classes().into_iter().collect::<Vec<_>>(), [("mine", 1)]);
        items[0] = item("another");
        assert!(read(&Value::from(items).to_string()).unwrap().classes().is_empty());
    }

    #[test]
    fn refused_suites() {
        for text in [
            "",
            "3",
            "{}",
            r#"{"prompts": 3}"#,
            "[3]",
            r#"[{"id": "a"}]"#,
            r#"[{"prompt": "a", "id": 3}]"#,
            r#"{"suite_id": 3, "prompts": ["a"]}"#,
        ] {
            assert!(matches!(read(text), Err(SuiteError::Form { .. })), "{text}");
        }
        assert!(matches!(read("[]"), Err(SuiteError::Empty)));
        assert!(matches!(read(r#"["a", " "]"#), Err(SuiteError::EmptyPrompt { index: 1, .. })));
        assert!(matches!(read(r#"["a", "b", "a "]"#), Err(SuiteError::DuplicatePrompt { first: 0, second: 2 })));
        let ids = r#"[{"id": "x", "prompt": "a"}, {"id": "x", "prompt": "b"}]"#;
        assert!(matches!(read(ids), Err(SuiteError::DuplicateId { first: 0, second: 1, .. })));
        assert!(matches!(Suite::from_json(&vec![b' '; Suite::MAX_BYTES + 1], "f"), Err(SuiteError::TooLarge { .. })));
    }
}
