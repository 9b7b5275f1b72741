//! The CA that signs the servers' certificates, and its replacement.
//!
//! ```text
//!   Secret trust-anchor-ca   tls.crt, tls.key     the CA that signs
//!                            next.crt, next.key   the CA that will, while it is replaced
//!                            previous.crt         the CA that did, until it is withdrawn
//!                            ca.crt               all of these: what servers give to nodes
//! ```
//! Each step is one compare-and-swap of this Secret, so a crash leaves the state before or after it.
//! [`tec_core::rollover`] decides the steps.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::machine::MachineState;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::rollover;
use tec_core::rollover::{Asked, Pinned, Standing, Step, fingerprints};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use super::context::{Context, Spoken};
use super::files::{AUTHORITY, CHAIN, Entries, KEY, create, entries, find, pair_entries, text};
use super::summary;
use super::trust::CertificatePair;
use crate::api::{
    ConditionKind, DANGEROUS_REPLACE_CA, Machine, REPLACE_CA, Reason, TlsServer,
    TrustedExecutionCluster, is_paused,
};
use crate::client::{CA_SECRET, RENEW_AT, TRUSTED_AUTHORITIES, port_error, read_authorities};

/// Further entries of the Secret.
const NEXT: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
const PREVIOUS: &str = "previous.crt";
/// Annotation: time since which every server has provided exactly the content of `ca.crt`, in seconds since
/// 1970.
const PUBLISHED_AT: &str = "trusted-execution-clusters.io/published-at";
/// Maximum number of machines that a condition names.
const NAMED: usize = 20;
/// Interval between checks while machines report, since no event signals their progress.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The CA, as far as certificates are concerned.
#[derive(Debug)]
pub(super) struct Authority {
    /// The key pair that signs.
    pub(super) pair: CertificatePair,
    /// CA certificates that nodes should trust, PEM; the signing CA comes first.
    pub(super) bundle: String,
    secret: Secret,
}

/// Returns the CA after carrying out the step that is due. A missing CA is not replaced while certificates
/// from it exist: nodes pin it.
pub(super) async fn stand(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    was_issued: bool,
) -> Result<Authority, PortError> {
    let authority = Authority::read(load(ctx, cluster, was_issued).await?)?;
    let Some(standing) = authority.standing(ctx) else {
        ctx.memory().authority = None;
        return Ok(authority);
    };
    let asked = asked(cluster);
    let machines = match standing.next {
        // A key broker with a certificate from elsewhere: no disk pins this CA.
        Some(next) if cluster.named_secret(TlsServer::KeyBroker).is_none() => {
            pinned(ctx, &next).await?
        }
        _ => Vec::new(),
    };
    let all = machines.len();
    let step = rollover::step(&standing, asked, machines, ctx.now());
    let spoken = speak(ctx, cluster, &standing, &step, all);
    let authority = match step {
        Step::Create => authority.with_next(ctx).await?,
        Step::Promote => {
            if asked.dangerous_without_reports.is_some() {
                tracing::warn!(
                    "the next CA signs whether or not machines reported it, as demanded"
                );
            }
            authority.promoted(ctx).await?
        }
        Step::Withdraw => authority.without_previous(ctx).await?,
        Step::Stay | Step::Publish(_) | Step::Hold(_) => authority,
    };
    ctx.memory().authority = Some(spoken);
    Ok(authority)
}

/// Records that every server provides the bundle, unless that is recorded or nothing is being replaced.
pub(super) async fn note_published(ctx: &Context, authority: Authority) -> Result<(), PortError> {
    let is_replaced = [NEXT, PREVIOUS].iter().any(|entry| authority.has(entry));
    if !is_replaced || authority.secret.annotations().contains_key(PUBLISHED_AT) {
        return Ok(());
    }
    let mut secret = authority.secret;
    let now = ctx.now().unix_seconds().to_string();
    secret.annotations_mut().insert(PUBLISHED_AT.to_owned(), now);
    replace(ctx, &secret).await.map(drop)
}

async fn load(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    was_issued: bool,
) -> Result<Secret, PortError> {
    match find(ctx, CA_SECRET).await? {
        Some(secret) => Ok(secret),
        None if was_issued => {
            let leaves = TlsServer::ALL.map(TlsServer::issued_secret).join(" ");
            let why = format!(
                "the Secret {CA_SECRET} is gone, and nodes pin the authority in it: restore it from a \
                 backup, or, if no node pins it, kubectl delete secret {leaves}"
            );
            Err(PortError::new(PortErrorKind::Invalid, why))
        }
        None => {
            let made = ctx.parts.maker.authority(ctx.now())?;
            let data = pair_entries(&made, &made.chain);
            create(ctx, cluster, CA_SECRET, &[(RENEW_AT, String::new())], data).await
        }
    }
}

async fn replace(ctx: &Context, secret: &Secret) -> Result<Secret, PortError> {
    let secrets: Api<Secret> = ctx.objects();
    // A compare-and-swap: the object carries the version that was read.
    let replaced = secrets.replace(CA_SECRET, &PostParams::default(), secret).await;
    replaced.map_err(|error| port_error(format!("change the Secret {CA_SECRET}"), error))
}

impl Authority {
    fn read(secret: Secret) -> Result<Self, PortError> {
        let chain = text(&secret, CHAIN)?;
        let others = [NEXT, PREVIOUS].map(|entry| text(&secret, entry).unwrap_or_default());
        let all = std::iter::once(&chain).chain(&others).map(|pem| pem.trim());
        let all: Vec<_> = all.filter(|pem| !pem.is_empty()).collect();
        let bundle = all.join("\n") + "\n";
        let key = secret.data.as_ref().and_then(|data| data.get(KEY));
        let key = key.map(|key| SecretBytes::new(key.0.clone()));
        let key = key.ok_or_else(|| {
            PortError::new(PortErrorKind::Invalid, format!("read {KEY} of the Secret {CA_SECRET}"))
        })?;
        Ok(Self { pair: CertificatePair { chain, key }, bundle, secret })
    }

    fn has(&self, entry: &str) -> bool {
        self.secret.data.as_ref().is_some_and(|data| data.contains_key(entry))
    }

    fn digest(&self, entry: &str) -> Option<Sha256Digest> {
        let found = fingerprints(&text(&self.secret, entry).ok()?)?;
        found.first().copied().filter(|_| found.len() == 1)
    }

    /// `None` if someone stored a chain of several certificates there, which they must then maintain.
    fn standing(&self, ctx: &Context) -> Option<Standing> {
        let published = self.secret.annotations().get(PUBLISHED_AT);
        let published = published.and_then(|at| at.parse().ok());
        Some(Standing {
            current: self.digest(CHAIN)?,
            ends: ctx.parts.maker.authority_ends(&self.pair.chain),
            next: self.digest(NEXT),
            previous: self.digest(PREVIOUS),
            published: published.map(Timestamp::from_unix_seconds),
        })
    }

    async fn with_next(self, ctx: &Context) -> Result<Self, PortError> {
        let next = ctx.parts.maker.authority(ctx.now())?;
        let key = next.key.expose("the API server stores it").to_vec();
        let added = entries([(NEXT, next.chain.into_bytes()), (NEXT_KEY, key)]);
        let changed = self.changed(ctx, |data| data.extend(added)).await?;
        tracing::info!("the next CA was created");
        Ok(changed)
    }

    async fn promoted(self, ctx: &Context) -> Result<Self, PortError> {
        let promote = |data: &mut Entries| {
            for (from, to) in [(CHAIN, PREVIOUS), (NEXT, CHAIN), (NEXT_KEY, KEY)] {
                if let Some(moved) = data.remove(from) {
                    data.insert(to.to_owned(), moved);
                }
            }
        };
        let changed = self.changed(ctx, promote).await?;
        tracing::info!("the next CA signs certificates of servers");
        Ok(changed)
    }

    async fn without_previous(self, ctx: &Context) -> Result<Self, PortError> {
        let changed = self.changed(ctx, |data| drop(data.remove(PREVIOUS))).await?;
        tracing::info!("the previous CA was withdrawn");
        Ok(changed)
    }

    /// Other CAs, which are not published yet.
    async fn changed(
        mut self,
        ctx: &Context,
        change: impl FnOnce(&mut Entries),
    ) -> Result<Self, PortError> {
        change(self.secret.data.get_or_insert_default());
        self.secret.annotations_mut().remove(PUBLISHED_AT);
        let mut next = Self::read(self.secret)?;
        let bundle = entries([(AUTHORITY, next.bundle.clone().into_bytes())]);
        next.secret.data.get_or_insert_default().extend(bundle);
        next.secret = replace(ctx, &next.secret).await?;
        Ok(next)
    }
}

fn asked(cluster: &TrustedExecutionCluster) -> Asked {
    let named = |annotation| cluster.annotations().get(annotation)?.trim().parse().ok();
    Asked { replace: named(REPLACE_CA), dangerous_without_reports: named(DANGEROUS_REPLACE_CA) }
}

/// What each machine with a disk reported. An unclaimed machine has no disk yet, and is removed before the CA
/// that it received stops signing.
async fn pinned(ctx: &Context, next: &Sha256Digest) -> Result<Vec<Pinned>, PortError> {
    let mut machines = ctx.caches.machines.all();
    machines.retain(|machine| {
        matches!(machine.state(), MachineState::Active | MachineState::Quarantined)
    });
    let known = |machine: &Machine| -> BTreeSet<Sha256Digest> {
        let trusts = machine.status.iter().flat_map(|status| &status.trusted_authorities);
        trusts.filter_map(|digest| digest.parse().ok()).collect()
    };
    if !ctx.caches.records.is_synced() && !machines.iter().all(|it| known(it).contains(next)) {
        let why = "the AttestationRecords have not been listed yet";
        return Err(PortError::new(PortErrorKind::Unavailable, why));
    }
    let mut pinned = Vec::new();
    for machine in machines {
        let known = known(&machine);
        let record = summary::of(ctx, &machine);
        let report = record.as_ref().and_then(|it| it.annotations().get(TRUSTED_AUTHORITIES));
        let trusts = report.map_or_else(|| known.clone(), |report| read_authorities(report));
        if trusts != known && !is_paused(&*machine) {
            let status = json!({ "trustedAuthorities": &trusts });
            ctx.write_status(&*machine, None, status).await?;
        }
        pinned.push(Pinned { machine: machine.label(), trusts });
    }
    Ok(pinned)
}

fn speak(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    standing: &Standing,
    step: &Step,
    all: usize,
) -> Spoken {
    let annotate = |annotation: &str, digest: &Sha256Digest| {
        let name = cluster.name_any();
        format!("kubectl annotate --overwrite trustedexecutioncluster {name} {annotation}={digest}")
    };
    let current = standing.current;
    let (reason, message) = match step {
        Step::Stay => {
            let ends = standing.ends.map(|ends| format!(", expires {ends}")).unwrap_or_default();
            let command = annotate(REPLACE_CA, &current);
            (Reason::AuthorityCurrent, format!("SHA-256 {current}{ends}. To replace it: {command}"))
        }
        Step::Hold(missing) => {
            let code = Code::CaHeldBack;
            let named = missing.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>();
            let more = missing.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let force = standing.next.map(|next| annotate(DANGEROUS_REPLACE_CA, &next));
            let said = format!(
                "{code}: {} of {all} machines do not trust the next CA yet: {}{more}. Run node-agent \
                 refresh-ca on each; if it is gone: kubectl tec machine retire <machine>. To lock them \
                 out instead: {}",
                missing.len(),
                named.join(", "),
                force.unwrap_or_default(),
            );
            (Reason::AuthorityHeldBack, said)
        }
        Step::Create | Step::Publish(_) if standing.previous.is_none() => {
            let said = "nodes are told the current and the next CA; the current one signs";
            (Reason::AuthorityRolling, said.to_owned())
        }
        _ => {
            let said = "the next CA signs; nodes are told the previous one for another hour";
            (Reason::AuthorityRolling, said.to_owned())
        }
    };
    let again = match step {
        Step::Stay => None,
        Step::Publish(Some(then)) => {
            let left = then.unix_seconds().saturating_sub(ctx.now().unix_seconds());
            Some(Duration::from_secs(left.max(1).unsigned_abs()))
        }
        _ => Some(LOOK_AGAIN),
    };
    let held_since = match step {
        Step::Hold(_) => standing.published.map(|since| since.plus_seconds(rollover::OVERLAP)),
        _ => None,
    };
    Spoken { said: (ConditionKind::CertificateAuthority, reason, message), again, held_since }
}
