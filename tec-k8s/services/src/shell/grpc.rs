//! The gRPC interface: the only place that names generated messages.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::caller::Refusal;
use crate::tls::Material;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tec_core::secret::SecretBytes;
use tonic::{Code, Request, Response, Status};

use super::{Bootstrap, ComponentCall, TelemetryKind, Visit, details};
use crate::generated::bootstrap as pb;
use crate::generated::bootstrap::bootstrap_server::BootstrapServer;

/// Maximum size of a request, in bytes.
const MAX_MESSAGE: usize = 64 * 1024;
/// Time limit of a call.
const DEADLINE: Duration = Duration::from_secs(10);

/// The service, to be served with TLS. It leaves room for calls from other networks if a request has a
/// [`SourceNetwork`](tec_core::ak::SourceNetwork) among its extensions.
pub fn service(bootstrap: Arc<Bootstrap>) -> BootstrapServer<impl pb::bootstrap_server::Bootstrap> {
    BootstrapServer::new(Face(bootstrap)).max_decoding_message_size(MAX_MESSAGE)
}

/// Descriptors that this crate provides for reflection; [`NAME`] is the service that is served.
pub fn descriptors() -> Vec<u8> {
    // Written by the generator, compared in check.
    STANDARD.decode(include_str!("../generated/descriptors").trim_end()).unwrap_or_default()
}

/// Full name of the service.
pub const NAME: &str = pb::bootstrap_server::SERVICE_NAME;

#[derive(Debug)]
struct Face(Arc<Bootstrap>);

fn status(refusal: Refusal) -> Status {
    let code = match refusal {
        Refusal::BadRequest => Code::InvalidArgument,
        Refusal::TokenInvalid | Refusal::TokenExpired => Code::Unauthenticated,
        Refusal::NotBound | Refusal::Policy => Code::PermissionDenied,
        Refusal::ReviewDown | Refusal::PodPending | Refusal::VaultSealed | Refusal::VaultDown => {
            Code::Unavailable
        }
        Refusal::NotBootstrapped => Code::FailedPrecondition,
        Refusal::Rate => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    details::status(code, refusal)
}

/// The beginning of a call, and its message.
fn begin<T>(call: &'static str, request: Request<T>, id: fn(&T) -> &str) -> (Visit, T) {
    let source = request.extensions().get().copied();
    let message = request.into_inner();
    (Visit::begin(call, id(&message), source), message)
}

/// Handles a call within its deadline, writes the audit line, and turns the outcome into an answer.
async fn answer<T, U>(
    visit: &Visit,
    work: impl Future<Output = Result<T, Refusal>>,
    message: impl FnOnce(T) -> U,
) -> Result<Response<U>, Status> {
    // Everything that takes long is waiting for the vault.
    let outcome = tokio::time::timeout(DEADLINE, work).await;
    let outcome = outcome.unwrap_or(Err(Refusal::VaultDown));
    visit.end(outcome.as_ref().err().copied());
    outcome.map(|value| Response::new(message(value))).map_err(status)
}

fn parsed<T: std::str::FromStr>(text: &str) -> Result<Option<T>, Refusal> {
    match text {
        "" => Ok(None),
        text => text.parse().map(Some).map_err(|_| Refusal::BadRequest),
    }
}

fn tls(material: Material) -> pb::TlsMaterial {
    pb::TlsMaterial {
        private_key: material.key.expose("its owner asked for it").to_vec(),
        certificate_chain: material.chain,
        authorities: material.authorities,
        not_after: material.not_after.unix_seconds(),
        serial: material.serial,
    }
}

#[tonic::async_trait]
impl pb::bootstrap_server::Bootstrap for Face {
    async fn bootstrap_nats(
        &self,
        request: Request<pb::NatsBootstrapRequest>,
    ) -> Result<Response<pb::NatsBootstrapResponse>, Status> {
        let (visit, request) = begin("BootstrapNATS", request, |call| &call.request_id);
        let token = SecretBytes::new(request.service_account_token);
        let outcome = async {
            let own_key = parsed(&request.certificate_request)?;
            self.0.nats(&visit, &token, own_key.as_ref()).await
        };
        answer(&visit, outcome, |server| {
            let accounts: BTreeMap<String, String> =
                server.accounts.into_iter().map(|(key, jwt)| (key.to_string(), jwt)).collect();
            pb::NatsBootstrapResponse {
                operator_jwt: server.operator,
                system_account: server.system_account.to_string(),
                accounts: accounts.into_iter().collect(),
                tls: Some(tls(server.tls)),
            }
        })
        .await
    }

    async fn bootstrap_open_search(
        &self,
        request: Request<pb::OpenSearchBootstrapRequest>,
    ) -> Result<Response<pb::OpenSearchBootstrapResponse>, Status> {
        let (visit, request) = begin("BootstrapOpenSearch", request, |call| &call.request_id);
        let token = SecretBytes::new(request.service_account_token);
        let outcome = self.0.opensearch(&visit, &token);
        answer(&visit, outcome, |node| pb::OpenSearchBootstrapResponse {
            node_tls: Some(tls(node.node)),
            admin_tls: Some(tls(node.admin)),
            password_hashes: node.hashes.into_iter().collect(),
        })
        .await
    }

    async fn bootstrap_component(
        &self,
        request: Request<pb::ComponentBootstrapRequest>,
    ) -> Result<Response<pb::ComponentBootstrapResponse>, Status> {
        let (visit, request) = begin("BootstrapComponent", request, |call| &call.request_id);
        let token = SecretBytes::new(request.service_account_token);
        let outcome = async {
            let call = ComponentCall {
                user: parsed(&request.nats_user)?,
                nonce: parsed(&request.nonce)?,
                certificate: parsed(&request.certificate_request)?,
            };
            self.0.component(&visit, &token, &call).await
        };
        answer(&visit, outcome, |component| pb::ComponentBootstrapResponse {
            user_jwt: component.user_jwt,
            user: component.user.to_string(),
            signature: component.signature.map_or_else(Vec::new, |bytes| bytes.to_vec()),
            jwt_expires: component.expires.unix_seconds(),
            tls: Some(tls(component.tls)),
            name: component.name,
        })
        .await
    }

    async fn sign_nonce(
        &self,
        request: Request<pb::SignNonceRequest>,
    ) -> Result<Response<pb::SignNonceResponse>, Status> {
        let (visit, request) = begin("SignNonce", request, |call| &call.request_id);
        let token = SecretBytes::new(request.service_account_token);
        let outcome = async {
            let nonce = parsed(&request.nonce)?.ok_or(Refusal::BadRequest)?;
            self.0.sign_nonce(&visit, &token, &nonce).await
        };
        answer(&visit, outcome, |(signature, user_jwt)| pb::SignNonceResponse {
            signature: signature.to_vec(),
            user_jwt,
        })
        .await
    }

    async fn bootstrap_telemetry(
        &self,
        request: Request<pb::TelemetryBootstrapRequest>,
    ) -> Result<Response<pb::TelemetryBootstrapResponse>, Status> {
        let (visit, request) = begin("BootstrapTelemetry", request, |call| &call.request_id);
        let kind = match request.kind() {
            pb::TelemetryKind::Collector => Ok(TelemetryKind::Collector),
            pb::TelemetryKind::Sender => Ok(TelemetryKind::Sender),
            pb::TelemetryKind::Viewer => Ok(TelemetryKind::Viewer),
            pb::TelemetryKind::Unspecified => Err(Refusal::BadRequest),
        };
        let token = SecretBytes::new(request.service_account_token);
        let outcome = async {
            let own_key = parsed(&request.certificate_request)?;
            self.0.telemetry(&visit, &token, kind?, own_key.as_ref()).await
        };
        answer(&visit, outcome, |telemetry| {
            let password = telemetry.password;
            pb::TelemetryBootstrapResponse {
                tls: telemetry.tls.map(tls),
                opensearch_password: password.map_or_else(Vec::new, |p| {
                    p.expose("whoever logs in with it asked for it").to_vec()
                }),
            }
        })
        .await
    }

    async fn get_wrapped_key(
        &self,
        request: Request<pb::WrappedKeyRequest>,
    ) -> Result<Response<pb::WrappedKeyResponse>, Status> {
        let (visit, request) = begin("GetWrappedKey", request, |call| &call.request_id);
        let token = SecretBytes::new(request.service_account_token);
        let outcome = self.0.wrapped_key(&visit, &token);
        answer(&visit, outcome, |key| pb::WrappedKeyResponse { wrapped_key: key }).await
    }
}

/// Messages that hold tokens, keys or passwords print only their name.
macro_rules! redacted {
    ($($message:ident)*) => {
        $(impl fmt::Debug for pb::$message {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($message), " [redacted]"))
            }
        })*
    };
}

redacted! {
    TlsMaterial NatsBootstrapRequest NatsBootstrapResponse OpenSearchBootstrapRequest
    OpenSearchBootstrapResponse ComponentBootstrapRequest ComponentBootstrapResponse
    SignNonceRequest SignNonceResponse TelemetryBootstrapRequest TelemetryBootstrapResponse
    WrappedKeyRequest WrappedKeyResponse
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::num::NonZeroU32;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use tec_core::ak::SourceNetwork;
    use tec_core::testing::{ManualClock, SeededEntropy, sample};

    use super::super::{
        ApiServer, Disk, Http, Note, SecretNames, Settings, Standing, Target, Vault,
    };
    use super::pb::bootstrap_server::Bootstrap as _;
    use super::*;
    use crate::vault::tests::world::platform;

    #[derive(Debug)]
    struct NoDisk;

    impl Disk for NoDisk {
        fn read(&self, _: Note) -> io::Result<Option<Vec<u8>>> {
            Ok(None)
        }

        fn write(&self, _: Note, _: &[u8]) -> io::Result<()> {
            Ok(())
        }

        fn remove(&self, _: Note) -> io::Result<()> {
            Ok(())
        }
    }

    /// A server with four places, whose vault is at this socket.
    fn face(vault: PathBuf) -> Face {
        let http = Http::new(Target::Unix(vault), Duration::from_mins(1));
        let names = SecretNames {
            namespace: String::new(),
            key: String::new(),
            tls: String::new(),
            authorities: String::new(),
            copies: Vec::new(),
            revocations: String::new(),
        };
        let settings = Settings {
            platform: platform(),
            user_life: Duration::from_mins(1),
            concurrency: 4,
            calls_per_minute: NonZeroU32::MAX,
        };
        Face(Arc::new(Bootstrap::new(
            Vault::new(http.clone()),
            Arc::new(ApiServer::new(http, PathBuf::new(), names)),
            Arc::new(NoDisk),
            Arc::new(Standing::default()),
            Arc::new(ManualClock::new(sample::time(0))),
            Arc::new(SeededEntropy::new(1)),
            settings,
        )))
    }

    #[tokio::test]
    async fn who_forges_tokens_leaves_places_for_calls_from_elsewhere() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("vault");
        // It never answers.
        let _vault = UnixListener::bind(&socket).unwrap();
        let face = face(socket);
        let claims = serde_json::json!({
            "aud": [platform().audience], "exp": sample::time(60).unix_seconds(),
            "kubernetes.io": {
                "namespace": "platform", "serviceaccount": {"name": "controller", "uid": "any"},
            },
        });
        let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let call = |network: u8| {
            let mut request = Request::new(pb::WrappedKeyRequest {
                service_account_token: token.clone().into_bytes(),
                request_id: String::new(),
            });
            let source = SourceNetwork::of([192, 0, 2, network].into());
            request.extensions_mut().insert(source);
            face.get_wrapped_key(request)
        };
        let mut waiting = Vec::new();
        for _ in 0..8 {
            let mut forged = call(1);
            match futures::poll!(&mut forged) {
                std::task::Poll::Pending => waiting.push(forged),
                std::task::Poll::Ready(answer) => {
                    assert_eq!(answer.unwrap_err().code(), Code::ResourceExhausted);
                }
            }
        }
        assert_eq!(waiting.len(), 2);
        assert!(futures::poll!(&mut call(2)).is_pending());
        drop(waiting);
        assert!(futures::poll!(&mut call(1)).is_pending(), "places are given back");
    }
}
