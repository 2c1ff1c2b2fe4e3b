//! What the generated schemas still lack: a title and an example on every field, and plain enumerations.

use serde_json::{Map, Value, json};

use super::registry::resolve;

/// Completes a generated schema in place.
pub(super) fn finish(root: &mut Value) {
    walk(root, &mut |schema| {
        plain_enumeration(schema);
        // The size of Rust's integers is not a format of draft-07; bounds say it, and editors warn about unknown formats.
        if let Some(format) = schema.get("format").and_then(Value::as_str)
            && (format.starts_with("uint") || format.starts_with("int") || matches!(format, "double" | "float"))
        {
            schema.shift_remove("format");
        }
    });
    let whole = root.clone();
    walk(root, &mut |schema| describe_fields(&whole, schema));
}

/// Applies `change` to every schema inside `value`, innermost first.
fn walk(value: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    let Value::Object(schema) = value else { return };
    for (keyword, inner) in schema.iter_mut() {
        match keyword.as_str() {
            "properties" | "definitions" | "patternProperties" => {
                for (_, field) in inner.as_object_mut().into_iter().flatten() {
                    walk(field, change);
                }
            }
            "allOf" | "anyOf" | "oneOf" => {
                for form in inner.as_array_mut().into_iter().flatten() {
                    walk(form, change);
                }
            }
            "items" => match inner {
                Value::Array(items) => items.iter_mut().for_each(|item| walk(item, change)),
                item => walk(item, change),
            },
            "additionalProperties" | "additionalItems" | "propertyNames" | "not" => walk(inner, change),
            _ => {}
        }
    }
    change(schema);
}

/// `oneOf` constants with descriptions become one `enum`, which every validator and editor reports well; the
/// descriptions stay for editors that show them.
fn plain_enumeration(schema: &mut Map<String, Value>) {
    let Some(forms) = schema.get("oneOf").and_then(Value::as_array) else { return };
    let mut words = Vec::new();
    let mut descriptions = Vec::new();
    for form in forms {
        if let Some(word) = form.get("const") {
            words.push(word.clone());
            descriptions.push(form.get("description").cloned().unwrap_or_else(|| json!("")));
        } else if let Some(listed) = form.get("enum").and_then(Value::as_array) {
            words.extend(listed.iter().cloned());
            descriptions.extend(listed.iter().map(|_| json!("")));
        } else {
            return;
        }
    }
    schema.shift_remove("oneOf");
    if words.iter().all(Value::is_string) {
        schema.insert("type".into(), "string".into());
    }
    schema.insert("enum".into(), words.into());
    schema.insert("enumDescriptions".into(), descriptions.into());
}

/// Gives each field of an object a title and an example where the type states none.
fn describe_fields(root: &Value, schema: &mut Map<String, Value>) {
    let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (name, field) in fields.iter_mut() {
        if let Value::Bool(_) = field {
            *field = json!({});
        }
        let example = match field.get("examples") {
            Some(_) => None,
            None => example_of(root, field, 0),
        };
        let Value::Object(field) = field else { continue };
        if !field.contains_key("title") {
            field.insert("title".into(), title_of(name).into());
        }
        if let Some(example) = example {
            field.insert("examples".into(), json!([example]));
        }
    }
}

/// An example that follows from the schema: a constant, the first word of an enumeration, an object of its required
/// fields' examples. Text and numbers need one of their own.
fn example_of(root: &Value, schema: &Value, depth: usize) -> Option<Value> {
    if depth > 12 {
        return None;
    }
    let schema = resolve(root, schema);
    if let Some(value) = schema.get("const") {
        return Some(value.clone());
    }
    if let Some(first) = schema.pointer("/examples/0").or_else(|| schema.pointer("/enum/0")) {
        return Some(first.clone());
    }
    for keyword in ["allOf", "anyOf", "oneOf"] {
        let forms = schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
        if let Some(example) = forms.filter_map(|form| example_of(root, form, depth + 1)).find(|value| !value.is_null())
        {
            return Some(example);
        }
    }
    let is = |name: &str| match schema.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(several)) => several.iter().any(|one| one == name),
        _ => false,
    };
    if is("object") {
        let fields = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let mut object = Map::new();
        for name in required.filter_map(Value::as_str) {
            let field = fields.and_then(|fields| fields.get(name))?;
            object.insert(name.to_owned(), example_of(root, field, depth + 1)?);
        }
        if let Some(each) = schema.get("additionalProperties").filter(|each| each.is_object() && object.is_empty()) {
            object.insert("name".into(), example_of(root, each, depth + 1)?);
        }
        return Some(Value::Object(object));
    }
    if is("array") {
        let item = schema.get("items").and_then(|item| example_of(root, item, depth + 1))?;
        return Some(json!([item]));
    }
    if is("boolean") {
        return Some(json!(false));
    }
    None
}

/// A title from a field's name: `ctx_size` becomes `Ctx size`.
fn title_of(name: &str) -> String {
    let words: Vec<String> =
        name.split('_')
            .enumerate()
            .map(|(index, word)| match word {
                "sha256" => "SHA-256".into(),
                "blake3" => "BLAKE3".into(),
                "gguf" | "gpu" | "pid" | "pci" | "abi" | "url" | "id" | "utc" | "ram" | "api" | "uid" | "gid"
                | "mtp" => word.to_uppercase(),
                "ids" => "IDs".into(),
                _ if index == 0 => {
                    let mut letters = word.chars();
                    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
                }
                _ => word.to_owned(),
            })
            .collect();
    words.join(" ")
}
