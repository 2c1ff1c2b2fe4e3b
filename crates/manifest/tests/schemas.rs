//! The committed schemas are those of the types, and every field says what it is.

use b70_manifest::document::Kind;
use b70_manifest::schema;
use b70_testkit::repository;
use serde_json::Value;

#[test]
fn committed_schemas_are_current() {
    let stale: Vec<String> = schema::all()
        .into_iter()
        .filter(|(name, schema)| {
            let text = std::fs::read_to_string(repository("docs/schemas").join(name)).unwrap_or_default();
            text != schema::text(schema)
        })
        .map(|(name, _)| name)
        .collect();
    assert!(stale.is_empty(), "stale below docs/schemas: {stale:?}; run b70-manifest schema --all --out docs/schemas");
}

fn fields_without(schema: &Value, place: &str, lacking: &mut Vec<String>) {
    match schema {
        Value::Object(map) => {
            for (keyword, inner) in map {
                let place = format!("{place}/{keyword}");
                if keyword == "properties" {
                    for (name, field) in inner.as_object().into_iter().flatten() {
                        for what in ["title", "description", "examples"] {
                            if field.get(what).is_none() {
                                lacking.push(format!("{place}/{name}: {what}"));
                            }
                        }
                    }
                }
                if !matches!(keyword.as_str(), "examples" | "default" | "enum" | "const") {
                    fields_without(inner, &place, lacking);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields_without(item, place, lacking)),
        _ => {}
    }
}

#[test]
fn every_field_has_title_description_and_example() {
    let mut lacking = Vec::new();
    for (name, schema) in schema::all().into_iter().filter(|(name, _)| name.ends_with(".schema.json")) {
        for what in ["$schema", "$id", "title"] {
            assert!(schema.get(what).is_some_and(Value::is_string), "{name} lacks {what}");
        }
        assert_eq!(schema["$schema"], schema::DRAFT_07);
        fields_without(&schema, &name, &mut lacking);
    }
    assert!(lacking.is_empty(), "{} places lack something:\n{}", lacking.len(), lacking.join("\n"));
}

#[test]
fn every_sample_is_valid_and_its_kind_is_found() {
    for kind in Kind::ALL {
        let path = repository("fixtures/documents/samples").join(format!("{kind}.json"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // The name alone would tell: the content has to.
        let report = b70_manifest::validate::check_text("document.json".as_ref(), &text, None);
        assert_eq!(report.kind, Some(*kind), "{}", path.display());
        assert!(report.valid, "{}: {:#?}", path.display(), report.errors);
    }
}
