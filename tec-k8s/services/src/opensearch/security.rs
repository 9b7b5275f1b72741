//! What the security plugin reads: users, roles, and their mapping.

use serde_json::{Value, json};

use super::{Hashes, pretty};

/// Version of the configuration's schema, in each file.
const SCHEMA: u32 = 2;

/// All ten files of the plugin, by the stem of their name.
pub(super) fn files(hashes: &Hashes) -> [(&'static str, String); 10] {
    [
        file("config", "config", &authentication()),
        file("internal_users", "internalusers", &users(hashes)),
        file("roles", "roles", &roles()),
        file("roles_mapping", "rolesmapping", &mapping()),
        file("action_groups", "actiongroups", &json!({})),
        file("tenants", "tenants", &json!({})),
        file("nodes_dn", "nodesdn", &json!({})),
        file("audit", "audit", &audit()),
        file("allowlist", "allowlist", &json!({"config": {"enabled": false, "requests": {}}})),
        file("whitelist", "whitelist", &json!({"config": {"enabled": false, "requests": {}}})),
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

/// Telemetry indices: those of OpenTelemetry, and of the simple schema that OpenSearch uses.
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

/// Path and new content of each role and each mapping (security plugin, API of version 2.19).
pub(super) fn changes() -> Vec<(String, Value)> {
    let of = |kind: &str, all: Value| -> Vec<_> {
        let all = all.as_object().cloned().unwrap_or_default();
        let path = |name: &str| format!("/_plugins/_security/api/{kind}/{name}");
        all.into_iter().map(|(name, content)| (path(&name), content)).collect()
    };
    [of("roles", roles()), of("rolesmapping", mapping())].concat()
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

    #[test]
    fn the_viewer_may_read_and_the_collector_write_and_neither_both() {
        let roles = roles();
        let actions =
            |role: &str| roles[role]["index_permissions"][0]["allowed_actions"].to_string();
        assert!(!actions("telemetry_viewer").contains("write"));
        assert!(!actions("telemetry_writer").contains("read"));
    }
}
