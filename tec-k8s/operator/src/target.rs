//! The Trustees that a cluster object names, and the publisher for each of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use rustls::crypto::CryptoProvider;
use tec_core::code::Code;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::port::{Clock, Entropy, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_k8s::api::{
    BrokerKind, PublishMode, PublishSpec, PublishTarget, TlsServer, Transport,
    TrustedExecutionCluster,
};
use tec_k8s::client::{is_object_name, port_error};
use tec_k8s::render;
use tec_k8s::render::{ADMIN_AUDIENCE, KBS_SERVICE, TRUSTEE_AUTH};
use tec_trustee::client::Deadlines;
use tec_trustee::config::Schema;
use tec_trustee::publish::{
    AdminApi, AdminKey, BrokerPublisher, Layout, MountedPublisher, Publisher,
};

use crate::config::trustee_config;
use crate::volumes::Volumes;

/// Name of the cluster's own Trustee.
const OWN: &str = "trustee";
/// Default port of its Service (trusted-cluster-operator).
const PORT: i32 = 8080;
/// Entries of Secrets (trusted-cluster-operator).
const PRIVATE_KEY: &str = "private.key";
const CA: &str = "ca.crt";
/// Entry of a target's Secrets: the only address that they are for.
const TARGET_URL: &str = "url";

/// The input for a publisher, which is rebuilt when any of it changes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Target {
    /// It is updated through its admin API.
    Api {
        url: String,
        ca: String,
        key_version: Option<String>,
        /// Whether the cluster object asks for plain HTTP; only for its own Trustee.
        dangerous_plain: bool,
    },
    /// It is updated through files that are mounted into its pod.
    Volumes { config: String, owner: OwnerReference },
}

impl Target {
    fn allow_plain(&mut self) {
        if let Self::Api { dangerous_plain, .. } = self {
            *dangerous_plain = true;
        }
    }
}

fn refused(target: &PublishTarget, why: String) -> PortError {
    let what = format!("publish to {}", target.name);
    PortError::new(PortErrorKind::Invalid, what).with_code(Code::TargetNotNamed).because(why)
}

/// The cluster's own Trustee, updated through mounted files.
fn volumes(cluster: &TrustedExecutionCluster) -> Result<Target, PortError> {
    let invalid = |why: &str| {
        PortError::new(PortErrorKind::Invalid, "publish through volumes").because(why.to_owned())
    };
    let owner = cluster.controller_owner_ref(&());
    Ok(Target::Volumes {
        config: trustee_config(&Schema, &render::mounted_intent())?,
        owner: owner.ok_or_else(|| invalid("the cluster object was never stored"))?,
    })
}

/// Targets by name, with the admin's key if there is one.
pub(crate) type Targets = BTreeMap<String, (Target, Option<SecretBytes>)>;

/// How Trustees are reached.
pub(crate) struct Reach {
    pub(crate) client: Client,
    pub(crate) namespace: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) provider: Arc<CryptoProvider>,
    /// URL of the cluster's own Trustee, if it is not reached at its Service.
    pub(crate) own_url: Option<BaseUrl>,
}

impl Reach {
    /// The targets that the cluster object asks for, and why one of them is refused.
    pub(crate) async fn targets(
        &self,
        cluster: &TrustedExecutionCluster,
        publish: &PublishSpec,
    ) -> Result<(Targets, Option<PortError>), PortError> {
        let mut targets = BTreeMap::new();
        let mut refusal = None;
        let own = if cluster.key_broker() == BrokerKind::Builtin {
            // It reads the objects itself.
            None
        } else if publish.mode == PublishMode::Volumes {
            Some((volumes(cluster)?, None))
        } else {
            let ca = cluster.tls_secret(TlsServer::KeyBroker);
            let mut own = self.api(self.own_url(cluster), TRUSTEE_AUTH, ca).await?;
            if ca.is_none() {
                own.0.allow_plain();
            }
            Some(own)
        };
        targets.extend(own.map(|own| (OWN.to_owned(), own)));
        let may_be_plain = cluster.transport() == Transport::DangerousPlain;
        for target in &publish.targets {
            match self.further(target, may_be_plain).await {
                Ok(api) => {
                    targets.insert(target.name.clone(), api);
                }
                // The cluster's own Trustee and the other targets are published to all the same.
                Err(error) => {
                    refusal.get_or_insert(error);
                }
            }
        }
        Ok((targets, refusal))
    }

    async fn further(
        &self,
        target: &PublishTarget,
        may_be_plain: bool,
    ) -> Result<(Target, Option<SecretBytes>), PortError> {
        if target.name == OWN {
            let why = "the cluster's own Trustee has this name";
            return Err(refused(target, why.to_owned()));
        }
        let mut api = self.vouched(target).await?;
        if !target.url.starts_with("https://") {
            if !may_be_plain {
                let why = "its URL is not https, and the cluster object lacks dangerousPlainHttp";
                return Err(refused(target, why.to_owned()));
            }
            api.0.allow_plain();
        }
        Ok(api)
    }

    /// A target, confirmed by every Secret that the cluster object names for it. Someone who may edit the
    /// cluster object but not write Secrets cannot send disk keys anywhere.
    async fn vouched(
        &self,
        target: &PublishTarget,
    ) -> Result<(Target, Option<SecretBytes>), PortError> {
        let secrets = [Some(&target.admin_key_secret), target.ca_secret.as_ref()];
        for secret in secrets.into_iter().flatten() {
            let named = match self.entry(secret, TARGET_URL).await {
                Ok((named, _)) => named,
                Err(error) if error.kind() == PortErrorKind::Invalid => {
                    SecretBytes::new(Vec::new())
                }
                Err(error) => return Err(error),
            };
            let named = named.expose("addresses are public").trim_ascii();
            if named != target.url.as_bytes() {
                let url = &target.url;
                let why = format!(
                    "the Secret {secret} does not name {url}. If keys are to go there: kubectl \
                     patch secret {secret} --patch '{{\"stringData\":{{\"url\":\"{url}\"}}}}'"
                );
                return Err(refused(target, why));
            }
        }
        let ca = target.ca_secret.as_deref();
        self.api(target.url.clone(), &target.admin_key_secret, ca).await
    }

    async fn api(
        &self,
        url: String,
        key_secret: &str,
        ca_secret: Option<&str>,
    ) -> Result<(Target, Option<SecretBytes>), PortError> {
        let (key, key_version) = self.entry(key_secret, PRIVATE_KEY).await?;
        let ca = self.certificate(ca_secret).await?;
        let target = Target::Api { url, ca, key_version, dangerous_plain: false };
        Ok((target, Some(key)))
    }

    /// The cluster's own Trustee, reached within the cluster, so that no public name needs to resolve.
    fn own_url(&self, cluster: &TrustedExecutionCluster) -> String {
        let spec = &cluster.spec;
        let service = || {
            let scheme = match cluster.tls_secret(TlsServer::KeyBroker) {
                Some(_) => "https",
                None => "http",
            };
            let port = spec.trustee_kbs_port.unwrap_or(PORT);
            format!("{scheme}://{KBS_SERVICE}.{}.svc:{port}", self.namespace)
        };
        let url = self.own_url.as_ref().map(|url| url.as_str().to_owned());
        url.unwrap_or_else(service)
    }

    /// The publisher for a target.
    pub(crate) fn publisher(
        &self,
        name: &str,
        target: &Target,
        key: Option<&SecretBytes>,
    ) -> Result<Arc<dyn Publisher>, PortError> {
        match target {
            Target::Volumes { config, owner } => {
                let volumes = Volumes::new(self.client.clone(), &self.namespace, owner.clone());
                let mut layout = Layout::new(config.as_str());
                layout.storage_dir = render::mounted_intent().storage_dir;
                let clock = Arc::clone(&self.clock);
                Ok(Arc::new(MountedPublisher::new(Arc::new(volumes), layout, clock)))
            }
            Target::Api { url, ca, dangerous_plain, .. } => {
                let api = self.admin_api(name, (url, ca, *dangerous_plain), key)?;
                let entropy = Arc::clone(&self.entropy);
                Ok(Arc::new(BrokerPublisher::new(Arc::new(api), entropy)))
            }
        }
    }

    fn admin_api(
        &self,
        name: &str,
        (url, ca, dangerous_plain): (&str, &str, bool),
        key: Option<&SecretBytes>,
    ) -> Result<AdminApi, PortError> {
        let failed = || PortError::new(PortErrorKind::Invalid, format!("reach the Trustee {name}"));
        let url = url.parse().map_err(|error| failed().because(error))?;
        let endpoint = Endpoint::new(url, ca);
        let key = key.ok_or_else(|| failed().because("there is no key of its admin"))?;
        let key = AdminKey::from_pem(key).map_err(|error| failed().because(error))?;
        let key = match name {
            OWN => key.with_audience(ADMIN_AUDIENCE),
            _ => key.with_audience(endpoint.url.as_str()),
        };
        let make = if dangerous_plain && !endpoint.url.is_tls() {
            tracing::warn!("plain HTTP: disk keys go to the Trustee in clear text");
            AdminApi::dangerous_plain_http
        } else {
            AdminApi::new
        };
        let clock = Arc::clone(&self.clock);
        let (deadlines, provider) = (Deadlines::default(), &self.provider);
        let api = make(&endpoint, key, clock, deadlines, provider);
        api.map_err(|error| failed().because(error))
    }

    /// Reads one entry of a Secret, and the Secret's version.
    async fn entry(
        &self,
        name: &str,
        entry: &str,
    ) -> Result<(SecretBytes, Option<String>), PortError> {
        if !is_object_name(name) {
            let what = "read a Secret whose name cannot be that of one";
            return Err(PortError::new(PortErrorKind::Invalid, what));
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = |error| port_error(format!("read the Secret {name}"), error);
        let mut secret = secrets.get(name).await.map_err(read)?;
        let bytes = secret.data.as_mut().and_then(|data| data.remove(entry));
        let bytes = bytes.ok_or_else(|| {
            let why = format!("the Secret {name} has no entry {entry}");
            PortError::new(PortErrorKind::Invalid, why)
        })?;
        Ok((SecretBytes::new(bytes.0), secret.resource_version()))
    }

    async fn certificate(&self, secret: Option<&str>) -> Result<String, PortError> {
        let Some(name) = secret else {
            return Ok(String::new());
        };
        let (bytes, _) = self.entry(name, CA).await?;
        String::from_utf8(bytes.expose("certificates are public").to_vec()).map_err(|error| {
            let why = format!("{CA} of the Secret {name} is not UTF-8 text");
            PortError::new(PortErrorKind::Invalid, why).because(error)
        })
    }
}
