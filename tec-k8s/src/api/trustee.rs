//! Further key brokers that nodes try after the cluster's own.

use std::collections::BTreeSet;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use tec_core::endpoint::{BaseUrl, Endpoint, ParseBaseUrlError};

use super::rule::ca_or_plain_http;

/// Delimiters of a certificate in PEM (RFC 7468, section 5.1).
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// A key broker of another trust anchor.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = ca_or_plain_http())]
#[non_exhaustive]
pub struct AdditionalTrustee {
    /// Address at which nodes reach it: host and optional port, no scheme.
    #[schemars(length(max = 259))]
    pub address: String,

    /// CA certificates, PEM, that nodes trust for it. Required for TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(max = 16384))]
    pub certificate_authority: Option<String>,

    /// Whether nodes reach it over plain HTTP (default false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "bool")]
    pub dangerous_plain_http: Option<bool>,
}

impl AdditionalTrustee {
    /// A key broker with TLS.
    pub fn new(address: impl Into<String>, certificate_authority: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            certificate_authority: Some(certificate_authority.into()),
            dangerous_plain_http: None,
        }
    }

    /// A key broker with plain HTTP.
    pub fn dangerous_plain_http(address: impl Into<String>) -> Self {
        Self {
            address: address.into(),
            certificate_authority: None,
            dangerous_plain_http: Some(true),
        }
    }
}

/// An entry of `spec.additionalTrustees` is invalid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdditionalTrusteeError {
    /// The address is malformed.
    #[error("spec.additionalTrustees: {address:?} is not host[:port]")]
    Address {
        /// The value.
        address: String,
        /// What is wrong with it.
        #[source]
        source: ParseBaseUrlError,
    },
    /// The CA is not PEM, is missing, or is set for plain HTTP.
    #[error("spec.additionalTrustees: certificateAuthority of {0:?} is not a PEM certificate")]
    CertificateAuthority(String),
    /// The entry has both a CA and plain HTTP, or neither.
    #[error(
        "spec.additionalTrustees: {0:?} needs either certificateAuthority or dangerousPlainHttp: true"
    )]
    Transport(String),
    /// The address occurs twice, or is publicTrusteeAddr.
    #[error("spec.additionalTrustees: {0:?} is listed twice, or equals spec.publicTrusteeAddr")]
    Duplicate(String),
}

/// The key brokers in this order; none may be `own`, the address of the cluster's own.
pub(super) fn endpoints(
    own: Option<&str>,
    trustees: &[AdditionalTrustee],
) -> Result<Vec<Endpoint>, AdditionalTrusteeError> {
    let mut seen: BTreeSet<_> = own.into_iter().map(comparable).collect();
    let mut endpoints = Vec::new();
    for trustee in trustees {
        let endpoint = endpoint(trustee)?;
        if !seen.insert(comparable(&trustee.address)) {
            return Err(AdditionalTrusteeError::Duplicate(trustee.address.clone()));
        }
        endpoints.push(endpoint);
    }
    Ok(endpoints)
}

fn endpoint(trustee: &AdditionalTrustee) -> Result<Endpoint, AdditionalTrusteeError> {
    let address = || trustee.address.clone();
    let is_plain = trustee.dangerous_plain_http == Some(true);
    let (scheme, ca) = match (&trustee.certificate_authority, is_plain) {
        (None, true) => ("http", ""),
        (Some(ca), false) if is_pem(ca) => ("https", ca.as_str()),
        (Some(_), false) => {
            return Err(AdditionalTrusteeError::CertificateAuthority(address()));
        }
        _ => return Err(AdditionalTrusteeError::Transport(address())),
    };
    let url: Result<BaseUrl, _> = format!("{scheme}://{}", trustee.address).parse();
    let url =
        url.map_err(|source| AdditionalTrusteeError::Address { address: address(), source })?;
    Ok(Endpoint::new(url, ca))
}

/// Host names are case-insensitive (RFC 4343).
fn comparable(address: &str) -> String {
    address.trim_end_matches('/').to_ascii_lowercase()
}

/// Whether the text is one or more certificates, and nothing else.
fn is_pem(text: &str) -> bool {
    let mut rest = text.trim();
    if rest.is_empty() {
        return false;
    }
    while !rest.is_empty() {
        let Some((body, after)) = rest.strip_prefix(BEGIN).and_then(|rest| rest.split_once(END))
        else {
            return false;
        };
        let body: String = body.split_ascii_whitespace().collect();
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
        if body.is_empty() || !body.len().is_multiple_of(4) || !body.chars().all(is_base64) {
            return false;
        }
        rest = after.trim_start();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::{AdditionalTrustee, AdditionalTrusteeError, Endpoint};

    const CA: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";

    fn endpoints(trustees: &[AdditionalTrustee]) -> Result<Vec<Endpoint>, AdditionalTrusteeError> {
        super::endpoints(Some("kbs.example:8080"), trustees)
    }

    #[test]
    fn each_key_broker_keeps_its_place_and_its_own_ca() {
        let two = format!("{CA}{CA}");
        let found = endpoints(&[
            AdditionalTrustee::new("b.example", two.as_str()),
            AdditionalTrustee::dangerous_plain_http("a.example:1"),
        ]);
        let found = found.unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.url.as_str(), one.cert.as_str())).collect();
        assert_eq!(found, [("https://b.example", two.as_str()), ("http://a.example:1", "")]);
    }

    #[test]
    fn an_address_with_a_scheme_a_path_or_nothing_is_refused() {
        for bad in ["https://b.example", "b.example/path", "", "b.example:0", "user@b.example"] {
            let error = endpoints(&[AdditionalTrustee::new(bad, CA)]).unwrap_err();
            assert!(matches!(error, AdditionalTrusteeError::Address { .. }), "{bad}: {error}");
        }
    }

    #[test]
    fn a_ca_that_is_no_certificate_is_refused() {
        for bad in [
            "",
            "garbage",
            "-----BEGIN CERTIFICATE-----\nMIIB\n",
            "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
            "-----BEGIN CERTIFICATE-----\nMI!B\n-----END CERTIFICATE-----",
            "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\ngarbage",
        ] {
            let error = endpoints(&[AdditionalTrustee::new("b.example", bad)]).unwrap_err();
            let is_expected = matches!(error, AdditionalTrusteeError::CertificateAuthority(_));
            assert!(is_expected, "{bad:?}: {error}");
        }
    }

    #[test]
    fn neither_ca_nor_plain_http_and_both_are_refused() {
        let neither = AdditionalTrustee { certificate_authority: None, ..trustee() };
        let denied = AdditionalTrustee { dangerous_plain_http: Some(false), ..neither.clone() };
        let both = AdditionalTrustee { dangerous_plain_http: Some(true), ..trustee() };
        for bad in [neither, denied, both] {
            let error = endpoints(&[bad]).unwrap_err();
            assert!(matches!(error, AdditionalTrusteeError::Transport(_)), "{error}");
        }
    }

    fn trustee() -> AdditionalTrustee {
        AdditionalTrustee::new("b.example", CA)
    }

    #[test]
    fn an_address_that_is_there_already_is_refused() {
        let own = AdditionalTrustee::new("KBS.example:8080", CA);
        let twice = vec![trustee(), AdditionalTrustee::new("B.EXAMPLE", CA)];
        for bad in [vec![own], twice] {
            let error = endpoints(&bad).unwrap_err();
            assert!(matches!(error, AdditionalTrusteeError::Duplicate(_)), "{error}");
        }
    }
}
