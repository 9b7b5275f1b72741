//! Which session or token a request presents. The Trustee parses the same headers in its own way, so anything
//! ambiguous counts as absent.

use axum::http::HeaderMap;
use axum::http::header::{AUTHORIZATION, COOKIE};

use crate::kbs::bearer;
use crate::kbs::session_id::SessionId;
use crate::wire::SESSION_COOKIE;

/// One credential of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named<T> {
    /// There is none.
    None,
    /// There is exactly one.
    One(T),
    /// There are several, or one that other parsers might read differently.
    Unclear,
}

/// The session in the cookies.
pub(super) fn session(headers: &HeaderMap) -> Named<SessionId> {
    let mut found = Named::None;
    for value in headers.get_all(COOKIE) {
        let Ok(text) = value.to_str() else {
            return Named::Unclear;
        };
        for pair in text.split(';').map(str::trim) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !is_plain(name) {
                return Named::Unclear;
            }
            if name.eq_ignore_ascii_case(SESSION_COOKIE) {
                found = match (found, SessionId::parse(value)) {
                    (Named::None, Some(id)) if name == SESSION_COOKIE => Named::One(id),
                    _ => return Named::Unclear,
                };
            }
        }
    }
    found
}

/// Whether no parser would decode this name: the Trustee's cookie parser takes `%2D` for a hyphen.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|c| c.is_ascii_graphic() && !matches!(c, b'%' | b'"' | b',' | b'\\'))
}

/// The bearer token.
pub(super) fn token(headers: &HeaderMap) -> Named<&str> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    match (all.next(), all.next()) {
        (None, _) => Named::None,
        (Some(_), None) => bearer(headers).map_or(Named::Unclear, Named::One),
        (Some(_), Some(_)) => Named::Unclear,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn headers(name: &'static str, values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn one_session_is_found_among_other_cookies() {
        let id = SessionId::parse(ID).unwrap();
        let named = format!("kbs-session-id={ID}");
        for good in [
            vec![named.as_str()],
            vec!["a=b%20c; d", &named],
            vec![&format!("a=b;{named} ; c=\"d\"")],
        ] {
            assert_eq!(session(&headers("cookie", &good)), Named::One(id));
        }
        for none in [&[][..], &["a=b"], &[""], &["xkbs-session-id=1"]] {
            assert_eq!(session(&headers("cookie", none)), Named::None);
        }
    }

    #[test]
    fn what_could_be_another_session_is_unclear() {
        let named = format!("kbs-session-id={ID}");
        for bad in [
            vec![named.as_str(), named.as_str()],
            vec![&format!("{named}; {named}")],
            vec![&format!("kbs%2Dsession-id={ID}; {named}")],
            vec![&format!("{named}; %6bbs-session-id={ID}")],
            vec![&format!("KBS-session-id={ID}")],
            vec![&format!("kbs-session-id=\"{ID}\"")],
            vec![&format!("kbs-session-id ={ID}")],
            vec![&format!("kbs-session-id= {ID}")],
            vec!["kbs-session-id"],
            vec!["kbs-session-id="],
            vec![&format!("\"a; {named}\"")],
            vec![&named, "é=1"],
        ] {
            let headers = headers("cookie", &bad);
            assert_eq!(session(&headers), Named::Unclear, "{bad:?}");
        }
    }

    #[test]
    fn one_bearer_token_is_found() {
        assert_eq!(token(&HeaderMap::new()), Named::None);
        let one = headers("authorization", &["bearer  x.y.z"]);
        assert_eq!(token(&one), Named::One("x.y.z"));
        for bad in [&["Basic eA=="][..], &["Bearer"], &["Bearer x", "Bearer x"]] {
            assert_eq!(token(&headers("authorization", bad)), Named::Unclear);
        }
    }
}
