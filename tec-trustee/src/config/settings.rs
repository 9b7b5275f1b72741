//! What a configuration must contain, per generation (Trustee, KBS configuration).

use tec_core::trustee::TrusteeIntent;
use toml::{Table, Value};

use super::Generation;

/// Dotted path of a key.
pub(super) type Path = &'static [&'static str];

/// Storage back ends that several pods share; they are left as they are.
const SHARED_STORAGE: [&str; 2] = ["Postgres", "Redis"];
/// Requests that the admin role may make: the whole API (Trustee, KBS configuration).
const ADMIN_ENDPOINTS: &str = "^/kbs/.+$";
/// The only admin role.
const ADMIN: &str = "admin";
/// Flags that turn checks off, in this generation and in older ones.
const INSECURE: [Path; 2] =
    [&["attestation_token", "insecure_header_jwk"], &["attestation_token", "insecure_key"]];
const BROKER_POLICIES: Path = &["attestation_service", "attestation_token_broker", "policy_dir"];
const SIGNER_KEY: Path = &["attestation_service", "attestation_token_broker", "signer", "key_path"];
const SIGNER_CERT: Path =
    &["attestation_service", "attestation_token_broker", "signer", "cert_path"];
const RVPS: Path = &["attestation_service", "rvps_config", "type"];
const RVPS_STORAGE: Path = &["attestation_service", "rvps_config", "storage", "type"];
const RVPS_FILE: Path = &["attestation_service", "rvps_config", "storage", "file_path"];
const KEY_DIR: Path =
    &["attestation_service", "verifier_config", "tpm_verifier", "trusted_ak_keys_dir"];
pub(super) const MAX_KEYS: Path =
    &["attestation_service", "verifier_config", "tpm_verifier", "max_trusted_ak_keys"];

/// Keys to set and to remove.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub(super) set: Vec<(Path, Value)>,
    pub(super) remove: Vec<Path>,
    /// The whole table.
    pub(super) admin: Table,
    /// Keys of the plugin `resource`.
    pub(super) plugin: Vec<(&'static str, Value)>,
    /// Whether the plugin's existing keys are left as they are.
    pub(super) plugin_is_free: bool,
}

impl Settings {
    pub(super) fn of(generation: Generation, intent: &TrusteeIntent, current: &Table) -> Self {
        let mut settings =
            Self { remove: INSECURE.to_vec(), plugin_is_free: true, ..Self::default() };
        settings.http(intent);
        settings.tokens(intent);
        match generation {
            Generation::Mounted => {
                settings.admin = personas(intent);
                settings.files(intent);
            }
            Generation::Unified => {
                settings.admin = personas(intent);
                settings.storage(intent, current);
                // v0.19 reads one name, v0.20 the other; neither rejects keys that it does not know.
                settings.plugin = vec![
                    ("type", "kvstorage".into()),
                    ("storage_backend_type", "kvstorage".into()),
                ];
            }
            Generation::V0_21 => {
                settings.admin = roles(intent);
                settings.storage(intent, current);
                settings.plugin = vec![("storage_backend_type", "kvstorage".into())];
            }
        }
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
            .is_some_and(|kind| SHARED_STORAGE.contains(&kind));
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

    /// The paths that the documents of the mounted form use, below the storage directory.
    fn files(&mut self, intent: &TrusteeIntent) {
        let below = |name: &str| format!("{}/{name}", intent.storage_dir.trim_end_matches('/'));
        self.set(BROKER_POLICIES, below("policies"));
        self.set(RVPS_STORAGE, "LocalJson");
        self.set(RVPS_FILE, below("reference-values.json"));
        self.set(KEY_DIR, intent.ak_dir.as_str());
        // Keys beyond the limit are skipped silently, in directory order.
        self.set(MAX_KEYS, i64::from(intent.max_aks));
        self.set(&["policy_engine", "policy_path"], below("policy.rego"));
        self.plugin =
            vec![("type", "LocalFs".into()), ("dir_path", below("kbs-repository").into())];
        self.plugin_is_free = false;
    }
}

/// v0.21: a bearer token with a role.
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

/// Until v0.20: a person with a key. `roles` is read since v0.18 and ignored before.
fn personas(intent: &TrusteeIntent) -> Table {
    let Some(key) = &intent.admin_public_key else {
        return one("type", "DenyAll");
    };
    let mut persona = one("id", ADMIN);
    persona.insert("public_key_path".to_owned(), key.as_str().into());
    let mut role = one("id", ADMIN);
    role.insert("allowed_endpoints".to_owned(), ADMIN_ENDPOINTS.into());
    let mut admin = one("type", "Simple");
    admin.insert("personas".to_owned(), list([persona]));
    admin.insert("roles".to_owned(), list([role]));
    admin
}

fn one(key: &str, value: impl Into<Value>) -> Table {
    Table::from_iter([(key.to_owned(), value.into())])
}

fn list(tables: impl IntoIterator<Item = Table>) -> Value {
    Value::Array(tables.into_iter().map(Value::Table).collect())
}
