use serde_json::Value;

use super::LAB_EXTENSION;
use super::forward::plain_words;
use crate::document::{Kind, detect};

/// The content a migrated document had as version 1; nothing for a document that is not version 2, or that says what
/// version 1 cannot: an argument with a space or a quote in it.
///
/// Keys come back where they were, though not in their old order, which means nothing in JSON. Lists of arguments come back
/// as lines, which is all that the lab's scripts read, and the version is stated, also where it had been left out.
pub fn revert(document: &Value) -> Option<Value> {
    if document.get("schema_version").and_then(Value::as_u64) != Some(2) {
        return None;
    }
    let kind = detect(document, None)?;
    let mut document = document.clone();
    document["schema_version"] = 1.into();
    let root = document.as_object_mut()?;
    let mut kept = None;
    if let Some(Value::Object(extensions)) = root.get_mut("extensions") {
        kept = extensions.shift_remove(LAB_EXTENSION);
        if kept.is_some() && extensions.is_empty() {
            root.shift_remove("extensions");
        }
    }
    if kind == Kind::Workers {
        if let Some(args) = document.pointer_mut("/common/extra_llama_args") {
            *args = line(args)?;
        }
        for (_, profile) in document.get_mut("profiles").and_then(Value::as_object_mut).into_iter().flatten() {
            if let Some(args) = profile.get_mut("extra_llama_args") {
                *args = line(args)?;
            }
        }
    }
    for (pointer, value) in kept.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let (parent, token) = pointer.rsplit_once('/')?;
        let key = token.replace("~1", "/").replace("~0", "~");
        document.pointer_mut(parent)?.as_object_mut()?.insert(key, value.clone());
    }
    Some(document)
}

/// Words as one line, if splitting it gives the same words.
fn line(args: &Value) -> Option<Value> {
    let Value::Array(list) = args else { return Some(args.clone()) };
    let words: Vec<&str> = list.iter().map(Value::as_str).collect::<Option<_>>()?;
    let line = words.join(" ");
    (plain_words(&line)? == words).then(|| line.into())
}
