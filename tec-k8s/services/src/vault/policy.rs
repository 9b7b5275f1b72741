//! Who may do what in the vault, as the text of its policies.

use super::{MOUNTS, snapshot};
use crate::caller::Role;

/// The policy of a role. `accessor` names the Kubernetes auth method, so that a policy can refer to
/// the caller's own names.
///
/// # Security
/// No role may write policies or roles: that would be root in all but name. They are written with
/// the root token, which is revoked afterwards. The controller may read them, to detect drift.
pub(super) fn text(role: Role, accessor: &str) -> String {
    let lines = match role {
        Role::Controller => controller(),
        Role::Nats => issue("nats"),
        Role::OpenSearch => {
            format!(
                "{}{}{}",
                issue("opensearch"),
                issue("opensearch-admin"),
                rule(&format!("{}/data/*", MOUNTS.opensearch), "read"),
            )
        }
        Role::Component => component(accessor),
        Role::Collector => format!("{}{}", issue("telemetry-collector"), password("telemetry")),
        Role::Tracer => issue("telemetry-client"),
        // No certificate: with one it could send what it should only read.
        Role::Viewer => password("viewer"),
        // The login alone proves its identity.
        Role::Peer => rule("auth/token/lookup-self", "read"),
        // All secrets, but encrypted; the controller itself may not read them this way.
        Role::Snapshot => rule(snapshot::PATH, "read"),
    };
    format!("# Written by services-bootstrap; changes are undone.\n{lines}")
}

fn component(accessor: &str) -> String {
    let own =
        format!("{{{{identity.entity.aliases.{accessor}.metadata.service_account_namespace}}}}");
    format!(
        "{}{}",
        issue("component"),
        rule(&format!("{}/data/{own}/*", MOUNTS.environments), "read"),
    )
}

fn controller() -> String {
    let (root, intermediate, nats) = (MOUNTS.pki_root, MOUNTS.pki_intermediate, MOUNTS.transit);
    let rules = [
        ("sys/mounts".to_owned(), "read"),
        ("sys/mounts/kubefox/*".to_owned(), "create, read, update"),
        ("sys/auth".to_owned(), "read"),
        ("sys/policies/acl/*".to_owned(), "read"),
        ("auth/kubernetes/config".to_owned(), "read"),
        ("auth/kubernetes/role/*".to_owned(), "read"),
        // Another key needs the current one: this alone cannot replace it.
        ("sys/rotate/root/init".to_owned(), "create, read, update, delete"),
        ("sys/rotate/root/update".to_owned(), "create, update"),
        ("sys/rotate/root/verify".to_owned(), "create, read, update"),
        (format!("{root}/issuer/*"), "read"),
        (format!("{root}/root/generate/internal"), "create, update"),
        (format!("{root}/issuer/+/sign-intermediate"), "create, update"),
        (format!("{intermediate}/*"), "create, read, update, list"),
        (format!("{}/*", MOUNTS.systems), "create, read, update, list"),
        (format!("{}/*", MOUNTS.environments), "create, read, update, list"),
        (format!("{}/data/*", MOUNTS.opensearch), "create, read, update"),
        // One segment only: `keys/<name>/config` could make a key exportable.
        (format!("{nats}/keys/+"), "create, read, update"),
        (format!("{nats}/keys/+/rotate"), "create, update"),
        (format!("{nats}/sign/+"), "create, update"),
        (format!("{nats}/random/+"), "create, update"),
    ];
    rules.iter().map(|(path, may)| rule(path, may)).collect()
}

fn password(user: &str) -> String {
    rule(&format!("{}/data/{user}", MOUNTS.opensearch), "read")
}

/// A certificate with its key, or one for a key that its owner keeps.
fn issue(role: &str) -> String {
    let rule = |verb| {
        let path = format!("{}/{verb}/{role}", MOUNTS.pki_intermediate);
        rule(&path, "create, update")
    };
    ["issue", "sign"].map(rule).concat()
}

fn rule(path: &str, capabilities: &str) -> String {
    let list: Vec<String> =
        capabilities.split(", ").map(|capability| format!("\"{capability}\"")).collect();
    format!("path \"{path}\" {{ capabilities = [{}] }}\n", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_role_may_write_policies_roles_or_make_a_key_exportable() {
        for role in Role::ALL {
            let text = text(role, "auth_kubernetes_1");
            for line in text.lines().filter(|line| line.starts_with("path")) {
                let guarded = line.contains("\"sys/policies") || line.contains("\"auth/");
                assert!(!guarded || line.ends_with("[\"read\"] }"), "{role:?}: {line}");
                assert!(!line.contains("sudo") && !line.contains("transit-nats/keys/*"));
            }
        }
    }

    #[test]
    fn a_login_for_snapshots_may_take_one_and_nothing_else() {
        let text = text(Role::Snapshot, "auth_kubernetes_1");
        let rules: Vec<_> = text.lines().filter(|line| line.starts_with("path")).collect();
        assert_eq!(rules, [r#"path "sys/storage/raft/snapshot" { capabilities = ["read"] }"#],);
        for role in Role::ALL.into_iter().filter(|role| *role != Role::Snapshot) {
            assert!(!super::text(role, "auth_kubernetes_1").contains("sys/storage"), "{role:?}");
        }
    }

    #[test]
    fn a_component_reads_the_environment_of_its_own_namespace_only() {
        let text = text(Role::Component, "auth_kubernetes_1");
        assert!(text.contains(
            "data/{{identity.entity.aliases.auth_kubernetes_1.metadata.service_account_namespace}}/*"
        ));
        assert!(!text.contains("transit"));
    }
}
