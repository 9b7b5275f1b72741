//! Certificates as the vault issues them.

use std::time::Duration;

use serde::Deserialize;

use super::vault::AnswerError;
use super::vault::Response;
use crate::secret::SecretBytes;
use crate::time::Timestamp;

/// Certificate, key and authorities.
#[derive(Debug)]
#[non_exhaustive]
pub struct Material {
    /// The certificate first, then what leads to the root, in PEM.
    pub chain: String,
    /// The key in PKCS#8, PEM.
    pub key: SecretBytes,
    /// The authorities, in PEM.
    pub authorities: String,
    /// When the certificate ends.
    pub not_after: Timestamp,
    /// Its serial number, as the vault writes it.
    pub serial: String,
}

#[derive(Deserialize)]
struct Issued {
    certificate: String,
    ca_chain: Vec<String>,
    #[serde(deserialize_with = "super::vault::secret")]
    private_key: SecretBytes,
    serial_number: String,
    expiration: i64,
}

impl Material {
    /// From the answer of `issue`.
    ///
    /// # Errors
    /// [`AnswerError`] if it is a refusal or has another form.
    pub fn from_issued(answer: &Response) -> Result<Self, AnswerError> {
        let issued: Issued = answer.data()?;
        let mut chain = String::new();
        let mut authorities = String::new();
        push(&mut chain, &issued.certificate);
        for authority in &issued.ca_chain {
            push(&mut chain, authority);
            push(&mut authorities, authority);
        }
        Ok(Self {
            chain,
            key: issued.private_key,
            authorities,
            not_after: Timestamp::from_unix_seconds(issued.expiration),
            serial: issued.serial_number,
        })
    }

    /// When it is to be renewed: after two thirds of the life that is left at `now`.
    pub fn renew_after(&self, now: Timestamp) -> Duration {
        renew_after(self.not_after, now)
    }
}

/// Two thirds of the time from `now` to `end`; none if it is over.
pub fn renew_after(end: Timestamp, now: Timestamp) -> Duration {
    let left = end.unix_seconds().saturating_sub(now.unix_seconds());
    Duration::from_secs(u64::try_from(left).unwrap_or(0)) * 2 / 3
}

/// The vault leaves out the last line break.
fn push(to: &mut String, pem: &str) {
    to.push_str(pem.trim_end());
    to.push('\n');
}
