//! The desired state of the vault: what the root token writes once, and what the controller
//! maintains.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::object::{Make, Object, ROOT_LIFE, intermediate_issuer, root_issuer};
use super::{MOUNTS, Platform, Record, Request, policy};
use crate::caller::{Account, Role};

/// Maximum lease of the engines: ten years in seconds, the lifetime of the root CA.
const MAX_LEASE: u64 = 10 * 365 * 24 * 3600;
/// Lifetime of a caller's token, in seconds: long enough for one call.
const CALLER_TOKEN: u64 = 300;
/// Lifetime of the controller's token, in seconds.
const CONTROLLER_TOKEN: u64 = 3600;
/// Keys that sign for NATS.
pub const NATS_KEYS: [&str; 7] = [
    "operator",
    "operator-sk",
    "account-sys",
    "account-sys-sk",
    "account-app",
    "account-app-sk",
    "account-app-stream-sk",
];
/// Users of OpenSearch that have a password.
pub const OPENSEARCH_USERS: [&str; 3] = ["admin", "telemetry", "viewer"];

/// The Kubernetes auth method; it exists before its accessor is known.
pub(super) fn auth_method() -> Object {
    let mut object = Object::plain(
        "auth method kubernetes",
        "sys/auth/kubernetes",
        json!({"type": "kubernetes"}),
    );
    object.mend = None;
    object
}

/// What only the root token may write: the auth method's configuration, roles and policies.
pub(super) fn root_objects(platform: &Platform, accessor: &str) -> Vec<Object> {
    let mut objects = vec![kubernetes_config(platform)];
    for role in Role::ALL {
        let name = role.as_str();
        objects.push(Object::plain(
            format!("policy {name}"),
            format!("sys/policies/acl/{name}"),
            json!({"policy": policy::text(role, accessor)}),
        ));
        objects.push(Object::plain(
            format!("login role {name}"),
            format!("auth/kubernetes/role/{name}"),
            login_role(platform, role),
        ));
    }
    objects
}

/// Digest that distinguishes versions of [`root_objects`].
pub(super) fn root_digest(platform: &Platform) -> String {
    let mut digest = Sha256::new();
    for object in root_objects(platform, "accessor") {
        digest.update(format!("{}\n{}\n{}\n", object.name, object.look, object.want));
    }
    hex::encode(digest.finalize())
}

fn kubernetes_config(platform: &Platform) -> Object {
    let host = &platform.kubernetes_host;
    let want = match &platform.kubernetes_ca {
        // In a pod, the reviewer's CA and token are reread from the pod's own mount.
        None => json!({"kubernetes_host": host}),
        Some(ca) => json!({"kubernetes_host": host, "kubernetes_ca_cert": ca,
                           "disable_local_ca_jwt": true}),
    };
    Object::plain("auth method's configuration", "auth/kubernetes/config", want)
}

/// Who may log in with a role. The vault cannot express which name belongs to which namespace: see
/// [`Platform::admits`].
fn login_role(platform: &Platform, role: Role) -> Value {
    let (namespaces, names) = match role {
        Role::Component => (platform.component_namespaces.clone(), vec!["*".to_owned()]),
        role => {
            let accounts = platform.accounts(role);
            let namespaces = unique(accounts.iter().map(Account::namespace));
            (namespaces, unique(accounts.iter().map(Account::name)))
        }
    };
    let (kind, life) = match role {
        Role::Controller => ("service", CONTROLLER_TOKEN),
        // Leaves no trace in the storage, and cannot be renewed.
        _ => ("batch", CALLER_TOKEN),
    };
    json!({
        "bound_service_account_names": names,
        "bound_service_account_namespaces": namespaces,
        "audience": platform.audience,
        "token_policies": [role.as_str()],
        "token_no_default_policy": true,
        "token_type": kind,
        "token_ttl": life,
        "token_max_ttl": life,
    })
}

fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names.dedup();
    names
}

/// The engines, which the controller creates first.
pub(super) fn engines() -> Vec<Object> {
    vec![
        engine(MOUNTS.systems, "kv"),
        engine(MOUNTS.environments, "kv"),
        engine(MOUNTS.opensearch, "kv"),
        engine(MOUNTS.pki_root, "pki"),
        engine(MOUNTS.pki_intermediate, "pki"),
        engine(MOUNTS.transit, "transit"),
    ]
}

/// What the controller creates and maintains in the engines: CAs, certificate roles, keys, passwords.
pub(super) fn runtime_objects(
    platform: &Platform,
    accessor: &str,
    authorities: Record,
) -> Vec<Object> {
    let mut objects = Vec::new();
    for generation in authorities.trusted() {
        objects.push(root_authority(generation));
        objects.push(intermediate_authority(generation));
    }
    // After the CA that they name.
    objects.extend(certificate_roles(platform, accessor, authorities.signs));
    objects.extend(NATS_KEYS.map(nats_key));
    objects.extend(OPENSEARCH_USERS.map(password));
    objects
}

fn engine(path: &str, kind: &str) -> Object {
    let mut want = json!({"type": kind, "config": {"max_lease_ttl": MAX_LEASE}});
    let mut body = json!({"type": kind, "config": {"max_lease_ttl": format!("{MAX_LEASE}s")}});
    if let ("kv", Some(want), Some(body)) = (kind, want.as_object_mut(), body.as_object_mut()) {
        want.insert("options".to_owned(), json!({"version": "2"}));
        body.insert("options".to_owned(), json!({"version": "2"}));
    }
    Object {
        name: format!("engine {path}"),
        look: format!("sys/mounts/{path}"),
        want,
        make: Make::Post(format!("sys/mounts/{path}"), body),
        mend: Some((
            format!("sys/mounts/{path}/tune"),
            json!({"max_lease_ttl": format!("{MAX_LEASE}s")}),
        )),
    }
}

/// All generations have the same name: an OpenSearch node does not load a certificate from an issuer with a
/// different one. Their keys tell them apart.
fn root_authority(generation: u32) -> Object {
    let name = root_issuer(generation);
    let body = json!({
        "common_name": "TEC services root", "issuer_name": name, "ttl": ROOT_LIFE,
        "key_type": "ec", "key_bits": 256,
    });
    Object {
        name: format!("root authority {generation}"),
        look: format!("{}/issuer/{name}", MOUNTS.pki_root),
        want: json!({"issuer_name": name}),
        make: Make::Post(format!("{}/root/generate/internal", MOUNTS.pki_root), body),
        mend: None,
    }
}

/// Reads the intermediate CA of a generation, with its chain up to the root.
pub(super) fn read_authority(generation: u32) -> Request {
    let name = intermediate_issuer(generation);
    Request::get(format!("{}/issuer/{name}", MOUNTS.pki_intermediate))
}

fn intermediate_authority(generation: u32) -> Object {
    let name = intermediate_issuer(generation);
    Object {
        name: format!("intermediate authority {generation}"),
        look: format!("{}/issuer/{name}", MOUNTS.pki_intermediate),
        want: json!({"issuer_name": name}),
        make: Make::Intermediate(generation),
        mend: None,
    }
}

fn certificate_roles(platform: &Platform, accessor: &str, generation: u32) -> Vec<Object> {
    let alias = format!("identity.entity.aliases.{accessor}.metadata");
    let own = format!(
        "{{{{{alias}.service_account_name}}}}.{{{{{alias}.service_account_namespace}}}}.svc"
    );
    let hosts = |role| -> Vec<String> {
        let hosts = platform.accounts(role).iter();
        hosts.flat_map(|a| [a.host(), format!("*.{}", a.host())]).collect()
    };
    let server = ["server_flag"].as_slice();
    let both = ["server_flag", "client_flag"].as_slice();
    let client = ["client_flag"].as_slice();
    let issuer = intermediate_issuer(generation);
    let certificate_role = |name, domains: &[String], usages| {
        certificate_role(platform, &issuer, name, domains, usages)
    };
    vec![
        // Also a client: it pushes accounts to NATS.
        certificate_role("controller", &hosts(Role::Controller), both),
        certificate_role("nats", &hosts(Role::Nats), both),
        certificate_role("opensearch", &hosts(Role::OpenSearch), both),
        certificate_role("opensearch-admin", &["opensearch-admin".to_owned()], client),
        certificate_role("component", std::slice::from_ref(&own), both),
        certificate_role("telemetry-collector", &hosts(Role::Collector), server),
        certificate_role("telemetry-client", &[own], client),
    ]
}

fn certificate_role(
    platform: &Platform,
    issuer: &str,
    name: &str,
    domains: &[String],
    usages: &[&str],
) -> Object {
    let life = platform.certificate_life.as_secs();
    let path = format!("{}/roles/{name}", MOUNTS.pki_intermediate);
    let want = json!({
        "issuer_ref": issuer,
        "allowed_domains": domains, "allowed_domains_template": true,
        "allow_bare_domains": true, "allow_subdomains": false, "allow_glob_domains": true,
        // A runtime reaches the broker in its own pod by this name.
        "allow_localhost": true,
        // Only the controller requests these, and only for the addresses of a caller's pod.
        "allow_ip_sans": true,
        // The names are those that the controller requests, whatever the owner of a key would like.
        "use_csr_common_name": false, "use_csr_sans": false,
        "enforce_hostnames": false,
        "server_flag": usages.contains(&"server_flag"),
        "client_flag": usages.contains(&"client_flag"),
        "key_type": "ec", "key_bits": 256, "ttl": life, "max_ttl": life, "no_store": true,
    });
    Object::plain(format!("certificate role {name}"), path, want)
}

fn nats_key(name: &str) -> Object {
    let path = format!("{}/keys/{name}", MOUNTS.transit);
    let want = json!({"type": "ed25519", "exportable": false});
    let mut object = Object::plain(format!("NATS key {name}"), path, want);
    object.mend = None;
    object
}

fn password(user: &str) -> Object {
    let path = format!("{}/data/{user}", MOUNTS.opensearch);
    Object {
        name: format!("password of {user}"),
        look: path.clone(),
        want: json!({}),
        make: Make::Password(path),
        mend: None,
    }
}
