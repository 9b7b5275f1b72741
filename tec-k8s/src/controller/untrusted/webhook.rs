//! Tells a webhook which machines became untrusted, and which attest well again (Standard Webhooks 1.0).
//!
//! ```text
//!   untrusted, no note ─► note "sending <since>" ─► POST ─► note "sent <since>"
//!   trusted, a note    ─► POST ─► no note
//! ```
//! The note is an annotation of the Machine. A message is sent again until the receiver has taken it, with the
//! same `webhook-id`, by whichever replica acts then: at least once, and a receiver can tell.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::uri::PathAndQuery;
use http::{Request, Uri};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use kube::client::Body;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use sha2::Sha256;
use tec_core::port::{PortError, PortErrorKind, chain};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::super::context::Context;
use super::decide::{Decision, Link, Verdict};
use crate::api::{Machine, OnUntrustedSpec, WebhookSpec};
use crate::client::port_error;

/// Annotation of a Machine with the state of its messages.
const NOTE: &str = "trusted-execution-clusters.io/webhook";
/// Prefix of a key (Standard Webhooks 1.0, "Signature scheme").
const KEY_PREFIX: &str = "whsec_";
/// Bounds of a key in bytes (Standard Webhooks 1.0, "Signature scheme").
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;
/// Deadline of one message (Standard Webhooks 1.0 recommends 15 to 30 seconds).
const DEADLINE: Duration = Duration::from_secs(15);
/// Most messages of a round: a failure of a whole fleet must not keep it from being looked at again.
const PER_ROUND: u32 = 50;

/// What a receiver is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    Untrusted,
    Trusted,
}

impl News {
    /// The type of the message (Standard Webhooks 1.0, "Payload structure").
    const fn kind(self) -> &'static str {
        match self {
            Self::Untrusted => "machine.untrusted",
            Self::Trusted => "machine.trusted",
        }
    }
}

/// What is due, and since when. Without a note, it begins now.
fn due(verdict: &Verdict, note: Option<&str>, now: Timestamp) -> Option<(News, Timestamp)> {
    let since = note.and_then(|note| note.split_once(' ')?.1.parse().ok());
    match (verdict, note) {
        (Verdict::Untrusted(_), Some(note)) if note.starts_with("sent ") => None,
        (Verdict::Untrusted(_), _) => Some((News::Untrusted, since.unwrap_or(now))),
        (Verdict::Trusted, Some(_)) => Some((News::Trusted, since.unwrap_or(now))),
        (Verdict::Trusted, None) | (Verdict::Unknown, _) => None,
    }
}

/// The receiver, in one round.
#[derive(Debug, Default)]
pub(super) struct Webhook {
    receiver: Option<Receiver>,
    sent: u32,
    has_failed: bool,
}

impl Webhook {
    /// Sends what is due about a machine. Returns whether nothing remains to be sent; after a failure, the next
    /// round tries again.
    pub(super) async fn report(
        &mut self,
        ctx: &Context,
        policy: &OnUntrustedSpec,
        machine: &Machine,
        verdict: &Verdict,
        decision: &Decision,
    ) -> bool {
        let Some(spec) = &policy.webhook else {
            return true;
        };
        let note = machine.annotations().get(NOTE);
        let Some((news, since)) = due(verdict, note.map(String::as_str), ctx.now()) else {
            return true;
        };
        if self.has_failed || self.sent == PER_ROUND {
            return false;
        }
        self.sent += 1;
        let data = data(machine, verdict, decision, policy.dry_run);
        let told = self.tell(ctx, spec, machine, (news, since), &data).await;
        if let Err(error) = &told {
            self.has_failed = true;
            tracing::warn!(error = chain(error), "the webhook is told again");
        }
        told.is_ok()
    }

    async fn tell(
        &mut self,
        ctx: &Context,
        spec: &WebhookSpec,
        machine: &Machine,
        (news, since): (News, Timestamp),
        data: &Value,
    ) -> Result<(), PortError> {
        if news == News::Untrusted && !machine.annotations().contains_key(NOTE) {
            // Of two rounds, one of which has not seen the other's note, one chooses the time of the message.
            let note = json!({NOTE: format!("sending {since}")});
            let seen = json!({"annotations": note, "resourceVersion": machine.resource_version()});
            patch(ctx, machine, seen).await?;
        }
        let receiver = match self.receiver.take() {
            Some(receiver) => receiver,
            None => Receiver::open(ctx, spec).await?,
        };
        let receiver = self.receiver.insert(receiver);
        let uid = machine.uid().unwrap_or_else(|| machine.name_any());
        let id = format!("{uid}_{}_{}", since.unix_seconds(), news.kind().replace('.', "_"));
        let body = json!({"type": news.kind(), "timestamp": since.to_string(), "data": data});
        receiver.post(&id, ctx.now(), body.to_string()).await?;
        let sent = (news == News::Untrusted).then(|| format!("sent {since}"));
        patch(ctx, machine, json!({"annotations": {NOTE: sent}})).await
    }
}

fn data(machine: &Machine, verdict: &Verdict, decision: &Decision, dry_run: bool) -> Value {
    let deeds = match decision {
        Decision::Act(deeds) | Decision::WouldAct(deeds) => Some(deeds),
        _ => None,
    };
    let node = deeds.and_then(|deeds| match &deeds.link {
        Link::Proven { name, .. } => Some(name),
        _ => None,
    });
    let reason = match verdict {
        Verdict::Untrusted(why) => Some(why),
        _ => None,
    };
    json!({
        "machine": machine.spec.id,
        "object": machine.name_any(),
        "node": node,
        "reason": reason,
        "actions": deeds.map_or(&[][..], |deeds| &deeds.actions),
        "dryRun": dry_run,
    })
}

async fn patch(ctx: &Context, machine: &Machine, metadata: Value) -> Result<(), PortError> {
    let name = machine.name_any();
    let patch = Patch::Merge(json!({"metadata": metadata}));
    let written = ctx.objects::<Machine>().patch(&name, &PatchParams::default(), &patch).await;
    written
        .map(drop)
        .map_err(|error| port_error(format!("note what the webhook of {name} knows"), error))
}

/// Signs and sends. The client is that of an API server, which does what is needed: TLS with given CAs, and
/// deadlines; it has no credentials.
struct Receiver {
    client: kube::Client,
    /// Path and query, which the client puts behind the host.
    path: String,
    key: SecretBytes,
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

impl Receiver {
    async fn open(ctx: &Context, spec: &WebhookSpec) -> Result<Self, PortError> {
        let name = &spec.secret_name;
        let secret = ctx.objects::<Secret>().get(name).await;
        let secret = secret
            .map_err(|error| port_error(format!("read the webhook's Secret {name}"), error))?;
        let item = |item: &str| {
            let found = secret.data.as_ref().and_then(|data| data.get(item));
            found.map(|bytes| bytes.0.as_slice()).ok_or_else(|| invalid(name, "a part is missing"))
        };
        let key = key(item("key")?)
            .ok_or_else(|| invalid(name, "`key` is not whsec_ and 24 to 64 bytes in Base64"))?;
        let authorities = CertificateDer::pem_slice_iter(item("ca.crt")?);
        let authorities = authorities.map(|one| one.map(|one| one.to_vec()));
        let authorities: Vec<_> = authorities.collect::<Result<_, _>>().map_err(|error| {
            invalid(name, "`ca.crt` is not a list of certificates").because(error)
        })?;
        let url: Uri = spec.url.parse().map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "read the URL of the webhook").because(error)
        })?;
        let path = url.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let mut config = kube::Config::new(host(&url)?);
        config.root_cert = Some(authorities);
        for deadline in
            [&mut config.connect_timeout, &mut config.read_timeout, &mut config.write_timeout]
        {
            *deadline = Some(DEADLINE);
        }
        let client = kube::Client::try_from(config)
            .map_err(|error| port_error("prepare for the webhook", error))?;
        Ok(Self { client, path, key })
    }

    async fn post(&self, id: &str, at: Timestamp, body: String) -> Result<(), PortError> {
        let at = at.unix_seconds();
        let request = Request::post(&self.path)
            .header("content-type", "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", at)
            .header("webhook-signature", signature(&self.key, id, at, &body).unwrap_or_default())
            .body(Body::from(body.into_bytes()));
        let failed = || PortError::new(PortErrorKind::Unavailable, "tell the webhook");
        let request = request.map_err(|error| failed().because(error))?;
        let sent = tokio::time::timeout(DEADLINE, self.client.send(request)).await;
        let answer = sent.map_err(|error| failed().because(error))?;
        let answer = answer.map_err(|error| port_error("tell the webhook", error))?;
        if answer.status().is_success() {
            return Ok(());
        }
        let operation = format!("tell the webhook, which answered {}", answer.status());
        Err(PortError::new(PortErrorKind::Unavailable, operation))
    }
}

fn host(url: &Uri) -> Result<Uri, PortError> {
    let mut parts = url.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::from_static("/"));
    Uri::from_parts(parts).map_err(|error| {
        PortError::new(PortErrorKind::Invalid, "read the URL of the webhook").because(error)
    })
}

fn invalid(name: &str, why: &str) -> PortError {
    PortError::new(PortErrorKind::Invalid, format!("use the webhook's Secret {name}: {why}"))
}

fn key(text: &[u8]) -> Option<SecretBytes> {
    let text = std::str::from_utf8(text).ok()?.trim().strip_prefix(KEY_PREFIX)?;
    let key = SecretBytes::new(STANDARD.decode(text).ok()?);
    KEY_BYTES.contains(&key.expose("measure it").len()).then_some(key)
}

/// Standard Webhooks 1.0, "Signature scheme", symmetric.
fn signature(key: &SecretBytes, id: &str, at: i64, body: &str) -> Option<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.expose("sign a message")).ok()?;
    mac.update(format!("{id}.{at}.{body}").as_bytes());
    Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

#[cfg(test)]
mod tests {
    use tec_core::testing::sample;

    use super::*;

    fn untrusted() -> Verdict {
        Verdict::Untrusted("TEC-A412".to_owned())
    }

    #[test]
    fn each_change_is_told_once_and_a_message_keeps_its_time() {
        let (then, now) = (sample::time(5), sample::time(9));
        let sending = format!("sending {then}");
        let sent = format!("sent {then}");
        for (verdict, note, expected) in [
            (untrusted(), None, Some((News::Untrusted, now))),
            (untrusted(), Some(&sending), Some((News::Untrusted, then))),
            (untrusted(), Some(&sent), None),
            (Verdict::Trusted, Some(&sent), Some((News::Trusted, then))),
            // It may have been taken.
            (Verdict::Trusted, Some(&sending), Some((News::Trusted, then))),
            (Verdict::Trusted, None, None),
            (Verdict::Unknown, Some(&sending), None),
        ] {
            let note = note.map(String::as_str);
            assert_eq!(due(&verdict, note, now), expected, "{verdict:?} {note:?}");
        }
    }

    /// The example in the specification.
    #[test]
    fn signatures_are_those_of_the_specification() {
        let key = key(b"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        let body = r#"{"test": 2432232314}"#;
        let signature = signature(&key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body);
        assert_eq!(signature.unwrap(), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        for bad in ["", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_", "whsec_c2hvcnQ=", "whsec_?"] {
            assert!(super::key(bad.as_bytes()).is_none(), "{bad}");
        }
    }
}
