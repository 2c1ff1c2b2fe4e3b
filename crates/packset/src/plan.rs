//! Plans: which tensors of a model go to which slot.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use b70_gguf::Tensor;
use b70_manifest::pack::{LAB_FORMAT_PREFIX, PackPlan, PlanLayout, PlanRule, PlanRules, RuleShape};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{PackError, TensorProblem};
use crate::layout::{BuiltInPlan, Layout, MatrixShape};
use crate::model::Model;

/// The largest row group the packer works on: 16 rows of 1.8 million elements in Q4_0.
const MAX_GROUP_BYTES: u64 = 16 << 20;
/// A plan file larger than this is refused unread.
const MAX_PLAN_BYTES: u64 = 1 << 20;
/// More slots than any GGUF directory of bounded size can fill.
const MAX_SLOTS: u64 = 1 << 20;

/// A plan that has passed the rules a schema cannot say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlan {
    document: PackPlan,
}

impl TensorPlan {
    /// The built-in plan of that name, else the plan file at that path.
    pub fn named_or_file(name: &str, layout: &dyn Layout) -> Result<Self, PackError> {
        match Self::built_in(name, layout) {
            Some(plan) => Ok(plan),
            None if Path::new(name).exists() => Self::from_file(Path::new(name)),
            None => {
                let known = layout.plans().iter().map(|plan| plan.name).collect();
                Err(PackError::UnknownPlan { name: name.to_owned(), known })
            }
        }
    }

    /// The plan of that name that comes with the layout.
    pub fn built_in(name: &str, layout: &dyn Layout) -> Option<Self> {
        Self::of_layout(layout, |plan| plan.name == name)
    }

    /// The first plan of the layout that is `wanted`.
    pub(crate) fn of_layout(layout: &dyn Layout, wanted: impl Fn(&BuiltInPlan) -> bool) -> Option<Self> {
        let plan = layout.plans().into_iter().find(wanted)?;
        let descriptor = layout.descriptor();
        let layout = PlanLayout {
            name: descriptor.name.to_owned(),
            version: descriptor.version,
            architecture: descriptor.architecture.to_owned(),
        };
        Some(Self {
            document: PackPlan {
                schema: None,
                schema_version: 1,
                name: plan.name.to_owned(),
                format_prefix: plan.format_prefix.to_owned(),
                layout,
                rules: plan.rules,
            },
        })
    }

    /// Reads a plan file.
    pub fn from_file(path: &Path) -> Result<Self, PackError> {
        let text = crate::document::read_text(path, MAX_PLAN_BYTES)?;
        let document: PackPlan = crate::document::parse(path, &text)?;
        Self::from_document(document).map_err(|problem| PackError::PlanFile { path: path.to_path_buf(), problem })
    }

    /// Checks a plan document. The error says which rule is broken, and how.
    pub fn from_document(document: PackPlan) -> Result<Self, String> {
        if document.schema_version != 1 {
            return Err(format!("schema_version is {}, expected 1", document.schema_version));
        }
        if document.format_prefix == LAB_FORMAT_PREFIX {
            return Err(format!(
                "format_prefix {LAB_FORMAT_PREFIX:?} is reserved for the built-in plan {LAB_FORMAT_PREFIX}"
            ));
        }
        let word = |text: &str, longest: usize, upper: bool| {
            !text.is_empty()
                && text.len() <= longest
                && text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| {
                    c.is_ascii_digit()
                        || c.is_ascii_lowercase()
                        || (upper && c.is_ascii_uppercase())
                        || "._-".contains(c)
                })
        };
        if !word(&document.format_prefix, 48, false) {
            return Err(format!("format_prefix {:?} must match ^[a-z0-9][a-z0-9._-]{{0,47}}$", document.format_prefix));
        }
        if !word(&document.name, 64, true) {
            return Err(format!("name {:?} must match ^[A-Za-z0-9][A-Za-z0-9._-]{{0,63}}$", document.name));
        }
        if let PlanRules::Listed(rules) = &document.rules {
            check_rules(rules)?;
        }
        Ok(Self { document })
    }

    /// The plan's name.
    pub fn name(&self) -> &str {
        &self.document.name
    }

    /// First part of every format name in the set's documents.
    pub fn format_prefix(&self) -> &str {
        &self.document.format_prefix
    }

    /// The document.
    pub fn document(&self) -> &PackPlan {
        &self.document
    }

    /// How many tensors the plan needs; none when it takes what the model has.
    pub fn expected_tensor_count(&self) -> Option<u64> {
        match &self.document.rules {
            PlanRules::Every(_) => None,
            PlanRules::Listed(rules) => Some(rules.iter().map(layers).sum()),
        }
    }

    /// Refuses a layout other than the one the plan asks for.
    pub fn check_layout(&self, layout: &dyn Layout) -> Result<(), PackError> {
        let asked = &self.document.layout;
        let has = layout.descriptor();
        if asked.name == has.name && asked.version == has.version && asked.architecture == has.architecture {
            return Ok(());
        }
        Err(PackError::PlanLayout {
            plan: self.name().to_owned(),
            found: format!("{} version {} for {}", asked.name, asked.version, asked.architecture),
            expected: format!("{} version {} for {}", has.name, has.version, has.architecture),
        })
    }

    /// The slots, names and shapes of a plan with exact shapes, in slot order.
    pub fn exact_slots(&self) -> Result<Vec<(u64, String, MatrixShape)>, PackError> {
        let not_exact = || PackError::PlanNotExact { plan: self.name().to_owned() };
        let PlanRules::Listed(rules) = &self.document.rules else { return Err(not_exact()) };
        let mut slots = Vec::new();
        for (slot, name, rule) in expand(rules) {
            let RuleShape::Exact([k, n]) = rule.shape else { return Err(not_exact()) };
            slots.push((slot, name, MatrixShape { k, n }));
        }
        slots.sort_unstable_by_key(|(slot, ..)| *slot);
        Ok(slots)
    }

    /// Applies the plan to a model: what goes to which slot, and what is left out, why.
    ///
    /// Under a listed plan every named tensor must be there and fit; all that is wrong is reported at once.
    pub fn select(&self, model: &Model, layout: &dyn Layout) -> Result<TensorSelection, PackError> {
        let (selection, problems) = self.apply(model, layout)?;
        if problems.is_empty() {
            return Ok(selection);
        }
        let plans = layout.plans();
        Err(PackError::PlanMismatch {
            plan: self.name().to_owned(),
            path: model.path().to_path_buf(),
            problems,
            every: plans.iter().find(|plan| matches!(plan.rules, PlanRules::Every(_))).map(|plan| plan.name),
        })
    }

    /// The same, with what keeps the plan from being carried out as data; the selection then lacks those tensors.
    pub(crate) fn apply(
        &self,
        model: &Model,
        layout: &dyn Layout,
    ) -> Result<(TensorSelection, Vec<TensorProblem>), PackError> {
        self.check_layout(layout)?;
        let mut problems = Vec::new();
        let (mut tensors, skipped) = match &self.document.rules {
            PlanRules::Every(_) => select_every(model, layout, &mut problems),
            PlanRules::Listed(rules) => select_listed(rules, model, layout, &mut problems),
        };
        tensors.sort_unstable_by_key(|tensor| tensor.slot);
        Ok((TensorSelection { tensors, skipped }, problems))
    }
}

/// A plan applied to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSelection {
    /// What is packed, in slot order.
    pub tensors: Vec<SelectedTensor>,
    /// What is left out.
    pub skipped: Vec<SkippedTensor>,
}

/// A tensor that is packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedTensor {
    /// Its slot.
    pub slot: u64,
    /// Its name.
    pub name: String,
    /// Its shape.
    pub shape: MatrixShape,
    /// The file of the model it lies in, 0-based.
    pub file_index: usize,
    /// Absolute offset in that file, in bytes.
    pub offset: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}

impl SelectedTensor {
    fn of(tensor: &Tensor, slot: u64, shape: MatrixShape) -> Self {
        let name = tensor.name_lossy().into_owned();
        let &Tensor { file_index, offset, size_bytes, .. } = tensor;
        Self { slot, name, shape, file_index, offset, size_bytes }
    }
}

/// A tensor that is left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedTensor {
    /// Its name.
    pub name: String,
    /// Its type, `Q4_0`.
    #[serde(rename = "type")]
    pub type_name: String,
    /// Its shape, fastest first.
    pub shape: Vec<u64>,
    /// Why.
    pub reason: String,
}

impl SkippedTensor {
    fn of(tensor: &Tensor, reason: String) -> Self {
        let (name, type_name) = (tensor.name_lossy().into_owned(), tensor.ggml_type.name().to_owned());
        Self { name, type_name, shape: tensor.shape.clone(), reason }
    }
}

fn select_every(
    model: &Model,
    layout: &dyn Layout,
    problems: &mut Vec<TensorProblem>,
) -> (Vec<SelectedTensor>, Vec<SkippedTensor>) {
    let (mut selected, mut skipped) = (Vec::new(), Vec::new());
    for tensor in model.tensors() {
        match eligible(tensor, layout) {
            Err(reason) => skipped.push(SkippedTensor::of(tensor, reason)),
            Ok(_) if !nameable(tensor) => {
                problems.push(TensorProblem::Name { name: format!("{:?}", tensor.name_lossy()) });
            }
            Ok(shape) => selected.push(SelectedTensor::of(tensor, selected.len() as u64, shape)),
        }
    }
    (selected, skipped)
}

fn select_listed(
    rules: &[PlanRule],
    model: &Model,
    layout: &dyn Layout,
    problems: &mut Vec<TensorProblem>,
) -> (Vec<SelectedTensor>, Vec<SkippedTensor>) {
    let by_name: HashMap<&[u8], &Tensor> =
        model.tensors().iter().map(|tensor| (tensor.name.as_slice(), tensor)).collect();
    let mut selected = Vec::new();
    let mut taken = std::collections::HashSet::new();
    for (slot, name, rule) in expand(rules) {
        let Some(tensor) = by_name.get(name.as_bytes()) else {
            problems.push(TensorProblem::Missing { name, slot });
            continue;
        };
        taken.insert(&tensor.name);
        let source = layout.source_type();
        if tensor.ggml_type != source {
            problems.push(TensorProblem::Type {
                name,
                found: tensor.ggml_type.name().to_owned(),
                expected: source.name().to_owned(),
            });
            continue;
        }
        let wrong_shape =
            |expected: String| TensorProblem::Shape { name: name.clone(), found: shape_text(&tensor.shape), expected };
        if let RuleShape::Exact(exact) = rule.shape
            && tensor.shape != exact
        {
            problems.push(wrong_shape(shape_text(&exact)));
            continue;
        }
        match eligible(tensor, layout) {
            Ok(shape) if nameable(tensor) => selected.push(SelectedTensor::of(tensor, slot, shape)),
            Ok(_) => problems.push(TensorProblem::Name { name: format!("{:?}", tensor.name_lossy()) }),
            Err(reason) => problems.push(wrong_shape(reason)),
        }
    }
    let skipped = model
        .tensors()
        .iter()
        .filter(|tensor| !taken.contains(&tensor.name) && tensor.ggml_type == layout.source_type())
        .map(|tensor| SkippedTensor::of(tensor, "not named by the plan".to_owned()))
        .collect();
    (selected, skipped)
}

/// The shape of a tensor that the layout can take, or the reason it cannot.
fn eligible(tensor: &Tensor, layout: &dyn Layout) -> Result<MatrixShape, String> {
    let source = layout.source_type();
    if tensor.ggml_type != source {
        return Err(format!("type {}; the layout packs {}", tensor.ggml_type.name(), source.name()));
    }
    let [k, n] = tensor.shape[..] else {
        return Err(format!("{} dimensions; the layout packs matrices of 2", tensor.shape.len()));
    };
    let shape = MatrixShape { k, n };
    layout.check(shape).map_err(|error| error.to_string())?;
    check_working_set(shape, layout)?;
    Ok(shape)
}

/// Refuses a tensor of which not even one row group fits a worker's memory.
pub(crate) fn check_working_set(shape: MatrixShape, layout: &dyn Layout) -> Result<(), String> {
    let group = MatrixShape { k: shape.k, n: layout.row_group() };
    match layout.source_len(group) {
        Ok(bytes) if bytes <= MAX_GROUP_BYTES => Ok(()),
        _ => Err(format!("{} rows of {} elements exceed the packer's working buffer", layout.row_group(), shape.k)),
    }
}

/// Whether a name can stand in a tab-separated line of UTF-8.
fn nameable(tensor: &Tensor) -> bool {
    tensor.name().is_ok_and(|name| !name.is_empty() && !name.chars().any(char::is_control))
}

pub(crate) fn shape_text(shape: &[u64]) -> String {
    let numbers: Vec<String> = shape.iter().map(u64::to_string).collect();
    format!("({})", numbers.join(", "))
}

fn layers(rule: &PlanRule) -> u64 {
    rule.layers.last.saturating_sub(rule.layers.first).saturating_add(1)
}

/// Every (slot, name, rule) of a checked rule list.
fn expand(rules: &[PlanRule]) -> impl Iterator<Item = (u64, String, &PlanRule)> {
    rules.iter().flat_map(|rule| {
        (rule.layers.first..=rule.layers.last).map(move |layer| {
            let slot = rule.slot_base + rule.slot_stride * (layer - rule.layers.first);
            (slot, rule.pattern.replace("{layer}", &layer.to_string()), rule)
        })
    })
}

/// The rules of a plan that a schema cannot say: bounded, without overlaps, complete from slot 0 on.
fn check_rules(rules: &[PlanRule]) -> Result<(), String> {
    if rules.is_empty() {
        return Err("rules is an empty list; a plan names at least one family of tensors".to_owned());
    }
    let mut total = 0_u64;
    for (index, rule) in rules.iter().enumerate() {
        if rule.pattern.matches("{layer}").count() != 1
            || rule.pattern.replace("{layer}", "").contains(['{', '}'])
            || rule.pattern.chars().any(char::is_control)
        {
            return Err(format!("rules[{index}].pattern {:?} must have exactly one {{layer}} hole", rule.pattern));
        }
        if rule.layers.first > rule.layers.last {
            return Err(format!(
                "rules[{index}].layers: first {} is after last {}",
                rule.layers.first, rule.layers.last
            ));
        }
        if rule.slot_stride == 0 {
            return Err(format!("rules[{index}].slot_stride is 0, expected at least 1"));
        }
        let last_slot = (rule.layers.last - rule.layers.first)
            .checked_mul(rule.slot_stride)
            .and_then(|span| span.checked_add(rule.slot_base));
        total = total.saturating_add(layers(rule));
        if total > MAX_SLOTS || last_slot.is_none_or(|slot| slot >= MAX_SLOTS) {
            return Err(format!("rules[{index}] reaches beyond slot {MAX_SLOTS}"));
        }
    }
    let (mut slots, mut names) = (BTreeMap::new(), HashMap::new());
    for (slot, name, _) in expand(rules) {
        if let Some(other) = slots.insert(slot, name.clone()) {
            return Err(format!("slot {slot} is given to {other} and to {name}"));
        }
        if let Some(other) = names.insert(name.clone(), slot) {
            return Err(format!("{name} is given slot {other} and slot {slot}"));
        }
    }
    if let Some(gap) = slots.keys().zip(0..).find_map(|(slot, expected)| (*slot != expected).then_some(expected)) {
        return Err(format!("no rule fills slot {gap}; slots run from 0 without gaps"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use b70_manifest::pack::{LayerRange, WildShape};

    use super::*;

    #[test]
    fn broken_rules_are_named() {
        let rule = |pattern: &str, first, last, slot_base, slot_stride| PlanRule {
            pattern: pattern.into(),
            layers: LayerRange { first, last },
            shape: RuleShape::Any(WildShape::Any),
            slot_base,
            slot_stride,
        };
        for (rules, expected) in [
            (vec![], "empty list"),
            (vec![rule("blk.ffn", 0, 1, 0, 1)], "exactly one {layer}"),
            (vec![rule("a{layer}b{layer}", 0, 1, 0, 1)], "exactly one {layer}"),
            (vec![rule("a{layer}\t", 0, 1, 0, 1)], "exactly one {layer}"),
            (vec![rule("a{layer}", 2, 1, 0, 1)], "after last"),
            (vec![rule("a{layer}", 0, 1, 0, 0)], "slot_stride is 0"),
            (vec![rule("a{layer}", 0, 1, 0, 2)], "no rule fills slot 1"),
            (vec![rule("a{layer}", 0, 1, 0, 1), rule("b{layer}", 0, 0, 1, 1)], "slot 1 is given to"),
            (vec![rule("a{layer}", 0, 1, 0, 1), rule("a{layer}", 1, 1, 2, 1)], "a1 is given slot"),
            (vec![rule("a{layer}", 0, u64::MAX, 0, u64::MAX)], "reaches beyond"),
        ] {
            let error = check_rules(&rules).unwrap_err();
            assert!(error.contains(expected), "{error:?} should contain {expected:?}");
        }
    }
}
