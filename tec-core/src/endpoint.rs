//! Addresses that are given to nodes.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::{debug_form, text_form};

/// Base URL of a service: `http(s)://host[:port]`, no path, no credentials.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseUrl(String);

/// The string is not a base URL.
#[derive(Debug, thiserror::Error)]
#[error("a service address must be http(s)://host[:port] without path, query or user name")]
#[non_exhaustive]
pub struct ParseBaseUrlError;

impl BaseUrl {
    /// The URL as a string, without a trailing slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the scheme is https.
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("https://")
    }
}

fn authority_ok(authority: &str) -> bool {
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let Some((host, tail)) = rest.split_once(']') else {
            return false;
        };
        if host.is_empty() || !host.chars().all(|c| c.is_ascii_hexdigit() || c == ':' || c == '.') {
            return false;
        }
        match tail.strip_prefix(':') {
            Some(port) => ("v6", Some(port)),
            None if tail.is_empty() => ("v6", None),
            None => return false,
        }
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    let host_ok = !host.is_empty()
        && host.len() <= 253
        && host.chars().all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_');
    host_ok && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|p| p != 0))
}

impl FromStr for BaseUrl {
    type Err = ParseBaseUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let trimmed = text.strip_suffix('/').unwrap_or(text);
        trimmed
            .strip_prefix("https://")
            .or_else(|| trimmed.strip_prefix("http://"))
            .filter(|authority| authority_ok(authority))
            .map(|_| Self(trimmed.to_owned()))
            .ok_or(ParseBaseUrlError)
    }
}

text_form!(BaseUrl, ParseBaseUrlError);

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

debug_form!(BaseUrl);

/// A service as described to a node: its URL, and the CA that vouches for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Endpoint {
    /// Base URL.
    pub url: BaseUrl,
    /// PEM bundle of the CA; empty for plain HTTP and for publicly trusted certificates.
    #[serde(default)]
    pub cert: String,
}

impl Endpoint {
    /// An endpoint with the CA bundle that nodes pin (may be empty).
    pub fn new(url: BaseUrl, cert: impl Into<String>) -> Self {
        Self { url, cert: cert.into() }
    }
}

/// What counts as one client for limits: an IPv4 address, or an IPv6 /64 network, since one
/// customer usually owns that many addresses.
///
/// ```
/// use tec_core::endpoint::network_of;
/// let a = "2001:db8::1".parse().unwrap();
/// let b = "2001:db8::ffff:1".parse().unwrap();
/// assert_eq!(network_of(a), network_of(b));
/// ```
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX))),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_urls_have_scheme_host_and_port_only() {
        for good in ["http://a", "https://kbs.example.org:8080", "https://[fd00::1]:8080/"] {
            assert!(good.parse::<BaseUrl>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "ftp://a",
            "https://",
            "https://a/b",
            "https://u@h",
            "http://a:0",
            "http://a:x",
            "http://[::1",
        ] {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad}");
        }
    }
}
