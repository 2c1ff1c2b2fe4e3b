//! `ONEAPI_DEVICE_SELECTOR`, by the grammar of the SYCL runtime, with llama.cpp's own reading of the same text.

use std::collections::BTreeSet;

/// A backend of the SYCL runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// `*`
    Any,
    /// `level_zero`
    LevelZero,
    /// `opencl`
    OpenCl,
    /// `cuda`, `hip`, `native_cpu`: never one of our cards.
    Other,
}

/// One device of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Device {
    Any,
    Gpu,
    Cpu,
    Index(u32),
    /// A sub-device of that root, or of every root.
    Sub(Option<u32>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    backend: Backend,
    devices: Vec<Device>,
}

/// A parsed selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    accept: Vec<Term>,
    discard: Vec<Term>,
    text: String,
}

/// A selector on which the runtime throws.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "ONEAPI_DEVICE_SELECTOR={text:?}: {reason}; expected backend:device[,device...][;...] with discards (!) last, such as level_zero:0"
)]
pub struct SelectorError {
    /// The whole value.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Whose reading of the selector counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Any SYCL program: all backends that match are visible.
    Sycl,
    /// llama.cpp's SYCL backend: one platform only, found by the first of `level_zero`, `opencl`, `cuda`, `hip` that
    /// occurs anywhere in the text, in lower case; it throws if none does.
    LlamaCpp,
}

/// What a selector leaves of the Level Zero devices that the mask left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selected {
    All,
    None,
    Positions(BTreeSet<u32>),
    Unknown(String),
}

/// Parses by the documented grammar.
///
/// ```
/// use b70_procguard::parse_selector;
///
/// assert!(parse_selector("level_zero:0,1;opencl:gpu;!level_zero:1").is_ok());
/// assert!(parse_selector("level_zero").is_err(), "a device is mandatory");
/// assert!(parse_selector("!opencl:*;level_zero:0").is_err(), "discards come last");
/// ```
pub fn parse_selector(text: &str) -> Result<Selector, SelectorError> {
    let fail = |reason: String| SelectorError { text: text.to_owned(), reason };
    let mut selector = Selector { accept: Vec::new(), discard: Vec::new(), text: text.to_owned() };
    for part in text.split(';') {
        let (discard, term) = match part.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, part),
        };
        let term = parse_term(term).map_err(|why| fail(format!("{part:?} {why}")))?;
        if discard {
            selector.discard.push(term);
        } else if selector.discard.is_empty() {
            selector.accept.push(term);
        } else {
            return Err(fail(format!("{part:?} accepts after a discard")));
        }
    }
    Ok(selector)
}

fn parse_term(text: &str) -> Result<Term, String> {
    let (backend, devices) = text.split_once(':').ok_or("has no `backend:devices`")?;
    let backend = match backend.to_ascii_lowercase().as_str() {
        "*" => Backend::Any,
        "level_zero" => Backend::LevelZero,
        "opencl" => Backend::OpenCl,
        "cuda" | "hip" | "native_cpu" => Backend::Other,
        _ => return Err("names no known backend".into()),
    };
    let devices = devices.split(',').map(parse_device).collect::<Result<Vec<_>, _>>()?;
    Ok(Term { backend, devices })
}

fn parse_device(text: &str) -> Result<Device, String> {
    let number = |t: &str| {
        let digits = !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| t.parse::<u32>().ok()).flatten()
    };
    let bad = || format!("has a device {text:?} that the grammar does not know");
    let parts: Vec<&str> = text.split('.').collect();
    match parts.as_slice() {
        ["*"] => Ok(Device::Any),
        [one] => match one.to_ascii_lowercase().as_str() {
            "gpu" => Ok(Device::Gpu),
            "cpu" | "fpga" => Ok(Device::Cpu),
            _ => number(one).map(Device::Index).ok_or_else(bad),
        },
        [root, rest @ ..] if rest.len() <= 2 && rest.iter().all(|p| *p == "*" || number(p).is_some()) => {
            // A star may only be followed by stars.
            let star = parts.iter().position(|p| *p == "*").unwrap_or(parts.len());
            if parts[star..].iter().any(|p| *p != "*") {
                return Err(bad());
            }
            if *root == "*" {
                Ok(Device::Sub(None))
            } else {
                number(root).map(|n| Device::Sub(Some(n))).ok_or_else(bad)
            }
        }
        _ => Err(bad()),
    }
}

impl Selector {
    /// The text it was read from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Applies the selector to `devices` Level Zero devices, numbered as the mask left them.
    pub(crate) fn select(&self, reader: Reader, devices: u32) -> Selected {
        let platform = match reader {
            Reader::Sycl => None,
            Reader::LlamaCpp => match llama_platform(&self.text) {
                Some(backend) => Some(backend),
                None => {
                    return Selected::Unknown(format!(
                        "llama.cpp refuses ONEAPI_DEVICE_SELECTOR={:?}: it looks for level_zero, opencl, cuda or hip in lower case",
                        self.text
                    ));
                }
            },
        };
        let mut kept: BTreeSet<u32> = BTreeSet::new();
        if platform.is_none_or(|p| p == Backend::LevelZero) {
            kept.extend((0..devices).filter(|n| self.shows(Backend::LevelZero, *n)));
        }
        if platform.is_none_or(|p| p == Backend::OpenCl) {
            // The same hardware again, in OpenCL's own order, CPUs among it: a number there names no card for certain.
            match self.opencl() {
                OpenCl::None => {}
                OpenCl::AllGpus => kept.extend(0..devices),
                OpenCl::Some => {
                    return Selected::Unknown(format!(
                        "ONEAPI_DEVICE_SELECTOR={:?} picks OpenCL devices by a number that is not Level Zero's",
                        self.text
                    ));
                }
            }
        }
        if kept.is_empty() {
            Selected::None
        } else if kept.len() == devices as usize {
            Selected::All
        } else {
            Selected::Positions(kept)
        }
    }

    fn shows(&self, backend: Backend, n: u32) -> bool {
        let of = |t: &&Term| t.backend == backend || t.backend == Backend::Any;
        let accepted = self.accept.is_empty()
            || self.accept.iter().filter(of).flat_map(|t| &t.devices).any(|d| match d {
                Device::Any | Device::Gpu | Device::Sub(None) => true,
                Device::Cpu => false,
                // A part of the card uses the card.
                Device::Index(i) | Device::Sub(Some(i)) => *i == n,
            });
        // A discarded sub-device leaves the card usable.
        let discarded = self.discard.iter().filter(of).flat_map(|t| &t.devices).any(|d| match d {
            Device::Any | Device::Gpu => true,
            Device::Index(i) => *i == n,
            Device::Cpu | Device::Sub(_) => false,
        });
        accepted && !discarded
    }

    fn opencl(&self) -> OpenCl {
        let of = |t: &&Term| matches!(t.backend, Backend::OpenCl | Backend::Any);
        let accepts: Vec<&Device> = self.accept.iter().filter(of).flat_map(|t| &t.devices).collect();
        let discards: Vec<&Device> = self.discard.iter().filter(of).flat_map(|t| &t.devices).collect();
        if discards.iter().any(|d| matches!(d, Device::Any | Device::Gpu)) {
            return OpenCl::None;
        }
        let all = self.accept.is_empty()
            || accepts.iter().any(|d| matches!(d, Device::Any | Device::Gpu | Device::Sub(None)));
        let some = accepts.iter().any(|d| matches!(d, Device::Index(_) | Device::Sub(Some(_))));
        match (all, some, discards.iter().any(|d| matches!(d, Device::Index(_)))) {
            (true, _, false) => OpenCl::AllGpus,
            (true, _, true) | (false, true, _) => OpenCl::Some,
            (false, false, _) => OpenCl::None,
        }
    }
}

enum OpenCl {
    None,
    AllGpus,
    Some,
}

/// The platform that llama.cpp's substring search settles on.
fn llama_platform(text: &str) -> Option<Backend> {
    [("level_zero", Backend::LevelZero), ("opencl", Backend::OpenCl), ("cuda", Backend::Other), ("hip", Backend::Other)]
        .into_iter()
        .find(|(word, _)| text.contains(word))
        .map(|(_, backend)| backend)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, reader: Reader) -> String {
        match parse_selector(text) {
            Err(_) => "error".into(),
            Ok(selector) => match selector.select(reader, 4) {
                Selected::All => "all".into(),
                Selected::None => "none".into(),
                Selected::Unknown(_) => "unknown".into(),
                Selected::Positions(set) => set.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            },
        }
    }

    #[test]
    fn selectors_of_the_grammar() {
        let rows = [
            ("level_zero:0", "0", "0"),
            ("level_zero:0,1", "0,1", "0,1"),
            ("level_zero:*", "all", "all"),
            ("level_zero:gpu", "all", "all"),
            ("level_zero:0;level_zero:1", "0,1", "0,1"),
            ("LEVEL_ZERO:0", "0", "unknown"),
            ("*:gpu", "all", "unknown"),
            ("*:cpu", "none", "unknown"),
            ("*:0", "unknown", "unknown"),
            ("opencl:gpu", "all", "all"),
            ("opencl:cpu", "none", "none"),
            ("opencl:0", "unknown", "unknown"),
            ("opencl:*;!opencl:0", "unknown", "unknown"),
            ("!level_zero:1", "all", "0,2,3"),
            ("!level_zero:1;!opencl:*", "0,2,3", "0,2,3"),
            ("level_zero:0,1;!level_zero:1", "0", "0"),
            ("level_zero:7", "none", "none"),
            ("level_zero:2.0", "2", "2"),
            ("level_zero:*.*", "all", "all"),
            ("level_zero:0;opencl:gpu", "all", "0"),
            ("cuda:*", "none", "none"),
            ("level_zero", "error", "error"),
            ("level_zero:", "error", "error"),
            ("", "error", "error"),
            ("level_zero:0;", "error", "error"),
            ("level_zero:*.1", "error", "error"),
            ("metal:0", "error", "error"),
            ("!level_zero:0;level_zero:1", "error", "error"),
        ];
        for (text, sycl, llama) in rows {
            assert_eq!(shown(text, Reader::Sycl), sycl, "{text:?} by the runtime");
            assert_eq!(shown(text, Reader::LlamaCpp), llama, "{text:?} by llama.cpp");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_selector_panics(text in "[!*:;.,0-9a-z_]{0,30}") {
            for reader in [Reader::Sycl, Reader::LlamaCpp] {
                if let Ok(selector) = parse_selector(&text)
                    && let Selected::Positions(set) = selector.select(reader, 3) {
                    proptest::prop_assert!(set.iter().all(|n| *n < 3));
                }
            }
        }
    }
}
