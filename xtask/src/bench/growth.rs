//! Time and memory by number of tensors and threads.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::Bench;
use super::sample::{Call, Sample, case, run};
use crate::failure::{AtPath, Failure};
use crate::synth;

const COUNTS: [u32; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 187];

/// Prepares models of 1 to 187 tensors of 6.3 MB with one thread and with all.
pub(super) fn table(bench: &mut Bench, folder: &Path) -> Result<Vec<Value>, Failure> {
    let counts = if bench.quick { &COUNTS[..3] } else { &COUNTS[..] };
    let rows = if bench.quick { 16 } else { 2176 };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut table = Vec::new();
    for &count in counts {
        if !bench.has_time_for(&format!("growth, {count} tensors")) {
            continue;
        }
        let geometry = folder.join("growth.json");
        let description = json!({
            "name": format!("growth-{count}"),
            "layers": count,
            "per_layer": [{ "name": "ffn_gate.weight", "type": "Q4_0", "shape": [5120, rows] }],
        });
        fs::write(&geometry, description.to_string()).at("write", &geometry)?;
        let home = folder.join("growth");
        let model = synth::make(&geometry.to_string_lossy(), &home)?;
        let root = home.join("cache");
        let (path, sha256, root_text) =
            (model.path.to_string_lossy().into_owned(), model.sha256.to_string(), root.to_string_lossy().into_owned());
        let mut threads: Vec<usize> = vec![1, cores];
        threads.dedup();
        let mut samples: Vec<(usize, Call, Vec<Sample>)> = threads
            .into_iter()
            .map(|jobs| {
                let jobs_text = jobs.to_string();
                let arguments = [
                    "prepare",
                    "--json",
                    "--allow-in-repo",
                    "--model",
                    &path,
                    "--sha256",
                    &sha256,
                    "--cache-root",
                    &root_text,
                    "--jobs",
                    &jobs_text,
                ];
                (jobs, Call::new(&bench.pack, &arguments), Vec::new())
            })
            .collect();
        Bench::say(&format!("growth, {count} tensors"));
        for _ in 0..bench.rounds {
            for (_, call, samples) in &mut samples {
                if root.exists() {
                    fs::remove_dir_all(&root).at("remove", &root)?;
                }
                samples.push(run(call)?);
            }
        }
        fs::remove_dir_all(&home).at("remove", &home)?;
        for (jobs, call, samples) in samples {
            let mut row = case("prepare", &call, &samples);
            row["tensors"] = json!(count);
            row["threads"] = json!(jobs);
            row["packed_bytes"] = json!(model.packed_bytes);
            table.push(row);
        }
    }
    Ok(table)
}
