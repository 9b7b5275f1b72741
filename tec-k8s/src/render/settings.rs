//! An admin's settings for the pods and Services that the operator creates, merged into the rendered objects.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Affinity, PodSpec, ResourceRequirements, Service, Toleration};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde::{Deserialize, Serialize};

use super::name::Component;
use super::{KBS_SERVICE, Object, network, pod};

/// Settings for pods and Services; by default there are none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Settings {
    /// Replicas of each registration server.
    pub replicas: Option<u16>,
    /// Log filter of this project's programs, such as `info,kube=debug`.
    pub log: Option<String>,
    /// Labels of the nodes that pods may run on.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that pods tolerate.
    pub tolerations: Vec<Toleration>,
    /// Affinity of pods.
    pub affinity: Option<Affinity>,
    /// Requests and limits by name of the container.
    pub resources: BTreeMap<String, ResourceRequirements>,
    /// Services that nodes reach, by name.
    pub services: BTreeMap<PublicService, ServiceSettings>,
    /// Further TCP ports that pods may connect to, for an API server on a port other than 443 and 6443.
    pub egress_ports: Vec<u16>,
}

/// A Service that nodes reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum PublicService {
    /// The key broker.
    KbsService,
    /// The registration server.
    RegisterServer,
    /// The attestation key server.
    AttestationKeyRegister,
}

impl PublicService {
    const fn name(self) -> &'static str {
        match self {
            Self::KbsService => KBS_SERVICE,
            Self::RegisterServer => Component::RegisterServer.deployment(),
            Self::AttestationKeyRegister => Component::AttestationKeyRegister.deployment(),
        }
    }
}

/// How a Service is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[non_exhaustive]
pub struct ServiceSettings {
    /// Its type (default ClusterIP).
    #[serde(rename = "type")]
    pub kind: ServiceKind,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Whether it preserves the addresses of nodes (default Local, which does).
    pub external_traffic_policy: TrafficPolicy,
}

/// Type of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ServiceKind {
    /// Inside the cluster only.
    #[default]
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    /// On a port of every cluster node.
    NodePort,
    /// Behind a load balancer.
    LoadBalancer,
}

impl ServiceKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// Which pods receive traffic from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TrafficPolicy {
    /// Pods on the cluster node that the traffic reached. They see the address of the client.
    #[default]
    Local,
    /// Any pod. Pods see the address of a cluster node; see `--shared-sources`.
    Cluster,
}

impl FromStr for Settings {
    type Err = serde_json::Error;

    /// Parses JSON; an unknown member is an error.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text)
    }
}

impl Settings {
    /// Merges the settings into an object of a cluster.
    pub(super) fn apply(&self, object: &mut Object) {
        match object {
            Object::Deployment(deployment) => self.apply_to_deployment(deployment),
            Object::Service(service) => self.apply_to_service(service),
            Object::NetworkPolicy(policy) => self.apply_to_policy(policy),
            _ => {}
        }
    }

    fn apply_to_deployment(&self, deployment: &mut Deployment) {
        let servers = [Component::RegisterServer, Component::AttestationKeyRegister];
        let name = deployment.metadata.name.as_deref();
        let is_server = servers.iter().any(|server| name == Some(server.deployment()));
        let Some(spec) = &mut deployment.spec else {
            return;
        };
        if let Some(replicas) = self.replicas.filter(|_| is_server) {
            spec.replicas = Some(replicas.into());
        }
        if let Some(pod) = &mut spec.template.spec {
            self.apply_to_pod(pod);
        }
    }

    /// Merges the settings into a pod of a Deployment or of a Job.
    pub(super) fn apply_to_pod(&self, pod: &mut PodSpec) {
        if !self.node_selector.is_empty() {
            pod.node_selector.get_or_insert_default().extend(self.node_selector.clone());
        }
        if !self.tolerations.is_empty() {
            pod.tolerations.get_or_insert_default().extend(self.tolerations.iter().cloned());
        }
        if self.affinity.is_some() {
            pod.affinity.clone_from(&self.affinity);
        }
        for container in pod.init_containers.iter_mut().flatten().chain(&mut pod.containers) {
            if let Some(resources) = self.resources.get(&container.name) {
                container.resources = Some(resources.clone());
            }
            let variables = container.env.get_or_insert_default();
            if let Some(log) = &self.log
                && variables.iter().any(|variable| variable.name == pod::LOG_FORM)
            {
                variables.push(pod::variable("TEC_LOG", log));
            }
            if variables.is_empty() {
                container.env = None;
            }
        }
    }

    fn apply_to_service(&self, service: &mut Service) {
        let name = service.metadata.name.as_deref();
        let found = self.services.iter().find(|(public, _)| name == Some(public.name()));
        let (Some((_, settings)), Some(spec)) = (found, &mut service.spec) else {
            return;
        };
        spec.type_ = Some(settings.kind.as_str().to_owned());
        if settings.kind != ServiceKind::ClusterIp {
            spec.external_traffic_policy = Some(format!("{:?}", settings.external_traffic_policy));
        }
        if !settings.annotations.is_empty() {
            let annotations = service.metadata.annotations.get_or_insert_default();
            annotations.extend(settings.annotations.clone());
        }
    }

    fn apply_to_policy(&self, policy: &mut NetworkPolicy) {
        if let Some(spec) = &mut policy.spec
            && !self.egress_ports.is_empty()
        {
            spec.egress.get_or_insert_default().push(network::to_ports(&self.egress_ports));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::{BrokerFiles, Deploy, TrusteeFiles, cluster};
    use super::*;
    use crate::api::{TrustedExecutionCluster, TrustedExecutionClusterSpec};

    /// The objects rendered with these settings, by kind and name.
    fn rendered(settings: &Value) -> BTreeMap<String, Value> {
        let mut owner = TrustedExecutionCluster::new("c", TrustedExecutionClusterSpec::default());
        owner.metadata.namespace = Some("n".to_owned());
        owner.metadata.uid = Some("7d9b3a0e-3f6c-4a53-9a66-6f2f0d1f7c10".to_owned());
        let settings = settings.to_string().parse().unwrap();
        let deploy = Deploy { settings, ..Deploy::default() };
        let files = TrusteeFiles::new("a = 1\n", "certificate", "public key");
        let files = BrokerFiles::Trustee(files);
        let objects = cluster(&owner, &deploy, &files).unwrap();
        let named = |object: Object| {
            let name = format!("{} {}", object.kind(), object.name());
            (name, serde_json::to_value(object).unwrap())
        };
        objects.into_iter().map(named).collect()
    }

    #[test]
    fn no_settings_change_nothing() {
        let plain = rendered(&json!({}));
        assert!(plain["Service kbs-service"]["spec"].get("type").is_none());
        assert_eq!(plain["Deployment register-server"]["spec"]["replicas"], 2);
    }

    #[test]
    fn every_pod_gets_what_is_set_and_only_servers_of_many_replicas_get_more() {
        let toleration = json!({"key": "infra", "operator": "Exists"});
        let resources = json!({"limits": {"memory": "1Gi"}});
        let with = rendered(&json!({
            "replicas": 5, "log": "debug", "nodeSelector": {"a": "b"}, "tolerations": [toleration],
            "resources": {"kbs-guard": resources}, "affinity": {"nodeAffinity": {}},
        }));
        for (name, replicas) in
            [("register-server", 5), ("attestation-key-register", 5), ("trustee-deployment", 1)]
        {
            let spec = &with[&format!("Deployment {name}")]["spec"];
            assert_eq!(spec["replicas"], replicas, "{name}");
            let pod = &spec["template"]["spec"];
            assert_eq!(pod["nodeSelector"], json!({"a": "b"}), "{name}");
            assert_eq!(pod["tolerations"], json!([toleration]), "{name}");
            assert_eq!(pod["affinity"], json!({"nodeAffinity": {}}), "{name}");
            let is_ours = |container: &&Value| container["name"] != "kbs";
            for container in pod["containers"].as_array().unwrap().iter().filter(is_ours) {
                let log = json!({"name": "TEC_LOG", "value": "debug"});
                assert!(container["env"].as_array().unwrap().contains(&log), "{container}");
                let is_guard = container["name"] == "kbs-guard";
                assert_eq!(container["resources"] == resources, is_guard);
            }
        }
    }

    #[test]
    fn a_service_that_nodes_reach_keeps_their_addresses_unless_somebody_wants_otherwise() {
        let with = rendered(&json!({
            "egressPorts": [16443],
            "services": {
                "kbs-service": {"type": "LoadBalancer", "annotations": {"x": "y"}},
                "register-server": {"type": "NodePort", "externalTrafficPolicy": "Cluster"},
            },
        }));
        let service = |name: &str| &with[&format!("Service {name}")];
        let kbs = service("kbs-service");
        assert_eq!(kbs["spec"]["type"], "LoadBalancer");
        assert_eq!(kbs["spec"]["externalTrafficPolicy"], "Local");
        assert_eq!(kbs["metadata"]["annotations"]["x"], "y");
        let register = service("register-server");
        assert_eq!(register["spec"]["externalTrafficPolicy"], "Cluster");
        assert!(service("attestation-key-register")["spec"].get("type").is_none());
        assert!(service("register-server-metrics")["spec"].get("type").is_none());
        let policy = &with["NetworkPolicy register-server"]["spec"]["egress"];
        assert!(policy.to_string().contains("16443"), "{policy}");
    }
}
