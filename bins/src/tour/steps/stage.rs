//! A set in RAM: read again at each look, and refused once a byte changed.

use std::time::Duration;

use b70_cli::{CliError, bytes_text, uid};
use b70_packset::{Depth, SetDir, StageOptions, StageOutcome, StageReport, VerifyStatus, stage_ram, stage_validate};
use b70_store::Trust;
use b70_xe2pack::Xe2DpasV2;

use super::{Places, Proof, Tour, expect, flip_bit, told};

/// Returns whether every step proved what it should.
pub(crate) fn run(places: &Places, set: &SetDir, tour: &mut Tour<'_>) -> Result<bool, CliError> {
    let lock_timeout = Duration::from_secs(60);
    let options = StageOptions { uid: uid(), min_free: 64 << 20, lock_timeout, ..StageOptions::new(&places.ram) };
    let (document, _) = set.read_manifest()?;
    let key = document.key;
    let command = format!("b70-pack stage-ram --set-key {key}");
    let mut stage = None;
    Ok(tour.step("stage-ram", command.clone(), || {
        let first = stage_ram(set, &Xe2DpasV2::new(), &options).map_err(told)?;
        let second = stage_ram(set, &Xe2DpasV2::new(), &options).map_err(told)?;
        let proof = judge(&first, &second);
        stage = Some(first.stage);
        proof
    }) && tour.step("trust", format!("b70-pack stage-validate --set-key {key}"), || {
        let folder = stage.as_deref().ok_or("there is no stage")?;
        let victim = document.tensors.first().ok_or("the set has no tensors")?;
        flip_bit(&folder.join(&victim.payload.path))?;
        let layout = Xe2DpasV2::new();
        let damaged = stage_validate(key, Some(set), &layout, Depth::Shallow, &options).map_err(told)?;
        if damaged.status == VerifyStatus::Ready {
            return Err("a stage with one flipped bit was still trusted".to_owned());
        }
        let repaired = stage_ram(set, &layout, &options).map_err(told)?;
        expect(
            repaired.status == VerifyStatus::Ready && repaired.outcome == StageOutcome::Repaired,
            format!(
                "one flipped bit, times put back: trust ended ({}); {command} made it whole",
                damaged.failures.first().map_or("no code", String::as_str)
            ),
        )
    }))
}

fn judge(first: &StageReport, second: &StageReport) -> Proof {
    let staged = format!("{} in RAM", bytes_text(first.payload_size_bytes));
    let whole = first.status == VerifyStatus::Ready && second.status == VerifyStatus::Ready;
    let read = bytes_text(second.checked_bytes);
    expect(
        whole,
        match second.trust {
            Some(trust @ (Trust::Blake3 | Trust::Sha256)) => {
                format!("{staged}; the second call read {read} again; trust: {trust}")
            }
            Some(trust) => format!("{staged}; the second call read no payload byte; trust: {trust}"),
            None => format!("{staged}; the second call admitted nothing"),
        },
    )
}
