//! From a GGUF to a verified pack set, and back.

use std::path::Path;

use b70_cli::{CliError, bytes_text};
use b70_gguf::SplitModel;
use b70_packset::{
    Depth, Expectation, Inspection, Layout as _, Model, PackError, PrepareOptions, PreparedSet, SetDir, TensorPlan,
    Verification, VerifyOptions, VerifyStatus,
};
use b70_store::Progress;
use b70_xe2pack::{ALL_PLAN, Xe2DpasV2};

use super::{Places, Proof, Tour, expect, flip_bit, told};
use crate::tour::model::{self, ONE_TENSOR, PACKABLE};

struct Packs<'a> {
    model_path: &'a Path,
    cache_root: &'a Path,
    layout: Xe2DpasV2,
    plan: TensorPlan,
}

/// Returns the set's folder when every step proved what it should.
pub(crate) fn run(places: &Places, tour: &mut Tour<'_>) -> Result<Option<SetDir>, CliError> {
    let (model_path, cache_root) = (&places.model, &places.cache);
    model::write(model_path)?;
    let layout = Xe2DpasV2::new();
    let plan = TensorPlan::named_or_file(ALL_PLAN, &layout)?;
    let packs = Packs { model_path, cache_root, layout, plan };
    let model = model_path.display();
    let mut inspection = None;
    let mut prepared = None;
    let passed = tour.step("self-test", "b70-pack self-test".to_owned(), || packs.self_test())
        && tour.step("inspect", format!("b70-pack inspect --model {model}"), || {
            let found = packs.inspect().map_err(told)?;
            let proof = Packs::judge_inspection(&found);
            inspection = Some(found);
            proof
        })
        && tour.step("prepare", format!("b70-pack prepare --model {model}"), || {
            let done = packs.prepare().map_err(told)?;
            let proof = expect(
                done.packed == PACKABLE && done.reused == 0,
                format!("{} tensors packed, payloads {}", done.packed, bytes_text(done.payload_size_bytes)),
            );
            prepared = Some(done);
            proof
        })
        && tour.step("reuse", format!("b70-pack prepare --model {model}"), || {
            let done = packs.prepare().map_err(told)?;
            expect(
                done.packed == 0 && done.reused == PACKABLE,
                format!("the second run packed {} and reused {} after checking their bytes", done.packed, done.reused),
            )
        });
    let (Some(prepared), true) = (prepared, passed) else { return Ok(None) };
    let key = prepared.set_key;
    let set = SetDir::open(cache_root, key)?;
    let passed =
        tour.step("deep", format!("b70-pack verify --deep --set-key {key}"), || {
            let done = packs.verify(&set, Depth::Deep, None).map_err(told)?;
            ready(&done, format!("{} of payload rehashed by SHA-256", bytes_text(done.checked_bytes)))
        }) && tour.step("against", format!("b70-pack verify --against {model} --set-key {key}"), || {
            let source = Model::open(model_path).map_err(told)?;
            let done = packs.verify(&set, Depth::Shallow, Some(&source)).map_err(told)?;
            ready(&done, format!("every block unpacked from {} equals the model's", bytes_text(done.checked_bytes)))
        }) && tour.step("unpack", format!("b70-pack unpack --set-key {key} --tensor {ONE_TENSOR} --out FILE"), || {
            packs.unpack(&set, &places.folder)
        }) && tour.step("tamper", format!("b70-pack verify --deep --set-key {key}"), || packs.tamper(&set));
    Ok(passed.then_some(set))
}

fn ready(verification: &Verification, sentence: String) -> Proof {
    match verification.status {
        VerifyStatus::Ready => Ok(sentence),
        VerifyStatus::Failed => Err(verification.failures.join(", ")),
    }
}

impl Packs<'_> {
    fn self_test(&self) -> Proof {
        let result = b70_xe2pack::self_test(None);
        let cases: u64 = result.kernels.iter().map(|report| report.cases).sum();
        let names: Vec<_> = result.kernels.iter().map(|report| report.kernel).collect();
        expect(
            result.passed(),
            format!(
                "{cases} cases of {} agree with the scalar reference; packing uses {}",
                names.join(", "),
                self.layout.kernel()
            ),
        )
    }

    fn inspect(&self) -> Result<Inspection, PackError> {
        b70_packset::inspect(&Model::open(self.model_path)?, &self.plan, &self.layout)
    }

    fn judge_inspection(found: &Inspection) -> Proof {
        let left_out: Vec<_> = found
            .skipped
            .iter()
            .filter(|tensor| tensor.type_name == "Q4_0")
            .map(|tensor| format!("{} ({})", tensor.name, tensor.reason))
            .collect();
        expect(
            found.selected_tensor_count == PACKABLE && left_out.len() == 1,
            format!("{} tensors selected; Q4_0 left out: {}", found.selected_tensor_count, left_out.join(", ")),
        )
    }

    fn prepare(&self) -> Result<PreparedSet, PackError> {
        b70_packset::prepare(
            &Model::open(self.model_path)?,
            &self.plan,
            &self.layout,
            &PrepareOptions {
                tool: Some(&b70_packset::tool_record("b70-tour", env!("CARGO_PKG_VERSION"))),
                ..PrepareOptions::new(self.cache_root)
            },
        )
    }

    fn verify(&self, set: &SetDir, depth: Depth, against: Option<&Model>) -> Result<Verification, PackError> {
        let options = VerifyOptions {
            depth,
            expectation: &Expectation::default(),
            against,
            spec: None,
            progress: Progress::NONE,
        };
        b70_packset::verify(set, &self.layout, &options)
    }

    /// Unpacks a tensor and compares it with the GGUF's own bytes.
    fn unpack(&self, set: &SetDir, folder: &Path) -> Proof {
        let name = ONE_TENSOR;
        let out = folder.join("blk.0.ffn_down.q4_0.bin");
        let unpacked = b70_packset::unpack(set, name, &self.layout, &out, &Progress::NONE).map_err(told)?;
        let model = SplitModel::open(self.model_path).map_err(told)?;
        let tensor = model.tensor(name).ok_or("the model lost a tensor")?;
        let expected = model.read_tensor(tensor).map_err(told)?;
        let bytes = std::fs::read(&unpacked.path).map_err(|error| error.to_string())?;
        expect(bytes == expected, format!("{} bytes of {name} came back bit for bit", bytes.len()))
    }

    /// Flips one bit of one payload: deep verification must name the tensor, and prepare must repair it.
    fn tamper(&self, set: &SetDir) -> Proof {
        let (document, _) = set.read_manifest().map_err(told)?;
        let victim = document.tensors.last().ok_or("the set has no tensors")?;
        let path = set.path().join(&victim.payload.path);
        flip_bit(&path)?;
        let damaged = self.verify(set, Depth::Deep, None).map_err(told)?;
        let code = format!("payload-sha256:{}", victim.identity.tensor_name);
        if damaged.failures != [code.clone()] {
            return Err(format!("after one flipped bit the failures are {:?}, expected {code}", damaged.failures));
        }
        let repaired = self.prepare().map_err(told)?;
        let after = self.verify(set, Depth::Deep, None).map_err(told)?;
        expect(
            after.status == VerifyStatus::Ready && repaired.repaired.len() == 1,
            format!("one flipped bit was found ({code}) and prepare repaired it"),
        )
    }
}
