//! A copy of the model in RAM, and the registry of artifacts that others made.

use std::time::Duration;

use b70_admission::{
    Artifact, ModelCache, ModelSource, PrepareAction, PrepareRequest, RegisterRequest, Registry, Reserve,
};
use b70_cli::bytes_text;
use b70_store::{HashOptions, Progress, Sha256};

use super::{Places, Proof, Tour, expect, told};

/// How long to wait for somebody else's work on the same thing: nobody else is here.
const WAIT: Duration = Duration::from_secs(10);

/// Returns whether every step proved what it should.
pub(crate) fn run(places: &Places, tour: &mut Tour<'_>) -> bool {
    let model = places.model.display();
    let mut digest = None;
    tour.step("ram-cache", format!("b70-cache prepare --model {model} && b70-cache path --model {model}"), || {
        let (proof, sha256) = cache(places)?;
        digest = Some(sha256);
        Ok(proof)
    }) && tour.step(
        "registry",
        "b70-registry register --artifact DIR … && b70-registry verify --pack-key KEY".to_owned(),
        || registry(places, digest.ok_or("the model's digest is unknown")?),
    )
}

fn cache(places: &Places) -> Result<(String, Sha256), String> {
    let cache = ModelCache::create(&places.ram.join("models")).map_err(told)?;
    let source = ModelSource::open(&places.model).map_err(told)?;
    let how = HashOptions::default();
    let request = PrepareRequest {
        role: "target",
        source: &source,
        sha256: None,
        force: false,
        immutable: false,
        reserve: Reserve::Bytes(64 << 20),
        wait: WAIT,
        tool: "b70-tour",
        packing_tool: None,
        target_architecture: None,
        build: None,
        host: None,
        measure: false,
    };
    let first = cache.prepare(&request, &how).map_err(told)?;
    let second = cache.prepare(&PrepareRequest { sha256: Some(first.key), ..request }, &how).map_err(told)?;
    let wrong = Sha256::from_bytes([0x11; 32]);
    let refused = cache.prepare(&PrepareRequest { sha256: Some(wrong), ..request }, &how).is_err();
    let nothing_left = cache.keys().map_err(told)? == [first.key];
    let sentence = expect(
        first.action == PrepareAction::Copied && second.action == PrepareAction::Reused && refused && nothing_left,
        format!(
            "{} copied and hashed in one pass; reused the second time; a wrong digest was refused and left nothing",
            bytes_text(first.size_bytes)
        ),
    )?;
    Ok((sentence, first.key))
}

fn registry(places: &Places, model: Sha256) -> Proof {
    let folder = places.folder.join("made-elsewhere");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(folder.join(name), bytes))
            .map_err(|error| format!("{}: {error}", folder.display()))
    };
    write("weights.bin", b"bytes of another packer")?;
    write("index.json", b"{}")?;
    let artifact = Artifact::read(&folder, &Progress::NONE).map_err(told)?;
    let registry = Registry::create(&places.artifacts.join("registry")).map_err(told)?;
    let request = RegisterRequest {
        artifact: &artifact,
        source_model_sha256: model,
        packer_revision: "1",
        layout: "example-layout",
        kernel_abi: "example-abi",
        build_fingerprint_sha256: None,
    };
    let key = registry.register(&request, WAIT).map_err(told)?.key;
    let before = registry.verify(&key, &Progress::NONE).map_err(told)?;
    write("weights.bin", b"bytes of another backer")?;
    write("stray.tmp", b"")?;
    let after = registry.verify(&key, &Progress::NONE).map_err(told)?;
    let names = |paths: &[std::path::PathBuf]| {
        paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    expect(
        before.status == "admitted"
            && after.status == "failed"
            && names(&after.changed) == "weights.bin"
            && names(&after.added) == "stray.tmp",
        format!(
            "admitted whole; later changed: {}; added: {}; so no longer admitted",
            names(&after.changed),
            names(&after.added)
        ),
    )
}
