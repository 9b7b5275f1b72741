//! Bootstrap requests over TLS, against a real OpenBao and a real NATS server: the contract's
//! section 8, items 3 and 4.

use std::path::Path;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Auth;
use async_nats::AuthError;
use async_nats::ConnectOptions;
use async_nats::Event;
use nkeys::KeyPair;
use services_bootstrap::controller::Controller;
use tec_core::service::nats::Resolver;
use tec_core::service::nats::ServerConfig;
use tec_k8s::service::client;
use tec_k8s::service::client::bootstrap_client::BootstrapClient;
use tec_support::serve;
use tec_support::serve::Shutdown;
use tec_support::serve::Transport;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Certificate;
use tonic::transport::Channel;
use tonic::transport::ClientTlsConfig;
use tonic::transport::Endpoint;

use crate::stage::AUDIENCE;
use crate::stage::Stage;
use crate::stage::api::FakeApi;

/// A platform that serves.
struct Platform {
    stage: Stage,
    _controller: Controller,
    client: BootstrapClient<Channel>,
    _server: JoinSet<anyhow::Result<()>>,
}

async fn platform() -> Option<Platform> {
    let Some(stage) = Stage::new().await else {
        println!("no bao: run `cargo xtask tools`");
        return None;
    };
    let controller = stage.controller();
    controller.round().await.unwrap();
    let listener = serve::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let transport = Transport::Tls(controller.certificate.server_config());
    let (shutdown, signals) = Shutdown::on_signals().unwrap();
    let mut server = JoinSet::new();
    let router = controller.router().unwrap();
    server.spawn(async move {
        // Keeps the sender, so that nothing ends before the test does.
        let _signals = signals;
        serve::serve(listener, transport, router, shutdown).await
    });
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authorities(&stage)))
        .domain_name("controller.platform.svc");
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
    Some(Platform {
        stage,
        _controller: controller,
        client: BootstrapClient::new(channel),
        _server: server,
    })
}

/// As callers find them: in the published Secret.
fn authorities(stage: &Stage) -> String {
    use base64::Engine as _;
    let secret = stage.api.secret("services-bootstrap-tls").unwrap();
    let text = secret["data"]["ca.crt"].as_str().unwrap().to_owned();
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap();
    String::from_utf8(bytes).unwrap()
}

fn nats_request(token: String) -> client::NatsBootstrapRequest {
    client::NatsBootstrapRequest {
        service_account_token: token.into_bytes(),
        request_id: "test".to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn item_3_each_refusal_has_its_own_code_and_an_outage_is_no_bad_credential() {
    let Some(mut platform) = platform().await else {
        return;
    };
    let good = FakeApi::token("platform", "nats", AUDIENCE);
    let forged = good.replace(".Z29vZA", ".YmFk");
    assert_ne!(good, forged);
    let cases = [
        ("garbage".to_owned(), Code::InvalidArgument, "BAD_REQUEST"),
        (
            FakeApi::token("platform", "nats", "other"),
            Code::Unauthenticated,
            "TOKEN_INVALID",
        ),
        (forged, Code::Unauthenticated, "TOKEN_INVALID"),
        (
            FakeApi::token("apps", "comp-a", AUDIENCE),
            Code::PermissionDenied,
            "SA_NOT_BOUND",
        ),
    ];
    for (token, code, reason) in cases {
        let refused = platform
            .client
            .bootstrap_nats(nats_request(token))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().starts_with(reason), "{refused:?}");
    }
    assert!(
        platform
            .client
            .bootstrap_nats(nats_request(good.clone()))
            .await
            .is_ok()
    );

    platform.stage.api.freeze(true);
    let refused = platform
        .client
        .bootstrap_nats(nats_request(good.clone()))
        .await
        .unwrap_err();
    platform.stage.api.freeze(false);
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert!(
        refused.message().starts_with("TOKEN_REVIEW_DOWN"),
        "{refused:?}"
    );

    platform.stage.bao.restart().await;
    let refused = platform
        .client
        .bootstrap_nats(nats_request(good))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().starts_with("VAULT_SEALED"), "{refused:?}");
}

struct Nats(Child);

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn write_tls(dir: &Path, tls: &client::TlsMaterial) {
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("tls.crt"), &tls.certificate_chain).unwrap();
    std::fs::write(dir.join("tls.key"), &tls.private_key).unwrap();
    std::fs::write(dir.join("ca.crt"), &tls.authorities).unwrap();
}

/// Starts a server with what the controller answered; returns its port.
async fn nats_server(platform: &mut Platform) -> Option<(Nats, u16)> {
    let Some(program) = crate::stage::tool("nats-server") else {
        println!("no nats-server: run `cargo xtask tools`");
        return None;
    };
    let token = FakeApi::token("platform", "nats", AUDIENCE);
    let answer = platform
        .client
        .bootstrap_nats(nats_request(token))
        .await
        .unwrap()
        .into_inner();
    let dir = platform.stage.dir.path().join("nats");
    write_tls(&dir, &answer.tls.clone().unwrap());
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let file = |name: &str| dir.join(name).display().to_string();
    let accounts = answer.accounts.iter();
    let config = ServerConfig {
        listen: ([127, 0, 0, 1], port).into(),
        monitor: None,
        operator: answer.operator_jwt.clone(),
        system_account: answer.system_account.parse().unwrap(),
        accounts: accounts
            .map(|(key, jwt)| (key.parse().unwrap(), jwt.clone()))
            .collect(),
        resolver: Resolver::Memory,
        cert_file: file("tls.crt"),
        key_file: file("tls.key"),
        ca_file: file("ca.crt"),
    };
    let path = dir.join("nats.conf");
    std::fs::write(&path, config.render().unwrap()).unwrap();
    let checked = Command::new(&program)
        .arg("-t")
        .arg("-c")
        .arg(&path)
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let child = Command::new(program)
        .arg("-c")
        .arg(path)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap();
    let server = Nats(child);
    for _ in 0..600 {
        if tokio::net::TcpStream::connect(("127.0.0.1", port))
            .await
            .is_ok()
        {
            return Some((server, port));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!(
        "no NATS server: {}",
        std::fs::read_to_string(dir.join("log")).unwrap()
    );
}

/// A broker with a key of its own, that asks for a JWT at each connection.
async fn component(
    platform: &mut Platform,
    port: u16,
    name: &str,
    options: impl FnOnce(ConnectOptions) -> ConnectOptions,
) -> Result<async_nats::Client, async_nats::ConnectError> {
    let user = Arc::new(KeyPair::new_user());
    let token = FakeApi::token("apps", name, AUDIENCE);
    let request = client::ComponentBootstrapRequest {
        service_account_token: token.into_bytes(),
        request_id: "test".to_owned(),
        nats_user: user.public_key(),
        nonce: String::new(),
    };
    let answer = platform
        .client
        .bootstrap_component(request)
        .await
        .unwrap()
        .into_inner();
    let dir = platform.stage.dir.path().join(name);
    write_tls(&dir, &answer.tls.clone().unwrap());
    let jwt = answer.user_jwt;
    let connect = ConnectOptions::with_auth_callback(move |nonce| {
        let (jwt, user) = (jwt.clone(), Arc::clone(&user));
        async move {
            let mut auth = Auth::new();
            auth.jwt = Some(jwt);
            auth.signature = Some(user.sign(&nonce).map_err(AuthError::new)?);
            Ok(auth)
        }
    })
    .add_root_certificates(dir.join("ca.crt"))
    .add_client_certificate(dir.join("tls.crt"), dir.join("tls.key"))
    .custom_inbox_prefix(format!("_INBOX.apps.{name}"))
    .require_tls(true);
    options(connect)
        .connect(format!("tls://localhost:{port}"))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn item_4_a_component_speaks_on_its_own_subjects_and_on_no_other() {
    use tokio::sync::mpsc;
    let Some(mut platform) = platform().await else {
        return;
    };
    let Some((_server, port)) = nats_server(&mut platform).await else {
        return;
    };
    let plain = |options| options;
    let listener = component(&mut platform, port, "comp-b", plain)
        .await
        .unwrap();
    let mut events = listener.subscribe("evt.apps.comp-a.>").await.unwrap();
    listener.flush().await.unwrap();

    let (violations, mut violated) = mpsc::unbounded_channel();
    let watched = move |options: ConnectOptions| {
        options.event_callback(move |event| {
            let violations = violations.clone();
            async move {
                if let Event::ServerError(error) = event {
                    let _ = violations.send(error.to_string());
                }
            }
        })
    };
    let speaker = component(&mut platform, port, "comp-a", watched)
        .await
        .unwrap();
    speaker
        .publish("evt.apps.comp-a.x", "hello".into())
        .await
        .unwrap();
    speaker.flush().await.unwrap();
    let message = tokio::time::timeout(Duration::from_secs(10), next(&mut events))
        .await
        .unwrap();
    assert_eq!(message.as_deref(), Some(b"hello".as_slice()));

    speaker
        .publish("evt.apps.comp-b.x", "forged".into())
        .await
        .unwrap();
    speaker.flush().await.unwrap();
    let refusal = tokio::time::timeout(Duration::from_secs(10), violated.recv())
        .await
        .unwrap();
    assert!(
        refusal
            .unwrap()
            .to_lowercase()
            .contains("permissions violation")
    );
}

async fn next(events: &mut async_nats::Subscriber) -> Option<Vec<u8>> {
    use std::pin::Pin;
    // The one method of Stream that is needed, without a crate for it.
    std::future::poll_fn(|context| futures_core::Stream::poll_next(Pin::new(&mut *events), context))
        .await
        .map(|message| message.payload.to_vec())
}

#[tokio::test(flavor = "multi_thread")]
async fn item_4_the_key_in_the_vault_signs_a_fresh_nonce_and_nothing_that_looks_like_a_jwt() {
    let Some(mut platform) = platform().await else {
        return;
    };
    let token = FakeApi::token("apps", "comp-a", AUDIENCE).into_bytes();
    let request = client::ComponentBootstrapRequest {
        service_account_token: token.clone(),
        request_id: "test".to_owned(),
        nats_user: String::new(),
        nonce: "VkJmSAcW_DgK2-8".to_owned(),
    };
    let answer = platform
        .client
        .bootstrap_component(request)
        .await
        .unwrap()
        .into_inner();
    let user = KeyPair::from_public_key(&answer.user).unwrap();
    user.verify(b"VkJmSAcW_DgK2-8", &answer.signature).unwrap();
    let sign = |nonce: &str| client::SignNonceRequest {
        service_account_token: token.clone(),
        request_id: "test".to_owned(),
        nonce: nonce.to_owned(),
    };
    let signed = platform
        .client
        .sign_nonce(sign("another_nonce-1"))
        .await
        .unwrap()
        .into_inner();
    user.verify(b"another_nonce-1", &signed.signature).unwrap();
    let refused = platform
        .client
        .sign_nonce(sign("eyJ0eXAi.eyJqdGki"))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn item_8_collectors_get_a_password_and_senders_do_not() {
    let Some(mut platform) = platform().await else {
        return;
    };
    let ask = |name: &str, kind| client::TelemetryBootstrapRequest {
        service_account_token: FakeApi::token("platform", name, AUDIENCE).into_bytes(),
        request_id: "test".to_owned(),
        kind,
    };
    let collector = ask("collector", client::TelemetryKind::Collector.into());
    let sender = ask("fluent-bit", client::TelemetryKind::Sender.into());
    let climber = ask("fluent-bit", client::TelemetryKind::Collector.into());
    let answer = platform
        .client
        .bootstrap_telemetry(collector)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.opensearch_password.len(), 64);
    let answer = platform
        .client
        .bootstrap_telemetry(sender)
        .await
        .unwrap()
        .into_inner();
    assert!(answer.opensearch_password.is_empty() && answer.tls.is_some());
    let refused = platform
        .client
        .bootstrap_telemetry(climber)
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn item_5_an_opensearch_node_gets_hashes_and_certificates_and_no_password() {
    let Some(mut platform) = platform().await else {
        return;
    };
    let token = FakeApi::token("platform", "opensearch", AUDIENCE);
    let request = client::OpenSearchBootstrapRequest {
        service_account_token: token.into_bytes(),
        request_id: "test".to_owned(),
    };
    let answer = platform
        .client
        .bootstrap_open_search(request)
        .await
        .unwrap()
        .into_inner();
    let users: Vec<&str> = {
        let mut users: Vec<&str> = answer.password_hashes.keys().map(String::as_str).collect();
        users.sort_unstable();
        users
    };
    assert_eq!(users, ["admin", "telemetry", "viewer"]);
    assert!(
        answer
            .password_hashes
            .values()
            .all(|hash| hash.starts_with("$2b$12$"))
    );
    let key = answer.node_tls.unwrap().private_key;
    // OpenSearch takes no other form than PKCS#8.
    assert!(key.starts_with(b"-----BEGIN PRIVATE KEY-----"));
    assert!(answer.admin_tls.is_some());
}
