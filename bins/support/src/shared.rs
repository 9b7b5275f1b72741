//! Networks whose addresses each stand for many clients, because nodes or balancers replace a client's
//! address with their own.
//!
//! *What it is not*: it trusts no header and no address that a client sends. Clients in such a network share
//! the limits of the whole server with one another, and have no limits of their own.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

/// A network: an address and its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    bits: u128,
    mask: u128,
}

/// The string is not a network.
#[derive(Debug, thiserror::Error)]
#[error("invalid network {text:?} (expected, for example, 10.0.0.0/8 or fd00::/8)")]
#[non_exhaustive]
pub struct ParseNetworkError {
    /// The given text.
    pub text: String,
}

/// Number of bits before an IPv4 address in its IPv6 form (RFC 4291, section 2.5.5.2).
const MAPPED: u32 = 96;

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl FromStr for Network {
    type Err = ParseNetworkError;

    /// A network of all addresses is refused.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            let (address, length): (IpAddr, u32) = (address.parse().ok()?, length.parse().ok()?);
            let (before, most) = if address.is_ipv4() { (MAPPED, 32) } else { (0, 128) };
            if !(1..=most).contains(&length) {
                return None;
            }
            let mask = u128::MAX << (128 - before - length);
            Some(Self { bits: bits(address) & mask, mask })
        };
        parse().ok_or_else(|| ParseNetworkError { text: text.to_owned() })
    }
}

/// Networks in which many clients may share an address.
#[derive(Clone, Debug, Default)]
pub struct SharedSources(Arc<[Network]>);

impl SharedSources {
    /// Whether many clients may be behind the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| bits(address) & network.mask == network.bits)
    }
}

impl From<&[Network]> for SharedSources {
    fn from(networks: &[Network]) -> Self {
        Self(networks.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_contains_its_addresses_in_either_form_and_no_others() {
        let networks = ["10.1.0.0/16", "2001:db8::/32", "192.0.2.7/32"];
        let networks = networks.map(|text| text.parse().unwrap());
        let shared = SharedSources::from(&networks[..]);
        let contains = |text: &str| shared.contains(text.parse().unwrap());
        for inside in ["10.1.255.1", "::ffff:10.1.0.9", "2001:db8:1::1", "192.0.2.7"] {
            assert!(contains(inside), "{inside}");
        }
        for outside in ["10.2.0.1", "2001:db9::1", "192.0.2.8", "::ffff:11.1.0.1"] {
            assert!(!contains(outside), "{outside}");
        }
        assert!(!SharedSources::default().contains(IpAddr::from([10, 0, 0, 1])));
    }

    #[test]
    fn a_network_of_everybody_is_none() {
        for bad in ["0.0.0.0/0", "::/0", "10.0.0.0", "10.0.0.0/33", "a/8", "10.0.0.0/-1", ""] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }
}
