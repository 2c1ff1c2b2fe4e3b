//! The results as text for people.

use std::fmt::Write as _;

use b70_cli::{Style, Ui, bytes_text, seconds_text};
use b70_procguard::{CardVerdict, Cards, CheckStatus, DoctorReport, LeaseKind, LeaseReport, RecordSummary, Usage};
use b70_worker::{KernelFindings, LivenessReport};

fn or_dash(text: Option<&str>) -> &str {
    text.unwrap_or("-")
}

pub(crate) fn cards(ui: &Ui, cards: &Cards) -> String {
    let mut out = String::new();
    if cards.cards.is_empty() {
        out.push_str("no display devices\n");
    }
    for card in &cards.cards {
        let ordinal = card.level_zero_ordinal.map_or_else(|| "-".into(), |n| n.to_string());
        let bytes = |b: Option<u64>| b.map_or_else(|| "unknown".into(), bytes_text);
        let _ = writeln!(
            out,
            "{}  {}  [{}:{}]",
            ui.paint(Style::Strong, &card.pci.to_string()),
            card.name,
            &card.vendor_id[2..],
            &card.device_id[2..]
        );
        let _ = writeln!(
            out,
            "  driver {}  nodes {} {}",
            or_dash(card.driver.as_deref()),
            or_dash(card.card_node.as_deref()),
            or_dash(card.render_node.as_deref())
        );
        let _ = writeln!(out, "  Level Zero ordinal {ordinal}: {}", card.ordinal_reason);
        let _ = writeln!(out, "  VRAM {}, in use {}", bytes(card.vram_total_bytes), bytes(card.vram_used_bytes));
    }
    for reason in &cards.ordinal_may_shift {
        let _ = writeln!(out, "{} {reason}", ui.paint(Style::Dim, "ordinals may shift:"));
    }
    for what in &cards.unreadable {
        let _ = writeln!(out, "{} {what}", ui.paint(Style::Warn, "unreadable:"));
    }
    out
}

pub(crate) fn usage(ui: &Ui, usage: &Usage) -> String {
    let mut out = String::new();
    if usage.cards.is_empty() {
        out.push_str("no display devices\n");
    }
    for card in &usage.cards {
        let verdict = match card.verdict {
            CardVerdict::Free => ui.paint(Style::Good, "free"),
            CardVerdict::Used => ui.paint(Style::Bad, "used"),
            CardVerdict::Unknown => ui.paint(Style::Warn, "unknown"),
        };
        let _ = writeln!(out, "{}  {verdict}", ui.paint(Style::Strong, &card.pci.to_string()));
        for owner in &card.owners {
            let words: Vec<String> = owner
                .evidence
                .iter()
                .filter_map(|e| serde_json::to_value(e).ok()?.as_str().map(str::to_owned))
                .collect();
            let _ = writeln!(
                out,
                "  pid {} {}: {}, VRAM {}",
                owner.pid,
                owner.comm,
                words.join(" "),
                bytes_text(owner.vram_resident_bytes)
            );
            for note in &owner.notes {
                let _ = writeln!(out, "    {}", ui.paint(Style::Dim, note));
            }
        }
        if !card.open_only.is_empty() {
            let pids: Vec<String> = card.open_only.iter().map(u32::to_string).collect();
            let _ = writeln!(out, "  {}", ui.paint(Style::Dim, &format!("only open, no use: {}", pids.join(" "))));
        }
    }
    // An ordinary user cannot read hundreds of processes; one line a reason is enough for people.
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for item in &usage.unreadable {
        let who = item.pid.map_or_else(String::new, |p| p.to_string());
        match reasons.iter_mut().find(|(what, _)| *what == item.what) {
            Some((_, pids)) => pids.push(who),
            None => reasons.push((item.what.clone(), vec![who])),
        }
    }
    for (what, pids) in reasons {
        let who = match pids.as_slice() {
            [one] if one.is_empty() => String::new(),
            few if few.len() <= 8 => format!(" of pid {}", few.join(" ")),
            many => format!(" of {} processes", many.len()),
        };
        let _ = writeln!(out, "{} {what}{who}", ui.paint(Style::Warn, "could not be read:"));
    }
    out
}

pub(crate) fn liveness(ui: &Ui, report: &LivenessReport) -> String {
    let style = if report.state.is_serving() { Style::Good } else { Style::Bad };
    let mut out = format!("{}  {}: {}\n", report.url, ui.paint(style, report.state.word()), report.reason);
    for step in &report.steps {
        let line = format!("{} [{}] {} ({})", step.call, step.code, step.detail, seconds_text(step.seconds));
        let _ = writeln!(out, "  {}", ui.paint(Style::Dim, &line));
    }
    if let KernelFindings::Unreadable { reason } = &report.kernel {
        let _ = writeln!(out, "  the kernel's log was not looked at: {reason}");
    }
    for (n, step) in report.recovery.iter().enumerate() {
        let _ = writeln!(out, "  {}. {} ({})", n + 1, step.what, step.why);
        if let Some(command) = &step.command {
            let _ = writeln!(out, "     {command}");
        }
    }
    out
}

pub(crate) fn leases(ui: &Ui, report: &LeaseReport) -> String {
    let mut out = String::new();
    if report.leases.is_empty() {
        let _ = writeln!(out, "no cards, and no lease was ever taken in {}", report.lease_root.display());
    }
    for lease in &report.leases {
        let kind = if lease.kind == LeaseKind::Measuring { " (measuring)" } else { "" };
        let name = ui.paint(Style::Strong, &lease.pci.to_string());
        match (&lease.owner, lease.held) {
            (_, false) => {
                let _ = writeln!(out, "{name}{kind}  {}", ui.paint(Style::Good, "free"));
            }
            (Some(owner), true) => {
                let _ = writeln!(
                    out,
                    "{name}{kind}  {} by pid {} since unix time {}: {}",
                    ui.paint(Style::Bad, "leased"),
                    owner.pid,
                    owner.since_unix,
                    owner.command
                );
                if !lease.holders.is_empty() && !lease.holders.contains(&owner.pid) {
                    let _ = writeln!(
                        out,
                        "  that process is gone; the lock lives on in {:?}, which inherited it",
                        lease.holders
                    );
                }
            }
            (None, true) => {
                let _ = writeln!(
                    out,
                    "{name}{kind}  {} by {:?}, who wrote no name",
                    ui.paint(Style::Bad, "leased"),
                    lease.holders
                );
            }
        }
    }
    if let Some(uid) = report.directory_owner {
        let _ = writeln!(
            out,
            "{} user {uid} owns {} and could remove lock files",
            ui.paint(Style::Warn, "note:"),
            report.lease_root.display()
        );
    }
    out
}

pub(crate) fn doctor(ui: &Ui, report: &DoctorReport) -> String {
    let mut out = String::new();
    for check in &report.checks {
        let status = match check.status {
            CheckStatus::Ok => ui.paint(Style::Good, "ok     "),
            CheckStatus::Warn => ui.paint(Style::Warn, "warn   "),
            CheckStatus::Fail => ui.paint(Style::Bad, "fail   "),
            CheckStatus::Unknown => ui.paint(Style::Dim, "unknown"),
        };
        let _ = writeln!(out, "{status}  {}: {}", check.name, check.found);
        if check.status != CheckStatus::Ok && !check.todo.is_empty() {
            let _ = writeln!(out, "         {}", check.todo);
        }
    }
    out
}

pub(crate) fn record(summary: &RecordSummary) -> String {
    format!(
        "{}: {} cards, {} processes, {} paths that could not be read; secrets were removed, but look through it before you send it",
        summary.path.display(),
        summary.cards,
        summary.processes,
        summary.unreadable.len()
    )
}
