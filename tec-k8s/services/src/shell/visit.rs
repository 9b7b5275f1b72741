//! The audit line of a call: the caller, the request, the outcome, and the duration.

use std::time::Instant;

use parking_lot::Mutex;

use crate::caller::{Account, Claims, Refusal, Role};
use crate::nats::PublicKey;
use tec_core::ak::SourceNetwork;
use tracing::field::{debug, display};

use super::object::is_pod_name;

/// Maximum length of a request ID that is logged.
const MAX_ID: usize = 64;
/// Outcomes other than refusals.
const GRANTED: &str = "GRANTED";
const ABANDONED: &str = "ABANDONED";

/// A call from its beginning to its audit line.
#[derive(Debug)]
pub struct Visit {
    call: &'static str,
    request_id: String,
    /// The network that the call comes from, if the server reports it.
    pub(super) source: Option<SourceNetwork>,
    began: Instant,
    known: Mutex<Known>,
}

/// Facts gathered during the call; a refusal may come before any of them.
#[derive(Debug, Default)]
struct Known {
    role: Option<Role>,
    /// The token's own claims.
    claimed: Option<Account>,
    /// The account that the vault knows.
    account: Option<Account>,
    pod: Option<String>,
    serials: Vec<String>,
    /// The user whose JWT was minted, and the ID of the JWT.
    jwt: Option<(PublicKey, String)>,
    is_written: bool,
}

impl Visit {
    /// Starts the call. The ID comes from a stranger, and is cut to the length that an ID needs.
    pub fn begin(call: &'static str, request_id: &str, source: Option<SourceNetwork>) -> Self {
        let id = request_id.chars().filter(char::is_ascii_graphic);
        Self {
            call,
            request_id: id.take(MAX_ID).collect(),
            source,
            began: Instant::now(),
            known: Mutex::default(),
        }
    }

    pub(super) fn claims(&self, role: Role, claims: &Claims) {
        let mut known = self.known.lock();
        known.role = Some(role);
        known.claimed = Some(claims.account.clone());
        let pod = claims.pod.as_ref().map(|pod| pod.name.clone());
        known.pod = pod.filter(|name| is_pod_name(name));
    }

    pub(super) fn is_of(&self, account: &Account) {
        self.known.lock().account = Some(account.clone());
    }

    pub(super) fn issued(&self, serial: &str) {
        self.known.lock().serials.push(serial.to_owned());
    }

    pub(super) fn minted(&self, user: PublicKey, id: String) {
        self.known.lock().jwt = Some((user, id));
    }

    /// Writes the line, once.
    pub(super) fn end(&self, refusal: Option<Refusal>) {
        self.write(refusal.map_or(GRANTED, Refusal::reason));
    }

    fn write(&self, outcome: &'static str) {
        let mut known = self.known.lock();
        if std::mem::replace(&mut known.is_written, true) {
            return;
        }
        let role = known.role.map(Role::as_str);
        let account = known.account.as_ref().map(display);
        // Unchecked claims must not look like checked ones.
        let claimed = match account {
            Some(_) => None,
            None => known.claimed.as_ref().map(display),
        };
        let serials = (!known.serials.is_empty()).then(|| debug(&known.serials));
        let user = known.jwt.as_ref().map(|(user, _)| display(user));
        let jti = known.jwt.as_ref().map(|(_, id)| id.as_str());
        let (call, id, pod) = (self.call, &*self.request_id, known.pod.as_deref());
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        if outcome == GRANTED {
            tracing::info!(
                target: "audit", call, request.id = id, account, pod, role, serials, user, jti,
                millis, outcome, "granted"
            );
        } else {
            tracing::warn!(
                target: "audit", call, request.id = id, account, claimed, pod, role, serials, user,
                jti, millis, outcome, "not granted"
            );
        }
    }
}

/// If the caller disconnects, work on its call ends; what was done until then is logged.
impl Drop for Visit {
    fn drop(&mut self) {
        self.write(ABANDONED);
    }
}
