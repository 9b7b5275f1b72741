//! A pair of attester and verifier without a TPM, for tests: the evidence is its report data in hexadecimal,
//! a key number, and an image number.

use async_trait::async_trait;
use serde_json::json;
use tec_core::attest::Tee;
use tec_core::port::{AttestationEvidence, Attester, PortError};
use tec_core::testing::sample;

#[derive(Clone, Debug)]
pub(crate) struct FakeAttester {
    key: u64,
    image: u64,
}

impl FakeAttester {
    pub(crate) fn new(key: u64, image: u64) -> Self {
        Self { key, image }
    }
}

#[async_trait]
impl Attester for FakeAttester {
    fn tee(&self) -> Tee {
        Tee::Tpm
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let evidence = json!({
            "bound": hex::encode(report_data), "key": self.key, "image": self.image,
            "ak_public": sample::public_key(self.key).to_base64(),
        });
        Ok(AttestationEvidence::new(Tee::Tpm, evidence))
    }
}

#[cfg(feature = "kbs")]
pub(crate) use self::verifier::FakeVerifier;

#[cfg(feature = "rcar")]
pub(crate) use self::loopback::provider;
#[cfg(feature = "rcar")]
pub(crate) use self::loopback::serve;
#[cfg(feature = "rcar")]
#[cfg(feature = "kbs")]
pub(crate) use self::loopback::serve_tls;

#[cfg(feature = "rcar")]
mod loopback {
    use std::sync::Arc;

    use axum::Router;
    #[cfg(feature = "kbs")]
    use rcgen::CertificateParams;
    #[cfg(feature = "kbs")]
    use rcgen::KeyPair;
    #[cfg(feature = "kbs")]
    use rustls::ServerConfig;
    use rustls::crypto::CryptoProvider;
    #[cfg(feature = "kbs")]
    use rustls::pki_types::PrivateKeyDer;
    use tokio::net::TcpListener;

    pub(crate) fn provider() -> Arc<CryptoProvider> {
        Arc::new(rustls::crypto::ring::default_provider())
    }

    #[expect(clippy::disallowed_methods, reason = "a test's server ends with its runtime")]
    fn spawn(task: impl Future<Output = ()> + Send + 'static) {
        tokio::task::spawn(task);
    }

    /// Serves on loopback, with a new self-signed certificate for `name`; returns its PEM and the
    /// address.
    #[cfg(feature = "kbs")]
    pub(crate) fn serve_tls(name: &str, router: Router) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], private)
            .unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = axum_server::tls_rustls::RustlsConfig::from_config(Arc::new(config));
        let server = axum_server::from_tcp_rustls(listener, config).unwrap();
        let service = router.into_make_service();
        spawn(async move { server.serve(service).await.unwrap() });
        (certificate.pem(), format!("https://localhost:{port}"))
    }

    /// Serves on loopback; returns the address.
    pub(crate) async fn serve(router: Router) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = async move { axum::serve(listener, router).await.unwrap() };
        spawn(task);
        format!("http://{address}")
    }
}

#[cfg(feature = "kbs")]
mod verifier {
    use async_trait::async_trait;
    use serde_json::Value;
    use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
    use tec_core::digest::Sha256Digest;
    use tec_core::pcr::{PCR_COUNT, PcrValues};
    use tec_core::port::{EvidenceRequest, Verifier};
    use tec_core::testing::sample;

    #[derive(Debug)]
    pub(crate) struct FakeVerifier;

    #[async_trait]
    impl Verifier for FakeVerifier {
        async fn verify(
            &self,
            request: EvidenceRequest<'_>,
        ) -> Result<VerifiedEvidence, VerifyError> {
            let malformed = |at: &str| VerifyError::Malformed(at.to_owned());
            let number = |name| request.evidence.get(name).and_then(Value::as_u64);
            let ak = sample::public_key(number("key").ok_or_else(|| malformed("key"))?);
            let image = sample::image(number("image").ok_or_else(|| malformed("image"))?);
            if request.evidence["bound"] != hex::encode(request.report_data) {
                return Err(VerifyError::Quote {
                    reason: "the evidence is for another nonce",
                    claimed_ak: Some(ak.fingerprint()),
                });
            }
            let mut values = [Sha256Digest::ZERO; PCR_COUNT];
            values[4] = image.expected.pcrs[0].value;
            let mut verified = VerifiedEvidence::new(Tee::Tpm, ak, PcrValues::new(values));
            for (pcr, value) in verified.pcrs.iter() {
                let name = format!("pcr{:02}", pcr.as_usize());
                verified.claims.insert(name, value.to_string().into());
            }
            let ak_public = verified.ak.to_base64();
            verified.claims.insert("ak_public".to_owned(), ak_public.into());
            verified.report_data = hex::encode(&request.report_data[..32]);
            verified.init_data = request.init_data.map(hex::encode).unwrap_or_default();
            Ok(verified)
        }
    }
}

/// A body whose sender never sends.
#[cfg(feature = "kbs")]
pub(crate) fn never() -> axum::body::Body {
    axum::body::Body::new(Stuck(None))
}

/// A body whose sender sends one part, and then nothing.
#[cfg(feature = "guard")]
pub(crate) fn stuck_after(part: &'static [u8]) -> axum::body::Body {
    axum::body::Body::new(Stuck(Some(axum::body::Bytes::from_static(part))))
}

#[cfg(feature = "kbs")]
#[derive(Debug)]
struct Stuck(Option<axum::body::Bytes>);

#[cfg(feature = "kbs")]
impl http_body::Body for Stuck {
    type Data = axum::body::Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Self::Data>, Self::Error>>> {
        match self.0.take() {
            Some(part) => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(part)))),
            None => std::task::Poll::Pending,
        }
    }
}

/// Paths that might be read as that of the disk key of `other`, or as none. `own` is the path of the
/// requester.
#[cfg(feature = "kbs")]
pub(crate) fn disguised(
    own: tec_core::id::MachineId,
    other: tec_core::id::MachineId,
) -> Vec<String> {
    vec![
        format!("default/{own}/root/.."),
        format!("default/{own}/root/../../{other}/root"),
        format!("default/{own}/../{other}/root"),
        format!("default/{own}/%2e%2e/{other}/root"),
        format!("default/{other}%2froot"),
        format!("default/{other}/roo%74"),
        format!("default/{other}/root/"),
        format!("default//{other}/root"),
        format!("/default/{other}/root"),
        format!("//default/{other}/root"),
        format!("./default/{other}/root"),
        format!("default/./{other}/root"),
        format!("default/{other}/root/x"),
        format!("default/{other}/.root"),
        format!("default/{other}/root;a=b"),
        format!("default/{other}/root%00"),
        format!("default/{other}"),
        format!("default/{other}/root?resource-path=default/{own}/root"),
    ]
}

/// Returns one bundle, and keeps the last report of each machine.
#[cfg(feature = "kbs")]
#[derive(Debug, Default)]
pub(crate) struct FakeAuthorities(
    std::sync::Mutex<std::collections::BTreeMap<tec_core::id::MachineId, Reported>>,
);

#[cfg(feature = "kbs")]
type Reported = std::collections::BTreeSet<tec_core::digest::Sha256Digest>;

#[cfg(feature = "kbs")]
impl FakeAuthorities {
    pub(crate) fn reports(&self) -> Vec<(tec_core::id::MachineId, Reported)> {
        self.0.lock().unwrap().clone().into_iter().collect()
    }
}

#[cfg(feature = "kbs")]
#[async_trait]
impl crate::kbs::Authorities for FakeAuthorities {
    fn bundle(&self) -> Result<String, PortError> {
        Ok("PEM".to_owned())
    }

    async fn trusted_by(
        &self,
        machine: &tec_core::id::MachineId,
        authorities: &Reported,
    ) -> Result<(), PortError> {
        self.0.lock().unwrap().insert(*machine, authorities.clone());
        Ok(())
    }
}
