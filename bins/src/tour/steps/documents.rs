//! A configuration with a slip of the pen, as an editor would show it.

use std::path::{Path, PathBuf};

use b70_manifest::validate::check_text;
use b70_worker::{FIRST_PORT, InitOptions, starter};

use super::{Places, Proof, Tour, expect, told};

/// Returns whether every step proved what it should.
pub(crate) fn run(places: &Places, tour: &mut Tour<'_>) -> bool {
    let path = places.folder.join("workers.json");
    tour.step("document", format!("b70-manifest validate {}", path.display()), || mistake(places, &path))
}

fn mistake(places: &Places, path: &Path) -> Proof {
    let document = starter(&InitOptions {
        gpus: vec!["0".parse().map_err(told)?, "1".parse().map_err(told)?],
        model: places.model.clone(),
        binary: PathBuf::from("llama-server"),
        runtime_root: places.folder.join("state"),
        first_port: FIRST_PORT,
    })
    .map_err(told)?;
    let good = serde_json::to_string_pretty(&document).map_err(told)?;
    let bad = good.replace("\"n_parallel\"", "\"n_paralel\"");
    std::fs::write(path, &bad).map_err(|error| format!("{}: {error}", path.display()))?;
    let wrong = check_text(path, &bad, None);
    let right = check_text(path, &good, None);
    let marks: Vec<String> = wrong.errors.iter().map(ToString::to_string).collect();
    expect(
        right.valid && wrong.errors.iter().any(|problem| problem.message.contains("did you mean \"n_parallel\"")),
        format!("the editor's mark: workers.json:{}; corrected, the file is valid", marks.join("; ")),
    )
}
