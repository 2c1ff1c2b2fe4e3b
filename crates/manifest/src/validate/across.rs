//! Rules across files that were given together: all of them are about the same models.

use serde_json::Value;

use super::problem::{FileReport, Problem};
use crate::document::Kind;
use crate::span::Spans;

/// Where a kind of document names the SHA-256 of the target and of the draft model.
const fn model_fields(kind: Kind) -> [Option<&'static str>; 2] {
    match kind {
        Kind::Workers => [Some("/target_model_sha256"), Some("/draft_model_sha256")],
        Kind::ModelPackManifest => [Some("/source/sha256"), Some("/draft_source/sha256")],
        Kind::GoldenCorpusManifest => {
            [Some("/source_identity/target_model_sha256"), Some("/source_identity/draft_model_sha256")]
        }
        Kind::PackSet => [Some("/identity/target_model_sha256"), None],
        _ => [None, None],
    }
}

/// Compares the models of the files. The first file that names one is what the others are held to; the manifests people
/// keep come before the documents of tools.
pub(super) fn check(files: &mut [FileReport], contents: &[(Vec<u8>, Option<Value>)]) {
    for (which, model) in ["target", "draft"].into_iter().enumerate() {
        let mut said: Vec<(usize, &'static str, &str)> = Vec::new();
        for (index, (file, (_, value))) in files.iter().zip(contents).enumerate() {
            let pointer = file.kind.and_then(|kind| model_fields(kind)[which]);
            if let (Some(pointer), Some(value)) = (pointer, value) {
                said.extend(value.pointer(pointer).and_then(Value::as_str).map(|digest| (index, pointer, digest)));
            }
        }
        let reference = said.iter().find(|(index, ..)| files[*index].kind != Some(Kind::PackSet)).or(said.first());
        let Some(&(first, _, expected)) = reference else { continue };
        let reference_path = files[first].path.clone();
        for (index, pointer, found) in said.into_iter().filter(|(_, _, digest)| *digest != expected) {
            let text = std::str::from_utf8(&contents[index].0).unwrap_or_default();
            let problem = Problem::new(
                "model-identity",
                pointer,
                Spans::new(text).value_position(pointer),
                format!("{found:?}"),
                format!("{expected:?}, as {reference_path} says"),
                format!("the {model} model is not the one {reference_path} names"),
            );
            let file = &mut files[index];
            let errors = std::mem::take(&mut file.errors).into_iter().chain([problem]).collect();
            *file = FileReport::new(std::mem::take(&mut file.path), file.kind, errors);
        }
    }
}
