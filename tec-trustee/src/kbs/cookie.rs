//! The session cookie, incoming and outgoing.

use axum::http::HeaderMap;
use axum::http::header::COOKIE;
use axum::http::request::Parts;
use serde_json::Value;
use tec_core::time::Timestamp;

use super::reply::Refusal;
use super::session_id::SessionId;
use super::shared::{Carried, Opened, take_stamp};
use super::table::peer;
use super::{Admission, Kbs};
use crate::jwt::Unverified;
use crate::wire::SESSION_COOKIE;

/// The session that a cookie names, and what the cookie itself carries of it.
pub(super) struct Named<'a> {
    pub(super) id: SessionId,
    pub(super) cookie: &'a str,
    pub(super) carried: Option<Carried>,
}

/// The session cookie among all cookies of a request.
pub(super) fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == SESSION_COOKIE)
        .map(|(_, value)| value)
}

impl Kbs {
    /// The session that the cookie of a request names, whether or not it is known.
    pub(super) fn named<'a>(&self, headers: &'a HeaderMap, now: Timestamp) -> Option<Named<'a>> {
        let cookie = session_cookie(headers)?;
        let carried = match &self.0.shared {
            None => None,
            Some(shared) => Some(shared.read(cookie, now)?),
        };
        let id = carried.as_ref().map_or_else(|| SessionId::parse(cookie), |c| Some(c.id()))?;
        Some(Named { id, cookie, carried })
    }

    /// The same, if the session is in the table or can be taken over from another replica.
    pub(super) fn adopted<'a>(
        &self,
        parts: &'a Parts,
        now: Timestamp,
    ) -> Result<Option<Named<'a>>, Refusal> {
        let sessions = &self.0.sessions;
        let Some(named) = self.named(&parts.headers, now) else {
            return Ok(None);
        };
        match &named.carried {
            Some(Carried::Opened(opened)) => {
                if !sessions.open(opened, peer(&parts.extensions), now) {
                    return Err(Refusal::too_many_sessions());
                }
                Ok(Some(named))
            }
            _ => Ok(Some(named).filter(|named| sessions.is_known(named.id, now))),
        }
    }

    /// The cookie of a session that was just opened.
    pub(super) fn cookie(&self, session: Opened) -> Option<String> {
        match &self.0.shared {
            None => Some(session.id.to_string()),
            Some(shared) => shared.opened(session, &*self.0.config.entropy),
        }
    }

    /// The cookie of a session that now has a result; `former` if there is nothing to add.
    pub(super) fn renewed(
        &self,
        former: &Named<'_>,
        opened: Timestamp,
        claims: &Value,
        admission: &Admission,
    ) -> String {
        let renewed = self.0.shared.as_ref().and_then(|shared| {
            let session = (former.id, opened);
            let cookie = shared.judged(session, claims, admission, &*self.0.config.entropy);
            if cookie.is_none() {
                let attempt = admission.attempt;
                tracing::warn!(%attempt, "the session is too large for a cookie");
            }
            cookie
        });
        renewed.unwrap_or_else(|| former.cookie.to_owned())
    }
}

/// The claims of a token that this process signed and kept, while the token lasts.
pub(super) fn own_claims(token: &str, now: Timestamp) -> Option<Value> {
    let mut claims = Unverified::split(token, token.len())?.claims(now, |_, _, _| true)?;
    take_stamp(&mut claims);
    Some(claims)
}
