//! Serving certificates that kubelets ask for after their join: which requests are approved.
//!
//! The API server authenticated the kubelet by the client certificate that a join gave it. What is
//! left to check is what a join checks: a member has this name and its machine is in service, and the
//! certificate would be for no other server. The controller manager signs what is approved.

use std::collections::BTreeSet;
use std::fmt;
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
use tec_core::node::grant::Claim;
use tec_core::node::state::Role;
use tec_core::node::ticket::NodeName;
use tec_core::port::{PortError, chain};
use tec_k8s::client::{is_conflict, port_error};

use super::facts::ApiServerNames;
use super::signer::taken;
use crate::instance::authority::{ORGANIZATION, PREFIX, named_request};
use crate::rpc::Enrollments;

/// Requests for serving certificates of kubelets (Kubernetes, "Certificate Signing Requests").
const REQUESTS: &str = "spec.signerName=kubernetes.io/kubelet-serving";
/// What the signer lets a server use its key for.
const USAGES: [&str; 3] = ["digital signature", "key encipherment", "server auth"];
/// PEM label (RFC 7468, section 7).
const LABEL: &str = "CERTIFICATE REQUEST";
/// Names of Services have this label (Kubernetes, "DNS for Services and Pods").
const SERVICE: &str = "svc";
/// How often requests are listed. A kubelet asks weeks before its certificate expires.
const POLL: Duration = Duration::from_secs(5);

/// Why a request is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// Malformed, or not for the node whose kubelet made it.
    #[error("the request is not one of a node for itself")]
    Subject,
    /// More than a server needs.
    #[error("the usages are not those of a server")]
    Usages,
    /// Nobody joined under this name.
    #[error("no member has this name")]
    Unknown,
    /// An admin revoked the machine or its key, or set it aside.
    #[error("the machine of this member is not in service")]
    NotInService,
    /// A name of another server, or one that only Services and the API server have.
    #[error("a name is not the node's own")]
    Name,
    /// An address of another server, or more than one.
    #[error("the address is that of an API server or another node, or not one")]
    Address,
}

/// Approves and denies requests.
#[derive(Clone)]
pub struct Renewals {
    requests: Api<CertificateSigningRequest>,
    nodes: Api<Node>,
    members: Arc<dyn Enrollments>,
    reserved: ApiServerNames,
}

impl fmt::Debug for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewals").finish_non_exhaustive()
    }
}

impl Renewals {
    /// In this cluster, whose API server has the reserved names.
    pub fn new(client: Client, members: Arc<dyn Enrollments>, reserved: ApiServerNames) -> Self {
        Self { requests: Api::all(client.clone()), nodes: Api::all(client), members, reserved }
    }

    /// Answers requests as they come; never ends.
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
        let found = self.requests.list(&ListParams::default().fields(REQUESTS)).await;
        let found = found.map_err(|error| port_error("list the requests of kubelets", error))?;
        for request in found.items.iter().filter(|one| is_open(one)) {
            // One that cannot be judged now keeps no other waiting.
            if let Err(error) = self.consider(request).await {
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

    async fn consider(&self, request: &CertificateSigningRequest) -> Result<(), PortError> {
        match self.judge(&request.spec).await? {
            // It came by somebody else, who may have an approver of their own.
            Err(Refusal::Unknown) => Ok(()),
            verdict => self.answer(request, verdict).await,
        }
    }

    async fn judge(
        &self,
        spec: &CertificateSigningRequestSpec,
    ) -> Result<Result<(), Refusal>, PortError> {
        let (name, names) = match asked(spec) {
            Ok(asked) => asked,
            Err(refusal) => return Ok(Err(refusal)),
        };
        let claims = self.members.list().await?;
        let Some(claim) = claims.iter().find(|one| one.name == name) else {
            return Ok(Err(Refusal::Unknown));
        };
        if !self.members.is_in_service(claim).await? {
            return Ok(Err(Refusal::NotInService));
        }
        let taken = taken(&self.nodes, &name).await?;
        Ok(are_own(&names, claim, &taken, &self.reserved))
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
                tracing::info!(request = name, node, "a kubelet may have its serving certificate");
            }
            Ok(_) => tracing::warn!(request = name, node, message, "a kubelet is refused"),
            // Another control plane was faster.
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(port_error(format!("answer the request {name}"), error)),
        }
        Ok(())
    }
}

/// Whether nobody answered yet.
fn is_open(request: &CertificateSigningRequest) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_none_or(Vec::is_empty)
}

/// The node that asks, by its subject and by whom the API server knows, and what it wants to be called.
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
    if usages.iter().any(|usage| !USAGES.contains(&usage.as_str())) {
        return Err(Refusal::Usages);
    }
    Ok((name, request.params.subject_alt_names))
}

/// Whether a certificate with these names is for the node of this claim alone. A control plane has the
/// key of the CA: what its API server is called is its own.
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
    if addresses == 1 { Ok(()) } else { Err(Refusal::Address) }
}

#[cfg(test)]
mod tests;
