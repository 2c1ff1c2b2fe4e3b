//! From a result to tables: by themselves, and between the markers of docs/performance.md.

use std::path::Path;

use serde_json::Value;

use crate::failure::{AtPath, Failure};

/// Every table by the name of its marker.
fn tables(result: &Value) -> Vec<(&'static str, String)> {
    vec![
        ("run", about(result)),
        ("parts", parts(result)),
        ("prepare", prepare(result)),
        ("reading", reading(result)),
        ("growth", growth(result)),
        ("model", on_paper(result)),
    ]
}

/// All tables as one document.
pub(super) fn all(result: &Value) -> String {
    tables(result).into_iter().map(|(name, table)| format!("## {name}\n\n{table}\n")).collect()
}

/// Replaces what stands between `<!-- bench:NAME -->` and `<!-- /bench -->`.
pub(super) fn into(docs: &Path, result: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(result).at("read", result)?;
    let value: Value = serde_json::from_str(&text).map_err(|error| {
        Failure::new(format!("{} is not a result: {error}", result.display()), "give a file of bench/results")
    })?;
    if value["format"] != "b70-bench-speed-v1" {
        return Err(Failure::new(
            format!("{}: format is {}, expected b70-bench-speed-v1", result.display(), value["format"]),
            "give a file of bench/results",
        ));
    }
    let document = std::fs::read_to_string(docs).at("read", docs)?;
    let replaced = replace(&document, &tables(&value)).ok_or_else(|| {
        Failure::new(
            format!("{} lacks a marker", docs.display()),
            "restore the lines <!-- bench:NAME --> and <!-- /bench -->",
        )
    })?;
    std::fs::write(docs, replaced).at("write", docs)
}

fn replace(document: &str, tables: &[(&str, String)]) -> Option<String> {
    let mut document = document.to_owned();
    for (name, table) in tables {
        let marker = format!("<!-- bench:{name} -->\n");
        let from = document.find(&marker)? + marker.len();
        let to = from + document[from..].find("<!-- /bench -->")?;
        document.replace_range(from..to, &format!("{}\n", table.trim_end()));
    }
    Some(document)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn rate(result: &Value, name: &str) -> f64 {
    number(&result["floor"][name]["bytes_per_s"])
}

fn case<'a>(cases: &'a Value, name: &str) -> Option<&'a Value> {
    cases.as_array()?.iter().find(|case| case["name"] == name)
}

fn wall(cases: &Value, name: &str) -> Option<f64> {
    case(cases, name).map(|case| number(&case["median_wall_s"]))
}

fn cores(result: &Value) -> f64 {
    number(&result["machine"]["cores"]).max(1.0)
}

/// A duration with three figures.
fn seconds(value: f64) -> String {
    match value {
        v if v < 0.1 => format!("{:.1} ms", v * 1e3),
        v if v < 10.0 => format!("{v:.2} s"),
        v => format!("{v:.1} s"),
    }
}

fn gigabytes(value: f64) -> String {
    format!("{:.2} GB/s", value / 1e9)
}

fn mib(value: &Value) -> String {
    format!("{:.0} MiB", number(value) / f64::from(1 << 20))
}

fn about(result: &Value) -> String {
    let machine = &result["machine"];
    let list = |value: &Value| {
        let all = value.as_array().cloned().unwrap_or_default();
        all.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(if value == &result["left_out"] {
            "; "
        } else {
            " "
        })
    };
    let left_out = list(&result["left_out"]);
    format!(
        "| | |\n|--|--|\n| started | {} |\n| commit | {} |\n| command | `cargo xtask {}` |\n| CPU | {} (family {}, model {}), {} cores; {} |\n| kernels | hashing {}, packing {} |\n| memory, system | {}; {} |\n| load average | {} at the start, {} at the end |\n| rounds, duration | {}, {:.0} s |\n| left out | {} |\n",
        result["started_utc"].as_str().unwrap_or(""),
        result["commit"].as_str().unwrap_or(""),
        result["command"].as_str().unwrap_or(""),
        machine["cpu"].as_str().unwrap_or(""),
        machine["cpu_family"].as_str().unwrap_or(""),
        machine["cpu_model"].as_str().unwrap_or(""),
        machine["cores"],
        list(&machine["cpu_features"]),
        machine["lane_kernel"].as_str().unwrap_or(""),
        machine["pack_kernel"].as_str().unwrap_or(""),
        machine["memory"].as_str().unwrap_or(""),
        machine["kernel"].as_str().unwrap_or(""),
        machine["load_average_at_start"].as_str().unwrap_or(""),
        result["load_average_at_end"].as_str().unwrap_or(""),
        result["rounds"],
        number(&result["seconds"]),
        if left_out.is_empty() { "nothing" } else { &left_out },
    )
}

fn parts(result: &Value) -> String {
    let mut table = "| part, in memory | median | ratio |\n|--|--|--|\n".to_owned();
    let rows = [
        ("SHA-256, one stream", "sha256_one_stream", None),
        ("SHA-256, many streams, one core", "sha256_lanes_one_core", Some(("one stream", "sha256_one_stream"))),
        ("SHA-256, many streams, all cores", "sha256_lanes_all_cores", Some(("one core", "sha256_lanes_one_core"))),
        ("BLAKE3, one core", "blake3_one_core", None),
        ("BLAKE3, all cores", "blake3_all_cores", Some(("one core", "blake3_one_core"))),
        ("memcpy, one core", "memcpy_one_core", None),
        ("memcpy, all cores", "memcpy_all_cores", None),
        ("pack 5120×17408, one core", "pack_one_core", Some(("memcpy, one core", "memcpy_one_core"))),
        ("pack 5120×17408, all cores", "pack_all_cores", Some(("memcpy, all cores", "memcpy_all_cores"))),
        ("unpack 5120×17408, one core", "unpack_one_core", Some(("memcpy, one core", "memcpy_one_core"))),
        ("unpack 5120×17408, all cores", "unpack_all_cores", Some(("memcpy, all cores", "memcpy_all_cores"))),
        (
            "pack, 16 bytes past a page, all cores",
            "pack_shifted_all_cores",
            Some(("memcpy so", "memcpy_shifted_all_cores")),
        ),
        (
            "unpack, 16 bytes past a page, all cores",
            "unpack_shifted_all_cores",
            Some(("memcpy so", "memcpy_shifted_all_cores")),
        ),
        ("writing new files in memory, one thread", "write_memory", None),
    ];
    for (label, name, base) in rows {
        let ratio = base.map_or_else(String::new, |(base, key)| {
            format!("{:.2} × {base}", rate(result, name) / rate(result, key).max(1.0))
        });
        table.push_str(&format!("| {label} | {} | {ratio} |\n", gigabytes(rate(result, name))));
    }
    table
}

/// The terms of the floor of a prepare, in seconds: the serial hash, and everything else on all cores.
fn floor(result: &Value, model: &Value, write: f64) -> (f64, f64) {
    let (size, packed) = (number(&model["size_bytes"]), number(&model["packed_bytes"]));
    let lanes = rate(result, "sha256_lanes_one_core").max(1.0) * cores(result);
    (size / rate(result, "sha256_one_stream").max(1.0), (size + 2.0 * packed) / lanes + packed / write.max(1.0))
}

fn prepare(result: &Value) -> String {
    let mut table =
        "| model | run | median | CPU | peak memory | × floor | × faster than numpy |\n|--|--|--|--|--|--|--|\n"
            .to_owned();
    let memory = &result["in_memory"];
    let disk = &result["on_disk"];
    let mut notes = String::new();
    for (place, model, cases, write) in [
        ("in memory", &memory["model"], &memory["prepare"], rate(result, "write_memory")),
        ("on a disk", &disk["model"], &disk["cases"], number(&disk["write"]["bytes_per_s"])),
    ] {
        if model.is_null() {
            continue;
        }
        let label = format!(
            "{} {place}: {:.2} GB, {} tensors of {:.2} GB",
            model["geometry"].as_str().unwrap_or(""),
            number(&model["size_bytes"]) / 1e9,
            model["packed_tensors"],
            number(&model["packed_bytes"]) / 1e9
        );
        let (serial, shared) = floor(result, model, write);
        let numpy = wall(cases, "numpy packer");
        for name in ["prepare", "prepare with a source receipt", "numpy packer"] {
            let Some(found) = case(cases, name) else { continue };
            let wall = number(&found["median_wall_s"]);
            // A receipt saves the model's own hash: the first term, and its part of the second.
            let saved = number(&model["size_bytes"]) / (rate(result, "sha256_lanes_one_core").max(1.0) * cores(result));
            let bound = match name {
                "prepare" => Some(serial.max(shared)),
                "numpy packer" => None,
                _ => Some(shared - saved),
            };
            table.push_str(&format!(
                "| {label} | {name} | {} | {} | {} | {} | {} |\n",
                seconds(wall),
                seconds(number(&found["median_cpu_s"])),
                mib(&found["peak_rss_bytes"]),
                bound.map_or_else(String::new, |bound| format!("{:.2} ({})", wall / bound.max(1e-9), seconds(bound))),
                numpy
                    .filter(|_| name != "numpy packer")
                    .map_or_else(String::new, |numpy| format!("{:.1}", numpy / wall.max(1e-9))),
            ));
        }
        notes.push_str(&format!(
            "\nFloor {place}: the model's own hash {} (one stream); hashing on all cores and writing at {} {}. The larger one is {}.\n",
            seconds(serial),
            gigabytes(write),
            seconds(shared),
            if serial > shared { "the model's hash" } else { "hashing and writing" },
        ));
    }
    format!("{table}{notes}")
}

fn reading(result: &Value) -> String {
    let memory = &result["in_memory"];
    let bytes = number(&memory["model"]["packed_bytes"]);
    let mut table = "| run | median | rate | ratio |\n|--|--|--|--|\n".to_owned();
    let of_rate = |name: &str, wall: f64| bytes / wall.max(1e-9) / rate(result, name).max(1.0);
    let cases = &memory["reading"];
    for found in cases.as_array().into_iter().flatten() {
        let (name, wall_s) = (found["name"].as_str().unwrap_or(""), number(&found["median_wall_s"]));
        let ratio = match name {
            "verify --deep" => {
                let lanes = bytes / wall_s.max(1e-9) / (rate(result, "sha256_lanes_one_core").max(1.0) * cores(result));
                let peer = wall(cases, "sha256sum")
                    .map_or_else(String::new, |peer| format!(", {:.1} × sha256sum", peer / wall_s));
                format!("{lanes:.2} of lanes × cores{peer}")
            }
            "stage-validate by BLAKE3" => {
                let peer =
                    wall(cases, "b3sum").map_or_else(String::new, |peer| format!(", {:.1} × b3sum", peer / wall_s));
                format!("{:.2} of BLAKE3 in memory{peer}", of_rate("blake3_all_cores", wall_s))
            }
            "stage-ram" => {
                let peer = wall(cases, "cp and b3sum").or_else(|| wall(cases, "cp and sha256sum"));
                peer.map_or_else(String::new, |peer| format!("{:.2} × as fast as cp and a sum", peer / wall_s))
            }
            _ => String::new(),
        };
        table.push_str(&format!(
            "| {name} | {} | {} | {ratio} |\n",
            seconds(wall_s),
            gigabytes(bytes / wall_s.max(1e-9))
        ));
    }
    table.push_str("\n| trusted look-up, whole process | median |\n|--|--|\n");
    for found in memory["lookups"].as_array().into_iter().flatten() {
        table.push_str(&format!(
            "| {} | {} |\n",
            found["name"].as_str().unwrap_or(""),
            seconds(number(&found["median_wall_s"]))
        ));
    }
    table
}

fn growth(result: &Value) -> String {
    let rows = result["growth"].as_array().cloned().unwrap_or_default();
    let mut threads: Vec<u64> = rows.iter().filter_map(|row| row["threads"].as_u64()).collect();
    threads.sort_unstable();
    threads.dedup();
    let heads: String = threads.iter().map(|count| format!(" {count} threads | rate | peak memory |")).collect();
    let mut table = format!("| tensors | payload |{heads}\n|--|--|{}\n", "--|--|--|".repeat(threads.len()));
    let mut counts: Vec<u64> = rows.iter().filter_map(|row| row["tensors"].as_u64()).collect();
    counts.dedup();
    for count in counts {
        let of_count: Vec<&Value> = rows.iter().filter(|row| row["tensors"] == count).collect();
        let bytes = of_count.first().map_or(0.0, |row| number(&row["packed_bytes"]));
        table.push_str(&format!("| {count} | {:.0} MB |", bytes / 1e6));
        for count in &threads {
            let Some(row) = of_count.iter().find(|row| row["threads"] == *count) else { continue };
            let wall = number(&row["median_wall_s"]);
            table.push_str(&format!(
                " {} | {} | {} |",
                seconds(wall),
                gigabytes(bytes / wall.max(1e-9)),
                mib(&row["peak_rss_bytes"])
            ));
        }
        table.push('\n');
    }
    table
}

/// What the measured parts say of other machines: qwen27 in memory.
fn on_paper(result: &Value) -> String {
    const SIZE: f64 = 9_800_000_000.0;
    const PACKED: f64 = 9_375_252_480.0;
    let (stream, lanes) = (rate(result, "sha256_one_stream").max(1.0), rate(result, "sha256_lanes_one_core").max(1.0));
    let (write, pack) = (rate(result, "write_memory").max(1.0), rate(result, "pack_one_core").max(1.0));
    let blake3 = rate(result, "blake3_one_core").max(1.0);
    let copy = rate(result, "memcpy_one_core").max(1.0);
    let serial = SIZE / stream;
    // CPU seconds that can be spread: packing, writing, reading source and payload, two SHA-256 and two BLAKE3 of each payload's bytes.
    let shared = PACKED / pack + PACKED / write + 2.0 * PACKED / copy + 2.0 * PACKED / lanes + 2.0 * PACKED / blake3;
    let with_hash = serial + SIZE / blake3;
    let mut table =
        "| cores | without a receipt | bound | with a receipt | a receipt saves |\n|--|--|--|--|--|\n".to_owned();
    for cores in [1.0_f64, 2.0, 4.0, 8.0, 16.0, 64.0] {
        let spread = (shared + with_hash) / cores;
        let (without, with) = (serial.max(spread), shared / cores);
        table.push_str(&format!(
            "| {cores} | {} | {} | {} | {} |\n",
            seconds(without),
            if serial > spread { "the model's hash" } else { "all cores" },
            seconds(with),
            seconds(without - with)
        ));
    }
    let wall = (shared + with_hash) / serial;
    format!("{table}\nThe model's own hash is the wall from {wall:.1} cores on.\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tables_replace_what_stands_between_their_markers() {
        let text = "a\n<!-- bench:x -->\nold\n<!-- /bench -->\nb\n<!-- bench:y -->\n<!-- /bench -->\n";
        let replaced = replace(text, &[("x", "new\n".to_owned()), ("y", "also".to_owned())]).expect("both are there");
        assert_eq!(replaced, "a\n<!-- bench:x -->\nnew\n<!-- /bench -->\nb\n<!-- bench:y -->\nalso\n<!-- /bench -->\n");
        assert_eq!(replace(&replaced, &[("x", "new".to_owned())]).as_deref(), Some(&replaced[..]));
        assert_eq!(replace(text, &[("z", String::new())]), None);
    }

    #[test]
    fn the_documentation_has_every_marker_and_an_empty_result_renders() {
        let docs = include_str!("../../../docs/performance.md");
        assert!(replace(docs, &tables(&json!({}))).is_some());
    }
}
