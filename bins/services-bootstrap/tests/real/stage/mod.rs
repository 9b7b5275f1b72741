//! A real vault in a directory of its own, and as much of an API server as the bootstrap needs.

pub(crate) mod api;
pub(crate) mod bao;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use services_bootstrap::certificate::Certificate;
use services_bootstrap::controller::Controller;
use services_bootstrap::disk::Volume;
use tec_core::service::vault::Ordinal;
use tec_core::service::vault::Peers;
use tec_core::service::vault::Platform;
use tec_core::service::vault::SealKind;
use tec_k8s::service::ApiServer;
use tec_k8s::service::Http;
use tec_k8s::service::SecretNames;
use tec_k8s::service::Settings;
use tec_k8s::service::Standing;
use tec_k8s::service::Target;
use tec_k8s::service::Vault;
use tec_support::SystemClock;
use tec_support::SystemEntropy;

use self::api::FakeApi;
use self::bao::Bao;

pub(crate) const AUDIENCE: &str = "tec-services";

/// A program of `cargo xtask tools`; `None` where it was never set up.
pub(crate) fn tool(name: &str) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let cache = variable("TEC_CACHE").map(PathBuf::from).or_else(|| {
        let base = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let base = base.or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache")))?;
        Some(base.join("tec"))
    })?;
    Some(cache.join("bin").join(name)).filter(|path| path.is_file())
}

/// Everything of a pod, and what outlives it.
pub(crate) struct Stage {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) api: FakeApi,
    pub(crate) bao: Bao,
}

impl Stage {
    /// `None` where there is no vault to start.
    pub(crate) async fn new() -> Option<Self> {
        let program = tool("bao")?;
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("volume")).unwrap();
        let api = FakeApi::start().await;
        let bao = Bao::start(program, dir.path()).await;
        let token = FakeApi::token("platform", "controller", AUDIENCE);
        std::fs::write(dir.path().join("token"), token).unwrap();
        Some(Self { dir, api, bao })
    }

    pub(crate) fn vault(&self) -> Vault {
        let target = Target::Unix(self.bao.socket());
        Vault::new(Http::new(target, Duration::from_secs(15)))
    }

    /// A process of the controller: it remembers nothing of the one before.
    pub(crate) fn controller(&self) -> Controller {
        let names = SecretNames {
            namespace: "platform".to_owned(),
            key: "vault-aes".to_owned(),
            tls: "services-bootstrap-tls".to_owned(),
        };
        let address = self.api.address();
        let api = Http::new(Target::DangerousPlain { address }, Duration::from_secs(5));
        let token = self.dir.path().join("token");
        Controller {
            platform: self.platform(),
            ordinal: Ordinal::First,
            vault: self.vault(),
            cluster: Arc::new(ApiServer::new(api, token.clone(), names)),
            disk: Arc::new(Volume::new(self.dir.path().join("volume"))),
            token,
            settings: Settings {
                audience: AUDIENCE.to_owned(),
                user_life: Duration::from_mins(1),
                concurrency: 8,
            },
            clock: Arc::new(SystemClock),
            entropy: Arc::new(SystemEntropy),
            certificate: Arc::new(Certificate::default()),
            standing: Arc::new(Standing::default()),
        }
    }

    fn platform(&self) -> Platform {
        Platform {
            namespace: "platform".to_owned(),
            stateful_set: "vault".to_owned(),
            audience: AUDIENCE.to_owned(),
            kubernetes_host: format!("http://{}", self.api.address()),
            kubernetes_ca: Some(FakeApi::authority()),
            controller: "platform/controller".parse().unwrap(),
            nats: vec!["platform/nats".parse().unwrap()],
            opensearch: vec!["platform/opensearch".parse().unwrap()],
            collectors: vec!["platform/collector".parse().unwrap()],
            tracers: vec!["platform/fluent-bit".parse().unwrap()],
            component_namespaces: vec!["apps".to_owned()],
            certificate_life: Duration::from_hours(1),
            seal: SealKind::Shamir,
            peers: Peers::Alone,
        }
    }
}
