//! Platforms of images, and which of an index's manifests suits this node best (containerd's `platforms`). PURE.

/// An operating system, an architecture and its variant, in Go's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// `amd64`, `arm64`, `arm`, `386`, `riscv64`...
    pub architecture: String,
    /// `v7`; empty for `arm64` v8 and for other architectures.
    pub variant: String,
}

/// Variants of `arm`, the newest first: each runs what those after it run.
const ARM: [&str; 4] = ["v8", "v7", "v6", "v5"];

impl Platform {
    /// Normalizes names (`platforms.Normalize`).
    pub fn new(os: &str, architecture: &str, variant: &str) -> Self {
        let (architecture, variant) = (architecture.to_ascii_lowercase(), variant.to_ascii_lowercase());
        let (architecture, variant) = match (architecture.as_str(), variant.as_str()) {
            ("i386", _) => ("386", ""),
            ("x86_64" | "x86-64", "v1" | "") | ("amd64", "v1") => ("amd64", ""),
            ("x86_64" | "x86-64", variant) => ("amd64", variant),
            ("aarch64" | "arm64", "8" | "v8" | "") => ("arm64", ""),
            ("aarch64", variant) => ("arm64", variant),
            ("armhf", _) | ("arm", "" | "7") => ("arm", "v7"),
            ("armel", _) | ("arm", "6") => ("arm", "v6"),
            ("arm", "5") => ("arm", "v5"),
            ("arm", "8") => ("arm", "v8"),
            (architecture, variant) => (architecture, variant),
        };
        let os = if os.eq_ignore_ascii_case("macos") { "darwin".to_owned() } else { os.to_ascii_lowercase() };
        Self { os, architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    /// That of a Linux with this machine name (`uname -m`), as programs built for `architecture` (Rust's name) see it: a kernel
    /// of 64 bits may have programs of 32 bits only.
    pub fn of_machine(architecture: &str, machine: &str) -> Self {
        let arm = || match machine {
            "aarch64" | "armv8l" | "armv8b" => "v8",
            machine if machine.starts_with("armv5") => "v5",
            machine if machine.starts_with("armv6") => "v6",
            _ => "v7",
        };
        match architecture {
            "x86" => Self::new("linux", "386", ""),
            "arm" => Self::new("linux", "arm", arm()),
            "powerpc64" if cfg!(target_endian = "little") => Self::new("linux", "ppc64le", ""),
            other => Self::new("linux", other, ""),
        }
    }

    /// `linux/arm/v7`.
    pub fn shown(&self) -> String {
        let mut shown = format!("{}/{}", self.os, self.architecture);
        if !self.variant.is_empty() {
            shown.push('/');
            shown.push_str(&self.variant);
        }
        shown
    }

    /// How well an image for `image` suits this node: the smaller, the better; `None`: not at all.
    pub fn rank(&self, image: &Self) -> Option<usize> {
        self.runs().iter().position(|platform| platform == image)
    }

    /// What this node runs, the best first (`platformVector`).
    fn runs(&self) -> Vec<Self> {
        let of = |architecture: &str, variant: &str| Self {
            os: self.os.clone(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        };
        let mut runs = vec![self.clone()];
        match self.architecture.as_str() {
            "amd64" => {
                let own = self.variant.strip_prefix('v').and_then(|level| level.parse::<u8>().ok());
                let own = own.filter(|level| *level <= 9).unwrap_or(1);
                runs.extend((2..own).rev().map(|level| of("amd64", &format!("v{level}"))));
                if own > 1 {
                    runs.push(of("amd64", ""));
                }
                runs.push(of("386", ""));
            }
            "arm" => {
                let older = ARM.iter().skip_while(|variant| **variant != self.variant).skip(1);
                runs.extend(older.map(|variant| of("arm", variant)));
            }
            "arm64" => {
                if !self.variant.is_empty() {
                    runs.push(of("arm64", ""));
                }
                runs.extend(ARM.iter().map(|variant| of("arm", variant)));
            }
            _ => {}
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Platform {
        let mut parts = text.split('/');
        let mut next = || parts.next().unwrap_or_default();
        Platform::new(next(), next(), next())
    }

    #[test]
    fn machines() {
        for (architecture, machine, shown) in [
            ("x86_64", "x86_64", "linux/amd64"),
            ("x86", "x86_64", "linux/386"),
            ("aarch64", "aarch64", "linux/arm64"),
            ("arm", "armv7l", "linux/arm/v7"),
            ("arm", "armv6l", "linux/arm/v6"),
            ("arm", "armv5tel", "linux/arm/v5"),
            ("arm", "aarch64", "linux/arm/v8"),
            ("riscv64", "riscv64", "linux/riscv64"),
        ] {
            assert_eq!(Platform::of_machine(architecture, machine).shown(), shown);
        }
    }

    #[test]
    fn the_newest_variant_that_runs_is_best() {
        // Host; images, in the order of an index; the one that is chosen.
        for (host, images, chosen) in [
            ("linux/arm/v7", "linux/arm/v5 linux/arm/v6 linux/arm/v7 linux/arm64/v8", "linux/arm/v7"),
            ("linux/arm/v7", "linux/arm/v5 linux/arm/v6 linux/arm64", "linux/arm/v6"),
            ("linux/arm/v7", "linux/arm linux/arm/v6", "linux/arm/v7"),
            ("linux/arm/v6", "linux/arm/v7 linux/arm/v5", "linux/arm/v5"),
            ("linux/arm/v6", "linux/arm/v7 linux/arm64", ""),
            ("linux/arm64", "linux/arm/v7 linux/arm64/v8 linux/amd64", "linux/arm64"),
            ("linux/arm64", "linux/arm/v6 linux/arm/v7", "linux/arm/v7"),
            ("linux/amd64", "linux/386 linux/amd64 windows/amd64", "linux/amd64"),
            ("linux/amd64", "linux/amd64/v2 linux/386", "linux/386"),
            ("linux/amd64", "unknown/unknown linux/arm64", ""),
            ("linux/riscv64", "linux/amd64 linux/riscv64", "linux/riscv64"),
        ] {
            let host = of(host);
            let best = images.split(' ').map(of).filter_map(|image| Some((host.rank(&image)?, image)));
            let best = best.min_by_key(|(rank, _)| *rank).map(|(_, image)| image.shown());
            assert_eq!(best.unwrap_or_default(), chosen, "{} of {images}", host.shown());
        }
    }
}
