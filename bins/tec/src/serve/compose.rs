//! Puts the services together: core's flows over the store, the key broker over the same store.

use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use tec_core::ak::AkMatcher;
use tec_core::ak::EkBoundMatcher;
use tec_core::ak::ManualMatcher;
use tec_core::ak::TofuMatcher;
use tec_core::ak::TpmObjects;
use tec_core::attest::PinnedPcrs;
use tec_core::attest::Tee;
use tec_core::http::AkService;
use tec_core::http::AkServiceConfig;
use tec_core::http::RegisterService;
use tec_core::http::RegisterServiceConfig;
use tec_core::http::ReplyStyle;
use tec_core::luks::CompatLuksKey;
use tec_core::port::Clock;
use tec_core::port::UnclaimedLimit;
use tec_core::port::Verifier;
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_support::SystemEntropy;
use tec_support::limit::Limiter;
use tec_support::limit::limit;
use tec_tpm::combine::MixedStates;
use tec_tpm::ek::CredentialIssuer;
use tec_tpm::ek::TrustStore;
use tec_tpm::snp;
use tec_tpm::verifier::AzSnpVtpmVerifier;
use tec_tpm::verifier::ByTee;
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::kbs::Kbs;
use tec_trustee::kbs::KbsConfig;
use tec_trustee::kbs::LiveBackend;
use tec_trustee::kbs::LivePorts;
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;

use crate::cli::Approval;
use crate::cli::ServeArgs;
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
    store: &Arc<Store>,
    clock: &Arc<dyn Clock>,
    args: &ServeArgs,
    endpoints: &Endpoints,
    signer: TokenSigner,
) -> anyhow::Result<Routers> {
    let limited = |rate, style| from_fn_with_state(Arc::new(Limiter::new(rate, style)), limit);
    let register = RegisterService::new(RegisterServiceConfig {
        machines: store.clone(),
        audit: store.clone(),
        pins: Arc::new(endpoints.pins()?),
        clock: clock.clone(),
        entropy: Arc::new(SystemEntropy),
        token: token(args)?,
        limit: UnclaimedLimit::AtMost(args.max_unclaimed),
        unclaimed_seconds: args.unclaimed_seconds(),
    });
    let ak = AkService::new(AkServiceConfig {
        machines: store.clone(),
        aks: store.clone(),
        matcher: matcher(args),
        audit: store.clone(),
        clock: clock.clone(),
        entropy: Arc::new(SystemEntropy),
        tpm: tpm_objects(args, clock)?,
        provision: Some((store.clone(), Arc::new(CompatLuksKey))),
    });
    Ok(Routers {
        register: health(store)
            .fallback_service(register)
            .layer(limited(args.register_rate, ReplyStyle::Registration)),
        ak: health(store)
            .fallback_service(ak)
            .layer(limited(args.register_rate, ReplyStyle::AttestationKey)),
        kbs: kbs(store, clock, args, signer)?.layer(limited(args.kbs_rate, ReplyStyle::KeyBroker)),
    })
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
        .with_context(|| format!("read the registration token in {}", path.display()))?;
    let token = text.trim_ascii().to_vec();
    anyhow::ensure!(
        (16..=MAX_TOKEN).contains(&token.len()),
        "the registration token in {} has {} characters; 16 to {MAX_TOKEN} are taken",
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

fn tpm_objects(args: &ServeArgs, clock: &Arc<dyn Clock>) -> anyhow::Result<Arc<dyn TpmObjects>> {
    let Some(path) = &args.ek_roots else {
        return Ok(Arc::new(CredentialIssuer::new()));
    };
    let mut roots = TrustStore::new();
    let certificates = tec_support::tls::certificates(path)?;
    anyhow::ensure!(
        !certificates.is_empty(),
        "{} has no certificate",
        path.display()
    );
    for der in certificates {
        roots
            .add_root(&der)
            .with_context(|| format!("use a root in {}", path.display()))?;
    }
    Ok(Arc::new(CredentialIssuer::with_roots(roots, clock.clone())))
}

fn pinned(args: &ServeArgs) -> anyhow::Result<PinnedPcrs> {
    PinnedPcrs::new(args.pcrs.iter().copied().collect()).context("--pcrs")
}

/// A verifier for each sort of evidence that is taken.
fn verifier(args: &ServeArgs, clock: &Arc<dyn Clock>) -> anyhow::Result<ByTee> {
    let mut verifier = ByTee::new();
    for tee in args.evidence.iter().copied().map(Tee::from) {
        let one: Arc<dyn Verifier> = match tee {
            Tee::AzSnpVtpm => Arc::new(AzSnpVtpmVerifier::new(clock.clone(), snp_policy(args)?)),
            _ => Arc::new(TpmVerifier::new()),
        };
        verifier = verifier.with(tee, one);
    }
    Ok(verifier)
}

fn snp_policy(args: &ServeArgs) -> anyhow::Result<snp::Policy> {
    let (keys, measurements) = (&args.snp_id_keys, &args.snp_measurements);
    anyhow::ensure!(
        !keys.is_empty() || !measurements.is_empty(),
        "with --evidence az-snp-vtpm, --snp-id-key or --snp-measurement must say which guests are \
         accepted, or any software in a genuine guest could claim any TPM to be its own"
    );
    let mut policy = snp::Policy::new();
    if !keys.is_empty() {
        policy = policy.with_id_keys(keys.iter().copied());
    }
    if !measurements.is_empty() {
        policy = policy.with_measurements(measurements.iter().copied());
    }
    Ok(policy)
}

fn kbs(
    store: &Arc<Store>,
    clock: &Arc<dyn Clock>,
    args: &ServeArgs,
    signer: TokenSigner,
) -> anyhow::Result<Router> {
    let verifier = verifier(args, clock)?;
    let tees: Vec<Tee> = verifier.tees().collect();
    let intent = PolicyIntent::new(pinned(args)?, tees.iter().copied())?;
    let ports = LivePorts {
        machines: store.clone(),
        aks: store.clone(),
        images: store.clone(),
        secrets: store.clone(),
        audit: store.clone(),
        attempts: store.clone(),
        clock: clock.clone(),
    };
    // Machines are updated part by part, and may boot at any moment in between.
    let states = Arc::new(MixedStates::default());
    let config = KbsConfig::new(
        Arc::new(LiveBackend::new(ports, &intent).with_states(states)),
        Arc::new(verifier),
        signer,
        clock.clone(),
        Arc::new(SystemEntropy),
    )
    .with_tees(tees);
    Ok(Kbs::new(config).router())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use tec_support::SystemClock;

    use super::*;
    use crate::cli::Cli;
    use crate::cli::Command;

    fn tees(flags: &[&str]) -> anyhow::Result<Vec<Tee>> {
        let cli = Cli::try_parse_from(["tec", "serve"].iter().chain(flags).copied())?;
        let Command::Serve(args) = cli.command else {
            panic!("the command is serve");
        };
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Ok(verifier(&args, &clock)?.tees().collect())
    }

    #[test]
    fn only_tpm_evidence_is_taken_unless_more_is_asked_for() {
        let digest = "1d".repeat(48);
        assert_eq!(tees(&[]).unwrap(), [Tee::Tpm]);
        for flag in ["--snp-id-key", "--snp-measurement"] {
            let azure = ["--evidence", "az-snp-vtpm", flag, &digest];
            assert_eq!(tees(&azure).unwrap(), [Tee::AzSnpVtpm]);
            let both = [&azure[..], &["--evidence", "tpm"]].concat();
            assert_eq!(tees(&both).unwrap(), [Tee::Tpm, Tee::AzSnpVtpm]);
        }
        assert!(tees(&["--evidence", "sample"]).is_err());
        assert!(tees(&["--snp-id-key", "1d"]).is_err());
    }

    #[test]
    fn any_genuine_guest_is_not_enough() {
        let error = tees(&["--evidence", "az-snp-vtpm"]).unwrap_err();
        assert!(error.to_string().contains("--snp-id-key"), "{error}");
    }
}
