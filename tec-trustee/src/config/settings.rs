//! What a configuration must contain (Trustee, KBS configuration).

use tec_core::trustee::TrusteeIntent;
use toml::{Table, Value};

use super::lint::storage_name;

/// Dotted path of a key.
pub(super) type Path = &'static [&'static str];

/// Storage back ends that several pods share; they are left as they are.
const SHARED_STORAGE: [&str; 2] = ["Postgres", "Redis"];
/// Requests that the admin role may make: the whole API (Trustee, KBS configuration).
const ADMIN_ENDPOINTS: &str = "^/kbs/.+$";
/// The only admin role.
const ADMIN: &str = "admin";
/// Flags that turn checks off; older versions have another name for it.
const INSECURE: [Path; 2] =
    [&["attestation_token", "insecure_header_jwk"], &["attestation_token", "insecure_key"]];
const SIGNER_KEY: Path = &["attestation_service", "attestation_token_broker", "signer", "key_path"];
const SIGNER_CERT: Path =
    &["attestation_service", "attestation_token_broker", "signer", "cert_path"];
const RVPS: Path = &["attestation_service", "rvps_config", "type"];
/// Keys to set and to remove.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) set: Vec<(Path, Value)>,
    pub(super) remove: Vec<Path>,
    /// The whole table.
    pub(super) admin: Table,
    /// Keys of the plugin `resource`, unless it has text under them.
    pub(super) plugin: Vec<(&'static str, Value)>,
}

impl Settings {
    pub(super) fn of(intent: &TrusteeIntent, current: &Table) -> Self {
        let mut settings = Self {
            set: Vec::new(),
            remove: INSECURE.to_vec(),
            admin: roles(intent),
            plugin: vec![("storage_backend_type", "kvstorage".into())],
        };
        settings.http(intent);
        settings.tokens(intent);
        settings.storage(intent, current);
        settings
    }

    fn set(&mut self, path: Path, value: impl Into<Value>) {
        self.set.push((path, value.into()));
    }

    fn http(&mut self, intent: &TrusteeIntent) {
        self.set(&["http_server", "sockets"], vec![intent.socket.as_str()]);
        if let Some((certificate, private_key)) = &intent.tls {
            self.set(&["http_server", "certificate"], certificate.as_str());
            self.set(&["http_server", "private_key"], private_key.as_str());
            self.remove.push(&["http_server", "insecure_http"]);
        } else {
            self.remove.push(&["http_server", "certificate"]);
            self.remove.push(&["http_server", "private_key"]);
            self.set(&["http_server", "insecure_http"], true);
        }
    }

    fn tokens(&mut self, intent: &TrusteeIntent) {
        let trusted: Vec<&str> = intent.trusted_certs.iter().map(String::as_str).collect();
        self.set(&["attestation_token", "trusted_certs_paths"], trusted);
        self.set(&["attestation_service", "type"], "coco_as_builtin");
        self.set(SIGNER_KEY, intent.token_signer.0.as_str());
        self.set(SIGNER_CERT, intent.token_signer.1.as_str());
        self.set(RVPS, "BuiltIn");
    }

    /// Files in one directory per namespace: the JSON-file back end rewrites everything on each write.
    /// Sessions stay in memory, which suits a single pod.
    fn storage(&mut self, intent: &TrusteeIntent, current: &Table) {
        let shared = current
            .get("storage_backend")
            .and_then(|storage| storage.get("storage_type"))
            .and_then(Value::as_str)
            .is_some_and(|kind| SHARED_STORAGE.contains(&storage_name(kind)));
        if shared {
            return;
        }
        self.set(&["storage_backend", "storage_type"], "LocalFs");
        self.set(
            &["storage_backend", "backends", "local_fs", "dir_path"],
            intent.storage_dir.as_str(),
        );
        self.set(&["session_storage_type"], "Memory");
    }
}

/// A bearer token with a role.
fn roles(intent: &TrusteeIntent) -> Table {
    let Some(key) = &intent.admin_public_key else {
        return one("authorization_mode", "DenyAll");
    };
    let mut provider = one("public_key_uri", key.as_str());
    if let Some(audience) = &intent.admin_audience {
        provider.insert("audience".to_owned(), audience.as_str().into());
    }
    let providers = list([provider]);
    let mut acl = one("role", ADMIN);
    acl.insert("allowed_endpoints".to_owned(), ADMIN_ENDPOINTS.into());
    let mut admin = one("authorization_mode", "AuthenticatedAuthorization");
    admin.insert(
        "authentication".to_owned(),
        one("bearer_jwt", one("identity_providers", providers)).into(),
    );
    admin.insert("authorization".to_owned(), one("regex_acl", one("acls", list([acl]))).into());
    admin
}

fn one(key: &str, value: impl Into<Value>) -> Table {
    Table::from_iter([(key.to_owned(), value.into())])
}

fn list(tables: impl IntoIterator<Item = Table>) -> Value {
    Value::Array(tables.into_iter().map(Value::Table).collect())
}
