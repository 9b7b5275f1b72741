//! The boots: a suite of Debian, and what is set up with its packages.

use std::fmt;
use std::str::FromStr;

use anyhow::bail;

/// The suites whose packages `cargo xtask pcr-live` fetches: each has different firmware, boot loaders, stubs
/// and kernels.
const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];

/// What boots, and the keys in the firmware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Setup {
    /// shim, GRUB and kernel; Microsoft's keys.
    SecureBoot,
    /// shim, GRUB and kernel; no keys.
    NoKeys,
    /// shim, GRUB and kernel; Microsoft's keys, Secure Boot switched off.
    KeysOff,
    /// A unified kernel image started by the firmware; the machine owner's keys.
    Uki,
    /// A unified kernel image started by the firmware; no keys.
    UkiNoKeys,
    /// shim and a unified kernel image under a machine owner key; Microsoft's keys.
    ShimUki,
}

const SETUPS: [(Setup, &str); 6] = [
    (Setup::SecureBoot, "sb-on"),
    (Setup::NoKeys, "sb-off"),
    (Setup::KeysOff, "sb-keys-off"),
    (Setup::Uki, "uki"),
    (Setup::UkiNoKeys, "uki-off"),
    (Setup::ShimUki, "shim-uki"),
];

/// One boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Case {
    /// Debian suite of the firmware and boot files.
    pub suite: &'static str,
    /// What boots.
    pub setup: Setup,
}

impl Case {
    /// All cases.
    pub fn all() -> impl Iterator<Item = Self> {
        SUITES.into_iter().flat_map(|suite| SETUPS.map(|(setup, _)| Self { suite, setup }))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = SETUPS.iter().find(|(setup, _)| *setup == self.setup);
        write!(f, "{}-{}", self.suite, name.map_or("", |(_, name)| name))
    }
}

impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match Self::all().find(|case| case.to_string() == name) {
            Some(case) => Ok(case),
            None => bail!("there is no such case (--list prints all)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_found_by_its_name() {
        for case in Case::all() {
            assert_eq!(case.to_string().parse::<Case>().unwrap(), case);
        }
        assert!("trixie-nothing".parse::<Case>().is_err());
    }
}
