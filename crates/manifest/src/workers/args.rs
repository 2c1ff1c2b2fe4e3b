use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Extra arguments that cannot be split into words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("the quote {quote} opened at character {at} of the extra arguments is never closed: {text:?}")]
pub struct SplitError {
    /// The quote character.
    pub quote: char,
    /// Its place in the text, counted in characters from 1.
    pub at: usize,
    /// The text.
    pub text: String,
}

/// Extra llama-server arguments: one text that is split at spaces as a shell would split it, or a list of words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ExtraArgs {
    /// One text, as upstream writes it.
    Text(String),
    /// One item a word; nothing is split.
    Words(Vec<String>),
}

impl Default for ExtraArgs {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl ExtraArgs {
    /// The words a server is started with. Quotes and backslashes group as in a POSIX shell; nothing is expanded.
    ///
    /// ```
    /// use b70_manifest::workers::ExtraArgs;
    /// let args = ExtraArgs::Text("--cache-ram 0 --alias 'my model'".into());
    /// assert_eq!(args.words().unwrap(), ["--cache-ram", "0", "--alias", "my model"]);
    /// ```
    pub fn words(&self) -> Result<Vec<String>, SplitError> {
        match self {
            Self::Text(text) => split(text),
            Self::Words(words) => Ok(words.clone()),
        }
    }

    /// One line for a launcher script's `EXTRA_LLAMA_ARGS`: the text as written, or the words, quoted where needed.
    pub fn line(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Words(words) => words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" "),
        }
    }
}

fn split(text: &str) -> Result<Vec<String>, SplitError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut open: Option<(char, usize)> = None;
    let mut characters = text.chars().enumerate().peekable();
    while let Some((index, character)) = characters.next() {
        match (open, character) {
            (Some((quote, _)), _) if character == quote => open = None,
            (Some(('"', _)), '\\') => match characters.next_if(|(_, next)| matches!(next, '"' | '\\' | '$' | '`')) {
                Some((_, next)) => word.get_or_insert_default().push(next),
                None => word.get_or_insert_default().push('\\'),
            },
            (None, '\'' | '"') => {
                open = Some((character, index + 1));
                word.get_or_insert_default();
            }
            (None, '\\') => {
                let word = word.get_or_insert_default();
                if let Some((_, next)) = characters.next() {
                    word.push(next);
                }
            }
            (None, _) if character.is_ascii_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    if let Some((quote, at)) = open {
        Err(SplitError { quote, at, text: text.to_owned() })
    } else {
        words.extend(word);
        Ok(words)
    }
}

fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+{}".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

impl JsonSchema for ExtraArgs {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ExtraArgs".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "title": "Extra arguments",
            "description": "Further llama-server arguments: one text split as a shell splits it, or a list of words.",
            "type": ["string", "array"],
            "items": { "type": "string", "title": "Word", "description": "One argument.", "examples": ["--cache-ram"] },
            "examples": ["--cache-ram 0", ["--cache-ram", "0"]],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn words_are_split_as_a_shell_splits_them() {
        for (text, words) in [
            ("", vec![]),
            ("  --a\t1 \n", vec!["--a", "1"]),
            (r#"--x "a \"b\" \n" 'c\'"#, vec!["--x", r#"a "b" \n"#, r"c\"]),
            (r"a\ b '' c", vec!["a b", "", "c"]),
        ] {
            assert_eq!(ExtraArgs::Text(text.into()).words().unwrap(), words, "{text:?}");
        }
        let error = ExtraArgs::Text("--a 'b".into()).words().unwrap_err();
        assert_eq!((error.quote, error.at), ('\'', 5));
    }

    proptest! {
        #[test]
        fn a_line_of_words_splits_into_the_same_words(words: Vec<String>) {
            let line = ExtraArgs::Words(words.clone()).line();
            prop_assert_eq!(ExtraArgs::Text(line).words().unwrap(), words);
        }
    }
}
