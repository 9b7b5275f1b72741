//! Processor families that make SNP reports.

use std::fmt;

/// A family of processors, as far as keys and layouts differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Product {
    /// EPYC 7003.
    Milan,
    /// EPYC 9004 and 8004: Genoa, Bergamo and Siena share their keys.
    Genoa,
    /// EPYC 9005.
    Turin,
}

impl Product {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Milan, Self::Genoa, Self::Turin];

    /// The product with this family and model, as in a report (CPUID Fn0000_0001_EAX: base and
    /// extended parts together). The ranges are those of AMD's processor programming references.
    pub fn of_processor(family: u8, model: u8) -> Option<Self> {
        match (family, model) {
            (0x19, 0x00..=0x0f) => Some(Self::Milan),
            (0x19, 0x10..=0x1f | 0xa0..=0xaf) => Some(Self::Genoa),
            (0x1a, 0x00..=0x11) => Some(Self::Turin),
            _ => None,
        }
    }

    /// The product with this name, as in a certificate; the name may end with a stepping, such as
    /// `Milan-B0` (VCEK Certificate and KDS Interface Specification, "VCEK Certificate").
    pub fn of_name(name: &str) -> Option<Self> {
        match name.split('-').next() {
            Some("Milan") => Some(Self::Milan),
            Some("Genoa" | "Bergamo" | "Siena") => Some(Self::Genoa),
            Some("Turin") => Some(Self::Turin),
            _ => None,
        }
    }

    /// The name in AMD's certificates.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Milan => "Milan",
            Self::Genoa => "Genoa",
            Self::Turin => "Turin",
        }
    }

    /// Meaningful bytes of a hardware ID; the rest of the report's field is zero.
    pub(super) fn hardware_id_length(self) -> usize {
        match self {
            Self::Milan | Self::Genoa => 64,
            Self::Turin => 8,
        }
    }
}

impl fmt::Display for Product {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
