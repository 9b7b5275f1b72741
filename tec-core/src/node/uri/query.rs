//! The query of a URI: names and values, decoded once.

use zeroize::Zeroizing;

use super::UriError;
use crate::secret::SecretBytes;

type Value = Zeroizing<String>;

/// Type and parameters of `scheme://type?name=value&…`.
pub(super) struct Parsed<'t> {
    pub(super) kind: &'t str,
    query: Vec<(Value, Value)>,
}

/// Longest URI that is looked at, in bytes.
const MAX_URI: usize = 16 * 1024;

impl<'t> Parsed<'t> {
    pub(super) fn parse(scheme: &'static str, text: &'t str) -> Result<Self, UriError> {
        let malformed = || UriError::Malformed { scheme };
        if text.len() > MAX_URI {
            return Err(malformed());
        }
        let (found, rest) = text.split_once("://").ok_or_else(malformed)?;
        if !found.eq_ignore_ascii_case(scheme) {
            return Err(UriError::Scheme { scheme });
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

    /// A value, if it is there and not empty. What is taken is gone.
    pub(super) fn optional(&mut self, parameter: &'static str) -> Result<Option<Value>, UriError> {
        let at = |query: &[(Value, Value)]| query.iter().position(|(name, _)| **name == *parameter);
        let Some(first) = at(&self.query) else {
            return Ok(None);
        };
        let (_, value) = self.query.remove(first);
        if at(&self.query).is_some() {
            return Err(UriError::Duplicate { parameter });
        }
        Ok(Some(value).filter(|value| !value.is_empty()))
    }

    pub(super) fn text(&mut self, parameter: &'static str) -> Result<String, UriError> {
        self.value(parameter).map(|value| String::clone(&value))
    }

    pub(super) fn secret(&mut self, parameter: &'static str) -> Result<SecretBytes, UriError> {
        self.value(parameter)
            .map(|value| SecretBytes::new(value.as_bytes().to_vec()))
    }

    pub(super) fn value(&mut self, parameter: &'static str) -> Result<Value, UriError> {
        self.optional(parameter)?
            .ok_or(UriError::Missing { parameter })
    }

    /// Nothing may be left.
    pub(super) fn finish(self) -> Result<(), UriError> {
        match self.query.len() {
            0 => Ok(()),
            count => Err(UriError::Unknown { count }),
        }
    }
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
    std::str::from_utf8(&out)
        .ok()
        .map(|text| Zeroizing::new(text.to_owned()))
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

/// Writes `scheme://type?name=value&…`; every byte but the unreserved ones (RFC 3986, section 2.3)
/// is escaped.
pub(super) struct Writer {
    text: Zeroizing<String>,
    separator: char,
}

impl Writer {
    pub(super) fn new(scheme: &str, kind: &str) -> Self {
        Self {
            // Room for what usual URIs need, so that no half of a secret stays behind in memory.
            text: Zeroizing::new(String::with_capacity(1024) + scheme + "://" + kind),
            separator: '?',
        }
    }

    pub(super) fn with(mut self, parameter: &str, value: &[u8]) -> Self {
        const HEX: [char; 16] = [
            '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
        ];
        self.text.push(self.separator);
        self.text.push_str(parameter);
        self.text.push('=');
        for byte in value {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
                self.text.push(char::from(*byte));
            } else {
                self.text.push('%');
                let nibbles = [usize::from(byte >> 4), usize::from(byte & 0xf)];
                self.text
                    .extend(nibbles.iter().filter_map(|at| HEX.get(*at)));
            }
        }
        self.separator = '&';
        self
    }

    pub(super) fn finish(self) -> SecretBytes {
        SecretBytes::new(self.text.as_bytes().to_vec())
    }
}
