//! A payload for the LocalMaxxing queue, as a file. It is never sent anywhere.

use b70_manifest::EvidenceClass;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::load::LoadedResult;
use crate::summary::{CLASS_BALANCED_METRIC, LEGACY_METRIC, PRIMARY_METRIC};

/// What the result does not say and only its owner can.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Submission {
    /// The model on the hub, as `owner/name`.
    pub hf_id: String,
    /// Its revision.
    pub model_revision: Option<String>,
    /// Its quantisation.
    pub quantization: String,
    /// The backend.
    pub backend: String,
    /// Memory of the card, in GB.
    pub vram_gb: Option<f64>,
    /// The processor.
    pub cpu: Option<String>,
    /// Main memory, in GB.
    pub ram_gb: Option<f64>,
    /// The operating system.
    pub os: Option<String>,
    /// Remarks.
    pub notes: Option<String>,
}

/// The payload. Field names are the queue's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(title = "LocalMaxxing payload")]
pub struct LocalMaxxing {
    /// The model on the hub.
    pub hf_id: String,
    /// Its revision.
    pub model_revision: Option<String>,
    /// Always `llama.cpp`.
    pub engine_name: String,
    /// The server's build.
    pub engine_version: String,
    /// The backend.
    pub backend: String,
    /// The quantisation.
    pub quantization: String,
    /// The machine.
    pub hardware: Value,
    /// Context of the slot, in tokens.
    pub context_length: Option<u64>,
    /// Requests at a time, always 1.
    pub batch_size: u64,
    /// Median tokens of a prompt, rounded.
    pub prompt_tokens: u64,
    /// Median tokens of an answer, rounded.
    pub output_tokens: u64,
    /// Name of the primary metric: the queue's own, whose value is the older rate.
    pub primary_metric_name: String,
    /// Tokens per second of output by the queue's metric: 100 events over 99 intervals.
    pub tok_s_out: f64,
    /// Tokens over the whole time, median.
    pub tok_s_total: f64,
    /// Median time to the first token.
    pub ttft_ms: f64,
    /// Flags of the server.
    pub engine_flags: Vec<String>,
    /// The command line as one text.
    pub command_snippet: String,
    /// The proof of the suite, with both rates, labelled.
    pub suite_pass: Value,
    /// Remarks.
    pub notes: String,
}

/// A result that may not be exported.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The final gate does not pass, whatever the file claims.
    #[error("the result is {class}, not promotion-eligible: {}", codes.join(", "))]
    NotEligible {
        /// What it is.
        class: String,
        /// The codes of the final gate, or `figures_disagree_with_rows`.
        codes: Vec<String>,
    },
    /// Something the queue demands is not known.
    #[error("{what} is not known; give it with {flag}")]
    Missing {
        /// What.
        what: &'static str,
        /// How to give it.
        flag: &'static str,
    },
    /// The result lacks a figure.
    #[error("the result has no {0}")]
    NoFigure(String),
}

/// Makes the payload of a promotion-eligible result. Eligibility comes from the gates over its recomputed rows.
///
/// # Errors
/// [`ExportError`] with the failing gates' codes, or with what is missing.
pub fn export_localmaxxing(result: &LoadedResult, submission: &Submission) -> Result<LocalMaxxing, ExportError> {
    let Some(proof) = result.promotion() else {
        let class = serde_json::to_value(result.judged.evidence_class()).ok();
        let mut codes: Vec<String> =
            result.judged.gates().get("realistic_final").map(|gate| gate.codes.clone()).unwrap_or_default();
        if !result.disagreements.is_empty() {
            codes.push("figures_disagree_with_rows".to_owned());
        }
        return Err(ExportError::NotEligible {
            class: class.and_then(|class| class.as_str().map(str::to_owned)).unwrap_or_default(),
            codes,
        });
    };
    let judged = proof.result();
    debug_assert_eq!(judged.evidence_class(), EvidenceClass::PromotionGradeFreshResponse);
    let measured = judged.measured();
    let given = |text: &str, what, flag| {
        if text.is_empty() { Err(ExportError::Missing { what, flag }) } else { Ok(text.to_owned()) }
    };
    let median = |metric: &str| {
        let summary = measured.summary.get(metric).and_then(|summary| summary.median);
        summary.ok_or_else(|| ExportError::NoFigure(format!("median of {metric}")))
    };
    let server = measured.identity.extra.get("server").cloned().unwrap_or(Value::Null);
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let command = measured.identity.command.clone().unwrap_or_default();
    let summaries: Map<String, Value> =
        [PRIMARY_METRIC, CLASS_BALANCED_METRIC, LEGACY_METRIC, "ttft_ms", "tok_s_wall_full", "tok_s_after_ttft_full"]
            .into_iter()
            .filter_map(|metric| Some((metric.to_owned(), json!(measured.summary.get(metric)?))))
            .collect();
    let card = measured.identity.card.as_ref();
    Ok(LocalMaxxing {
        hf_id: given(&submission.hf_id, "the model's hub id", "--hf-id")?,
        model_revision: submission.model_revision.clone(),
        engine_name: "llama.cpp".to_owned(),
        engine_version: text(&server, "build_info").unwrap_or_else(|| "unknown".to_owned()),
        backend: given(&submission.backend, "the backend", "--backend")?,
        quantization: given(&submission.quantization, "the quantisation", "--quantization")?,
        hardware: json!({
            "hwClass": "discrete-gpu",
            "gpuName": card.and_then(|card| card.extra.get("name")),
            "gpuCount": 1,
            "vramGb": submission.vram_gb,
            "cpu": submission.cpu,
            "ramGb": submission.ram_gb,
            "os": submission.os,
        }),
        context_length: server.get("n_ctx").and_then(Value::as_u64),
        batch_size: 1,
        prompt_tokens: median("prompt_tokens")?.round() as u64,
        output_tokens: median("completion_tokens")?.round() as u64,
        primary_metric_name: "median_tok_s_1_100_after_ttft".to_owned(),
        tok_s_out: median(LEGACY_METRIC)?,
        tok_s_total: median("tok_s_wall_full")?,
        ttft_ms: median("ttft_ms")?,
        engine_flags: command.iter().skip(1).cloned().collect(),
        command_snippet: command.join(" "),
        suite_pass: json!({
            "suite_id": measured.suite.suite_id,
            "suite_sha256": measured.suite.sha256,
            "result_sha256": result.sha256,
            "realistic_final_gate_passed": true,
            "cached_tokens": 0,
            "summary": summaries,
            "rates": format!("{PRIMARY_METRIC} counts 99 intervals; {LEGACY_METRIC} is the same time with 100 events, 100/99 of it"),
        }),
        notes: submission.notes.clone().unwrap_or_default(),
    })
}
