//! The plans that come with the layout.

use b70_manifest::pack::{EveryEligible, LAB_FORMAT_PREFIX, LayerRange, PlanRule, PlanRules, RuleShape};
use b70_packset::BuiltInPlan;

/// Name of the plan for upstream's model.
pub const QWEN27_PLAN: &str = "qwen27-xe2-m6";
/// Name of the plan that packs everything the layout can take.
pub const ALL_PLAN: &str = "all-q4_0";

pub(crate) fn plans() -> Vec<BuiltInPlan> {
    vec![
        BuiltInPlan {
            name: QWEN27_PLAN,
            format_prefix: LAB_FORMAT_PREFIX,
            kernel_abi: Some("qwen27-b70-pack-v1"),
            rules: PlanRules::Listed(qwen27_rules()),
        },
        BuiltInPlan {
            name: ALL_PLAN,
            format_prefix: "xe2-dpas",
            kernel_abi: None,
            rules: PlanRules::Every(EveryEligible::EveryEligibleTensor),
        },
    ]
}

fn qwen27_rules() -> Vec<PlanRule> {
    let rule = |part: &str, first, shape, slot_base, slot_stride| PlanRule {
        pattern: format!("blk.{{layer}}.{part}.weight"),
        layers: LayerRange { first, last: 64 },
        shape: RuleShape::Exact(shape),
        slot_base,
        slot_stride,
    };
    vec![
        rule("ffn_gate", 0, [5120, 17408], 0, 2),
        rule("ffn_up", 0, [5120, 17408], 1, 2),
        // The first eight down projections are Q4_1 in the published model.
        rule("ffn_down", 8, [17408, 5120], 130, 1),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use b70_packset::TensorPlan;

    use super::*;

    #[test]
    fn the_lab_plan_fills_187_slots() {
        let plan = TensorPlan::built_in(QWEN27_PLAN, &crate::Xe2DpasV2::new()).unwrap();
        let slots = plan.exact_slots().unwrap();
        let slots: HashMap<u64, &str> = slots.iter().map(|(slot, name, _)| (*slot, name.as_str())).collect();
        assert_eq!(slots.len(), 187);
        assert_eq!(slots[&0], "blk.0.ffn_gate.weight");
        assert_eq!(slots[&129], "blk.64.ffn_up.weight");
        assert_eq!(slots[&130], "blk.8.ffn_down.weight");
        assert_eq!(slots[&186], "blk.64.ffn_down.weight");
        // The one rule of plan files that it breaks on purpose is the reserved prefix.
        let mut document = plan.document().clone();
        document.format_prefix = "other".to_owned();
        TensorPlan::from_document(document).unwrap();
    }
}
