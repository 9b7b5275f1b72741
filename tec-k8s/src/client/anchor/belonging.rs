//! Data that a namespace keeps besides its units: requirements of the cluster object, and Secrets.
//!
//! | article | where |
//! |---|---|
//! | registration and approval | `spec.registration` and `spec.approval` of the cluster object |
//! | roots of endorsement keys | digest of the ConfigMap that it names |
//! | registration token | entry `token` of the Secret that it names |
//! | CA | the Secret [`CA_SECRET`], in the layout that cert-manager's CA issuer reads |
//! | certificates | the Secrets that it names for each server |
//! | pinned registers | `status.pinnedPcrs`, as reported by its operator |

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::migrate::Role;
use tec_core::migrate::belonging::{Article, Belongings, Certificate, Place, Service};
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use super::demand::{
    ADOPTED_DEMANDS, TOKEN_SECRET, adopted, demands_of, pinned_of, secret_name, spec_of,
    token_secret,
};
use crate::api::{Machine, TrustedExecutionCluster};
use crate::client::KubeRegistry;
use crate::client::error::{is_conflict, port_error};

/// Secret with the CA of a trust anchor: `tls.crt`, `tls.key` and `ca.crt`.
pub const CA_SECRET: &str = "trust-anchor-ca";
/// Annotation of a Secret with a certificate that was issued by [`CA_SECRET`]: when to renew it, in seconds
/// since 1970. On the CA's own Secret, it shows that the operator created the CA.
pub const RENEW_AT: &str = "trusted-execution-clusters.io/renew-at";
/// Annotation of the same Secrets: when the certificate was issued, in seconds since 1970.
pub const ISSUED_AT: &str = "trusted-execution-clusters.io/issued-at";
/// Annotation of the same Secrets: the names in the certificate, separated by commas.
pub const ISSUED_FOR: &str = "trusted-execution-clusters.io/issued-for";
/// Entry of the Secret with the registration token.
const TOKEN: &str = "token";
/// Servers, in the order in which they are examined.
const SERVICES: [Service; 3] =
    [Service::KeyBroker, Service::Registration, Service::AttestationKeys];

impl KubeRegistry {
    /// Data that this namespace stores besides its units: without a cluster object, at most its CA.
    pub async fn belongings(&self) -> Result<Belongings, PortError> {
        let gives_way = self.gives_way().await?;
        let mut found = Belongings {
            ca: self.certificate(CA_SECRET, gives_way).await?,
            ..Belongings::default()
        };
        let Some(cluster) = self.cluster_object().await? else {
            return Ok(found);
        };
        found.demands = demands_of(&cluster, self.endorsement_roots(&cluster).await?);
        found.follows = adopted(&cluster).is_some_and(|adopted| Some(adopted) == found.demands);
        found.pcrs = pinned_of(&cluster);
        if let Some(name) = token_secret(&cluster) {
            let secret = self.secret_object(name).await?;
            found.token = secret.and_then(|mut secret| entry(&mut secret, TOKEN));
        }
        for service in SERVICES {
            let place = match secret_name(&cluster, service) {
                None => Place::Plain,
                Some(name) => {
                    self.certificate(name, gives_way).await?.map_or(Place::Empty, Place::Holds)
                }
            };
            found.servers.insert(service, place);
        }
        Ok(found)
    }

    /// Writes these articles of another anchor. Nothing that exists here is overwritten.
    ///
    /// # Errors
    /// The API server fails, there is no cluster object that
    /// could name them, the anchor is no longer on standby, or someone else created or changed one
    /// in the meantime.
    pub async fn bring(&self, comes: &Belongings, articles: &[Article]) -> Result<(), PortError> {
        // Checked before a whole copy.
        if self.record_now().await?.role() != Role::Standby {
            let why = "bring policies and certificates: the anchor does not stand by any more";
            let moved = PortError::new(PortErrorKind::Conflict, why);
            return Err(moved.with_code(Code::AuthorityMoved));
        }
        let gives_way = self.gives_way().await?;
        for article in articles {
            match article {
                Article::Ca => {
                    if let Some(ca) = &comes.ca {
                        self.create_certificate(CA_SECRET, ca, gives_way).await?;
                    }
                }
                Article::Certificate(service) => {
                    let cluster = self.some_cluster(*article).await?;
                    let from = comes.servers.get(service);
                    if let (Some(Place::Holds(from)), Some(name)) =
                        (from, secret_name(&cluster, *service))
                    {
                        self.create_certificate(name, from, gives_way).await?;
                    }
                }
                Article::Token => self.bring_token(comes).await?,
                Article::Demands => self.bring_demands(comes).await?,
                _ => {}
            }
        }
        Ok(())
    }

    async fn bring_token(&self, comes: &Belongings) -> Result<(), PortError> {
        let Some(token) = &comes.token else {
            return Ok(());
        };
        let cluster = self.some_cluster(Article::Token).await?;
        let name = token_secret(&cluster).unwrap_or(TOKEN_SECRET);
        let token = token.expose("the API server stores it").to_vec();
        self.create_entries(name, "Opaque", [(TOKEN, token)]).await
    }

    async fn bring_demands(&self, comes: &Belongings) -> Result<(), PortError> {
        let Some(demands) = &comes.demands else {
            return Ok(());
        };
        let cluster = self.some_cluster(Article::Demands).await?;
        let said = demands_of(&cluster, self.endorsement_roots(&cluster).await?);
        if said.is_some() && said != adopted(&cluster) {
            let why = "adopt the demands: somebody made others of the target meanwhile";
            let clash = PortError::new(PortErrorKind::Conflict, why);
            return Err(clash.with_code(Code::TrustConflict));
        }
        let text = serde_json::to_string(demands).unwrap_or_default();
        let patch = json!({
            // The change applies only to what was read.
            "metadata": {
                "resourceVersion": cluster.resource_version(),
                "annotations": {ADOPTED_DEMANDS: text},
            },
            "spec": spec_of(demands, &cluster, comes.token.is_some()),
        });
        let (name, params) = (cluster.name_any(), PatchParams::default());
        let clusters: Api<TrustedExecutionCluster> = self.objects();
        let patched = clusters.patch(&name, &params, &Patch::Merge(patch)).await;
        patched.map_err(|error| port_error(format!("adopt demands in {name}"), error))?;
        Ok(())
    }

    /// Name of a Trustee that is not yet up to date with what the operator of this namespace publishes,
    /// including its policies.
    pub async fn lagging(&self) -> Result<Option<String>, PortError> {
        let status = self.cluster_object().await?;
        let status = status.and_then(|cluster| cluster.status).unwrap_or_default();
        let mut lagging = status.targets.into_iter().filter(|target| !target.converged);
        Ok(lagging.next().map(|target| target.name))
    }

    /// The cluster object that counts: the oldest one.
    async fn cluster_object(&self) -> Result<Option<TrustedExecutionCluster>, PortError> {
        let clusters: Api<TrustedExecutionCluster> = self.objects();
        let listed = clusters.list(&ListParams::default()).await;
        let listed = listed.map_err(|error| port_error("list cluster objects", error))?;
        let oldest =
            |cluster: &TrustedExecutionCluster| (cluster.creation_timestamp(), cluster.name_any());
        Ok(listed.items.into_iter().min_by_key(oldest))
    }

    async fn some_cluster(&self, article: Article) -> Result<TrustedExecutionCluster, PortError> {
        self.cluster_object().await?.ok_or_else(|| {
            let why = format!("adopt the {article}: there is no TrustedExecutionCluster yet");
            PortError::new(PortErrorKind::Invalid, why)
        })
    }

    /// Digest of the CA certificates of endorsement keys, if the cluster object names some.
    async fn endorsement_roots(
        &self,
        cluster: &TrustedExecutionCluster,
    ) -> Result<Option<String>, PortError> {
        let Some(name) = cluster.endorsement_roots() else {
            return Ok(None);
        };
        let found = self.objects::<ConfigMap>().get_opt(name).await;
        let found =
            found.map_err(|error| port_error(format!("read the ConfigMap {name}"), error))?;
        let text = found.and_then(|found| found.data?.remove("ca.crt")).ok_or_else(|| {
            let why = format!("read the ConfigMap {name} of endorsementRootsConfigMap: no ca.crt");
            PortError::new(PortErrorKind::Invalid, why)
        })?;
        Ok(Some(Sha256Digest::of(text).to_string()))
    }

    async fn secret_object(&self, name: &str) -> Result<Option<Secret>, PortError> {
        let found = self.secrets().get_opt(name).await;
        found.map_err(|error| port_error(format!("read the Secret {name}"), error))
    }

    /// Whether no node pins what an operator issued here: the anchor has no machines, or is on standby, so
    /// that its machines are those of another anchor. Once another CA has been adopted, it issues the
    /// certificates.
    async fn gives_way(&self) -> Result<bool, PortError> {
        let ca = self.secret_object(CA_SECRET).await?;
        if !ca.as_ref().is_some_and(is_issued) {
            return Ok(false);
        }
        let stands_by = self.record_now().await?.role() == Role::Standby;
        Ok(stands_by || !self.has_machines().await?)
    }

    async fn has_machines(&self) -> Result<bool, PortError> {
        let machines: Api<Machine> = self.objects();
        let one = machines.list_metadata(&ListParams::default().limit(1)).await;
        let one = one.map_err(|error| port_error("list machines", error))?;
        Ok(!one.items.is_empty())
    }

    /// A certificate in a Secret. One that gives way to an incoming one counts as absent.
    async fn certificate(
        &self,
        name: &str,
        gives_way: bool,
    ) -> Result<Option<Certificate>, PortError> {
        let secret = self.secret_object(name).await?;
        let Some(mut secret) = secret.filter(|secret| !(gives_way && is_issued(secret))) else {
            return Ok(None);
        };
        let lacks = |entry: &str| {
            let why = format!("read the Secret {name}: it has no PEM text {entry}");
            PortError::new(PortErrorKind::Invalid, why)
        };
        let chain = text(&mut secret, "tls.crt").ok_or_else(|| lacks("tls.crt"))?;
        let key = entry(&mut secret, "tls.key").ok_or_else(|| lacks("tls.key"))?;
        // The registration server needs none; nodes then trust the certificate itself.
        let ca = text(&mut secret, "ca.crt").unwrap_or_else(|| chain.clone());
        Ok(Some(Certificate { chain, key, ca }))
    }

    async fn create_certificate(
        &self,
        name: &str,
        from: &Certificate,
        gives_way: bool,
    ) -> Result<(), PortError> {
        let entries = [
            ("tls.crt", from.chain.clone().into_bytes()),
            ("tls.key", from.key.expose("the API server stores it").to_vec()),
            ("ca.crt", from.ca.clone().into_bytes()),
        ];
        let issued = self.secret_object(name).await?.filter(is_issued);
        if let Some(issued) = issued.filter(|_| gives_way) {
            let data = entries.map(|(name, bytes)| (name.to_owned(), ByteString(bytes)));
            return self.replace_issued(name, issued, data.into()).await;
        }
        self.create_entries(name, "kubernetes.io/tls", entries).await
    }

    /// An incoming certificate replaces the issued one, and no longer belongs to the operator.
    async fn replace_issued(
        &self,
        name: &str,
        mut issued: Secret,
        data: BTreeMap<String, ByteString>,
    ) -> Result<(), PortError> {
        issued.data = Some(data);
        if let Some(annotations) = &mut issued.metadata.annotations {
            annotations.remove(RENEW_AT);
            annotations.remove(ISSUED_AT);
            annotations.remove(ISSUED_FOR);
        }
        let secrets = self.secrets();
        let replaced = secrets.replace(name, &PostParams::default(), &issued).await;
        replaced.map_err(|error| port_error(format!("adopt the Secret {name}"), error))?;
        Ok(())
    }

    async fn create_entries<const N: usize>(
        &self,
        name: &str,
        kind: &str,
        entries: [(&str, Vec<u8>); N],
    ) -> Result<(), PortError> {
        let object = Secret {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            type_: Some(kind.to_owned()),
            data: Some(BTreeMap::from(
                entries.map(|(name, bytes)| (name.to_owned(), ByteString(bytes))),
            )),
            ..Secret::default()
        };
        let made = self.secrets().create(&PostParams::default(), &object).await;
        match made {
            Ok(_) => Ok(()),
            Err(error) if is_conflict(&error) => {
                // From another run, or of a server that has the same Secret.
                let there = self.secret_object(name).await?;
                if there.as_ref().is_some_and(|there| there.data == object.data) {
                    return Ok(());
                }
                let clash = port_error(format!("adopt the Secret {name}"), error);
                Err(clash.with_code(Code::TrustConflict))
            }
            Err(error) => Err(port_error(format!("adopt the Secret {name}"), error)),
        }
    }
}

/// Whether an operator issued its content.
fn is_issued(secret: &Secret) -> bool {
    secret.annotations().contains_key(RENEW_AT) && !secret.owner_references().is_empty()
}

fn entry(secret: &mut Secret, name: &str) -> Option<SecretBytes> {
    let data = secret.data.as_mut()?;
    Some(SecretBytes::new(data.remove(name)?.0))
}

fn text(secret: &mut Secret, name: &str) -> Option<String> {
    String::from_utf8(secret.data.as_mut()?.remove(name)?.0).ok()
}
