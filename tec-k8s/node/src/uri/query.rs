//! The query of a URI: names and values, decoded only once.

use core::net::{IpAddr, SocketAddr};
use std::collections::BTreeMap;

use tec_core::endpoint::BaseUrl;
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

use super::{UriError, escape};

type Value = Zeroizing<String>;

/// Type and parameters of `scheme://type?name=value&…`.
pub(super) struct Parsed<'t> {
    pub(super) kind: &'t str,
    query: Vec<(Value, Value)>,
}

/// Maximum length of a URI in bytes.
const MAX_URI: usize = 16 * 1024;

impl<'t> Parsed<'t> {
    pub(super) fn parse(scheme: &'static str, text: &'t str) -> Result<Self, UriError> {
        let malformed = || UriError::Malformed(scheme);
        if text.len() > MAX_URI {
            return Err(malformed());
        }
        let (found, rest) = text.split_once("://").ok_or_else(malformed)?;
        if !found.eq_ignore_ascii_case(scheme) {
            return Err(UriError::Scheme(scheme));
        }
        let (kind, query) = rest.split_once('?').unwrap_or((rest, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let decoded = |pair: &str| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((decode(name)?, decode(value)?))
        };
        Ok(Self {
            kind: kind.trim_end_matches('/'),
            query: pairs
                .map(|pair| decoded(pair).ok_or_else(malformed))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Whether the parameter is present, empty or not.
    pub(super) fn has(&self, parameter: &str) -> bool {
        self.query.iter().any(|(name, _)| **name == *parameter)
    }

    /// Takes a value out, if it is present and not empty.
    pub(super) fn optional(&mut self, parameter: &'static str) -> Result<Option<Value>, UriError> {
        let at = |query: &[(Value, Value)]| query.iter().position(|(name, _)| **name == *parameter);
        let Some(first) = at(&self.query) else {
            return Ok(None);
        };
        let (_, value) = self.query.remove(first);
        if at(&self.query).is_some() {
            return Err(UriError::Duplicate(parameter));
        }
        Ok(Some(value).filter(|value| !value.is_empty()))
    }

    pub(super) fn text(&mut self, parameter: &'static str) -> Result<String, UriError> {
        self.value(parameter).map(|value| String::clone(&value))
    }

    pub(super) fn secret(&mut self, parameter: &'static str) -> Result<SecretBytes, UriError> {
        self.value(parameter).map(|value| SecretBytes::new(value.as_bytes().to_vec()))
    }

    pub(super) fn value(&mut self, parameter: &'static str) -> Result<Value, UriError> {
        self.optional(parameter)?.ok_or(UriError::Missing(parameter))
    }

    /// A name that becomes part of a URL path or host.
    pub(super) fn name(&mut self, parameter: &'static str) -> Result<String, UriError> {
        let name = self.text(parameter)?;
        if is_name(&name) {
            return Ok(name);
        }
        Err(UriError::Encoding { parameter, form: "a name of letters, digits, '-', '_' and '.'" })
    }

    /// Several names, with slashes between them.
    pub(super) fn names(&mut self, parameter: &'static str) -> Result<String, UriError> {
        let names = self.text(parameter)?;
        if names.split('/').all(is_name) {
            return Ok(names);
        }
        Err(UriError::Encoding {
            parameter,
            form: "names of letters, digits, '-', '_' and '.', with '/' between them",
        })
    }

    pub(super) fn url(&mut self, parameter: &'static str) -> Result<BaseUrl, UriError> {
        let url = self.text(parameter)?.parse::<BaseUrl>().ok();
        url.filter(is_protected).ok_or(UriError::Encoding {
            parameter,
            form: "https://host[:port], or http:// of a loopback address",
        })
    }

    pub(super) fn optional_url(
        &mut self,
        parameter: &'static str,
    ) -> Result<Option<BaseUrl>, UriError> {
        if self.has(parameter) { self.url(parameter).map(Some) } else { Ok(None) }
    }

    pub(super) fn optional_text(
        &mut self,
        parameter: &'static str,
    ) -> Result<Option<String>, UriError> {
        Ok(self.optional(parameter)?.map(|text| String::clone(&text)))
    }

    /// Returns all parameters; each may occur only once.
    pub(super) fn into_pairs(
        self,
        scheme: &'static str,
    ) -> Result<BTreeMap<String, String>, UriError> {
        let count = self.query.len();
        let plain = |(name, value): (Value, Value)| (String::clone(&name), String::clone(&value));
        let pairs: BTreeMap<_, _> = self.query.into_iter().map(plain).collect();
        if pairs.len() == count { Ok(pairs) } else { Err(UriError::Malformed(scheme)) }
    }

    /// Checks that no parameter is left.
    pub(super) fn finish(self) -> Result<(), UriError> {
        match self.query.len() {
            0 => Ok(()),
            count => Err(UriError::Unknown { count }),
        }
    }
}

pub(super) fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    // Only dots, or nothing at all, would climb to a parent.
    name.chars().all(is_plain) && !name.chars().all(|c| c == '.')
}

/// The server decides which key a disk gets, so only TLS, or traffic that never leaves the machine,
/// is accepted.
pub(super) fn is_protected(url: &BaseUrl) -> bool {
    let host = || url.as_str().strip_prefix("http://");
    let is_loopback = |authority: &str| {
        let address = authority.parse::<SocketAddr>().map(|one| one.ip());
        let address = address.or_else(|_| authority.trim_matches(['[', ']']).parse::<IpAddr>());
        address.is_ok_and(|address| address.is_loopback())
    };
    url.is_tls() || host().is_some_and(is_loopback)
}

/// Percent-encoding, and `+` for a space, as forms are decoded (WHATWG URL, section 5.1).
fn decode(text: &str) -> Option<Value> {
    let mut out = Zeroizing::new(Vec::with_capacity(text.len()));
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'+' => b' ',
            b'%' => {
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                high << 4 | low
            }
            other => other,
        });
    }
    std::str::from_utf8(&out).ok().map(|text| Zeroizing::new(text.to_owned()))
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Writes `scheme://type?name=value&…`; escapes every byte except the unreserved ones (RFC 3986,
/// section 2.3).
pub(super) struct Writer {
    text: Zeroizing<String>,
    separator: char,
    extent: Extent,
}

/// Which parts of a URI are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// All parts.
    Whole,
    /// Only what identifies the keys or the store, not the means of access: credentials expire and
    /// are rotated.
    Named,
}

impl Writer {
    pub(super) fn new(scheme: &str, kind: &str, extent: Extent) -> Self {
        Self {
            // Enough capacity for ordinary URIs, so that reallocation leaves no partial secret in
            // memory.
            text: Zeroizing::new(String::with_capacity(1024) + scheme + "://" + kind),
            separator: '?',
            extent,
        }
    }

    pub(super) fn with(mut self, parameter: &str, value: &[u8]) -> Self {
        self.text.push(self.separator);
        self.text.push_str(parameter);
        self.text.push('=');
        escape(value, &mut self.text);
        self.separator = '&';
        self
    }

    /// A credential or another means of access.
    pub(super) fn with_access(self, parameter: &str, value: &[u8]) -> Self {
        match self.extent {
            Extent::Whole => self.with(parameter, value),
            Extent::Named => self,
        }
    }

    pub(super) fn with_some_access(self, parameter: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with_access(parameter, value.as_bytes()),
            None => self,
        }
    }

    pub(super) fn with_some(self, parameter: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) => self.with(parameter, value.as_bytes()),
            None => self,
        }
    }

    pub(super) fn finish(self) -> SecretBytes {
        SecretBytes::new(self.text.as_bytes().to_vec())
    }
}
