//! What must hold for every text that the affinity readers are given: masks, selectors, Vulkan's list, configuration
//! files, environments and command lines of ggml programs. The replay test and the fuzz target share it.

use std::collections::BTreeSet;

use b70_procguard::{
    AffinityMask, Cards, DeviceSelection, GpuRef, Hierarchy, LlamaDevices, LlamaProgram, PciAddress, REDACTED,
    VulkanVisible, level_zero_variable, llama_program, parse_affinity_mask, parse_selector, parse_vulkan_visible,
    redact_arguments, redact_variable, resolve_affinity,
};

/// Parts of the input are separated by a zero byte: environment lines, a configuration file, then the arguments.
pub(crate) fn check(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    mask(&text);
    vulkan(&text);
    if let Ok(selector) = parse_selector(&text) {
        assert_eq!(selector.text(), text, "a selector keeps its text");
        assert_eq!(parse_selector(selector.text()).as_ref(), Ok(&selector));
    }
    addresses(&text);
    process(&text);
}

fn mask(text: &str) {
    let keeps = |hierarchy, devices| match parse_affinity_mask(Some(text), hierarchy, devices) {
        AffinityMask::Only(set) => {
            assert!(!set.is_empty() && set.iter().all(|n| *n < devices), "{text:?} of {devices}: {set:?}");
            Some(set)
        }
        AffinityMask::None => Some(BTreeSet::new()),
        AffinityMask::All => Some((0..devices).collect()),
        AffinityMask::Undefined(why) => {
            assert!(!why.is_empty());
            None
        }
    };
    for devices in 0..6 {
        let composite = keeps(Hierarchy::Composite, devices);
        let flat = keeps(Hierarchy::Flat, devices);
        if let (Some(composite), Some(flat)) = (&composite, &flat) {
            assert!(flat.is_subset(composite), "{text:?}: flat shows {flat:?}, composite {composite:?}");
        }
        // A machine with one card more shows the same of those that were there.
        if let (Some(here), Some(more)) = (composite, keeps(Hierarchy::Composite, devices + 1)) {
            let cut: BTreeSet<u32> = more.into_iter().filter(|n| *n < devices).collect();
            assert_eq!(here, cut, "{text:?} of {devices}");
        }
    }
}

fn vulkan(text: &str) {
    match parse_vulkan_visible(Some(text)) {
        VulkanVisible::All => panic!("{text:?} is set, so it cannot mean all devices by absence"),
        VulkanVisible::None => {}
        VulkanVisible::Indices(list) => {
            assert!(!list.is_empty());
            let printed = list.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
            assert_eq!(parse_vulkan_visible(Some(&printed)), VulkanVisible::Indices(list));
        }
    }
}

fn addresses(text: &str) {
    if let Ok(address) = text.parse::<PciAddress>() {
        assert_eq!(address.to_string().parse::<PciAddress>(), Ok(address));
    }
    if let Ok(card) = text.parse::<GpuRef>() {
        assert_eq!(card.to_string().parse::<GpuRef>(), Ok(card));
    }
}

fn process(text: &str) {
    let mut parts = text.split('\0');
    let env: Vec<(String, String)> = parts
        .next()
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let config: Vec<String> = parts.next().map(str::to_owned).into_iter().collect();
    let argv: Vec<String> = parts.map(str::to_owned).collect();
    let known: Vec<PciAddress> =
        ["0000:03:00.0", "0000:07:00.0", "0000:43:00.0", "0000:c3:00.0"].map(|a| a.parse().expect("one")).to_vec();
    let _ = level_zero_variable(&env, "ZE_AFFINITY_MASK");
    let _ = llama_program(argv.first().map_or("", String::as_str), &argv, argv.last().map(String::as_str));
    for count in [1, 4] {
        let cards = Cards::assumed(&known[..count]);
        for program in [LlamaProgram::Common, LlamaProgram::RpcServer, LlamaProgram::Embedded] {
            let devices = LlamaDevices::collect(program, &config, &env, &argv);
            let _ = devices.may_sleep();
            for vulkan in [false, true] {
                let affinity = resolve_affinity(&cards, &env, Some((program, &devices)), vulkan);
                selection(&affinity.selection, &known[..count]);
                let again = resolve_affinity(&cards, &env, Some((program, &devices)), vulkan);
                assert_eq!(affinity, again);
                if devices.doubt.is_some() {
                    assert!(
                        matches!(affinity.selection, DeviceSelection::Unknown(_)),
                        "a command line in doubt decides nothing: {affinity:?}"
                    );
                }
            }
        }
        selection(&resolve_affinity(&cards, &env, None, false).selection, &known[..count]);
    }
    redaction(&env, &argv);
}

fn selection(selection: &DeviceSelection, known: &[PciAddress]) {
    match selection {
        DeviceSelection::Only(set) => assert!(!set.is_empty() && set.iter().all(|pci| known.contains(pci))),
        DeviceSelection::Unknown(why) => assert!(!why.is_empty()),
        DeviceSelection::All | DeviceSelection::None => {}
    }
}

fn redaction(env: &[(String, String)], argv: &[String]) {
    let clean = redact_arguments(argv);
    assert_eq!(clean.len(), argv.len());
    for (shown, given) in clean.iter().zip(argv) {
        let shortened = shown.strip_suffix(REDACTED).is_some_and(|start| given.starts_with(start));
        assert!(shown == given || shortened, "{given:?} became {shown:?}");
    }
    assert_eq!(redact_arguments(&clean), clean, "what is clean stays as it is");
    for pair in argv.windows(2).zip(clean.windows(2)) {
        if let ([flag, _], [kept, value]) = pair
            && matches!(flag.as_str(), "--api-key" | "--hf-token" | "--api_key")
            && kept == flag
        {
            assert_eq!(value, REDACTED, "the value of {flag} is a secret");
        }
    }
    for (name, value) in env {
        let shown = redact_variable(name, value);
        assert!(shown == value || shown == REDACTED);
    }
}
