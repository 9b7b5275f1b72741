//! The files of OpenSearch's security plugin, and `opensearch.yml`.
//!
//! *What it is*: all ten types, since with fewer the plugin never becomes ready; users with hashes
//! only; three roles: everything, write telemetry, read telemetry. Written as JSON, which is YAML.
//!
//! *What it is not*: a way to change users of a running cluster. The plugin reads these files only
//! when its index is first made; after that, passwords change through its API.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::json;

use crate::secret::SecretArray;
use crate::secret::SecretBytes;

/// Cost of bcrypt: what OpenSearch's own tools use.
pub const BCRYPT_COST: u32 = 12;
/// bcrypt looks at no more of a password, in bytes.
const BCRYPT_MAX: usize = 72;
/// Version of the configuration's schema, in each file.
const SCHEMA: u32 = 2;
/// Distinguished name of the certificate that may do everything.
pub const ADMIN_DN: &str = "CN=opensearch-admin";

/// A password that is not hashed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HashError {
    /// Everything after it would count for nothing.
    #[error("a password of {0} bytes is too long for bcrypt")]
    TooLong(usize),
    /// Anybody could come in.
    #[error("a password must not be empty")]
    Empty,
    /// bcrypt itself refused.
    #[error("bcrypt refused the password")]
    Bcrypt,
}

/// Hashes a password. `cost` is the logarithm of the work; see [`BCRYPT_COST`].
///
/// # Errors
/// [`HashError`].
pub fn hash(
    password: &SecretBytes,
    salt: &SecretArray<16>,
    cost: u32,
) -> Result<String, HashError> {
    match password.len() {
        0 => return Err(HashError::Empty),
        length if length > BCRYPT_MAX => return Err(HashError::TooLong(length)),
        _ => {}
    }
    let parts = bcrypt::hash_with_salt(
        password.expose("to hash it for OpenSearch"),
        cost,
        *salt.expose("to hash a password"),
    );
    parts
        .map(|parts| parts.format_for_version(bcrypt::Version::TwoB))
        .map_err(|_| HashError::Bcrypt)
}

/// Hashes of the passwords of the three users.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "there are three users")]
pub struct Hashes {
    /// Everything but the security configuration's reserved parts.
    pub admin: String,
    /// Writes telemetry, and reads nothing.
    pub telemetry: String,
    /// Reads telemetry, and writes nothing.
    pub viewer: String,
}

/// What a node needs besides.
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "every part is the caller's decision"
)]
pub struct Node {
    /// Name of the cluster.
    pub cluster: String,
    /// Directory of data.
    pub data: String,
    /// Directory of logs.
    pub logs: String,
    /// Address that it binds.
    pub host: String,
    /// Port of HTTP.
    pub http_port: u16,
    /// Port of the nodes among themselves.
    pub transport_port: u16,
    /// Distinguished names of nodes.
    pub nodes_dn: Vec<String>,
}

/// Every file below the configuration directory, by its path. None of them holds a password.
pub fn files(node: &Node, hashes: &Hashes) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> = security(hashes)
        .into_iter()
        .map(|(name, text)| (format!("opensearch-security/{name}.yml"), text))
        .collect();
    files.insert("opensearch.yml".to_owned(), pretty(&settings(node)));
    files
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn settings(node: &Node) -> Value {
    json!({
        "cluster.name": node.cluster, "discovery.type": "single-node",
        "path.data": node.data, "path.logs": node.logs,
        "network.host": node.host, "http.port": node.http_port,
        "transport.port": node.transport_port,
        "plugins.security.ssl.transport.pemcert_filepath": "certs/tls.crt",
        "plugins.security.ssl.transport.pemkey_filepath": "certs/tls.key",
        "plugins.security.ssl.transport.pemtrustedcas_filepath": "certs/ca.crt",
        "plugins.security.ssl.transport.enforce_hostname_verification": false,
        "plugins.security.ssl.http.enabled": true,
        "plugins.security.ssl.http.pemcert_filepath": "certs/tls.crt",
        "plugins.security.ssl.http.pemkey_filepath": "certs/tls.key",
        "plugins.security.ssl.http.pemtrustedcas_filepath": "certs/ca.crt",
        "plugins.security.ssl.http.clientauth_mode": "OPTIONAL",
        "plugins.security.ssl_cert_reload_enabled": true,
        "plugins.security.authcz.admin_dn": [ADMIN_DN],
        "plugins.security.nodes_dn": node.nodes_dn,
        "plugins.security.restapi.roles_enabled": ["all_access"],
        "plugins.security.allow_default_init_securityindex": true,
    })
}

fn security(hashes: &Hashes) -> [(&'static str, String); 10] {
    [
        file("config", "config", &authentication()),
        file("internal_users", "internalusers", &users(hashes)),
        file("roles", "roles", &roles()),
        file("roles_mapping", "rolesmapping", &mapping()),
        file("action_groups", "actiongroups", &json!({})),
        file("tenants", "tenants", &json!({})),
        file("nodes_dn", "nodesdn", &json!({})),
        file("audit", "audit", &audit()),
        file(
            "allowlist",
            "allowlist",
            &json!({"config": {"enabled": false, "requests": {}}}),
        ),
        file(
            "whitelist",
            "whitelist",
            &json!({"config": {"enabled": false, "requests": {}}}),
        ),
    ]
}

fn file(name: &'static str, kind: &str, content: &Value) -> (&'static str, String) {
    let mut whole = json!({"_meta": {"type": kind, "config_version": SCHEMA}});
    if let (Some(whole), Some(content)) = (whole.as_object_mut(), content.as_object()) {
        whole.extend(content.clone());
    }
    (name, pretty(&whole))
}

fn authentication() -> Value {
    json!({"config": {"dynamic": {
        "http": {"anonymous_auth_enabled": false},
        "authc": {"basic_internal_auth_domain": {
            "http_enabled": true, "transport_enabled": true, "order": 0,
            "http_authenticator": {"type": "basic", "challenge": true},
            "authentication_backend": {"type": "internal"},
        }},
    }}})
}

fn users(hashes: &Hashes) -> Value {
    let user =
        |hash: &str, role: &str| json!({"hash": hash, "reserved": true, "backend_roles": [role]});
    json!({
        "admin": user(&hashes.admin, "admin"),
        "telemetry": user(&hashes.telemetry, "telemetry"),
        "viewer": user(&hashes.viewer, "viewer"),
    })
}

/// Indices of telemetry: those of OpenTelemetry, and of the simple schema that OpenSearch uses.
const TELEMETRY: [&str; 2] = ["otel-*", "ss4o_*"];

fn roles() -> Value {
    json!({
        "telemetry_writer": {
            "reserved": true,
            "cluster_permissions": ["cluster:monitor/main", "indices:data/write/bulk"],
            "index_permissions": [{
                "index_patterns": TELEMETRY,
                "allowed_actions": [
                    "indices:data/write/index", "indices:data/write/bulk*",
                    "indices:admin/create", "indices:admin/mapping/put",
                    "indices:admin/mapping/auto_put",
                ],
            }],
        },
        "telemetry_viewer": {
            "reserved": true,
            "cluster_permissions": ["cluster_composite_ops_ro"],
            "index_permissions": [{
                "index_patterns": TELEMETRY,
                "allowed_actions": [
                    "read", "indices:admin/mappings/get", "indices:admin/get",
                ],
            }],
        },
    })
}

fn mapping() -> Value {
    let to = |role: &str| json!({"reserved": true, "backend_roles": [role]});
    json!({
        "all_access": to("admin"),
        "telemetry_writer": to("telemetry"),
        "telemetry_viewer": to("viewer"),
    })
}

fn audit() -> Value {
    json!({"config": {
        "enabled": true,
        "audit": {"enable_rest": true, "enable_transport": false, "log_request_body": false},
        "compliance": {"enabled": false},
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written() -> BTreeMap<String, String> {
        let node = Node {
            cluster: "tec".to_owned(),
            data: "/data".to_owned(),
            logs: "/logs".to_owned(),
            host: "127.0.0.1".to_owned(),
            http_port: 9200,
            transport_port: 9300,
            nodes_dn: vec!["CN=opensearch.platform.svc".to_owned()],
        };
        let hash = |text: &str| text.to_owned();
        let hashes = Hashes {
            admin: hash("$2b$12$a"),
            telemetry: hash("$2b$12$t"),
            viewer: hash("$2b$12$v"),
        };
        files(&node, &hashes)
    }

    #[test]
    fn all_ten_types_are_written_since_fewer_never_become_ready() {
        let files = written();
        let types: std::collections::BTreeSet<String> = files
            .iter()
            .filter(|(path, _)| path.starts_with("opensearch-security/"))
            .map(|(_, text)| {
                let file: Value = serde_json::from_str(text).unwrap();
                file["_meta"]["type"].as_str().unwrap().to_owned()
            })
            .collect();
        assert_eq!(types.len(), 10);
        assert_eq!(files, written(), "equal values give equal bytes");
    }

    #[test]
    fn the_viewer_may_read_and_the_collector_write_and_neither_both() {
        let roles = roles();
        let actions =
            |role: &str| roles[role]["index_permissions"][0]["allowed_actions"].to_string();
        assert!(!actions("telemetry_viewer").contains("write"));
        assert!(!actions("telemetry_writer").contains("read"));
    }

    #[test]
    fn a_hash_is_of_the_form_that_opensearch_takes_and_of_the_whole_password() {
        let salt = SecretArray::new([7; 16]);
        let password = SecretBytes::new(b"correct horse".to_vec());
        // The least cost that bcrypt knows, for a quick test.
        let hashed = hash(&password, &salt, 4).unwrap();
        assert!(hashed.starts_with("$2b$04$"), "{hashed}");
        assert_eq!(bcrypt::verify("correct horse", &hashed).ok(), Some(true));
        assert_eq!(bcrypt::verify("correct horsf", &hashed).ok(), Some(false));
        let long = SecretBytes::new(vec![b'x'; 73]);
        assert_eq!(hash(&long, &salt, 4), Err(HashError::TooLong(73)));
        assert_eq!(
            hash(&SecretBytes::new(vec![]), &salt, 4),
            Err(HashError::Empty)
        );
    }
}
