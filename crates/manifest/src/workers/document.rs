use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ExtraArgs;
use crate::hex::Sha256Hex;
use crate::pci::GpuRef;
use crate::words::words;

/// Workers: persistent llama-server processes, each on one card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Workers")]
pub struct Workers {
    /// Where an editor finds the schema of this document.
    #[serde(rename = "$schema", default, skip_serializing_if = "Option::is_none")]
    #[schemars(title = "Schema", example = &"./schemas/workers.schema.json")]
    pub schema: Option<String>,
    /// Version of this document's form: 1 as upstream writes it, 2 after `b70-manifest migrate`.
    #[schemars(range(min = 1, max = 2), example = 2)]
    pub schema_version: u64,
    /// Name of the group of workers; part of every report.
    #[schemars(length(min = 1, max = 128), example = &"qwen27-tp1-b70")]
    pub lane: String,
    /// Folder for each worker's pid, log and identity (`<runtime_root>/workers/<name>/`).
    #[schemars(length(min = 1), example = &"/srv/results/worker-harness")]
    pub runtime_root: String,
    /// Script that starts the server from its environment; without it the kit builds the command line itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/srv/lab/serve.sh")]
    pub launcher: Option<String>,
    /// The llama-server executable.
    #[schemars(length(min = 1), example = &"/srv/llama.cpp/build/bin/llama-server")]
    pub binary: String,
    /// Fingerprint document of the executable's build, as `b70-registry fingerprint --json` writes it; without it the
    /// build of a worker is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/srv/llama.cpp/build/fingerprint.json")]
    pub build_fingerprint: Option<String>,
    /// The GGUF every worker serves.
    #[schemars(length(min = 1), example = &"/srv/models/Qwen3.6-27B-Q4_0.gguf")]
    pub target_model: String,
    /// SHA-256 of the target model; without it nothing vouches for the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_model_sha256: Option<Sha256Hex>,
    /// The GGUF that drafts tokens, for profiles that name it by `{draft_model}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/srv/models/Qwen3.6-27B-DFlash-Q4_K_M.gguf")]
    pub draft_model: Option<String>,
    /// SHA-256 of the draft model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_model_sha256: Option<Sha256Hex>,
    /// Name under which the servers offer the model.
    #[schemars(length(min = 1), example = &"qwen36-27b-q4_0-tp1")]
    pub model_alias: String,
    /// Settings all workers share.
    pub common: Common,
    /// Named ways of serving; every worker uses one of them.
    #[schemars(extend("minProperties" = 1, "propertyNames" = {"pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"}))]
    pub profiles: BTreeMap<String, Profile>,
    /// The workers.
    #[schemars(length(min = 1))]
    pub workers: Vec<Worker>,
    /// A staged pack set for every profile that names none of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack_set: Option<PackSetBinding>,
    /// Free room for other tools; the kit keeps it and never reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = serde_json::json!({"my-tool": {"colour": "blue"}}))]
    pub extensions: Option<Map<String, Value>>,
}

impl Workers {
    /// The worker called `name`.
    pub fn worker(&self, name: &str) -> Option<&Worker> {
        self.workers.iter().find(|worker| worker.name == name)
    }

    /// The pack set a profile's workers bind: the profile's own, else the lane's.
    pub fn pack_set_of<'a>(&'a self, profile: &'a Profile) -> Option<&'a PackSetBinding> {
        profile.pack_set.as_ref().or(self.pack_set.as_ref())
    }
}

/// Settings all workers share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Common {
    /// Address the servers listen on.
    #[schemars(length(min = 1), example = &"127.0.0.1")]
    pub host: String,
    /// Context size in tokens (`--ctx-size`).
    #[schemars(range(min = 1, max = 16_777_216), example = 4096)]
    pub ctx_size: u64,
    /// Logical batch size in tokens (`--batch-size`).
    #[schemars(range(min = 1, max = 1_048_576), example = 1024)]
    pub batch_size: u64,
    /// Physical batch size in tokens (`--ubatch-size`); at most the logical one.
    #[schemars(range(min = 1, max = 1_048_576), example = 256)]
    pub ubatch_size: u64,
    /// Parallel sequences of one server; 1, since workers are independent.
    #[schemars(range(min = 1, max = 1), example = 1)]
    pub n_parallel: u64,
    /// Flash attention (`--flash-attn`).
    pub flash_attn: FlashAttention,
    /// Type of the K cache (`--cache-type-k`).
    pub cache_type_k: CacheType,
    /// Type of the V cache (`--cache-type-v`).
    pub cache_type_v: CacheType,
    /// Serve an admitted RAM copy of a model when there is one, otherwise the file.
    #[serde(default)]
    #[schemars(example = true)]
    pub prefer_ram_model_cache: bool,
    /// Root of the RAM model cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"/dev/shm/lab-model-cache")]
    pub ram_model_cache_root: Option<String>,
    /// Arguments of every server; `--cache-ram 0` must be among them or in the profile's.
    #[serde(default)]
    pub extra_llama_args: ExtraArgs,
    /// Environment variables of every server; values are text.
    #[serde(default)]
    #[schemars(
        example = serde_json::json!({"GGML_SYCL_ENABLE_GRAPH": "0"}),
        extend("propertyNames" = {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})
    )]
    pub environment: BTreeMap<String, String>,
}

/// A way of serving: speculation and what goes with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Kind of speculation (`--spec-type`).
    pub spec_type: SpecType,
    /// Whether the model's own multi-token-prediction head drafts.
    #[serde(default)]
    #[schemars(example = true)]
    pub enable_mtp: bool,
    /// Most tokens the head drafts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024), example = 3)]
    pub mtp_n_max: Option<u64>,
    /// Fewest tokens the head drafts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024), example = 0)]
    pub mtp_n_min: Option<u64>,
    /// Lowest probability a token drafted by the head may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), example = 0.0)]
    pub mtp_p_min: Option<f64>,
    /// Most tokens a draft model drafts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024), example = 5)]
    pub spec_n_max: Option<u64>,
    /// Fewest tokens a draft model drafts at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1024), example = 0)]
    pub spec_n_min: Option<u64>,
    /// Lowest probability a token of a draft model may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0), example = 0.0)]
    pub spec_p_min: Option<f64>,
    /// Draft model: a path, or `{draft_model}` for the lane's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(example = &"{draft_model}")]
    pub draft_model: Option<String>,
    /// Layers of the model on the card; all when not given. For the kit's own command line, without a launcher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 65535), example = 999)]
    pub n_gpu_layers: Option<u64>,
    /// Layers of the draft model on the card; all when not given. For the kit's own command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 65535), example = 999)]
    pub draft_n_gpu_layers: Option<u64>,
    /// Device of the draft model as the server lists it; the model's when not given. For the kit's own command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1), example = &"SYCL0")]
    pub draft_device: Option<String>,
    /// Type of the draft model's K cache, `q8_0` when not given. For the kit's own command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_cache_type_k: Option<CacheType>,
    /// Type of the draft model's V cache, `q8_0` when not given. For the kit's own command line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_cache_type_v: Option<CacheType>,
    /// Arguments of this profile's servers, after the common ones.
    #[serde(default)]
    pub extra_llama_args: ExtraArgs,
    /// Environment variables of this profile's servers, after the common ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(
        example = serde_json::json!({"GGML_SYCL_ENABLE_GRAPH": "1"}),
        extend("propertyNames" = {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})
    )]
    pub environment: BTreeMap<String, String>,
    /// A staged pack set for this profile's servers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pack_set: Option<PackSetBinding>,
}

/// A staged pack set and the variable through which a loader finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PackSetBinding {
    /// Key of the set.
    pub set_key: Sha256Hex,
    /// Root below which the set is staged, as `<ram_root>/<set key>/`.
    #[schemars(length(min = 1), example = &"/dev/shm/b70kit-1000")]
    pub ram_root: String,
    /// Variable that receives the stage's path; left unset when the stage is not admitted.
    #[schemars(regex(pattern = "^[A-Za-z_][A-Za-z0-9_]*$"), example = &"GGML_SYCL_XE2_Q4_M6_PACK_CACHE")]
    pub variable: String,
}

/// One persistent server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Worker {
    /// Unique name; also the name of the worker's folder.
    #[schemars(regex(pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"), example = &"gpu0-baseline")]
    pub name: String,
    /// The card; no two workers may share one.
    pub gpu: GpuRef,
    /// TCP port; no two workers may share one.
    #[schemars(range(min = 1, max = 65535), example = 19720)]
    pub port: u16,
    /// What the worker is for, in the lane's own words.
    #[schemars(length(min = 1, max = 128), example = &"immutable-baseline")]
    pub role: String,
    /// Name of a profile of this file.
    #[schemars(length(min = 1), example = &"mtp3-control")]
    pub profile: String,
    /// Side of a comparison the worker is on, as `b70-worker assign` writes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arm: Option<Arm>,
}

words! {
    /// A side of a comparison.
    Arm {
        /// The recipe that is compared against.
        Control = "control",
        /// The recipe on trial.
        Candidate = "candidate",
    }
}

words! {
    /// Use of flash attention.
    FlashAttention {
        /// Always.
        On = "on",
        /// Never.
        Off = "off",
        /// As the server decides.
        Auto = "auto",
    }
}

words! {
    /// Type of a KV cache.
    CacheType {
        /// 32-bit float.
        F32 = "f32",
        /// 16-bit float.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// 8-bit blocks.
        Q8Zero = "q8_0",
        /// 4-bit blocks.
        Q4Zero = "q4_0",
        /// 4-bit blocks with a minimum.
        Q4One = "q4_1",
        /// 4-bit non-linear blocks.
        Iq4Nl = "iq4_nl",
        /// 5-bit blocks.
        Q5Zero = "q5_0",
        /// 5-bit blocks with a minimum.
        Q5One = "q5_1",
    }
}

words! {
    /// Kind of speculation.
    SpecType {
        /// No speculation.
        None = "none",
        /// A separate draft model.
        DraftSimple = "draft-simple",
        /// An EAGLE-3 draft.
        DraftEagle3 = "draft-eagle3",
        /// The model's own multi-token-prediction head.
        DraftMtp = "draft-mtp",
        /// A `DFlash` draft.
        DraftDflash = "draft-dflash",
        /// A `DSpark` draft.
        DraftDspark = "draft-dspark",
        /// N-grams of the context.
        NgramSimple = "ngram-simple",
        /// N-gram map with keys.
        NgramMapK = "ngram-map-k",
        /// N-gram map with keys and four values.
        NgramMapK4v = "ngram-map-k4v",
        /// Hashed n-grams.
        NgramMod = "ngram-mod",
        /// N-gram cache.
        NgramCache = "ngram-cache",
    }
}
