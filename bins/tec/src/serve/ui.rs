//! `--ui-addr`: the page of `tec status --html`, live, for browsers on this machine.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn};
use axum::response::{Html, IntoResponse as _, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use tec_core::store::Store;
use tec_support::page::STYLE;

use crate::anchor::Anchor;
use crate::page;
use crate::status::Status;

/// Seconds between reloads of the page.
const REFRESH: u32 = 10;

/// An address that only this machine can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loopback(pub(super) SocketAddr);

/// The address cannot be used for the page.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ParseLoopbackError {
    /// The string is not an address and a port.
    #[error("invalid address (expected, for example, 127.0.0.1:8090)")]
    Address(#[source] std::net::AddrParseError),
    /// Other machines could connect.
    #[error("{0} is not a loopback address: the page has no login (use 127.0.0.1 or [::1])")]
    Reachable(IpAddr),
}

impl FromStr for Loopback {
    type Err = ParseLoopbackError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address: SocketAddr = text.parse().map_err(ParseLoopbackError::Address)?;
        if address.ip().is_loopback() {
            Ok(Self(address))
        } else {
            Err(ParseLoopbackError::Reachable(address.ip()))
        }
    }
}

/// `GET /`, and nothing else.
pub(super) fn router(state_dir: &Path, store: Arc<Store>) -> Router {
    let anchor = Anchor::directory(state_dir, store);
    Router::new().route("/", get(show)).layer(from_fn(guard)).with_state(anchor)
}

async fn show(State(anchor): State<Anchor>) -> Response {
    let page = async { page::page(&anchor, Status::of(&anchor).await?).await };
    match page.await {
        Ok(mut page) => {
            page.refresh = Some(REFRESH);
            Html(page.render()).into_response()
        }
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "the page cannot be shown");
            StatusCode::SERVICE_UNAVAILABLE.into_response()
        }
    }
}

/// Answers only requests whose `Host` names this machine: a foreign site whose name suddenly resolves to it
/// (DNS rebinding) is refused. The headers prevent anything injected into the page from running or loading.
async fn guard(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let mut response = if host.is_some_and(is_local) {
        next.run(request).await
    } else {
        StatusCode::MISDIRECTED_REQUEST.into_response()
    };
    let style = STANDARD.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let headers = response.headers_mut();
    if let Ok(policy) = policy.parse() {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    headers
        .insert(X_CONTENT_TYPE_OPTIONS, const { axum::http::HeaderValue::from_static("nosniff") });
    headers.insert(REFERRER_POLICY, const { axum::http::HeaderValue::from_static("no-referrer") });
    headers.insert(CACHE_CONTROL, const { axum::http::HeaderValue::from_static("no-store") });
    response
}

fn is_local(host: &str) -> bool {
    let Ok(uri) = format!("http://{host}/").parse::<Uri>() else {
        return false;
    };
    uri.host().is_some_and(|name| {
        let name = name.trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost")
            || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_addresses_are_taken() {
        for good in ["127.0.0.1:0", "127.9.9.9:1", "[::1]:80"] {
            assert!(good.parse::<Loopback>().is_ok(), "{good}");
        }
        for bad in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "192.0.2.1:80", "[::ffff:127.0.0.1]:80"]
        {
            let parsed = bad.parse::<Loopback>();
            assert!(matches!(parsed, Err(ParseLoopbackError::Reachable(_))), "{bad}");
        }
    }

    #[test]
    fn a_name_of_somebody_else_is_not_local() {
        for good in ["localhost", "localhost:8090", "127.0.0.1:8090", "[::1]:8090"] {
            assert!(is_local(good), "{good}");
        }
        for bad in
            ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8090", "", "a b"]
        {
            assert!(!is_local(bad), "{bad}");
        }
    }
}
