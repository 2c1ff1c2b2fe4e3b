use serde_json::Value;

use super::super::nearest::suggestion;
use super::super::problem::{Report, short};
use super::{items, unique};
use crate::gate::is_forbidden;
use crate::golden::FORBIDDEN_USES;
use crate::pci::PciAddress;
use crate::span::escape;
use crate::workers::{DRAFT_MODEL_HOLE, ExtraArgs, SpecType};

pub(super) fn workers(value: &Value, report: &mut Report<'_>) {
    for (field, what) in [("name", "name"), ("gpu", "card"), ("port", "port")] {
        let named = items(value, "/workers").filter_map(|(pointer, worker)| {
            let value = worker.get(field)?;
            // One card has several spellings.
            let key = match value.as_str().map(str::parse::<PciAddress>) {
                Some(Ok(address)) => address.to_string(),
                _ => value.to_string(),
            };
            Some((format!("{pointer}/{field}"), key, value))
        });
        unique(report, &format!("unique-{what}"), what, named.collect::<Vec<_>>());
    }
    let profiles = value.get("profiles").and_then(Value::as_object);
    if let Some(profiles) = profiles {
        for (pointer, worker) in items(value, "/workers") {
            let Some(profile) = worker.get("profile").and_then(Value::as_str) else { continue };
            if !profiles.contains_key(profile) {
                let names: Vec<&str> = profiles.keys().map(String::as_str).collect();
                let hint = suggestion(profile, names.iter().copied());
                let expected = format!("one of {}", names.join(", "));
                let message = format!("there is no profile {profile:?}{hint}");
                report.at("known-profile", &format!("{pointer}/profile"), format!("{profile:?}"), expected, message);
            }
        }
    }
    let batch = |field: &str| value.pointer("/common").and_then(|common| common.get(field)).and_then(Value::as_u64);
    if let (Some(logical), Some(physical)) = (batch("batch_size"), batch("ubatch_size"))
        && physical > logical
    {
        let message = format!("the physical batch {physical} is larger than the logical one, {logical}");
        report.at("batch-order", "/common/ubatch_size", physical.to_string(), format!("at most {logical}"), message);
    }
    environment(value, "/common/environment", report);
    let common = arguments(value, "/common/extra_llama_args", report);
    prompt_cache(value, common.as_deref(), report);
    for (name, profile) in profiles.into_iter().flatten() {
        let pointer = format!("/profiles/{}", escape(name));
        environment(value, &format!("{pointer}/environment"), report);
        speculation(value, profile, &pointer, report);
    }
}

fn environment(value: &Value, pointer: &str, report: &mut Report<'_>) {
    for (name, setting) in value.pointer(pointer).and_then(Value::as_object).into_iter().flatten() {
        if setting.as_str().is_some_and(|setting| is_forbidden(name, setting)) {
            let at = format!("{pointer}/{}", escape(name));
            let message = format!("{name} must stay off: the persistent kernel cache crashes and hides cold starts");
            report.at("forbidden-environment", &at, short(setting), "\"0\", or the variable left out", message);
        }
    }
}

/// The words of extra arguments; none when they are not arguments, which is reported.
fn arguments(value: &Value, pointer: &str, report: &mut Report<'_>) -> Option<Vec<String>> {
    let Some(found) = value.pointer(pointer) else { return Some(Vec::new()) };
    let args: ExtraArgs = serde_json::from_value(found.clone()).ok()?;
    let words = match args.words() {
        Ok(words) => words,
        Err(error) => {
            report.at("arguments", pointer, short(found), "arguments whose quotes are closed", error.to_string());
            return None;
        }
    };
    for parallel in ["-np", "--parallel"].iter().filter_map(|flag| last_value(&words, flag)) {
        if parallel != "1" {
            let message = format!("the arguments ask for {parallel} parallel sequences; workers are independent");
            report.at("one-sequence", pointer, format!("{parallel:?}"), "1", message);
        }
    }
    Some(words)
}

/// The value of the last `flag value` or `flag=value`.
fn last_value(words: &[String], flag: &str) -> Option<String> {
    let mut found = None;
    for (index, word) in words.iter().enumerate() {
        if word == flag {
            found = Some(words.get(index + 1).cloned().unwrap_or_default());
        } else if let Some(value) = word.strip_prefix(flag).and_then(|rest| rest.strip_prefix('=')) {
            found = Some(value.to_owned());
        }
    }
    found
}

/// `--cache-ram 0` must hold for every profile: from the common arguments, unless the profile's own say otherwise.
fn prompt_cache(value: &Value, common: Option<&[String]>, report: &mut Report<'_>) {
    let flag = |words: &[String]| last_value(words, "--cache-ram").or_else(|| last_value(words, "-cram"));
    let Some(common) = common else { return };
    let common = flag(common);
    let mut is_missing = false;
    for name in value.get("profiles").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name) {
        let pointer = format!("/profiles/{}/extra_llama_args", escape(name));
        let Some(words) = arguments(value, &pointer, report) else { continue };
        match flag(&words) {
            Some(own) if own == "0" => {}
            Some(own) => {
                let message = format!("profile {name:?} switches the prompt cache on; reused prompts are not evidence");
                report.at("prompt-cache-off", &pointer, format!("--cache-ram {own}"), "--cache-ram 0", message);
            }
            None => is_missing |= common.as_deref() != Some("0"),
        }
    }
    if is_missing {
        let found = common.map_or_else(|| "no --cache-ram".to_owned(), |value| format!("--cache-ram {value}"));
        let message = "the arguments do not contain --cache-ram 0, so the server would keep a prompt cache";
        report.at("prompt-cache-off", "/common/extra_llama_args", found, "--cache-ram 0", message);
    }
}

fn speculation(value: &Value, profile: &Value, pointer: &str, report: &mut Report<'_>) {
    for kind in ["mtp", "spec"] {
        let bound = |end: &str| profile.get(format!("{kind}_n_{end}")).and_then(Value::as_u64);
        if let (Some(least), Some(most)) = (bound("min"), bound("max"))
            && least > most
        {
            let at = format!("{pointer}/{kind}_n_min");
            let message = format!("{kind}_n_min {least} is larger than {kind}_n_max {most}");
            report.at("draft-order", &at, least.to_string(), format!("at most {most}"), message);
        }
    }
    let draft = profile.get("draft_model").and_then(Value::as_str);
    if draft == Some(DRAFT_MODEL_HOLE) && value.get("draft_model").is_none_or(Value::is_null) {
        let message = "the profile asks for the lane's draft model, and the lane has none";
        report.at(
            "draft-model",
            &format!("{pointer}/draft_model"),
            short(&draft.into()),
            "a lane with a draft_model",
            message,
        );
    }
    let needs_draft = [SpecType::DraftSimple, SpecType::DraftEagle3, SpecType::DraftDflash, SpecType::DraftDspark];
    let kind = profile.get("spec_type").and_then(Value::as_str);
    if needs_draft.iter().any(|needs| kind == Some(needs.as_str())) && draft.is_none() {
        let message = format!("speculation by {} needs a draft model", kind.unwrap_or_default());
        report.at(
            "draft-model",
            &format!("{pointer}/spec_type"),
            short(&kind.into()),
            "a draft_model beside it",
            message,
        );
    }
}

pub(super) fn model_pack(value: &Value, report: &mut Report<'_>) {
    if let Some(alignment) = value.pointer("/pack/alignment_bytes").and_then(Value::as_u64)
        && alignment > 0
        && !alignment.is_power_of_two()
    {
        let message = format!("an alignment of {alignment} bytes is not a power of two");
        report.at("power-of-two", "/pack/alignment_bytes", alignment.to_string(), "a power of two", message);
    }
    let requirements: Vec<_> = items(value, "/admission_requirements").collect();
    unique(
        report,
        "unique-requirement",
        "requirement",
        requirements.iter().map(|(pointer, item)| (pointer.clone(), item.to_string(), *item)),
    );
    let target = value.get("target_architecture").and_then(Value::as_str);
    for (pointer, requirement) in &requirements {
        let required = requirement.as_str().and_then(|text| text.strip_prefix("target_architecture_is_"));
        if let (Some(required), Some(target)) = (required, target)
            && required != target
        {
            let message = format!("the requirement names {required:?}, target_architecture is {target:?}");
            report.at("architecture", pointer, short(requirement), format!("target_architecture_is_{target}"), message);
        }
    }
}

pub(super) fn golden_corpus(value: &Value, report: &mut Report<'_>) {
    let list = |name: &str| -> Option<Vec<&str>> {
        let items = value.pointer("/reset_policy")?.get(name)?.as_array()?;
        Some(items.iter().filter_map(Value::as_str).collect())
    };
    if let Some(forbidden) = list("forbidden_for") {
        for needed in FORBIDDEN_USES.iter().filter(|needed| !forbidden.contains(*needed)) {
            let message = format!("the reset policy must forbid {needed:?}: a reset state is never cold evidence");
            report.at(
                "forbidden-use",
                "/reset_policy/forbidden_for",
                format!("no {needed:?}"),
                format!("{needed:?}"),
                message,
            );
        }
        for (index, allowed) in list("allowed_for").unwrap_or_default().into_iter().enumerate() {
            if FORBIDDEN_USES.contains(&allowed) || forbidden.contains(&allowed) {
                let at = format!("/reset_policy/allowed_for/{index}");
                let message = format!("{allowed:?} is allowed although it must be, or is, forbidden");
                report.at("forbidden-use", &at, format!("{allowed:?}"), "a use that is not forbidden", message);
            }
        }
    }
    let names = items(value, "/implemented_artifacts").filter_map(|(pointer, artifact)| {
        let name = artifact.get("name")?;
        Some((format!("{pointer}/name"), name.to_string(), name))
    });
    unique(report, "unique-name", "name", names.collect::<Vec<_>>());
}

pub(super) fn suite(value: &Value, report: &mut Report<'_>) {
    let list = if value.is_array() { "" } else { "/prompts" };
    let prompts: Vec<(String, &Value)> = items(value, list)
        .filter_map(|(pointer, item)| match item {
            Value::String(_) => Some((pointer, item)),
            item => item.get("prompt").map(|prompt| (format!("{pointer}/prompt"), prompt)),
        })
        .collect();
    for (pointer, prompt) in &prompts {
        if prompt.as_str().is_some_and(|text| text.trim().is_empty()) {
            report.at("empty-prompt", pointer, short(prompt), "a prompt with text", "the prompt has no text");
        }
    }
    unique(
        report,
        "unique-prompt",
        "prompt",
        prompts.into_iter().map(|(pointer, text)| (pointer, text.to_string(), text)),
    );
    let ids = items(value, list).filter_map(|(pointer, item)| {
        let id = item.get("id")?;
        Some((format!("{pointer}/id"), id.to_string(), id))
    });
    unique(report, "unique-id", "id", ids.collect::<Vec<_>>());
}
