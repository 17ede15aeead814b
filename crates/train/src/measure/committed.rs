//! Times of ops that came with the program, measured on GPUs that plans are made for without having them.
//!
//! `scripts/gpu_times.sh` writes the files on such a machine. Times that `plimsoll bench ops` takes count for more.

use super::Measured;

/// Each GPU with its file, and the name under which it is described.
const FILES: [(&str, &str, &str); 1] =
    [("NVIDIA H200", "cuda:h200", include_str!("../../times/nvidia_h200.json"))];

/// The committed times of a device, by its own name or by that of its description.
pub(crate) fn committed(device: &str) -> Option<Measured> {
    let (.., text) = FILES.iter().find(|(card, described, _)| {
        *described == device || device.strip_prefix(card).is_some_and(|rest| rest.starts_with(','))
    })?;
    serde_json::from_str(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_can_be_read_and_is_found_by_the_card_and_by_its_description() {
        for (card, described, _) in FILES {
            let measured = committed(described).unwrap();
            assert!(measured.len() > 100, "{} ops of {card}", measured.len());
            assert_eq!(committed(&format!("{card}, cuBLASLt, cuDNN, fast")), Some(measured));
        }
        assert_eq!(committed("cpu, 2 threads"), None);
        assert_eq!(committed("cuda:h100"), None);
    }
}
