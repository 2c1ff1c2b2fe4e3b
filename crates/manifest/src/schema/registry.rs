use std::collections::BTreeMap;
use std::sync::LazyLock;

#[cfg(feature = "validate")]
use jsonschema::Validator;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::{BASE, DRAFT_07, finish::finish};
use crate::document::Kind;
use crate::{artifact, calibration, golden, model_pack, pack, state, workers};

/// A schema file: its name below `docs/schemas`, and the schema.
pub type SchemaEntry = (String, Value);

static SCHEMAS: LazyLock<BTreeMap<Kind, Value>> =
    LazyLock::new(|| Kind::ALL.iter().map(|kind| (*kind, generate(*kind))).collect());

#[cfg(feature = "validate")]
static VALIDATORS: LazyLock<BTreeMap<Kind, Validator>> = LazyLock::new(|| {
    let build = |schema: &Value| {
        jsonschema::draft7::options().build(schema).expect("the tests check every schema against its meta-schema")
    };
    SCHEMAS.iter().map(|(kind, schema)| (*kind, build(schema))).collect()
});

/// Fields every object of the kind must have and few other kinds have: the kind is recognised by them.
static OWN_FIELDS: LazyLock<BTreeMap<Kind, Vec<String>>> = LazyLock::new(|| {
    // Fields so common that they say nothing.
    let common = ["schema_version", "format", "status", "evidence_class", "promotion_eligible", "created_unix"];
    let required = |schema: &Value| -> Vec<String> {
        let fields = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let fields = fields.filter_map(Value::as_str).filter(|field| !common.contains(field));
        fields.map(str::to_owned).collect()
    };
    SCHEMAS
        .iter()
        .map(|(kind, schema)| {
            let mut fields = required(schema);
            if fields.is_empty() {
                // A root that is one of several forms: the object among them.
                let forms = schema.get("anyOf").and_then(Value::as_array).into_iter().flatten();
                let resolved = forms.map(|form| resolve(schema, form));
                fields = resolved.map(required).find(|fields| !fields.is_empty()).unwrap_or_default();
            }
            (*kind, fields)
        })
        .collect()
});

/// The target of a local `$ref`, also one that stands alone in `allOf` beside a description; otherwise the schema itself.
pub(super) fn resolve<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let direct = match schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice) {
        Some([only]) if ["examples", "const"].iter().all(|keyword| schema.get(keyword).is_none()) => only,
        _ => schema,
    };
    let target = direct.get("$ref").and_then(Value::as_str).and_then(|reference| reference.strip_prefix('#'));
    target.and_then(|pointer| root.pointer(pointer)).unwrap_or(schema)
}

fn generate(kind: Kind) -> Value {
    match kind {
        Kind::Workers => make::<workers::Workers>(kind),
        Kind::ModelPackManifest => make::<model_pack::ModelPackManifest>(kind),
        Kind::GoldenCorpusManifest => make::<golden::GoldenCorpusManifest>(kind),
        Kind::PackPlan => make::<pack::PackPlan>(kind),
        Kind::CalibrationSuite => make::<calibration::CalibrationSuite>(kind),
        Kind::PackSet => make::<pack::PackSet>(kind),
        Kind::TensorPack => make::<pack::TensorPack>(kind),
        Kind::DeepValidation => make::<artifact::DeepValidationV1>(kind),
        Kind::Receipt => make::<artifact::Receipt>(kind),
        Kind::RamStage => make::<pack::RamStage>(kind),
        Kind::CacheEntry => make::<artifact::CacheEntry>(kind),
        Kind::RegistryRecord => make::<artifact::RegistryRecord>(kind),
        Kind::Fingerprint => make::<artifact::Fingerprint>(kind),
        Kind::GoldenSet => make::<golden::GoldenSet>(kind),
        Kind::FocusedResult => make::<golden::FocusedResult>(kind),
        Kind::LabFocusedResult => make::<golden::LabFocusedResult>(kind),
        Kind::CalibrationResult => make::<calibration::CalibrationResult>(kind),
        Kind::CalibrationRun => make::<calibration::CalibrationRun>(kind),
        Kind::LabCalibrationResult => make::<calibration::LabCalibrationResult>(kind),
        Kind::Comparison => make::<calibration::Comparison>(kind),
        Kind::WorkerIdentity => make::<state::WorkerIdentity>(kind),
        Kind::LabWorkerIdentity => make::<state::LabWorkerIdentity>(kind),
        Kind::WorkerStatus => make::<state::StatusDocument>(kind),
    }
}

fn make<T: JsonSchema>(kind: Kind) -> Value {
    draft07::<T>(&kind.schema_id())
}

fn draft07<T: JsonSchema>(id: &str) -> Value {
    let mut schema = SchemaSettings::draft07().into_generator().into_root_schema_for::<T>().to_value();
    finish(&mut schema);
    let mut ordered = serde_json::Map::new();
    ordered.insert("$schema".into(), DRAFT_07.into());
    ordered.insert("$id".into(), id.into());
    if let Value::Object(mut fields) = schema {
        for name in ["title", "description"] {
            ordered.extend(fields.shift_remove(name).map(|text| (name.to_owned(), text)));
        }
        ordered.extend(fields.into_iter().filter(|(name, _)| name != "$schema" && name != "$id"));
    }
    Value::Object(ordered)
}

/// The schema of a kind.
pub fn of(kind: Kind) -> &'static Value {
    &SCHEMAS[&kind]
}

#[cfg(feature = "validate")]
pub(crate) fn validator(kind: Kind) -> &'static Validator {
    &VALIDATORS[&kind]
}

pub(crate) fn own_required_fields(kind: Kind) -> &'static [String] {
    &OWN_FIELDS[&kind]
}

/// The schema of each kind of document.
pub fn documents() -> Vec<SchemaEntry> {
    Kind::ALL.iter().map(|kind| (kind.schema_file(), of(*kind).clone())).collect()
}

/// The schema of what a command prints with `--json`: the file `output/<name>.schema.json`.
///
/// Each library offers `output_schemas() -> Vec<Entry>` made of such entries.
pub fn output<T: JsonSchema>(name: &str) -> SchemaEntry {
    let file = format!("output/{name}.schema.json");
    let schema = draft07::<T>(&format!("{BASE}{file}"));
    (file, schema)
}

/// Schemas of what `b70-manifest` prints, and of the error every command prints.
#[cfg(feature = "validate")]
pub fn outputs() -> Vec<SchemaEntry> {
    vec![
        output::<crate::report::ErrorEnvelope>("error"),
        output::<crate::validate::ValidateOutput>("manifest-validate"),
        output::<crate::document::KindList>("manifest-list"),
        output::<crate::migrate::MigrateOutput>("manifest-migrate"),
        output::<crate::editor::EditorOutput>("manifest-vscode"),
    ]
}

/// Every schema file of this crate, the catalogue last.
#[cfg(feature = "validate")]
pub fn all() -> Vec<SchemaEntry> {
    let mut entries = documents();
    entries.extend(outputs());
    entries.push(catalog());
    entries
}

/// `catalog.json` in the form of `SchemaStore`: each schema with its address and the names of its files.
pub fn catalog() -> SchemaEntry {
    let schemas: Vec<Value> = Kind::ALL
        .iter()
        .map(|kind| {
            json!({
                "name": format!("b70kit {kind}"),
                "description": kind.about(),
                "fileMatch": kind.file_patterns(),
                "url": kind.schema_id(),
            })
        })
        .collect();
    let catalog = json!({
        "$schema": "https://json.schemastore.org/schema-catalog.json",
        "version": 1,
        "schemas": schemas,
    });
    ("catalog.json".into(), catalog)
}

/// A schema as its file holds it: indented by two spaces, with a final newline.
pub fn text(schema: &Value) -> String {
    let mut text = format!("{schema:#}");
    text.push('\n');
    text
}
