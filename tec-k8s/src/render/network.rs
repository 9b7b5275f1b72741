//! Network policies: which pods may connect to which.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
    NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::meta::{label_selector, selector};
use super::name::{Component, METRICS_PORT, METRICS_PORT_NAME};

/// DNS; clusters such as OpenShift serve it on 5353 behind the Service.
const DNS_PORTS: [u16; 2] = [53, 5353];
/// Ports of the API server's Service, its endpoints, and registries.
const HTTPS_PORTS: [u16; 2] = [443, 6443];

/// Destinations that pods of a component may reach.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Names and HTTPS: the API server cannot be selected by a label.
    Api,
    /// Any other port as well: external key brokers and registries have their own ports.
    Anything,
}

/// Allows traffic from anywhere to `public`, and from pods of the cluster to the metrics; no other incoming
/// traffic.
pub(super) fn policy(
    metadata: ObjectMeta,
    component: Component,
    public: Option<u16>,
    reach: Reach,
) -> NetworkPolicy {
    let from_cluster = NetworkPolicyIngressRule {
        from: Some(vec![any_pod()]),
        ports: Some(vec![tcp(METRICS_PORT)]),
    };
    let from_nodes =
        public.map(|port| NetworkPolicyIngressRule { from: None, ports: Some(vec![tcp(port)]) });
    NetworkPolicy {
        metadata,
        spec: Some(NetworkPolicySpec {
            egress: Some(egress(reach)),
            ingress: Some(from_nodes.into_iter().chain([from_cluster]).collect()),
            pod_selector: Some(label_selector(component)),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
        }),
    }
}

fn egress(reach: Reach) -> Vec<NetworkPolicyEgressRule> {
    if reach == Reach::Anything {
        return vec![NetworkPolicyEgressRule::default()];
    }
    let dns = DNS_PORTS.iter().flat_map(|port| [udp(*port), tcp(*port)]);
    vec![NetworkPolicyEgressRule { ports: Some(dns.collect()), to: None }, to_ports(&HTTPS_PORTS)]
}

/// Allows traffic to these TCP ports anywhere.
pub(super) fn to_ports(ports: &[u16]) -> NetworkPolicyEgressRule {
    let ports = ports.iter().map(|port| tcp(*port)).collect();
    NetworkPolicyEgressRule { ports: Some(ports), to: None }
}

fn any_pod() -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector::default()),
        ..NetworkPolicyPeer::default()
    }
}

fn tcp(port: u16) -> NetworkPolicyPort {
    policy_port("TCP", port)
}

fn udp(port: u16) -> NetworkPolicyPort {
    policy_port("UDP", port)
}

fn policy_port(protocol: &str, port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort {
        port: Some(IntOrString::Int(port.into())),
        protocol: Some(protocol.to_owned()),
        ..NetworkPolicyPort::default()
    }
}

/// The Service that nodes reach, possibly through the admin's own route or load balancer.
pub(super) fn service(
    metadata: ObjectMeta,
    component: Component,
    port_name: &str,
    port: i32,
    target: u16,
) -> Service {
    let public = service_port(port_name, port, IntOrString::Int(target.into()));
    Service {
        metadata,
        spec: Some(ServiceSpec {
            ports: Some(vec![public]),
            selector: Some(selector(component)),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

/// A separate Service for Prometheus, so that metrics never become public along with the other port.
pub(super) fn metrics_service(metadata: ObjectMeta, component: Component) -> Service {
    let target = IntOrString::String(METRICS_PORT_NAME.to_owned());
    Service {
        metadata,
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            ports: Some(vec![service_port(METRICS_PORT_NAME, METRICS_PORT.into(), target)]),
            selector: Some(selector(component)),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

fn service_port(name: &str, port: i32, target: IntOrString) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port,
        protocol: Some("TCP".to_owned()),
        target_port: Some(target),
        ..ServicePort::default()
    }
}
