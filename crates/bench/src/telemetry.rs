//! Temperature, power and clocks of a card, where the host shows them.

use b70_manifest::PciAddress;
use b70_procguard::Host;
use serde_json::{Map, Value, json};

/// Kinds of hwmon inputs: prefix of the file, key in the sample, what one unit of it is.
const INPUTS: [(&str, &str, f64); 6] = [
    ("temp", "temperature_c", 1e-3),
    ("power", "power_w", 1e-6),
    ("energy", "energy_j", 1e-6),
    ("fan", "fan_rpm", 1.0),
    ("in", "voltage_v", 1e-3),
    ("freq", "clock_mhz", 1e-6),
];

/// Reads the card's sensors once; `None` if the host shows none. It takes a few file reads: call it between requests, not
/// during one.
///
/// Sources: `/sys/bus/pci/devices/<card>/hwmon/*` (temperatures, power, energy, fans, voltages) and the drivers' clock
/// files, `tile*/gt*/freq*/act_freq` of xe and `drm/card*/gt_act_freq_mhz` of i915.
pub(crate) fn sample_sensors(host: &Host, card: PciAddress) -> Option<Map<String, Value>> {
    let device = format!("/sys/bus/pci/devices/{card}");
    let list = |path: &str| host.list(path).unwrap_or_default();
    let number = |path: &str| host.read_text(path).ok()?.trim().parse::<f64>().ok();
    let mut sample: Map<String, Value> = Map::new();
    let mut put = |kind: &str, label: String, value: f64| {
        if let Value::Object(group) = sample.entry(kind.to_owned()).or_insert_with(|| json!({})) {
            group.insert(label, json!(value));
        }
    };
    for monitor in list(&format!("{device}/hwmon")) {
        let folder = format!("{device}/hwmon/{monitor}");
        for file in list(&folder) {
            let Some(stem) = file.strip_suffix("_input") else { continue };
            let known = INPUTS.iter().find(|(prefix, ..)| {
                stem.strip_prefix(prefix)
                    .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
            });
            let (Some((_, kind, unit)), Some(value)) = (known, number(&format!("{folder}/{file}"))) else { continue };
            let label = host.read_text(&format!("{folder}/{stem}_label")).map(|label| label.trim().to_owned());
            put(kind, label.unwrap_or_else(|_| stem.to_owned()), value * unit);
        }
    }
    for tile in list(&device).into_iter().filter(|name| name.starts_with("tile")) {
        for gt in list(&format!("{device}/{tile}")).into_iter().filter(|name| name.starts_with("gt")) {
            for freq in list(&format!("{device}/{tile}/{gt}")).into_iter().filter(|name| name.starts_with("freq")) {
                if let Some(value) = number(&format!("{device}/{tile}/{gt}/{freq}/act_freq")) {
                    put("clock_mhz", format!("{tile}/{gt}"), value);
                }
            }
        }
    }
    for node in list(&format!("{device}/drm")) {
        if let Some(value) = number(&format!("{device}/drm/{node}/gt_act_freq_mhz")) {
            put("clock_mhz", node, value);
        }
    }
    (!sample.is_empty()).then_some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sensors_of_a_recorded_tree() {
        let folder = tempfile::tempdir().unwrap();
        let device = folder.path().join("sys/bus/pci/devices/0000:03:00.0");
        let write = |path: &str, text: &str| {
            let path = device.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("hwmon/hwmon4/temp2_input", "61000\n");
        write("hwmon/hwmon4/temp2_label", "pkg\n");
        write("hwmon/hwmon4/energy1_input", "2500000\n");
        write("hwmon/hwmon4/temp2_crit", "100000\n");
        write("hwmon/hwmon4/fan1_input", "not a number\n");
        write("tile0/gt0/freq0/act_freq", "2400\n");
        std::fs::write(folder.path().join("record.json"), r#"{"schema_version":1,"kind":"b70-host-record","uid":0}"#)
            .unwrap();
        let host = Host::recorded(folder.path()).unwrap();
        let sample = sample_sensors(&host, "0000:03:00.0".parse().unwrap()).unwrap();
        assert_eq!(
            Value::Object(sample),
            json!({"temperature_c": {"pkg": 61.0}, "energy_j": {"energy1": 2.5}, "clock_mhz": {"tile0/gt0": 2400.0}})
        );
        assert_eq!(sample_sensors(&host, "0000:04:00.0".parse().unwrap()), None);
    }
}
