//! Launcher scripts: the variables they are given, and whether one reads those that matter.

use std::collections::BTreeMap;

use b70_manifest::workers::{Profile, SpecType, Workers};

use std::path::Path;

use b70_store::{open_source, read_bounded};

use crate::error::WorkerError;

/// A script's bytes; a script has at most a mebibyte, and is a regular file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, WorkerError> {
    Ok(read_bounded(&open_source(path)?, path, 1 << 20)?)
}

/// What the text of a script shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherScript {
    text: String,
}

impl LauncherScript {
    /// Looks at a script's text; comments do not count.
    pub fn new(text: &str) -> Self {
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
        Self { text: code.join("\n") }
    }

    /// Does it name the variable, as a whole word?
    pub fn reads(&self, variable: &str) -> bool {
        let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        self.text
            .match_indices(variable)
            .any(|(at, _)| !self.text[..at].ends_with(part) && !self.text[at + variable.len()..].starts_with(part))
    }

    /// Does it write the log itself?
    pub fn writes_log(&self) -> bool {
        self.reads("LOG") || self.reads("OUT_DIR")
    }

    /// Does it become the server, so that the recorded process is the server?
    pub fn becomes_server(&self) -> bool {
        self.text.lines().any(|line| {
            let line = line.trim_start();
            line.starts_with("exec ") && !line.starts_with("exec >") && !line.starts_with("exec 2>")
        })
    }

    /// What makes a run upstream's profile and is not in the script, one sentence each: drafting by a model where a
    /// profile of the lane has it, graphs where the lane's environment sets them, and no context checkpoints, unless the
    /// extra arguments say so.
    pub fn unmarked(&self, document: &Workers, extra: &[String]) -> Vec<String> {
        let profiles = || document.profiles.values();
        let graphs = "GGML_SYCL_ENABLE_GRAPH";
        let sets = |environment: &BTreeMap<String, String>| environment.contains_key(graphs);
        let given = extra.windows(2).any(|pair| pair == ["--ctx-checkpoints", "0"]) && self.reads("EXTRA_LLAMA_ARGS");
        let words: Vec<&str> = self.text.split(|c: char| c.is_whitespace() || "\"'()=".contains(c)).collect();
        let checkpoints = ["--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"];
        let off = words.windows(2).any(|pair| checkpoints.contains(&pair[0]) && pair[1] == "0");
        [
            (
                profiles().any(|profile| profile.spec_type == SpecType::DraftSimple)
                    && !self.text.contains("draft-simple"),
                "draft-simple: the lane has a profile of that kind",
            ),
            (
                (sets(&document.common.environment) || profiles().any(|profile| sets(&profile.environment)))
                    && !self.reads(graphs),
                "GGML_SYCL_ENABLE_GRAPH: the lane's environment sets it",
            ),
            (!off && !given, "--ctx-checkpoints 0: without it the server keeps state of earlier requests"),
        ]
        .into_iter()
        .filter(|(missing, _)| *missing)
        .map(|(_, what)| format!("the launcher does not contain {what}"))
        .collect()
    }

    /// What a profile asks for and the script does not handle, one sentence each.
    pub fn unhandled(&self, profile: &Profile, has_extra: bool) -> Vec<String> {
        let mut wanted = vec![
            ("PORT", "the worker's port"),
            ("MODEL", "the model, or its admitted RAM copy"),
            ("LLAMA_SERVER", "the executable"),
        ];
        if profile.spec_type != SpecType::None {
            wanted.push(("SPEC_TYPE", "the kind of speculation"));
        }
        if profile.draft_model.is_some() {
            wanted.push(("DRAFT_MODEL", "the draft model"));
        }
        for (set, name, what) in [
            (profile.enable_mtp, "ENABLE_MTP", "the model's own drafting head"),
            (profile.enable_mtp && profile.mtp_n_max.is_some(), "MTP_N_MAX", "the most tokens it drafts"),
            (profile.spec_n_max.is_some(), "SPEC_N_MAX", "the most tokens the draft model drafts"),
            (has_extra, "EXTRA_LLAMA_ARGS", "the extra arguments, --cache-ram 0 among them"),
        ] {
            if set {
                wanted.push((name, what));
            }
        }
        let mut missing: Vec<String> = wanted
            .into_iter()
            .filter(|(name, _)| !self.reads(name))
            .map(|(name, what)| format!("the launcher never reads {name}: {what} would be ignored"))
            .collect();
        // A script that chooses by SPEC_TYPE must know this one.
        let kind = profile.spec_type.as_str();
        let chooses = self.text.contains("case") && self.reads("SPEC_TYPE");
        if profile.spec_type != SpecType::None && chooses && !self.text.contains(kind) && !self.text.contains("*)") {
            missing.push(format!("the launcher chooses by SPEC_TYPE and does not know {kind}"));
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(json: &str) -> Profile {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn upstreams_marks_are_looked_for() {
        let lane = include_str!("../../../fixtures/documents/lab/workers.json");
        let lane: Workers = serde_json::from_str(lane).unwrap();
        let whole = "case $SPEC_TYPE in draft-mtp) ;; draft-simple) ;; esac\nexport GGML_SYCL_ENABLE_GRAPH\n\
                     exec \"$LLAMA_SERVER\" --ctx-checkpoints 0 $EXTRA_LLAMA_ARGS\n";
        assert!(LauncherScript::new(whole).unmarked(&lane, &[]).is_empty());
        for (mark, other) in [
            ("draft-simple", "draft-eagle"),
            ("GGML_SYCL_ENABLE_GRAPH", "GRAPH"),
            ("--ctx-checkpoints 0", "--ctx-checkpoints 32"),
        ] {
            let missing = LauncherScript::new(&whole.replace(mark, other)).unmarked(&lane, &[]);
            assert_eq!(missing.len(), 1, "{mark}: {missing:?}");
            assert!(missing[0].contains(mark), "{missing:?}");
        }
        let extra = ["--ctx-checkpoints", "0"].map(str::to_owned);
        assert!(LauncherScript::new(&whole.replace("--ctx-checkpoints 0", "")).unmarked(&lane, &extra).is_empty());
    }

    #[test]
    fn what_a_script_ignores_is_named() {
        let script = LauncherScript::new(
            "#!/bin/bash\n# DRAFT_MODEL is only mentioned here\ncase \"$SPEC_TYPE\" in none) ;; draft-mtp) ;; esac\n\
             exec > >(tee \"$LOG\") 2>&1\nexec \"$LLAMA_SERVER\" --port \"$PORT\" -m \"$MODEL\" $EXTRA_LLAMA_ARGS\n",
        );
        assert!(script.writes_log() && script.becomes_server());
        assert!(script.unhandled(&profile(r#"{"spec_type": "none"}"#), true).is_empty());
        let draft = profile(r#"{"spec_type": "draft-simple", "draft_model": "{draft_model}", "spec_n_max": 5}"#);
        let missing = script.unhandled(&draft, true).join("\n");
        for word in ["DRAFT_MODEL", "SPEC_N_MAX", "does not know draft-simple"] {
            assert!(missing.contains(word), "{missing}");
        }
        assert!(!LauncherScript::new("exec > >(tee x)\n\"$LLAMA_SERVER\"\n").becomes_server());
        assert!(!LauncherScript::new("MY_PORT=1").reads("PORT"));
    }
}
