//! What sets of bits have in common.

/// The methods and the `Debug` of a set of bits.
macro_rules! bit_set {
    ($name:ident($bits:ty)) => {
        impl $name {
            /// From the bits, as they are encoded.
            pub const fn from_bits(bits: $bits) -> Self {
                Self(bits)
            }

            /// The bits.
            pub const fn bits(self) -> $bits {
                self.0
            }

            /// Whether all of `other` are set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// The union of both.
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }
    };
}

pub(crate) use bit_set;
