//! What no server that attests over TLS can save: its part of a handshake, and the verification of a signature.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::ecdsa::{Signature, SigningKey, VerifyingKey};
use p256::elliptic_curve::Generate as _;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use rustix::time::{ClockId, clock_gettime};
use rustls::client::Resumption;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

pub(crate) struct Bare {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    name: ServerName<'static>,
    key: VerifyingKey,
    message: Vec<u8>,
    signature: Signature,
}

impl Bare {
    /// For signatures of `message`, the quote of a machine, with P-256.
    pub(crate) fn new(message: Vec<u8>) -> anyhow::Result<Self> {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(signing_key.serialize_der().into());
        let server = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)?;
        let mut roots = RootCertStore::empty();
        roots.add(cert.der().clone())?;
        let mut client =
            ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        client.resumption = Resumption::disabled();
        let signer = SigningKey::generate_from_rng(&mut ChaCha20Rng::seed_from_u64(1));
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            name: "localhost".try_into()?,
            key: *signer.verifying_key(),
            signature: signer.sign(&message),
            message,
        })
    }

    /// Processor time of the server for one of `times` attestations.
    pub(crate) fn time(&self, times: u32) -> anyhow::Result<Duration> {
        let mut time = Duration::ZERO;
        for _ in 0..times {
            time += self.handshake()?;
            let begin = now()?;
            self.key.verify(&self.message, &self.signature)?;
            time += now()?.saturating_sub(begin);
        }
        Ok(time / times)
    }

    /// A handshake in memory; the client's part is not counted.
    fn handshake(&self) -> anyhow::Result<Duration> {
        let mut client = ClientConnection::new(self.client.clone(), self.name.clone())?;
        let mut time = Duration::ZERO;
        let begin = now()?;
        let mut server = ServerConnection::new(self.server.clone())?;
        time += now()?.saturating_sub(begin);
        while client.is_handshaking() || server.is_handshaking() {
            let (mut sent, mut answer) = (Vec::new(), Vec::new());
            client.write_tls(&mut sent)?;
            let begin = now()?;
            let mut rest = sent.as_slice();
            while !rest.is_empty() {
                server.read_tls(&mut rest)?;
                server.process_new_packets()?;
            }
            server.write_tls(&mut answer)?;
            time += now()?.saturating_sub(begin);
            ensure!(!(sent.is_empty() && answer.is_empty()), "the handshake does not end");
            let mut rest = answer.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest)?;
                client.process_new_packets()?;
            }
        }
        Ok(time)
    }
}

/// Processor time that this thread has used.
fn now() -> anyhow::Result<Duration> {
    Ok(Duration::try_from(clock_gettime(ClockId::ThreadCPUTime))?)
}
