//! Kernel fixtures: the same bytes on every machine, and a flipped bit found by name.

use b70_golden::{FixtureOptions, SetParameters, prepare, verify};

use super::{Places, Tour, expect, flip_bit, told};

/// Returns whether every step proved what it should.
pub(crate) fn run(places: &Places, tour: &mut Tour<'_>) -> bool {
    tour.step("golden", "b70-golden prepare && b70-golden verify --recompute".to_owned(), || {
        let made = prepare(&places.artifacts, &SetParameters::default(), &FixtureOptions::default()).map_err(told)?;
        let checked = verify(&places.artifacts, true).map_err(told)?;
        if !checked.is_valid() {
            return Err(checked.failures.join(", "));
        }
        let victim = made.tensors.last().ok_or("the set has no tensors")?;
        let folder = made.manifest.parent().ok_or("the manifest has no folder")?;
        flip_bit(&folder.join(&victim.name))?;
        let damaged = verify(&places.artifacts, false).map_err(told)?;
        let named = damaged.failures.iter().filter(|failure| failure.contains(&victim.name)).count();
        expect(
            named == 1 && damaged.failures.len() == 1,
            format!(
                "{} tensors from a seed, made twice with equal bytes; one flipped bit was found in {}",
                made.tensors.len(),
                victim.name
            ),
        )
    })
}
