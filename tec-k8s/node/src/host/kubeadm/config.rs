//! Input of kubeadm: documents of `kubeadm.k8s.io/v1beta4`. They are JSON, which is YAML.
//!
//! Unlike in older peers (Constellation), `registerWithTaints` has no taints. The kubelet sets the taint of a
//! cloud provider by itself, and without a provider nobody would remove it. The taint of a network plugin is
//! up to whoever deploys the plugin.

use std::path::Path;

use crate::init::KubeProxy;
use crate::metadata::Instance;
use crate::state::Role;
use crate::ticket::JoinTicket;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

use super::{ClusterDns, KubeadmPaths, KubeadmSettings};

/// Version of kubeadm's own kinds (kubeadm Configuration v1beta4).
const KUBEADM: &str = "kubeadm.k8s.io/v1beta4";
/// Version of the kubelet's kind (kubelet Configuration v1beta1).
const KUBELET: &str = "kubelet.config.k8s.io/v1beta1";
/// Port of the API server.
pub(super) const API_PORT: u16 = 6443;
/// Audit log inside the API server's pod, and on the host.
const AUDIT_LOG: &str = "/var/log/kubernetes/audit/audit.log";
const AUDIT_LOG_DIRECTORY: &str = "/var/log/kubernetes/audit";
/// kubeadm mounts this directory into the controller manager's pod and creates it. The default is below /usr,
/// which measured images mount read-only.
const VOLUME_PLUGINS: &str = "/opt/libexec/kubernetes/kubelet-plugins/volume/exec/";
/// Authenticated TLS 1.2 ciphers.
const AEAD_CIPHERS: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// Requests for events and leases are frequent and change nothing relevant to an audit; bodies are never
/// logged, since some contain secrets.
const AUDIT_POLICY: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy",
 "omitStages": ["RequestReceived"],
 "rules": [
  {"level": "None", "resources": [
   {"group": "", "resources": ["events"]},
   {"group": "events.k8s.io", "resources": ["events"]},
   {"group": "coordination.k8s.io", "resources": ["leases"]}]},
  {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version"]},
  {"level": "Metadata"}]}
"#;

pub(super) fn audit_policy() -> &'static str {
    AUDIT_POLICY
}

fn arguments<const N: usize>(all: [(&str, String); N]) -> Vec<Value> {
    all.into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect()
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn registration(settings: &KubeadmSettings, this: &Instance) -> Value {
    json!({
        "name": this.name.as_str(),
        "criSocket": settings.cri_socket,
        "ignorePreflightErrors": settings.ignored_preflight_errors,
        "kubeletExtraArgs": arguments([
            ("cloud-provider", settings.cloud_provider.clone()),
            ("node-ip", this.address.to_string()),
            ("provider-id", this.provider_id.clone()),
        ]),
    })
}

/// `host:port`, with the brackets that an IPv6 address needs.
pub(super) fn endpoint(host: &str) -> String {
    if host.contains(':') { format!("[{host}]:{API_PORT}") } else { format!("{host}:{API_PORT}") }
}

fn api_server(paths: &KubeadmPaths, settings: &KubeadmSettings, this: &Instance) -> Value {
    let policy = text(&paths.audit_policy());
    let mut names = vec!["127.0.0.1".to_owned(), this.address.to_string()];
    names.extend(settings.certificate_names.iter().cloned());
    json!({
        "certSANs": names,
        "extraArgs": arguments([
            ("audit-log-maxage", "30".to_owned()),
            ("audit-log-maxbackup", "10".to_owned()),
            ("audit-log-maxsize", "100".to_owned()),
            ("audit-log-path", AUDIT_LOG.to_owned()),
            ("audit-policy-file", policy.clone()),
            ("kubelet-certificate-authority", text(&paths.pki().join("ca.crt"))),
            ("profiling", "false".to_owned()),
        ]),
        "extraVolumes": [
            {"name": "audit-policy", "hostPath": policy, "mountPath": policy,
             "readOnly": true, "pathType": "File"},
            {"name": "audit-log", "hostPath": AUDIT_LOG_DIRECTORY,
             "mountPath": AUDIT_LOG_DIRECTORY, "pathType": "DirectoryOrCreate"},
        ],
    })
}

/// If there is a pod subnet, the controller manager gives each node a part of it.
fn networking(settings: &KubeadmSettings) -> Value {
    match settings.pod_subnet.as_str() {
        "" => json!({"serviceSubnet": settings.service_subnet}),
        pods => json!({"serviceSubnet": settings.service_subnet, "podSubnet": pods}),
    }
}

fn cluster(
    version: &str,
    paths: &KubeadmPaths,
    settings: &KubeadmSettings,
    this: &Instance,
) -> Value {
    let mut cluster = json!({
        "apiVersion": KUBEADM,
        "kind": "ClusterConfiguration",
        "clusterName": settings.cluster_name,
        "kubernetesVersion": version,
        "certificatesDir": text(&paths.pki()),
        "controlPlaneEndpoint": endpoint(&settings.api_server),
        "apiServer": api_server(paths, settings, this),
        "controllerManager": {"extraArgs": arguments([
            ("cloud-provider", settings.cloud_provider.clone()),
            ("configure-cloud-routes", "false".to_owned()),
            ("flex-volume-plugin-dir", VOLUME_PLUGINS.to_owned()),
            ("profiling", "false".to_owned()),
            ("terminated-pod-gc-threshold", "1000".to_owned()),
        ])},
        "scheduler": {"extraArgs": arguments([("profiling", "false".to_owned())])},
        "networking": networking(settings),
    });
    if let (Some(etcd), Some(object)) = (&settings.external_etcd, cluster.as_object_mut()) {
        let mut external = json!({"endpoints": etcd.endpoints});
        if let (Some(tls), Some(external)) = (&etcd.tls, external.as_object_mut()) {
            external.insert("caFile".to_owned(), text(&tls.ca).into());
            external.insert("certFile".to_owned(), text(&tls.certificate).into());
            external.insert("keyFile".to_owned(), text(&tls.key).into());
        }
        object.insert("etcd".to_owned(), json!({"external": external}));
    }
    cluster
}

/// The kubelet requests each serving certificate from the cluster, except the first, which its node provides.
/// The join service approves the requests.
fn kubelet() -> Value {
    json!({
        "apiVersion": KUBELET,
        "kind": "KubeletConfiguration",
        "protectKernelDefaults": true,
        "volumePluginDir": VOLUME_PLUGINS,
        "serverTLSBootstrap": true,
        "tlsCipherSuites": AEAD_CIPHERS,
    })
}

fn documents(all: &[Value]) -> String {
    let all: Vec<String> = all.iter().map(Value::to_string).collect();
    all.join("\n---\n") + "\n"
}

/// The documents of `kubeadm init`.
pub(super) fn init(
    version: &str,
    paths: &KubeadmPaths,
    settings: &KubeadmSettings,
    this: &Instance,
) -> String {
    let init = json!({
        "apiVersion": KUBEADM,
        "kind": "InitConfiguration",
        "localAPIEndpoint": {"advertiseAddress": this.address.to_string(), "bindPort": API_PORT},
        "nodeRegistration": registration(settings, this),
    });
    let ours = documents(&[init, cluster(version, paths, settings, this), kubelet()]);
    format!("{ours}---\n{}\n", settings.kube_proxy.trim_end())
}

/// The phases that `kubeadm init` skips: preflight and certificates, which have already run, and the add-ons
/// that the admin replaces.
///
/// # Security
/// The phase `bootstrap-token` would bind the holders of bootstrap tokens to the automatic approval of any
/// node's certificate.
pub(super) fn skipped(proxy: KubeProxy, dns: ClusterDns) -> String {
    let mut phases = vec!["preflight", "certs", "bootstrap-token", "show-join-command"];
    if dns == ClusterDns::None {
        phases.push("addon/coredns");
    }
    if proxy == KubeProxy::Replaced {
        phases.push("addon/kube-proxy");
    }
    phases.join(",")
}

/// What kubeadm does with the configuration.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    /// Checks the node, before anything is changed.
    Preflight,
    /// Joins; the node was checked before.
    Join,
}

/// A placeholder for the certificate key. With it, kubeadm's preflight does not look for the files of a
/// control plane, which are written only after the lock.
const NO_CERTIFICATE_KEY: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The kubeconfig with which kubeadm, and then the kubelet, reaches the API server: as this node, with its
/// own certificate only. It contains the key.
pub(super) fn discovery(ticket: &JoinTicket, ca: &[u8], key: &SecretBytes) -> SecretBytes {
    let key = Zeroizing::new(STANDARD.encode(key.expose("kubeadm reads it")));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {
            "server": format!("https://{}", ticket.api_server),
            "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "users": [{"name": "node", "user": {
            "client-certificate-data": STANDARD.encode(&ticket.kubelet_certificate),
            "client-key-data": key.as_str(),
        }}],
        "contexts": [{"name": "join", "context": {"cluster": "cluster", "user": "node"}}],
        "current-context": "join",
    });
    SecretBytes::new(config.to_string().into_bytes())
}

/// The document for `kubeadm join`, with the file from [`discovery`].
pub(super) fn join(
    discovery: &Path,
    attempt: Attempt,
    settings: &KubeadmSettings,
    this: &Instance,
) -> String {
    let mut join = json!({
        "apiVersion": KUBEADM,
        "kind": "JoinConfiguration",
        "discovery": {"file": {"kubeConfigPath": text(discovery)}},
        "nodeRegistration": registration(settings, this),
    });
    let mut skipped = match attempt {
        Attempt::Preflight => Vec::new(),
        Attempt::Join => vec!["preflight"],
    };
    if let (Role::ControlPlane, Some(object)) = (this.role, join.as_object_mut()) {
        let address = this.address.to_string();
        let local = json!({"advertiseAddress": address, "bindPort": API_PORT});
        let plane = match attempt {
            Attempt::Preflight => {
                json!({"localAPIEndpoint": local, "certificateKey": NO_CERTIFICATE_KEY})
            }
            Attempt::Join => json!({"localAPIEndpoint": local}),
        };
        object.insert("controlPlane".to_owned(), plane);
        // The ticket contained the certificates.
        skipped.push("control-plane-prepare/download-certs");
    }
    if let Some(object) = join.as_object_mut() {
        object.insert("skipPhases".to_owned(), json!(skipped));
    }
    documents(&[join])
}

#[cfg(test)]
mod tests {
    use crate::derive::{MeasurementSalt, MeasurementSecret};
    use crate::ticket::CaPin;
    use tec_core::digest::Sha256Digest;
    use tec_core::secret::SecretArray;

    use super::*;

    fn instance(role: Role) -> Instance {
        Instance {
            name: "node-1".parse().unwrap(),
            role,
            address: [10, 0, 0, 1].into(),
            provider_id: String::new(),
        }
    }

    fn parsed(text: &str) -> Vec<Value> {
        let parts = text.split("\n---\n");
        parts.map(|part| serde_json::from_str(part).unwrap()).collect()
    }

    #[test]
    fn init_has_the_values_of_constellation() {
        let settings = KubeadmSettings::new("api.example.org");
        let text = init("v1.34.3", &KubeadmPaths::host(), &settings, &instance(Role::ControlPlane));
        let [init, cluster, kubelet, proxy] = &parsed(&text)[..] else {
            panic!("{text}");
        };
        assert_eq!(init["nodeRegistration"]["name"], "node-1");
        assert_eq!(cluster["controlPlaneEndpoint"], "api.example.org:6443");
        assert_eq!(cluster["certificatesDir"], "/etc/kubernetes/pki");
        let arguments = cluster["apiServer"]["extraArgs"].as_array().unwrap();
        let ca = json!({"name": "kubelet-certificate-authority",
                        "value": "/etc/kubernetes/pki/ca.crt"});
        assert!(arguments.contains(&ca));
        let arguments = cluster["controllerManager"]["extraArgs"].as_array().unwrap();
        let plugins = "/opt/libexec/kubernetes/kubelet-plugins/volume/exec/";
        for (name, value) in [
            ("configure-cloud-routes", "false"),
            ("flex-volume-plugin-dir", plugins),
            ("profiling", "false"),
            ("terminated-pod-gc-threshold", "1000"),
        ] {
            let argument = json!({"name": name, "value": value});
            assert!(arguments.contains(&argument), "{name}");
        }
        assert_eq!(kubelet["volumePluginDir"], plugins);
        // Without a cloud nobody would remove what a provider must remove.
        assert!(!text.contains("cloud-provider"), "{text}");
        assert_eq!(cluster.get("etcd"), None);
        assert_eq!(kubelet["protectKernelDefaults"], true);
        assert_eq!(proxy["mode"], "nftables");
    }

    #[test]
    fn pods_have_a_subnet_unless_the_network_plugin_has_its_own() {
        let mut settings = KubeadmSettings::new("api.example.org");
        let this = instance(Role::ControlPlane);
        let networking = |settings: &KubeadmSettings| {
            let all = parsed(&init("v1.34.3", &KubeadmPaths::host(), settings, &this));
            all[1]["networking"].clone()
        };
        assert_eq!(networking(&settings)["podSubnet"], "10.244.0.0/16");
        settings.pod_subnet.clear();
        assert_eq!(networking(&settings).get("podSubnet"), None);
    }

    #[test]
    fn kubelets_get_their_serving_certificates_from_the_cluster() {
        // With a file, the kubelet would serve that one forever, past its expiration.
        let kubelet = kubelet();
        assert_eq!(kubelet["serverTLSBootstrap"], true);
        assert_eq!(kubelet.get("tlsCertFile"), None);
    }

    #[test]
    fn a_provider_of_clouds_is_named_to_kubelet_and_controller_manager() {
        let mut settings = KubeadmSettings::new("api.example.org");
        settings.cloud_provider = "external".to_owned();
        let text = init("v1.34.3", &KubeadmPaths::host(), &settings, &instance(Role::ControlPlane));
        let all = parsed(&text);
        let named = json!({"name": "cloud-provider", "value": "external"});
        for arguments in [
            &all[0]["nodeRegistration"]["kubeletExtraArgs"],
            &all[1]["controllerManager"]["extraArgs"],
        ] {
            assert!(arguments.as_array().unwrap().contains(&named), "{text}");
        }
    }

    fn ticket() -> JoinTicket {
        JoinTicket {
            state_disk_key: SecretArray::new([1; 32]),
            measurement_salt: MeasurementSalt::new([2; 32]),
            measurement_secret: MeasurementSecret::new([3; 32]),
            kubelet_certificate: "certificate".to_owned(),
            api_server: "10.0.0.1:6443".to_owned(),
            ca_pin: CaPin::new(Sha256Digest::of("ca")),
            files: Vec::new(),
            components: Vec::new(),
            kubernetes_version: "v1.34.3".to_owned(),
        }
    }

    #[test]
    fn only_control_planes_serve_and_every_node_authenticates_by_its_own_certificate_alone() {
        let settings = KubeadmSettings::new("10.0.0.1");
        let file = Path::new("/run/discovery.conf");
        for (role, serves) in [(Role::Worker, false), (Role::ControlPlane, true)] {
            let join = &parsed(&join(file, Attempt::Join, &settings, &instance(role)))[0];
            let by_file = json!({"file": {"kubeConfigPath": "/run/discovery.conf"}});
            assert_eq!(join["discovery"], by_file);
            assert_eq!(join.get("controlPlane").is_some(), serves);
        }
        let key = SecretBytes::new(b"key".to_vec());
        let config = discovery(&ticket(), b"ca", &key);
        assert!(!format!("{config:?}").contains("client-key"));
        let config: Value = serde_json::from_slice(config.expose("test")).unwrap();
        let cluster = &config["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://10.0.0.1:6443");
        assert_eq!(cluster["certificate-authority-data"], STANDARD.encode("ca"));
        let user = json!({
            "client-certificate-data": STANDARD.encode("certificate"),
            "client-key-data": STANDARD.encode("key"),
        });
        assert_eq!(config["users"][0]["user"], user);
    }

    #[test]
    fn no_cluster_approves_certificates_for_bootstrap_tokens() {
        for proxy in [KubeProxy::Kept, KubeProxy::Replaced] {
            let phases = skipped(proxy, ClusterDns::CoreDns);
            assert!(phases.split(',').any(|phase| phase == "bootstrap-token"));
        }
    }

    #[test]
    fn add_ons_run_unless_the_admin_replaces_them() {
        let add_ons = |proxy, dns| {
            let phases = skipped(proxy, dns);
            let all = phases.split(',').filter_map(|phase| phase.strip_prefix("addon/"));
            all.map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(add_ons(KubeProxy::Kept, ClusterDns::CoreDns).is_empty());
        assert_eq!(add_ons(KubeProxy::Kept, ClusterDns::None), ["coredns"]);
        assert_eq!(add_ons(KubeProxy::Replaced, ClusterDns::CoreDns), ["kube-proxy"]);
    }

    /// kubeadm itself reads what we write; it must be installed.
    #[test]
    fn kubeadm_takes_every_document() {
        let settings = KubeadmSettings::new("api.example.org");
        let paths = KubeadmPaths::host();
        // kubeadm requires the named file to exist.
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut all = Vec::new();
        for role in [Role::Worker, Role::ControlPlane] {
            let this = instance(role);
            all.push(init("v1.34.3", &paths, &settings, &this).into_bytes());
            for attempt in [Attempt::Preflight, Attempt::Join] {
                all.push(join(file.path(), attempt, &settings, &this).into_bytes());
            }
        }
        for document in all {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &document).unwrap();
            let mut kubeadm = std::process::Command::new("kubeadm");
            let output = kubeadm.args(["config", "validate", "--config"]).arg(file.path()).output();
            let output = output.expect("kubeadm is missing; run `cargo xtask tools`");
            let text = String::from_utf8_lossy(&document).into_owned();
            assert!(output.status.success(), "{output:?}: {text}");
        }
    }

    #[test]
    fn an_address_of_ipv6_gets_its_brackets() {
        assert_eq!(endpoint("fd00::1"), "[fd00::1]:6443");
    }

    #[test]
    fn the_audit_policy_logs_no_bodies() {
        let policy: Value = serde_json::from_str(audit_policy()).unwrap();
        let rules = policy["rules"].as_array().unwrap();
        let levels: Vec<_> = rules.iter().map(|rule| rule["level"].clone()).collect();
        assert_eq!(levels, ["None", "None", "Metadata"]);
    }
}
