//! Decides which certificate requests of kubelets are approved after their join.
//!
//! The API server authenticated the kubelet by the client certificate that the kubelet got in its join. What
//! remains to check is the same as in a join: a member has this name, its machine is in service, and a
//! serving certificate is valid for no other server. The controller manager signs what is approved.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::{
    CertificateSigningRequest, CertificateSigningRequestSpec,
};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use rcgen::SanType;
use serde_json::json;
use tec_core::port::{PortError, chain};
use tec_k8s::client::{is_conflict, list_all, port_error};
use tec_node::grant::Claim;
use tec_node::rpc::Enrollments;
use tec_node::state::Role;
use tec_node::ticket::NodeName;

use super::facts::ApiServerNames;
use super::signer::{addresses, taken};
use crate::instance::authority::{ORGANIZATION, PREFIX, named_request};

/// Signers of kubelet certificates (Kubernetes, "Certificate Signing Requests").
const SERVING: &str = "kubernetes.io/kubelet-serving";
const CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// The key usages that they allow a kubelet.
const USAGES: [&str; 3] = ["digital signature", "key encipherment", "server auth"];
const CLIENT_USAGES: [&str; 3] = ["digital signature", "key encipherment", "client auth"];
/// PEM label (RFC 7468, section 7).
const LABEL: &str = "CERTIFICATE REQUEST";
/// Names of Services have this label (Kubernetes, "DNS for Services and Pods").
const SERVICE: &str = "svc";
/// Interval between lists of requests. A kubelet requests a certificate weeks before the old one expires.
const POLL: Duration = Duration::from_secs(5);

/// Why a request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Malformed, or not for the node whose kubelet made it.
    #[error("a node may request a certificate only for itself")]
    Subject,
    /// More usages than a certificate from this signer needs.
    #[error("the requested key usages are not those of the signer")]
    Usages,
    /// No node joined under this name.
    #[error("no member has this name")]
    Unknown,
    /// The member with this name was removed.
    #[error("the member of this name was removed")]
    Removed,
    /// An admin revoked the machine or its key, or quarantined or retired it.
    #[error("the machine of this member is not in service")]
    NotInService,
    /// A name of another server, or one reserved for Services and the API server.
    #[error("a name does not belong to the node")]
    Name,
    /// An address of another server, no address, or more than one for a member whose addresses are not known.
    #[error("the address belongs to an API server or another node, or is invalid")]
    Address,
    /// An address that the node did not join with.
    #[error(
        "{0} is not an address that the node joined with; if it is the node's, run kubectl tec member \
         addresses <node> <all its addresses>"
    )]
    OtherAddress(IpAddr),
}

/// The data that one pass is based on.
struct Look {
    claims: Vec<Claim>,
    addresses: BTreeMap<String, BTreeSet<IpAddr>>,
}

/// Approves and denies requests.
#[derive(Clone, Debug)]
pub struct Renewals {
    requests: Api<CertificateSigningRequest>,
    nodes: Api<Node>,
    members: Arc<dyn Enrollments>,
    reserved: ApiServerNames,
}

impl Renewals {
    /// Handles requests in this cluster, whose API server has the reserved names.
    pub fn new(client: Client, members: Arc<dyn Enrollments>, reserved: ApiServerNames) -> Self {
        Self { requests: Api::all(client.clone()), nodes: Api::all(client), members, reserved }
    }

    /// Answers requests as they arrive; never returns.
    ///
    /// # Cancel safety
    /// A request without an answer is answered by the next run, or by another control plane.
    pub async fn run(&self) {
        loop {
            if let Err(error) = self.answer_all().await {
                tracing::warn!(error = chain(&error), "requests of kubelets wait");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn answer_all(&self) -> Result<(), PortError> {
        let open = [self.open(SERVING).await?, self.open(CLIENT).await?].concat();
        if open.is_empty() {
            return Ok(());
        }
        let look =
            Look { claims: self.members.list().await?, addresses: addresses(&self.nodes).await? };
        for request in &open {
            // A request that cannot be judged now does not hold up others.
            if let Err(error) = self.consider(request, &look).await {
                let name = request.name_any();
                tracing::warn!(
                    request = name,
                    error = chain(&error),
                    "the request of a kubelet waits"
                );
            }
        }
        Ok(())
    }

    /// Requests for this signer that have no answer yet.
    async fn open(&self, signer: &str) -> Result<Vec<CertificateSigningRequest>, PortError> {
        let fields = format!("spec.signerName={signer}");
        let all = list_all(&self.requests, ListParams::default().fields(&fields)).await?;
        Ok(all.into_iter().filter(is_open).collect())
    }

    async fn consider(
        &self,
        request: &CertificateSigningRequest,
        look: &Look,
    ) -> Result<(), PortError> {
        match self.judge(&request.spec, look).await? {
            // It comes from a node that joined another way, and may have an approver of its own.
            Err(Refusal::Unknown) => Ok(()),
            verdict => self.answer(request, verdict).await,
        }
    }

    async fn judge(
        &self,
        spec: &CertificateSigningRequestSpec,
        look: &Look,
    ) -> Result<Result<(), Refusal>, PortError> {
        let (name, names) = match asked(spec) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let Some(claim) = look.claims.iter().find(|one| one.name == name) else {
            // A request that stays open would be judged again when another node has the name.
            let was_removed = self.members.was_removed(&name).await?;
            return Ok(Err(if was_removed { Refusal::Removed } else { Refusal::Unknown }));
        };
        // Checked for each request: an admin may revoke it at any time.
        if !self.members.is_in_service(claim).await? {
            return Ok(Err(Refusal::NotInService));
        }
        if spec.signer_name == CLIENT {
            return Ok(if names.is_empty() { Ok(()) } else { Err(Refusal::Name) });
        }
        Ok(are_own(&names, claim, &taken(&look.addresses, &name), &self.reserved))
    }

    async fn answer(
        &self,
        request: &CertificateSigningRequest,
        verdict: Result<(), Refusal>,
    ) -> Result<(), PortError> {
        let (name, node) = (request.name_any(), &request.spec.username);
        let (condition, reason, message) = match verdict {
            Ok(()) => ("Approved", "TecMember", "a member asks for itself".to_owned()),
            Err(refusal) => ("Denied", "TecRefused", refusal.to_string()),
        };
        let condition =
            json!({"type": condition, "status": "True", "reason": reason, "message": message});
        let patch = json!({
            "metadata": {"resourceVersion": request.resource_version()},
            "status": {"conditions": [condition]},
        });
        let params = PatchParams::default();
        match self.requests.patch_approval(&name, &params, &Patch::Merge(patch)).await {
            Ok(_) if verdict.is_ok() => {
                tracing::info!(request = name, node, "a kubelet may have its certificate");
            }
            Ok(_) => tracing::warn!(request = name, node, message, "a kubelet is refused"),
            // Another control plane was faster.
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(port_error(format!("answer the request {name}"), error)),
        }
        Ok(())
    }
}

/// Whether the request is still unanswered.
fn is_open(request: &CertificateSigningRequest) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_none_or(Vec::is_empty)
}

/// The requesting node, by the subject and by the API server's authentication, and the names that it wants.
fn asked(spec: &CertificateSigningRequestSpec) -> Result<(NodeName, Vec<SanType>), Refusal> {
    let (label, der) = pem_rfc7468::decode_vec(&spec.request.0).map_err(|_| Refusal::Subject)?;
    let (name, request) = named_request(&der).map_err(|_| Refusal::Subject)?;
    let groups = spec.groups.as_deref().unwrap_or_default();
    let is_its_own = spec.username.as_deref() == Some(format!("{PREFIX}{name}").as_str())
        && groups.iter().any(|group| group == ORGANIZATION);
    if label != LABEL || !is_its_own {
        return Err(Refusal::Subject);
    }
    let usages = spec.usages.as_deref().unwrap_or_default();
    let allowed = if spec.signer_name == CLIENT { CLIENT_USAGES } else { USAGES };
    if usages.iter().any(|usage| !allowed.contains(&usage.as_str())) {
        return Err(Refusal::Usages);
    }
    Ok((name, request.params.subject_alt_names))
}

/// Whether a certificate with these names is for the node of this claim alone. A control plane has the key of
/// the CA: the names of its API server are its own.
fn are_own(
    names: &[SanType],
    claim: &Claim,
    taken: &BTreeSet<IpAddr>,
    reserved: &ApiServerNames,
) -> Result<(), Refusal> {
    let is_worker = claim.role == Role::Worker;
    let mut addresses = 0_usize;
    for name in names {
        match name {
            SanType::IpAddress(address) => {
                let address = address.to_canonical();
                addresses = addresses.saturating_add(1);
                let of = |all: &BTreeSet<IpAddr>| all.iter().any(|ip| ip.to_canonical() == address);
                if of(taken) || (is_worker && of(&reserved.addresses)) {
                    return Err(Refusal::Address);
                }
                if !claim.addresses.is_empty() && !of(&claim.addresses) {
                    return Err(Refusal::OtherAddress(address));
                }
            }
            SanType::DnsName(name) => {
                let name = name.as_str();
                let is_service = name.split('.').any(|label| label == SERVICE);
                let is_reserved = is_worker && reserved.names.contains(name);
                if name != claim.name.as_str() || is_service || is_reserved {
                    return Err(Refusal::Name);
                }
            }
            _ => return Err(Refusal::Name),
        }
    }
    // Members of earlier versions have no recorded addresses, and so may have only one.
    let most = claim.addresses.len().max(1);
    if (1..=most).contains(&addresses) { Ok(()) } else { Err(Refusal::Address) }
}

#[cfg(test)]
mod tests;
