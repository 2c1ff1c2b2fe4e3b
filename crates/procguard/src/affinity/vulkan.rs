//! `GGML_VK_VISIBLE_DEVICES`, as llama.cpp's Vulkan backend reads it.

/// What the variable leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VulkanVisible {
    /// Not set: all discrete and integrated devices.
    All,
    /// Set and empty, or starting with something that is not a number: no device.
    None,
    /// Indices in the order in which the Vulkan loader enumerates *all* devices, which is not Level Zero's.
    Indices(Vec<u64>),
}

/// Reads the value: commas and blanks separate, reading ends at the first part that is not a number.
///
/// An index beyond the last device makes the server throw at start.
///
/// ```
/// use b70_procguard::{VulkanVisible, parse_vulkan_visible};
///
/// assert_eq!(parse_vulkan_visible(Some("1,0 2")), VulkanVisible::Indices(vec![1, 0, 2]));
/// assert_eq!(parse_vulkan_visible(Some("")), VulkanVisible::None);
/// assert_eq!(parse_vulkan_visible(Some("3,x,1")), VulkanVisible::Indices(vec![3]));
/// ```
pub fn parse_vulkan_visible(value: Option<&str>) -> VulkanVisible {
    let Some(text) = value else { return VulkanVisible::All };
    let mut indices = Vec::new();
    // `stream >> size_t` after commas became blanks: skips white space, takes an optional sign and digits.
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([',', ' ', '\t', '\n', '\u{b}', '\u{c}', '\r']);
        let negative = rest.starts_with('-');
        let digits = rest.strip_prefix(['-', '+']).unwrap_or(rest);
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        let Ok(n) = digits[..end].parse::<u64>() else { break };
        indices.push(if negative { n.wrapping_neg() } else { n });
        rest = &digits[end..];
    }
    if indices.is_empty() { VulkanVisible::None } else { VulkanVisible::Indices(indices) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_as_a_stream_of_numbers() {
        let indices = |list: &[u64]| VulkanVisible::Indices(list.to_vec());
        assert_eq!(parse_vulkan_visible(None), VulkanVisible::All);
        assert_eq!(parse_vulkan_visible(Some("x")), VulkanVisible::None);
        assert_eq!(parse_vulkan_visible(Some(" 2 , 0")), indices(&[2, 0]));
        assert_eq!(parse_vulkan_visible(Some("-1")), indices(&[u64::MAX]));
        assert_eq!(parse_vulkan_visible(Some("1;0")), indices(&[1]));
        assert_eq!(parse_vulkan_visible(Some("99999999999999999999")), VulkanVisible::None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = parse_vulkan_visible(Some(&text));
        }
    }
}
