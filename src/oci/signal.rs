//! The signal that stops a container. PURE.

use super::ImageConfig;
use crate::proto::runtime::v1::{ContainerConfig, Signal};

/// Linux's names by their numbers, which are the same on all processors that we know.
const NAMES: [&str; 32] = [
    "", "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];
const TERM: i32 = 15;
/// The first and the last one for programs; libc keeps two for itself.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// The signal's number, which every OCI runtime takes (runc knows no name of a real-time signal): the CRI's, else the image's,
/// else SIGTERM, also where the image's is no signal.
pub fn stop_signal(config: &ContainerConfig, image: &ImageConfig) -> i32 {
    let asked = Signal::try_from(config.stop_signal).ok().filter(|signal| *signal != Signal::RuntimeDefault);
    asked
        .and_then(|signal| number(signal.as_str_name()))
        .or_else(|| number(&image.stop_signal))
        .unwrap_or(TERM)
}

/// `15`, `TERM`, `SIGTERM`, `SIGRTMIN+1`, or the CRI's `SIGRTMINPLUS1`.
fn number(text: &str) -> Option<i32> {
    let upper = text.trim().to_ascii_uppercase().replace("PLUS", "+").replace("MINUS", "-");
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let number = if let Some(offset) = name.strip_prefix("RTMIN") {
        RTMIN + offset_of(offset, '+')?
    } else if let Some(offset) = name.strip_prefix("RTMAX") {
        RTMAX - offset_of(offset, '-')?
    } else {
        match name {
            "" => return None,
            "CLD" => 17,
            "POLL" => 29,
            "IOT" => 6,
            name => match NAMES.iter().position(|known| *known == name) {
                Some(number) => i32::try_from(number).ok()?,
                None => name.parse().ok()?,
            },
        }
    };
    (1..=RTMAX).contains(&number).then_some(number)
}

fn offset_of(text: &str, sign: char) -> Option<i32> {
    if text.is_empty() {
        Some(0)
    } else {
        text.strip_prefix(sign)?.parse().ok().filter(|offset| (0..=30).contains(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_the_cri_and_of_images() {
        for (of_cri, of_image, expected) in [
            (Signal::RuntimeDefault, "", 15),
            (Signal::RuntimeDefault, "SIGQUIT", 3),
            (Signal::RuntimeDefault, "int", 2),
            (Signal::RuntimeDefault, "37", 37),
            (Signal::RuntimeDefault, "SIGRTMIN+3", 37),
            (Signal::RuntimeDefault, "RTMAX-14", 50),
            (Signal::RuntimeDefault, "SIGRTMAX", 64),
            (Signal::RuntimeDefault, "SIGRTMIN+99", 15),
            (Signal::RuntimeDefault, "SIGNOTHING", 15),
            (Signal::RuntimeDefault, "0", 15),
            (Signal::RuntimeDefault, "65", 15),
            (Signal::Sigusr1, "SIGQUIT", 10),
            (Signal::Sigkill, "", 9),
        ] {
            let config = ContainerConfig { stop_signal: of_cri.into(), ..Default::default() };
            let image = ImageConfig { stop_signal: of_image.into(), ..Default::default() };
            assert_eq!(stop_signal(&config, &image), expected, "{of_cri:?} {of_image}");
        }
    }

    /// None that the CRI can name is taken for another one.
    #[test]
    fn every_signal_of_the_cri_has_a_number() {
        let mut numbers = std::collections::BTreeSet::new();
        let mut count = 0;
        for signal in (1..=255).filter_map(|number| Signal::try_from(number).ok()) {
            let found = number(signal.as_str_name());
            assert!(found.is_some(), "{signal:?}");
            numbers.insert(found);
            count += 1;
        }
        assert_eq!((count, numbers.len()), (65, 62));
    }
}
