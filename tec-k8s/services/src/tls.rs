//! Certificates as the vault issues them.

use std::time::Duration;

use serde::Deserialize;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::answer::{AnswerError, Response};

/// Certificate, key and authorities.
#[derive(Debug)]
#[non_exhaustive]
pub struct Material {
    /// The certificate first, then the chain up to the root, in PEM.
    pub chain: String,
    /// The key in PKCS#8, PEM; empty if its owner created and keeps it.
    pub key: SecretBytes,
    /// The CA certificates, in PEM.
    pub authorities: String,
    /// When the certificate expires.
    pub not_after: Timestamp,
    /// Its serial number, as the vault writes it.
    pub serial: String,
}

/// A certificate request (PKCS#10, RFC 2986) in PEM. The vault checks whether it is one, and
/// whether its key signed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningRequest(String);

/// Not the PEM form of a certificate request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a certificate request in PEM")]
#[non_exhaustive]
pub struct SigningRequestError;

/// Maximum size of a request in bytes. A request for a P-256 key without extensions has about 500.
const MAX_REQUEST: usize = 4096;
/// First and last line (RFC 7468, section 7).
const REQUEST_BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----";
const REQUEST_END: &str = "-----END CERTIFICATE REQUEST-----";

impl SigningRequest {
    /// The PEM.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::str::FromStr for SigningRequest {
    type Err = SigningRequestError;

    fn from_str(text: &str) -> Result<Self, SigningRequestError> {
        let content = text
            .strip_prefix(REQUEST_BEGIN)
            .and_then(|rest| rest.trim_end().strip_suffix(REQUEST_END));
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || "+/=\r\n".contains(c);
        match content {
            Some(content) if text.len() <= MAX_REQUEST && content.chars().all(is_base64) => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(SigningRequestError),
        }
    }
}

#[derive(Deserialize)]
struct Issued {
    #[serde(flatten)]
    signed: Signed,
    #[serde(deserialize_with = "super::vault::secret")]
    private_key: SecretBytes,
}

#[derive(Deserialize)]
struct Signed {
    certificate: String,
    ca_chain: Vec<String>,
    serial_number: String,
    expiration: i64,
}

impl Material {
    /// Parses the answer of `issue`.
    ///
    /// # Errors
    /// [`AnswerError`] if it is a refusal or has another form.
    pub fn from_issued(answer: &Response) -> Result<Self, AnswerError> {
        let Issued { signed, private_key } = answer.data()?;
        Ok(Self::of(signed, private_key))
    }

    /// Parses the answer of `sign`, which contains no key.
    ///
    /// # Errors
    /// Same as [`from_issued`](Self::from_issued).
    pub fn from_signed(answer: &Response) -> Result<Self, AnswerError> {
        Ok(Self::of(answer.data()?, SecretBytes::new(Vec::new())))
    }

    fn of(signed: Signed, key: SecretBytes) -> Self {
        let mut chain = String::new();
        let mut authorities = String::new();
        push(&mut chain, &signed.certificate);
        for authority in &signed.ca_chain {
            push(&mut chain, authority);
            push(&mut authorities, authority);
        }
        Self {
            chain,
            key,
            authorities,
            not_after: Timestamp::from_unix_seconds(signed.expiration),
            serial: signed.serial_number,
        }
    }

    /// When to renew it: after two thirds of the lifetime that remains at `now`.
    pub fn renew_after(&self, now: Timestamp) -> Duration {
        renew_after(self.not_after, now)
    }
}

/// Two thirds of the time from `now` to `end`; zero if `end` has passed.
pub fn renew_after(end: Timestamp, now: Timestamp) -> Duration {
    let left = end.unix_seconds().saturating_sub(now.unix_seconds());
    Duration::from_secs(u64::try_from(left).unwrap_or(0)) * 2 / 3
}

/// The vault omits the last line break.
pub(super) fn push(to: &mut String, pem: &str) {
    to.push_str(pem.trim_end());
    to.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pem_of_a_request_is_one() {
        let of = |content: &str| format!("{REQUEST_BEGIN}\n{content}\n{REQUEST_END}\n");
        assert!(of("MIIB+/==").parse::<SigningRequest>().is_ok());
        let refused = [
            String::new(),
            "MIIB".to_owned(),
            of("a\"}"),
            of(&format!("AA==\n{REQUEST_END}\n{REQUEST_BEGIN}\nAA==")),
            of(&"A".repeat(MAX_REQUEST)),
            of("AA==").replace("REQUEST", ""),
        ];
        for text in refused {
            assert_eq!(text.parse::<SigningRequest>(), Err(SigningRequestError), "{text}");
        }
    }
}
