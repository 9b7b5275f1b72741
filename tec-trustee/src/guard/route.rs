//! Classifies requests. Anything that the Trustee might read differently from the guard is refused.

use axum::body::Body;
use axum::http::header::CONTENT_ENCODING;
use axum::http::{Method, Request};

use super::proxy::connection_is_plain;
use crate::authority::PLACE;
use crate::kbs::reply::{Refusal, no_such_plugin};
use crate::wire::{BASE_PATH, ErrorKind};

/// A type of request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// A session begins.
    Auth,
    /// Evidence arrives.
    Attest,
    /// A resource is requested; holds what follows `resource/`.
    Resource(String),
    /// A node asks which CAs it should trust.
    Authorities,
    /// A node reports which CAs it trusts.
    Trusts,
    /// The admin API, health and metrics.
    Other,
}

impl Route {
    pub(super) fn of(request: &Request<Body>) -> Result<Self, Refusal> {
        if !connection_is_plain(request.headers()) {
            let detail = "a header of the request is named as one of the connection";
            return Err(Refusal::new(&ErrorKind::AttestationError, detail));
        }
        let path = request.uri().path();
        if matches!(path, "/healthz" | "/metrics") {
            return Ok(Self::Other);
        }
        let no_such_path = || Refusal::new(&ErrorKind::InvalidRequestPath, "no such path");
        let rest = path
            .strip_prefix(BASE_PATH)
            .and_then(|rest| rest.strip_prefix('/'))
            .ok_or_else(no_such_path)?;
        let (verb, tail) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_plain(verb) || !is_unambiguous(tail) {
            return Err(no_such_path());
        }
        match (request.method(), verb) {
            (&Method::POST, "auth") if rest == verb => decoded(request, Self::Auth),
            (&Method::POST, "attest") if rest == verb => decoded(request, Self::Attest),
            (&Method::GET, PLACE) if rest == verb => Ok(Self::Authorities),
            (&Method::PUT, PLACE) if rest == verb => decoded(request, Self::Trusts),
            (&Method::POST | &Method::DELETE, "resource")
            | (_, "attestation-policy" | "resource-policy" | "reference-value") => Ok(Self::Other),
            // Any method, since the Trustee might treat it as a GET.
            (_, "resource") => Ok(Self::Resource(tail.to_owned())),
            // Other plugins release data too, and require only a token.
            _ => Err(no_such_plugin()),
        }
    }
}

/// The Trustee's HTTP stack would decode a body; the guard does not.
fn decoded(request: &Request<Body>, route: Route) -> Result<Route, Refusal> {
    if request.headers().contains_key(CONTENT_ENCODING) {
        let detail = "encoded bodies are not accepted";
        return Err(Refusal::new(&ErrorKind::AttestationError, detail));
    }
    Ok(route)
}

fn is_plain(verb: &str) -> bool {
    !verb.is_empty() && verb.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
}

/// Clients of v0.21 send `resource//a/b/c` (clevis-pin-trustee), so one leading empty segment is fine.
fn is_unambiguous(tail: &str) -> bool {
    let legal = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let tail = tail.strip_prefix('/').unwrap_or(tail);
    tail.is_empty()
        || tail
            .split('/')
            .all(|segment| !matches!(segment, "" | "." | "..") && segment.bytes().all(legal))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: Method, path: &str) -> Option<Route> {
        let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
        Route::of(&request).ok()
    }

    #[test]
    fn the_requests_of_the_handshake_are_told_apart() {
        assert_eq!(route(Method::POST, "/kbs/v0/auth"), Some(Route::Auth));
        assert_eq!(route(Method::POST, "/kbs/v0/attest?x=1"), Some(Route::Attest));
        for path in ["/kbs/v0/resource/a/b/c", "/kbs/v0/resource//a/b/c?q=1"] {
            assert!(matches!(route(Method::GET, path), Some(Route::Resource(_))));
        }
        assert_eq!(route(Method::POST, "/kbs/v0/resource/a/b/c"), Some(Route::Other));
        for method in [Method::HEAD, Method::PUT, Method::from_bytes(b"get").unwrap()] {
            let guarded = route(method, "/kbs/v0/resource/a/b/c");
            assert!(matches!(guarded, Some(Route::Resource(_))));
        }
        for path in ["/healthz", "/kbs/v0/reference-value/tpm_pcr4", "/kbs/v0/resource-policy"] {
            assert_eq!(route(Method::GET, path), Some(Route::Other));
        }
    }

    #[test]
    fn a_path_that_could_be_read_in_two_ways_is_refused() {
        for path in [
            "/kbs/v0/%61ttest",
            "/kbs/v0/attest/",
            "/kbs/v0//attest",
            "/kbs/v0/x/../attest",
            "/kbs/v0/./attest",
            "/kbs/v0/attest/x",
            "/kbs/v0/attest%2f",
            "/kbs/v0/resource/a/%62/c",
            "/kbs//v0/attest",
            "/x/kbs/v0/attest",
            "/",
        ] {
            for method in [Method::GET, Method::POST, Method::PUT] {
                assert_eq!(route(method, path), None, "{path}");
            }
        }
        for plugin in ["pkcs11/wrap-key", "nebula-ca/credential", "workload-resource/a/b/c"] {
            assert_eq!(route(Method::GET, &format!("/kbs/v0/{plugin}")), None);
        }
        assert_eq!(route(Method::GET, "/kbs/v0/attest"), None);
        assert_eq!(route(Method::PUT, "/kbs/v0/auth"), None);
    }

    #[test]
    fn encoded_evidence_and_headers_taken_away_are_refused() {
        for (name, value) in [("content-encoding", "gzip"), ("connection", "close, cookie")] {
            for verb in ["auth", "attest"] {
                let request = Request::post(format!("/kbs/v0/{verb}")).header(name, value);
                assert!(Route::of(&request.body(Body::empty()).unwrap()).is_err());
            }
        }
    }
}
