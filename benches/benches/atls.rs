//! Attested handshakes, with both ends attesting, against mutual TLS with certificates of a CA.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustls::pki_types::ServerName;
use tec_benches::{Suite, mutual};
use tec_core::testing::{ManualClock, SeededEntropy};
use tec_core::time::Timestamp;
use tec_node::atls::{
    AnyAk, Endpoint, IssueError, Issuer, LiveMeasurements, Nonce, ValidateError, Validated,
    Validator, Variant, VtpmIssuer, VtpmValidator,
};
use tec_node::testing::{DangerousDummyIssuer, DangerousDummyValidator};
use tec_tpm::quote::SignatureCheck;
use tec_tpm::testing::SoftTpm;
use tokio::io::duplex;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Capacity of both transports: more than one flight.
const BUFFER: usize = 64 * 1024;
/// Concurrent handshakes: more than cores, as in a real service.
const AT_ONCE: u64 = 8;

/// The time for this many handshakes on both cores.
fn timed<F>(runtime: &Runtime, times: u64, one: impl Fn() -> F) -> anyhow::Result<Duration>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let begin = Instant::now();
    runtime.block_on(async {
        let mut running = JoinSet::new();
        for _ in 0..times {
            if running.len() as u64 == AT_ONCE
                && let Some(ended) = running.join_next().await
            {
                ended??;
            }
            running.spawn(one());
        }
        while let Some(ended) = running.join_next().await {
            ended??;
        }
        anyhow::Ok(())
    })?;
    Ok(begin.elapsed())
}

fn main() -> anyhow::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let plain = Plain::new()?;
    let dummy = Attested::dummy()?;
    let quotes = Attested::quotes()?;
    // Warms all sides up, and fails before anything of another kind is measured.
    plain.handshakes(&runtime, 20)?;
    dummy.handshakes(&runtime, 20)?;
    quotes.handshakes(&runtime, 20)?;

    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, what, ours) in [
        ("atls", "documents without quotes", &dummy),
        ("atls_quotes", "quotes of P-256, made before", &quotes),
    ] {
        suite.compare_timed(
            name,
            |ratio| {
                let rates = ratio.per_second();
                format!("attested handshakes, {what} / mutual TLS; {rates}")
            },
            |times| ours.handshakes(&runtime, times).unwrap_or(Duration::MAX),
            |times| plain.handshakes(&runtime, times).unwrap_or_default(),
        )?;
    }
    suite.finish();
    Ok(())
}

/// Both ends of attested connections.
struct Attested {
    server: Endpoint,
    client: Endpoint,
}

impl Attested {
    fn dummy() -> anyhow::Result<Self> {
        let end = |seed| {
            builder(seed)
                .with_issuer(Arc::new(DangerousDummyIssuer))
                .with_validator(Arc::new(DangerousDummyValidator))
                .build()
        };
        Ok(Self { server: end(1)?, client: end(2)? })
    }

    fn quotes() -> anyhow::Result<Self> {
        let end = |seed| {
            builder(seed)
                .with_issuer(Arc::new(MadeBefore::new(seed)?))
                .with_validator(Arc::new(OfBefore::new()))
                .build()
                .map_err(anyhow::Error::from)
        };
        Ok(Self { server: end(1)?, client: end(2)? })
    }

    fn handshakes(&self, runtime: &Runtime, times: u64) -> anyhow::Result<Duration> {
        timed(runtime, times, || {
            let (server, client) = (self.server.clone(), self.client.clone());
            async move {
                let (near, far) = duplex(BUFFER);
                let (server, client) = tokio::join!(server.accept(near), client.connect(far));
                let (server, client) = (server?, client?);
                anyhow::ensure!(server.peer().is_some() && client.peer().is_some());
                Ok(())
            }
        })
    }
}

fn builder(seed: u64) -> tec_node::atls::EndpointBuilder {
    // 2026-01-01T00:00:00Z
    let clock = ManualClock::new(Timestamp::from_unix_seconds(1_767_225_600));
    let entropy = SeededEntropy::new(seed);
    Endpoint::builder(mutual::provider(), Arc::new(clock), Arc::new(entropy))
}

/// The value that all precomputed quotes are bound to.
const FIXED: ([u8; 32], Nonce) = ([7; 32], Nonce::new([7; 32]));

/// A TPM takes longer for a quote than everything else takes together, so the quote is precomputed, and the
/// value that it should be bound to is appended.
#[derive(Debug)]
struct MadeBefore(Vec<u8>);

impl MadeBefore {
    fn new(seed: u64) -> anyhow::Result<Self> {
        let tpm = Arc::new(SoftTpm::p256(seed));
        let issuer = VtpmIssuer::new(Variant::QemuVtpm, tpm);
        Ok(Self(issuer.issue(&FIXED.0, &FIXED.1)?))
    }
}

impl Issuer for MadeBefore {
    fn variant(&self) -> Variant {
        Variant::QemuVtpm
    }

    fn issue(&self, user_data: &[u8; 32], _nonce: &Nonce) -> Result<Vec<u8>, IssueError> {
        Ok([self.0.as_slice(), user_data].concat())
    }
}

/// Judges the quote in full, but trusts the appended binding.
#[derive(Debug)]
struct OfBefore(VtpmValidator);

impl OfBefore {
    fn new() -> Self {
        let measurements = Arc::new(LiveMeasurements::default());
        Self(VtpmValidator::new(Variant::QemuVtpm, Arc::new(AnyAk), measurements))
    }
}

impl Validator for OfBefore {
    fn variant(&self) -> Variant {
        self.0.variant()
    }

    fn validate(
        &self,
        document: &[u8],
        _nonce: &Nonce,
        signatures: &dyn SignatureCheck,
    ) -> Result<Validated, ValidateError> {
        let nothing = ValidateError::Nonce;
        let (document, user_data) = document.split_last_chunk().ok_or(nothing)?;
        let mut validated = self.0.validate(document, &FIXED.1, signatures)?;
        validated.user_data = *user_data;
        Ok(validated)
    }
}

/// Ordinary mutual TLS.
struct Plain {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl Plain {
    fn new() -> anyhow::Result<Self> {
        let ca = mutual::authority()?;
        let (client, _) = mutual::client(&ca)?;
        Ok(Self {
            acceptor: Arc::new(mutual::server(&ca)?).into(),
            connector: Arc::new(client).into(),
        })
    }

    fn handshakes(&self, runtime: &Runtime, times: u64) -> anyhow::Result<Duration> {
        let name = ServerName::try_from("localhost").context("a name")?;
        timed(runtime, times, || {
            let (acceptor, connector) = (self.acceptor.clone(), self.connector.clone());
            let name = name.clone();
            async move {
                let (near, far) = duplex(BUFFER);
                let connecting = connector.connect(name, far);
                let (server, client) = tokio::join!(acceptor.accept(near), connecting);
                let _ = (server?, client?);
                Ok(())
            }
        })
    }
}
