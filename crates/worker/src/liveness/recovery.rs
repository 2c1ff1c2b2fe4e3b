//! What to do about a wedged or lost server: a plan to read, never run.

use b70_procguard::{KernelEventKind, PciAddress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{KernelFindings, LivenessState};

/// One step of a recovery plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RecoveryStep {
    /// What to do.
    pub what: String,
    /// The command that does it, where there is one.
    pub command: Option<String>,
    /// Why.
    pub why: String,
}

fn step(what: &str, command: Option<String>, why: &str) -> RecoveryStep {
    RecoveryStep { what: what.into(), command, why: why.into() }
}

/// The plan for a state; empty for servers that serve.
pub(super) fn plan(
    state: LivenessState,
    pid: Option<u32>,
    card: Option<PciAddress>,
    kernel: &KernelFindings,
) -> Vec<RecoveryStep> {
    if !matches!(state, LivenessState::Wedged | LivenessState::Lost) {
        return Vec::new();
    }
    let gravest = kernel.gravest().map(|event| event.kind);
    let mut steps = Vec::new();
    if let (KernelFindings::Read { devcoredump: Some(true), .. }, Some(pci)) = (kernel, card) {
        steps.push(step(
            "save the device core dump",
            Some(format!("cp /sys/bus/pci/devices/{pci}/devcoredump/data b70-devcoredump-{pci}")),
            "the kernel keeps it for a few minutes only, and a bug report needs it",
        ));
    }
    if let Some(pci) = card {
        steps.push(step(
            "see who holds the card",
            Some(format!("b70-gpu owners --gpu {pci}")),
            "only what the kit started may be stopped by it",
        ));
    }
    if state == LivenessState::Wedged {
        let named = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        steps.push(step(
            &format!("stop the worker{named}, with a kill if it does not end by itself"),
            Some("b70-worker stop --worker NAME --kill-after 30 --execute".into()),
            "a server that waits for a dead engine ignores TERM; its memory is freed when the process is gone",
        ));
    }
    let pci = card.map_or_else(|| "PCI_ADDRESS".to_owned(), |pci| pci.to_string());
    match gravest {
        Some(KernelEventKind::DeviceLost) => steps.push(step(
            "reboot the machine",
            None,
            "the card is gone from the bus; no reset of the driver brings it back reliably",
        )),
        Some(KernelEventKind::Wedged | KernelEventKind::ResetFailed) => {
            steps.push(step(
                "rebind the driver, as root, when no process has the card open",
                Some(format!("echo {pci} > /sys/bus/pci/drivers/xe/unbind; echo {pci} > /sys/bus/pci/drivers/xe/bind")),
                "the driver gave the device up; ordinals of later cards shift while it is away",
            ));
            steps.push(step("reboot if the card does not come back", None, "a card that hangs in a reset needs power"));
        }
        _ => {}
    }
    steps.push(step(
        "start the worker again",
        Some("b70-worker start --worker NAME --execute".into()),
        "start looks at card, lease and port first, and waits until it answers",
    ));
    steps
}
