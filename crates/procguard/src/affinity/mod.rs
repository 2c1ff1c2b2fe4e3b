//! Which cards a process was told to use, each variable read exactly as the program that obeys it reads it.

mod llama;
mod mask;
mod pin;
mod resolve;
mod selector;
mod vulkan;

pub use llama::{LlamaDevices, LlamaProgram, llama_program};
pub use mask::{AffinityMask, Hierarchy, level_zero_variable, parse_affinity_mask};
pub use pin::{PinError, Pinning, pin_to_card};
pub use resolve::{Affinity, AffinitySource, DeviceSelection, resolve_affinity};
pub use selector::{Backend, Reader, Selector, SelectorError, parse_selector};
pub use vulkan::{VulkanVisible, parse_vulkan_visible};

/// A process's environment by name. The first of two equal names counts, as for `getenv`.
pub(crate) fn get<'a>(env: &'a [(String, String)], name: &str) -> Option<&'a str> {
    env.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
}
