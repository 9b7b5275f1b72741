//! The network that a key was submitted from.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

use crate::endpoint::network_of;
use crate::text::text_form;

/// The network that an attestation key was submitted from, as
/// [`network_of`](crate::endpoint::network_of) groups addresses: one IPv4 address, or the 64-bit
/// prefix of an IPv6 address. A server behind a proxy sees the network of the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceNetwork(IpAddr);

/// The string is not an IP address.
#[derive(Debug, thiserror::Error)]
#[error("a source network must be an IP address")]
#[non_exhaustive]
pub struct ParseSourceNetworkError;

impl SourceNetwork {
    /// Stands for an unnamed source.
    pub const UNKNOWN: Self = Self(IpAddr::V4(Ipv4Addr::UNSPECIFIED));

    /// The network of an address.
    pub fn of(address: IpAddr) -> Self {
        Self(network_of(address))
    }

    /// The network of the customer. One of IPv6 has 56 bits: providers give a customer that many /64 networks
    /// or more.
    pub fn customer(self) -> Self {
        match self.0 {
            IpAddr::V6(v6) => Self(Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 72)).into()),
            IpAddr::V4(_) => self,
        }
    }
}

impl fmt::Display for SourceNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for SourceNetwork {
    type Err = ParseSourceNetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address = text.parse().map_err(|_| ParseSourceNetworkError)?;
        Ok(Self::of(address))
    }
}

text_form!(SourceNetwork);
