//! Verdicts of the recorded trees under `fixtures/hosts`.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A test ends, and speaks, where something is amiss.

use b70_testkit::{fixture, recorded_host};
use std::{fs, process::Command, time::Duration};

use b70_procguard::{
    CardVerdict, Cards, CheckStatus, DoctorReport, GpuRef, Host, KernelLog, LeaseRoot, ListenerOwnership, Usage,
    UsageOptions, UseEvidence, listening_inode_belongs_to, record,
};

const SLOTS: [&str; 4] = ["0000:03:00.0", "0000:07:00.0", "0000:43:00.0", "0000:c3:00.0"];

fn load(name: &str) -> (Host, Cards) {
    let host = Host::recorded(&recorded_host(name)).expect("a recorded tree");
    let cards = Cards::scan(&host).expect("readable cards");
    (host, cards)
}

/// One line a card: address, verdict, then each owner with its evidence and GiB of VRAM.
fn verdicts(host: &Host, cards: &Cards) -> Vec<String> {
    let usage = Usage::scan(host, cards, &UsageOptions::default());
    let evidence = |e: &UseEvidence| serde_json::to_value(e).unwrap().as_str().unwrap().to_owned();
    usage
        .cards
        .iter()
        .map(|c| {
            let owners: Vec<String> = c
                .owners
                .iter()
                .map(|o| {
                    let words: Vec<String> = o.evidence.iter().map(evidence).collect();
                    format!("{}({}) {} {}MiB", o.comm, o.pid, words.join("+"), o.vram_resident_bytes >> 20)
                })
                .collect();
            let open = if c.open_only.is_empty() { String::new() } else { format!(" open {:?}", c.open_only) };
            format!("{} {:?}: {}{open}", c.pci, c.verdict, owners.join(", ")).replace("  ", " ").trim_end().to_owned()
        })
        .collect()
}

fn check(name: &str, expected: &[&str]) -> Usage {
    let (host, cards) = load(name);
    assert_eq!(verdicts(&host, &cards), expected, "{name}");
    Usage::scan(&host, &cards, &UsageOptions::default())
}

#[test]
fn idle_cards_are_free() {
    let usage = check(
        "four-b70-idle",
        &["0000:03:00.0 Free:", "0000:07:00.0 Free:", "0000:43:00.0 Free:", "0000:c3:00.0 Free:"],
    );
    assert!(usage.unreadable.is_empty(), "{:?}", usage.unreadable);
    let (_, cards) = load("four-b70-idle");
    let card = &cards.cards[0];
    assert_eq!(card.name, "Intel Arc Pro B70");
    assert_eq!(card.render_node.as_deref(), Some("/dev/dri/renderD129"), "node numbers follow from nothing");
    assert_eq!((card.vram_total_bytes, card.vram_used_bytes), (Some(34_250_686_464), Some(44_040_192)));
    assert_eq!(
        cards.cards.iter().map(|c| c.level_zero_ordinal).collect::<Vec<_>>(),
        [Some(0), Some(1), Some(2), Some(3)]
    );
    assert_eq!(cards.resolve("2".parse::<GpuRef>().unwrap()).unwrap().pci.to_string(), SLOTS[2]);
    assert_eq!(cards.resolve("c3:00.0".parse::<GpuRef>().unwrap()).unwrap().level_zero_ordinal, Some(3));
    let e = cards.resolve("9".parse::<GpuRef>().unwrap()).unwrap_err().to_string();
    assert!(e.contains("0 = 0000:03:00.0"), "{e}");
}

#[test]
fn the_discrete_card_is_ordinal_0_and_a_compositor_uses_the_integrated_one() {
    check(
        "igpu-one-card",
        &["0000:00:02.0 Used: Xorg(900) fdinfo-vram+fdinfo-active 0MiB", "0000:03:00.0 Free: open [900]"],
    );
    let (_, cards) = load("igpu-one-card");
    assert_eq!(cards.cards.iter().map(|c| c.level_zero_ordinal).collect::<Vec<_>>(), [Some(1), Some(0)]);
    assert!(
        cards.ordinal_may_shift.iter().any(|r| r.contains("ZE_ENABLE_PCI_ID_DEVICE_ORDER")),
        "{:?}",
        cards.ordinal_may_shift
    );
}

#[test]
fn xe_and_i915_are_read_and_level_zero_skips_other_vendors() {
    check(
        "xe-and-i915",
        &[
            "0000:01:00.0 Free:",
            "0000:03:00.0 Free:",
            "0000:08:00.0 Used: ffmpeg(1500) fdinfo-vram+fdinfo-active 96MiB",
        ],
    );
    let (_, cards) = load("xe-and-i915");
    assert_eq!(cards.cards.iter().map(|c| c.level_zero_ordinal).collect::<Vec<_>>(), [None, Some(0), Some(1)]);
    assert!(cards.cards[0].ordinal_reason.contains("amdgpu"), "{}", cards.cards[0].ordinal_reason);
}

#[test]
fn what_cannot_be_read_is_unknown_and_never_free() {
    let usage = check(
        "unreadable-processes",
        &[
            "0000:03:00.0 Unknown: llama-server(3100) ambiguous-affinity 0MiB",
            "0000:07:00.0 Unknown: llama-server(3100) ambiguous-affinity 0MiB",
            "0000:43:00.0 Used: llama-server(3100) ambiguous-affinity 0MiB, llama-server(3200) fdinfo-vram+affinity 20480MiB",
            "0000:c3:00.0 Unknown: llama-server(3100) ambiguous-affinity 0MiB",
        ],
    );
    let pids: Vec<_> = usage.unreadable.iter().filter_map(|u| u.pid).collect();
    assert_eq!(pids, [1, 700, 3000, 3100, 3100]);
}

#[test]
fn a_job_with_all_nodes_open_uses_the_cards_it_has_memory_on() {
    check(
        "vllm-all-cards",
        &[
            "0000:03:00.0 Used: VLLM::Worker_TP(4000) fdinfo-vram+fdinfo-active 28672MiB open [4001]",
            "0000:07:00.0 Used: VLLM::Worker_TP(4001) fdinfo-vram+fdinfo-active 28672MiB open [4000]",
            "0000:43:00.0 Free: open [4000, 4001]",
            "0000:c3:00.0 Free: open [4000, 4001]",
        ],
    );
}

#[test]
fn a_sleeping_server_still_owns_its_card() {
    let usage = check(
        "sleeping-server",
        &[
            "0000:03:00.0 Free:",
            "0000:07:00.0 Free:",
            "0000:43:00.0 Free:",
            "0000:c3:00.0 Used: llama-server(5000) affinity 0MiB",
        ],
    );
    assert!(usage.cards[3].owners[0].notes.iter().any(|n| n.contains("idle")), "{:?}", usage.cards[3].owners[0].notes);
}

#[test]
fn a_vulkan_server_is_placed_by_its_memory_and_not_by_the_mask() {
    check(
        "vulkan-server",
        &[
            "0000:03:00.0 Free: open [6000]",
            "0000:07:00.0 Free: open [6000]",
            "0000:43:00.0 Used: llama-server(6000) fdinfo-vram 16384MiB",
            "0000:c3:00.0 Free: open [6000]",
        ],
    );
}

#[test]
fn a_shared_client_is_counted_once_and_held_by_both() {
    check(
        "shared-client",
        &[
            "0000:03:00.0 Used: llama-server(7000) fdinfo-vram+affinity 12288MiB, tee(7001) fdinfo-vram 0MiB",
            "0000:07:00.0 Free:",
            "0000:43:00.0 Free:",
            "0000:c3:00.0 Free:",
        ],
    );
}

#[test]
fn sizes_in_every_printed_form_are_equal() {
    let usage = check(
        "unit-forms",
        &[
            "0000:03:00.0 Used: python3(8000) fdinfo-vram 8192MiB",
            "0000:07:00.0 Used: python3(8001) fdinfo-vram 8192MiB",
            "0000:43:00.0 Used: python3(8002) fdinfo-vram 8192MiB",
            "0000:c3:00.0 Used: python3(8003) fdinfo-vram 8192MiB",
        ],
    );
    assert!(usage.cards.iter().all(|c| c.owners[0].vram_resident_bytes == 8 << 30));
}

#[test]
fn a_mask_of_two_cards_blocks_both_and_only_those() {
    check(
        "mask-two-cards",
        &[
            "0000:03:00.0 Used: llama-server(9000) affinity 0MiB",
            "0000:07:00.0 Used: llama-server(9000) affinity 0MiB",
            "0000:43:00.0 Free:",
            "0000:c3:00.0 Free:",
        ],
    );
}

#[test]
fn a_server_that_nothing_pins_blocks_every_card() {
    check(
        "unmasked-server",
        &[
            "0000:03:00.0 Unknown: llama-server(9100) ambiguous-affinity 0MiB",
            "0000:07:00.0 Unknown: llama-server(9100) ambiguous-affinity 0MiB",
            "0000:43:00.0 Used: llama-server(9100) ambiguous-affinity 0MiB, llama-server(9200) device-flag 0MiB",
            "0000:c3:00.0 Unknown: llama-server(9100) ambiguous-affinity 0MiB",
        ],
    );
}

#[test]
fn a_wedged_card_is_used_and_its_missing_counters_are_said() {
    let usage = check(
        "wedged-card",
        &[
            "0000:03:00.0 Free:",
            "0000:07:00.0 Used: llama-server(9300) fdinfo-vram+affinity 12288MiB",
            "0000:43:00.0 Free:",
            "0000:c3:00.0 Free:",
        ],
    );
    assert_eq!(usage.unreadable.len(), 1);
    assert_eq!(usage.unreadable[0].pci.map(|p| p.to_string()).as_deref(), Some(SLOTS[1]));
    let (host, cards) = load("wedged-card");
    let log = KernelLog::read(&host);
    assert_eq!(log.of(cards.cards[1].pci).unwrap().len(), 3);
    assert!(log.of(cards.cards[0].pci).unwrap().is_empty());
    assert!(b70_procguard::has_devcoredump(&host, cards.cards[1].pci).unwrap());
    assert_eq!(KernelLog::read(&load("shared-client").0).of(cards.cards[1].pci), None, "no log is not an empty log");
}

#[test]
fn nodes_that_cannot_be_opened_shift_the_ordinals() {
    let (host, cards) = load("closed-nodes");
    assert_eq!(cards.cards.iter().map(|c| c.level_zero_ordinal).collect::<Vec<_>>(), [None, Some(0), None]);
    assert!(cards.cards[0].ordinal_reason.contains("group render"));
    // Mask 1 of another process counts what *it* can open, which is not known here.
    let usage = Usage::scan(&host, &cards, &UsageOptions::default());
    assert!(usage.cards.iter().all(|c| c.verdict == CardVerdict::Unknown), "{usage:?}");
    let report = DoctorReport::run(&host, &cards, &[]);
    let render = report.checks.iter().find(|c| c.name == "render-group").unwrap();
    assert_eq!(render.status, CheckStatus::Fail);
    assert!(render.todo.contains("usermod"), "{}", render.todo);
}

#[test]
fn without_cards_a_mask_still_guards_assumed_ordinals() {
    let (host, cards) = load("no-cards");
    assert!(cards.cards.is_empty());
    let addresses: Vec<_> =
        ["0000:43:00.0", "0000:03:00.0", "0000:07:00.0"].iter().map(|a| a.parse().unwrap()).collect();
    let assumed = Cards::assumed(&addresses);
    let options = UsageOptions { fdinfo: false, ..UsageOptions::default() };
    let usage = Usage::scan(&host, &assumed, &options);
    assert_eq!(
        usage.cards.iter().map(|c| c.verdict).collect::<Vec<_>>(),
        [CardVerdict::Used, CardVerdict::Used, CardVerdict::Free]
    );
}

#[test]
fn a_listener_is_traced_to_its_process() {
    let (host, _) = load("mask-two-cards");
    let at = "127.0.0.1:8080".parse().unwrap();
    assert_eq!(listening_inode_belongs_to(&host, at, &[9000].into()), ListenerOwnership::Ours { pids: vec![9000] });
    let ListenerOwnership::Foreign { owners } = listening_inode_belongs_to(&host, at, &[1].into()) else { panic!() };
    assert_eq!(owners[0].holders[0].comm, "llama-server");
    let free = "127.0.0.1:8081".parse().unwrap();
    assert_eq!(listening_inode_belongs_to(&host, free, &[9000].into()), ListenerOwnership::NotListening);
    // The holder's files are closed to the recorder: neither ours nor foreign.
    let (host, _) = load("unreadable-processes");
    let at = "127.0.0.1:19721".parse().unwrap();
    assert!(matches!(listening_inode_belongs_to(&host, at, &[3100].into()), ListenerOwnership::Unknown { .. }));
}

#[test]
fn the_json_has_the_promised_fields() {
    let (host, cards) = load("mask-two-cards");
    let list = serde_json::to_value(&cards).unwrap();
    for field in [
        "pci",
        "vendor_id",
        "device_id",
        "name",
        "driver",
        "card_node",
        "render_node",
        "level_zero_ordinal",
        "ordinal_reason",
        "vram_total_bytes",
        "vram_used_bytes",
    ] {
        assert!(list["cards"][0].get(field).is_some(), "{field}");
    }
    let usage = serde_json::to_value(Usage::scan(&host, &cards, &UsageOptions::default())).unwrap();
    assert_eq!(usage["cards"][0]["verdict"], "used");
    assert_eq!(usage["cards"][0]["owners"][0]["evidence"][0], "affinity");
    assert_eq!(usage["cards"][0]["owners"][0]["pid"], 9000);
    assert!(usage["unreadable"].as_array().unwrap().is_empty());
    let back: Usage = serde_json::from_value(usage).unwrap();
    assert_eq!(back.cards.len(), 4);
}

#[test]
fn a_record_of_a_record_gives_the_same_verdicts() {
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture("hosts")).unwrap() {
        let entry = entry.unwrap();
        if !entry.path().is_dir() {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        let (host, cards) = load(&name);
        let out = dir.path().join(&name);
        record(&host, &out, Duration::ZERO).unwrap();
        let again = Host::recorded(&out).unwrap();
        let cards_again = Cards::scan(&again).unwrap();
        assert_eq!(cards_again, cards, "{name}");
        let options = UsageOptions::default();
        assert_eq!(Usage::scan(&again, &cards_again, &options), Usage::scan(&host, &cards, &options), "{name}");
        assert!(record(&host, &out, Duration::ZERO).unwrap_err().to_string().contains("exists"), "{name}");
    }
    assert!(!fs::read_dir(dir.path()).unwrap().any(|e| e.unwrap().file_name().to_string_lossy().ends_with(".partial")));
}

#[test]
fn the_doctor_has_a_sentence_for_whatever_is_not_well() {
    for name in ["four-b70-idle", "closed-nodes", "no-cards", "wedged-card", "igpu-one-card"] {
        let (host, cards) = load(name);
        let env =
            [("NEO_ZE_AFFINITY_MASK".to_owned(), "a".to_owned()), ("SYCL_CACHE_PERSISTENT".to_owned(), "1".to_owned())];
        let report = DoctorReport::run(&host, &cards, &env);
        let of = |n: &str| report.checks.iter().find(|c| c.name == n).unwrap();
        assert_eq!(of("mask").status, CheckStatus::Fail, "{name}");
        assert_eq!(of("sycl-cache").status, CheckStatus::Fail);
        assert_eq!(of("hierarchy").status, CheckStatus::Warn);
        for c in &report.checks {
            assert!(
                c.status == CheckStatus::Ok || c.status == CheckStatus::Unknown || c.todo.ends_with('.'),
                "{name}: {c:?}"
            );
        }
    }
    let (host, cards) = load("four-b70-idle");
    let report = DoctorReport::run(&host, &cards, &[]);
    assert_eq!(report.status, CheckStatus::Ok, "{report:#?}");
    let (host, cards) = load("wedged-card");
    let report = DoctorReport::run(&host, &cards, &[]);
    assert_eq!(report.checks.iter().find(|c| c.name == "kernel-log").unwrap().status, CheckStatus::Fail);
}

#[test]
fn a_lease_directory_can_be_listed_for_a_recorded_host() {
    let dir = tempfile::tempdir().unwrap();
    let root = LeaseRoot::open(&dir.path().join("leases")).unwrap();
    assert!(root.list(&load("four-b70-idle").0).unwrap().is_empty());
}

#[test]
fn the_trees_are_what_their_generator_makes() {
    let out = Command::new("python3")
        .arg(recorded_host("generate.py"))
        .arg("--check")
        .output()
        .expect("python3 is installed");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
