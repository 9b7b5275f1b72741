//! A broker that reads requests in every way that a server might: paths and cookies decoded, empty and dot
//! segments dropped, names in any case, every occurrence of repeated headers.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, COOKIE, SET_COOKIE};
use http::{HeaderMap, Request, Response};
use serde_json::json;

/// What the broker releases.
pub(super) const KEY: &[u8] = b"the resource, whichever";

/// A request as the broker read it.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) method: String,
    /// Segments after `/kbs/v0`.
    pub(super) path: Vec<String>,
    pub(super) sessions: Vec<u8>,
    pub(super) tokens: Vec<String>,
    pub(super) body: Vec<u8>,
}

#[derive(Debug, Default)]
struct Seen {
    readings: Vec<Reading>,
    opened: u8,
}

/// The broker.
#[derive(Clone, Debug)]
pub(super) struct Lax {
    pub(super) address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

/// The nonce of a session.
pub(super) fn nonce(session: u8) -> String {
    STANDARD.encode([session; 32])
}

/// The token of a session.
pub(super) fn token(session: u8) -> String {
    session.to_string()
}

impl Lax {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
        let listener = listener.expect("a port of the loopback address");
        let lax =
            Self { address: listener.local_addr().expect("its address"), seen: Arc::default() };
        let router = Router::new().fallback(serve).with_state(lax.clone());
        #[expect(clippy::disallowed_methods, reason = "it ends with the fuzzer")]
        tokio::spawn(async move { axum::serve(listener, router).await });
        lax
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn reset(&self) {
        *self.seen() = Seen::default();
    }

    /// The requests read since the last call.
    pub(super) fn take(&self) -> Vec<Reading> {
        std::mem::take(&mut self.seen().readings)
    }

    fn answer(&self, reading: Reading) -> Response<Body> {
        let json = |value: serde_json::Value| Response::new(Body::from(value.to_string()));
        let mut seen = self.seen();
        let verb = reading.path.first().cloned().unwrap_or_default();
        let session = reading.sessions.first().copied().unwrap_or_default();
        seen.readings.push(reading);
        match verb.as_str() {
            "auth" => {
                seen.opened = seen.opened.saturating_add(1);
                let challenge = json!({"nonce": nonce(seen.opened), "extra-params": ""});
                let mut response = json(challenge);
                let cookie = format!("kbs-session-id={:032x}", seen.opened);
                let cookie = cookie.parse().expect("a header value");
                response.headers_mut().insert(SET_COOKIE, cookie);
                response
            }
            "attest" => json(json!({"token": token(session)})),
            "resource" => Response::new(Body::from(KEY)),
            _ => Response::new(Body::empty()),
        }
    }
}

async fn serve(State(lax): State<Lax>, request: Request<Body>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await;
    if matches!(parts.uri.path(), "/healthz" | "/metrics") {
        return Response::new(Body::empty());
    }
    let reading = Reading {
        method: parts.method.as_str().to_ascii_uppercase(),
        path: path(parts.uri.path()),
        sessions: sessions(&parts.headers),
        tokens: tokens(&parts.headers),
        body: body.expect("the body is whole").to_vec(),
    };
    lax.answer(reading)
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let byte = digits.and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let (b'%', Some(byte)) = (first, byte) {
            bytes.push(byte);
            rest = tail.get(2..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn path(text: &str) -> Vec<String> {
    let mut segments = Vec::new();
    for segment in decoded(text).split(['/', '\\']) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other.to_owned()),
        }
    }
    if let Some(verb) = segments.get_mut(2) {
        verb.make_ascii_lowercase();
    }
    segments.split_off(segments.len().min(2))
}

fn texts(headers: &HeaderMap, name: http::HeaderName) -> Vec<String> {
    let values = headers.get_all(name);
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    values.iter().map(text).collect()
}

fn sessions(headers: &HeaderMap) -> Vec<u8> {
    let mut found = Vec::new();
    for text in texts(headers, COOKIE) {
        for pair in text.split([';', ',']) {
            let (name, value) = pair.split_once('=').unwrap_or_default();
            let value = decoded(value);
            let value = value.trim_matches([' ', '\t', '"']);
            if decoded(name).trim().eq_ignore_ascii_case("kbs-session-id")
                && let Ok(session) = u8::from_str_radix(value, 16)
            {
                found.push(session);
            }
        }
    }
    found.dedup();
    found
}

fn tokens(headers: &HeaderMap) -> Vec<String> {
    let mut found = Vec::new();
    for text in texts(headers, AUTHORIZATION) {
        let (scheme, token) = text.split_once(' ').unwrap_or_default();
        if scheme.eq_ignore_ascii_case("bearer") {
            found.push(token.trim().to_owned());
        }
    }
    found
}
