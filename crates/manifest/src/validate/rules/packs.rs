use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::super::problem::{Report, short};
use super::items;
use crate::canonical::canonical_sha256;
use crate::hex::Sha256Hex;
use crate::pack::{LAB_FORMAT_PREFIX, PackPlan, PlanRules};

/// More slots than any model has tensors.
const MOST_SLOTS: u64 = 1 << 20;

pub(super) fn plan(value: &Value, report: &mut Report<'_>) {
    if value.get("format_prefix").and_then(Value::as_str) == Some(LAB_FORMAT_PREFIX) {
        let message = format!("the prefix {LAB_FORMAT_PREFIX:?} is reserved for the built-in plan");
        report.at(
            "reserved-prefix",
            "/format_prefix",
            format!("{LAB_FORMAT_PREFIX:?}"),
            "a prefix of your own",
            message,
        );
    }
    let Ok(PackPlan { rules: PlanRules::Listed(rules), .. }) = serde_json::from_value(value.clone()) else { return };
    if rules.is_empty() {
        report.at("slots", "/rules", "no rules", "at least one rule", "a plan without rules selects nothing");
    }
    let mut slots: BTreeMap<u64, String> = BTreeMap::new();
    let mut total = 0_u64;
    for (index, rule) in rules.iter().enumerate() {
        let pointer = format!("/rules/{index}");
        if rule.layers.first > rule.layers.last {
            let message = format!("the last layer {} comes before the first, {}", rule.layers.last, rule.layers.first);
            let expected = format!("at least {}", rule.layers.first);
            report.at(
                "layer-order",
                &format!("{pointer}/layers/last"),
                rule.layers.last.to_string(),
                expected,
                message,
            );
            continue;
        }
        let layers = rule.layers.last - rule.layers.first;
        total = total.saturating_add(layers).saturating_add(1);
        let last_slot = rule.slot_stride.checked_mul(layers).and_then(|steps| steps.checked_add(rule.slot_base));
        if total > MOST_SLOTS || last_slot.is_none_or(|slot| slot >= MOST_SLOTS) {
            let message = format!("the rules ask for more than {MOST_SLOTS} slots");
            report.at("slots", &pointer, "too many slots", format!("at most {MOST_SLOTS} slots"), message);
            return;
        }
        for layer in 0..=layers {
            let slot = rule.slot_base + rule.slot_stride * layer;
            let tensor = rule.pattern.replace("{layer}", &(rule.layers.first + layer).to_string());
            if let Some(other) = slots.insert(slot, tensor.clone()) {
                let message = format!("slot {slot} is given to {other} and to {tensor}");
                report.at("slots", &pointer, format!("slot {slot} twice"), "each slot once", message);
                return;
            }
        }
    }
    let gap = (0..).zip(slots.keys()).find(|(expected, slot)| *expected != **slot);
    if let Some((missing, _)) = gap {
        let message = format!("no rule gives slot {missing}; slots must run from 0 without a gap");
        report.at("slots", "/rules", format!("no slot {missing}"), format!("slots 0 to {}", slots.len() - 1), message);
    }
}

pub(super) fn set(value: &Value, report: &mut Report<'_>) {
    hashed(value, "", report);
    let tensors: Vec<_> = items(value, "/tensors").collect();
    let count = tensors.len() as u64;
    if let Some(stated) = value.get("tensor_count").and_then(Value::as_u64).filter(|stated| *stated != count) {
        let message = format!("tensor_count is {stated}, the list has {count} tensors");
        report.at("tensor-count", "/tensor_count", stated.to_string(), count.to_string(), message);
    }
    let keys = value.pointer("/identity/tensor_keys").and_then(Value::as_array);
    if let Some(keys) = keys {
        let listed: Vec<Option<&Value>> = tensors.iter().map(|(_, tensor)| tensor.get("key")).collect();
        if keys.iter().map(Some).ne(listed) {
            let message = "the identity's tensor keys are not those of the tensors, in slot order";
            report.at(
                "tensor-key-table",
                "/identity/tensor_keys",
                short(&keys.clone().into()),
                "the tensors' keys",
                message,
            );
        }
    }
    let sizes: Option<u64> = tensors
        .iter()
        .map(|(_, tensor)| tensor.pointer("/payload/size_bytes").and_then(Value::as_u64))
        .try_fold(0_u64, |sum, size| sum.checked_add(size?));
    let stated = value.get("payload_size_bytes").and_then(Value::as_u64);
    if let (Some(stated), Some(sum)) = (stated, sizes)
        && stated != sum
    {
        let message = format!("payload_size_bytes is {stated}, the payloads' sizes add up to {sum}");
        report.at("payload-size", "/payload_size_bytes", stated.to_string(), sum.to_string(), message);
    }
    for (pointer, entry) in tensors {
        tensor(entry, &pointer, report);
    }
}

pub(super) fn tensor(value: &Value, pointer: &str, report: &mut Report<'_>) {
    hashed(value, pointer, report);
    let path = value.pointer("/payload/path").and_then(Value::as_str);
    if let (Some(path), Some(key)) = (path, value.get("key").and_then(Value::as_str)) {
        let expected = format!("tensors/{key}.bin");
        if path != expected {
            let message = "the payload's path is not the one its key gives";
            report.at(
                "payload-path",
                &format!("{pointer}/payload/path"),
                format!("{path:?}"),
                format!("{expected:?}"),
                message,
            );
        }
    }
}

/// `key` must be the canonical hash of `identity`.
fn hashed(value: &Value, pointer: &str, report: &mut Report<'_>) {
    key_of(value, pointer, "key", report);
}

pub(super) fn key_of(value: &Value, pointer: &str, field: &str, report: &mut Report<'_>) {
    let (Some(key), Some(identity)) = (value.get(field).and_then(Value::as_str), value.get("identity")) else { return };
    let at = format!("{pointer}/{field}");
    match canonical_sha256(identity) {
        Ok(hash) if hash.to_string() == key => {}
        Ok(hash) => {
            let message = format!("{field} is not the canonical hash of identity");
            report.at("key", &at, format!("{key:?}"), format!("\"{hash}\""), message);
        }
        Err(error) => report.at("key", &at, format!("{key:?}"), "the canonical hash of identity", error.to_string()),
    }
}

pub(super) fn registry(value: &Value, report: &mut Report<'_>) {
    let text = |pointer: &str| match value.pointer(pointer) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let parts = ["/source_model_sha256", "/packer_revision", "/layout", "/artifact/sha256"].map(text);
    if let ([Some(model), Some(revision), Some(layout), Some(artifact)], Some(key)) = (parts, text("/key")) {
        let hash = Sha256::digest([model, revision, layout, artifact].join("\0").as_bytes());
        let hash = Sha256Hex::from_bytes(hash.into()).to_string();
        if hash != key {
            let message = "key is not the hash of source model, packer revision, layout and artifact";
            report.at("key", "/key", format!("{key:?}"), format!("{hash:?}"), message);
        }
    }
}
