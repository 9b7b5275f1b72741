//! Composes the services: the core's flows over the store, and the key broker over the same store.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use tec_core::ak::{AkMatcher, EkBoundMatcher, ManualMatcher, TofuMatcher};
use tec_core::attest::Tee;
use tec_core::boot::Pins;
use tec_core::flow::ClaimLimits;
use tec_core::http::{
    AkService, AkServiceConfig, RegisterService, RegisterServiceConfig, ReplyStyle,
};
use tec_core::port::{Clock, UnclaimedLimit};
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_support::limit::{Limiter, limit};
use tec_support::listen::Counts;
use tec_support::reserve::{Reserve, keep_reserve};
use tec_support::sparing::Sparing;
use tec_support::{SystemEntropy, ek, listen};
use tec_tpm::combine::MixedStates;
use tec_trustee::kbs::{Kbs, KbsConfig, LiveBackend, LivePorts};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;

use crate::serve::args::{Approval, ServeArgs};
use crate::state::Endpoints;

/// Longest registration token.
const MAX_TOKEN: usize = 1024;

/// The three routers of the server.
#[derive(Debug)]
pub(super) struct Routers {
    pub(super) register: Router,
    pub(super) ak: Router,
    pub(super) kbs: Router,
}

pub(super) fn routers(
    state_dir: &Path,
    store: &Arc<Store>,
    clock: &Arc<dyn Clock>,
    (args, pins): (&ServeArgs, Pins),
    endpoints: &Endpoints,
    (signer, connections): (TokenSigner, [Arc<Counts>; 3]),
) -> anyhow::Result<Routers> {
    let limited = |rate, style| from_fn_with_state(Arc::new(Limiter::new(rate, style)), limit);
    let reserve = Arc::new(Reserve::of(state_dir, args.reserve_mib));
    let reserved = |style| from_fn_with_state((reserve.clone(), style), keep_reserve);
    let register = RegisterService::new(
        RegisterServiceConfig::new(
            store.clone(),
            store.clone(),
            Arc::new(endpoints.pins()?),
            clock.clone(),
            Arc::new(SystemEntropy),
            token(args)?,
        )
        .with_limit(UnclaimedLimit::AtMost(args.max_unclaimed))
        .with_unclaimed_seconds(args.unclaimed_seconds()),
    );
    let ak = AkService::new(
        AkServiceConfig::new(
            store.clone(),
            store.clone(),
            matcher(args),
            store.clone(),
            clock.clone(),
            Arc::new(SystemEntropy),
            ek::issuer(args.ek_roots.as_deref(), clock.clone())?,
        )
        .with_provision(store.clone(), args.disk_keys.generator())
        .with_claims(ClaimLimits {
            total: args.max_claimed,
            per_source: args.max_claimed_per_source,
        }),
    );
    Ok(Routers {
        register: health(store)
            .fallback_service(register)
            .layer(reserved(ReplyStyle::Registration))
            .layer(limited(args.register_rate, ReplyStyle::Registration)),
        ak: health(store)
            .fallback_service(ak)
            .layer(reserved(ReplyStyle::AttestationKey))
            .layer(limited(args.register_rate, ReplyStyle::AttestationKey)),
        kbs: with_metrics(&kbs((store, reserve), clock, args, pins, signer)?, connections, store)
            .layer(limited(args.kbs_rate, ReplyStyle::KeyBroker)),
    })
}

/// The key broker, whose metrics include those of all listeners and of the audit log.
fn with_metrics(kbs: &Kbs, connections: [Arc<Counts>; 3], store: &Arc<Store>) -> Router {
    let (counted, store) = (kbs.clone(), store.clone());
    let metrics = async move || {
        let text = counted.metrics() + &listen::render(&connections) + &audit_lines(&store);
        ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
    };
    Router::new().route("/metrics", get(metrics)).fallback_service(kbs.router())
}

/// The number of audit lines: if it falls, the end of the log was lost.
fn audit_lines(store: &Store) -> String {
    let Ok(head) = store.audit_head() else { return String::new() };
    format!(
        "# HELP tec_audit_lines Lines of the audit log, including archived ones.\n\
         # TYPE tec_audit_lines gauge\ntec_audit_lines {}\n",
        head.sequence
    )
}

/// `GET /healthz`: 200 while the store answers.
fn health(store: &Arc<Store>) -> Router {
    let store = store.clone();
    Router::new().route(
        "/healthz",
        get(move || async move {
            match store.health() {
                Ok(()) => axum::http::StatusCode::OK,
                Err(_) => axum::http::StatusCode::SERVICE_UNAVAILABLE,
            }
        }),
    )
}

fn token(args: &ServeArgs) -> anyhow::Result<Option<SecretBytes>> {
    let Some(path) = &args.registration_token_file else {
        return Ok(None);
    };
    let text = std::fs::read(path)
        .with_context(|| format!("cannot read the registration token in {}", path.display()))?;
    let token = text.trim_ascii().to_vec();
    anyhow::ensure!(
        (16..=MAX_TOKEN).contains(&token.len()),
        "the registration token in {} has {} characters; 16 to {MAX_TOKEN} are allowed",
        path.display(),
        token.len()
    );
    Ok(Some(SecretBytes::new(token)))
}

fn matcher(args: &ServeArgs) -> Arc<dyn AkMatcher> {
    match args.ak_approval {
        Approval::Tofu => Arc::new(TofuMatcher),
        Approval::Manual => Arc::new(ManualMatcher),
        Approval::Ek if args.allow_ek.is_empty() => Arc::new(EkBoundMatcher::any_ek()),
        Approval::Ek => Arc::new(EkBoundMatcher::allow_list(args.allow_ek.iter().copied())),
    }
}

fn kbs(
    (store, reserve): (&Arc<Store>, Arc<Reserve>),
    clock: &Arc<dyn Clock>,
    args: &ServeArgs,
    pins: Pins,
    signer: TokenSigner,
) -> anyhow::Result<Kbs> {
    let verifier = args.evidence.verifier(clock)?;
    let tees: Vec<Tee> = verifier.tees().collect();
    // The policies demand what all images pin; the backend checks the rest for each image.
    let pinned = pins.of_policies();
    let intent = PolicyIntent::new(pinned, tees.iter().copied())?;
    let records = Arc::new(Sparing::new(store.clone(), store.clone(), store.clone(), reserve));
    let ports = LivePorts::new(
        store.clone(),
        store.clone(),
        store.clone(),
        records.clone(),
        (store.clone(), store.clone()),
        records,
        clock.clone(),
    )
    .with_disk_keys(store.clone());
    // Machines are updated one component at a time, and may boot between two updates.
    let states = Arc::new(MixedStates::default());
    let config = KbsConfig::new(
        Arc::new(LiveBackend::new(ports, &intent).with_pins(pins).with_states(states)),
        Arc::new(verifier),
        signer,
        clock.clone(),
        Arc::new(SystemEntropy),
    )
    .with_tees(tees);
    Ok(Kbs::new(config))
}

#[cfg(test)]
mod tests {
    use tec_core::port::AuditSink as _;
    use tec_core::testing::sample;

    use super::*;

    #[tokio::test]
    async fn the_number_of_audit_lines_is_a_metric() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("state"), &SystemEntropy).unwrap();
        for number in [1, 2] {
            store.append(&sample::audit_event(number)).await.unwrap();
        }
        assert!(audit_lines(&store).ends_with("\ntec_audit_lines 2\n"));
    }
}
