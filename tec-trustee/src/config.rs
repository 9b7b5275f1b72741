//! Patching a KBS configuration (contract 4.1).
//!
//! Keys that are not known are kept, except below `[admin]`, where the KBS rejects what it does not
//! know. Settings that switch checks off are removed. `insecure_http` is set only when the intent
//! names no TLS files, since the KBS does not start otherwise.
//!
//! ```
//! use tec_core::trustee::{Patched, TrusteeConfigurator, TrusteeIntent};
//! use tec_trustee::config::Generation;
//! let signer = ("/etc/kbs/signer.key".into(), "/etc/kbs/signer.crt".into());
//! let intent = TrusteeIntent::new("0.0.0.0:8080", signer, vec!["/etc/kbs/ca.crt".into()], "/data");
//! let Patched::Changed(text) = Generation::V0_21.patch("", &intent)? else { unreachable!() };
//! assert_eq!(Generation::V0_21.patch(&text, &intent)?, Patched::Unchanged);
//! # Ok::<(), tec_core::trustee::PatchError>(())
//! ```

use tec_core::trustee::PatchError;
use tec_core::trustee::Patched;
use tec_core::trustee::TrusteeConfigurator;
use tec_core::trustee::TrusteeIntent;
use toml::Table;
use toml::Value;

/// Schema generation of a KBS configuration. It follows from the code of the KBS, not from the tag
/// of its image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Generation {
    /// `authorization_mode`, `insecure_header_jwk`, unified storage: v0.21 and later.
    V0_21,
}

/// Flags that switch checks off, of this generation and of older ones.
const INSECURE: [&str; 2] = ["insecure_header_jwk", "insecure_key"];
/// Storage back ends that several pods share; they stay as they are.
const SHARED_STORAGE: [&str; 2] = ["Postgres", "Redis"];
/// Requests that the admin role may make: all of the API (contract 4.1).
const ADMIN_ENDPOINTS: &str = "^/kbs/.+$";

impl TrusteeConfigurator for Generation {
    fn patch(&self, current: &str, intent: &TrusteeIntent) -> Result<Patched, PatchError> {
        let before: Table = current
            .parse()
            .map_err(|error: toml::de::Error| PatchError::Parse(Box::new(error)))?;
        let mut after = before.clone();
        match self {
            Self::V0_21 => patch_v0_21(&mut after, intent)?,
        }
        let render = |config: &Table| {
            toml::to_string(config).map_err(|error| PatchError::Parse(Box::new(error)))
        };
        // Texts are compared, since a value that is no number does not equal itself.
        let text = render(&after)?;
        Ok(if text == render(&before)? {
            Patched::Unchanged
        } else {
            Patched::Changed(text)
        })
    }
}

fn patch_v0_21(config: &mut Table, intent: &TrusteeIntent) -> Result<(), PatchError> {
    let http = table(config, "http_server", "http_server")?;
    set(http, "sockets", strings([&intent.socket]));
    if let Some((certificate, private_key)) = &intent.tls {
        set(http, "certificate", certificate.as_str());
        set(http, "private_key", private_key.as_str());
        http.remove("insecure_http");
    } else {
        http.remove("certificate");
        http.remove("private_key");
        set(http, "insecure_http", true);
    }
    config.insert("admin".to_owned(), Value::Table(admin(intent)));

    let token = table(config, "attestation_token", "attestation_token")?;
    token.retain(|key, _| !INSECURE.contains(&key));
    set(token, "trusted_certs_paths", strings(&intent.trusted_certs));

    let service = table(config, "attestation_service", "attestation_service")?;
    set(service, "type", "coco_as_builtin");
    let broker = table(
        service,
        "attestation_token_broker",
        "attestation_service.attestation_token_broker",
    )?;
    let signer = table(
        broker,
        "signer",
        "attestation_service.attestation_token_broker.signer",
    )?;
    set(signer, "key_path", intent.token_signer.0.as_str());
    set(signer, "cert_path", intent.token_signer.1.as_str());
    let rvps = table(service, "rvps_config", "attestation_service.rvps_config")?;
    set(rvps, "type", "BuiltIn");

    storage(config, intent)?;
    plugins(config)
}

/// The whole table: what it holds besides would be rejected.
fn admin(intent: &TrusteeIntent) -> Table {
    let mut admin = Table::new();
    let Some(key) = &intent.admin_public_key else {
        set(&mut admin, "authorization_mode", "DenyAll");
        return admin;
    };
    set(
        &mut admin,
        "authorization_mode",
        "AuthenticatedAuthorization",
    );
    let provider = Table::from_iter([("public_key_uri".to_owned(), key.as_str().into())]);
    let bearer = Table::from_iter([("identity_providers".to_owned(), tables([provider]))]);
    let acl = Table::from_iter([
        ("role".to_owned(), "admin".into()),
        ("allowed_endpoints".to_owned(), ADMIN_ENDPOINTS.into()),
    ]);
    let regex_acl = Table::from_iter([("acls".to_owned(), tables([acl]))]);
    for (name, kind, value) in [
        ("authentication", "bearer_jwt", bearer),
        ("authorization", "regex_acl", regex_acl),
    ] {
        let inner = Table::from_iter([(kind.to_owned(), Value::Table(value))]);
        set(&mut admin, name, inner);
    }
    admin
}

/// Files in one directory per namespace: the JSON-file back end rewrites everything for each write.
/// Sessions stay in memory, as befits one pod.
fn storage(config: &mut Table, intent: &TrusteeIntent) -> Result<(), PatchError> {
    let storage = table(config, "storage_backend", "storage_backend")?;
    let shared = storage
        .get("storage_type")
        .and_then(Value::as_str)
        .is_some_and(|kind| SHARED_STORAGE.contains(&kind));
    if shared {
        return Ok(());
    }
    set(storage, "storage_type", "LocalFs");
    let backends = table(storage, "backends", "storage_backend.backends")?;
    let files = table(backends, "local_fs", "storage_backend.backends.local_fs")?;
    set(files, "dir_path", intent.storage_dir.as_str());
    set(config, "session_storage_type", "Memory");
    Ok(())
}

/// Without the plugin `resource` there is no way to a key.
fn plugins(config: &mut Table) -> Result<(), PatchError> {
    let shape = || PatchError::Shape {
        key: "plugins".to_owned(),
    };
    let plugins = config
        .entry("plugins")
        .or_insert_with(|| Value::Array(Vec::new()))
        .as_array_mut()
        .ok_or_else(shape)?;
    let is_resource =
        |plugin: &Value| plugin.get("name").and_then(Value::as_str) == Some("resource");
    if !plugins.iter().any(is_resource) {
        let name = Table::from_iter([("name".to_owned(), "resource".into())]);
        plugins.push(Value::Table(name));
    }
    for plugin in plugins.iter_mut().filter(|plugin| is_resource(plugin)) {
        let plugin = plugin.as_table_mut().ok_or_else(shape)?;
        plugin
            .entry("storage_backend_type")
            .or_insert_with(|| "kvstorage".into());
    }
    Ok(())
}

fn table<'a>(parent: &'a mut Table, key: &str, path: &str) -> Result<&'a mut Table, PatchError> {
    parent
        .entry(key)
        .or_insert_with(|| Value::Table(Table::new()))
        .as_table_mut()
        .ok_or_else(|| PatchError::Shape {
            key: path.to_owned(),
        })
}

fn set(table: &mut Table, key: &str, value: impl Into<Value>) {
    table.insert(key.to_owned(), value.into());
}

fn strings<'a>(list: impl IntoIterator<Item = &'a String>) -> Value {
    Value::Array(list.into_iter().map(|text| text.as_str().into()).collect())
}

fn tables(list: impl IntoIterator<Item = Table>) -> Value {
    Value::Array(list.into_iter().map(Value::Table).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn intent() -> TrusteeIntent {
        let signer = ("/k/signer.key".to_owned(), "/k/signer.crt".to_owned());
        let mut intent = TrusteeIntent::new(
            "0.0.0.0:8080",
            signer,
            vec!["/k/ca.crt".to_owned()],
            "/data",
        );
        intent.tls = Some(("/etc/tls/tls.crt".to_owned(), "/etc/tls/tls.key".to_owned()));
        intent.admin_public_key = Some("/k/public.pub".to_owned());
        intent
    }

    #[test]
    fn a_value_that_is_no_number_does_not_count_as_a_change() {
        let Ok(Patched::Changed(text)) = Generation::V0_21.patch("other = nan", &intent()) else {
            panic!("an empty configuration must change");
        };
        assert_eq!(
            Generation::V0_21.patch(&text, &intent()).unwrap(),
            Patched::Unchanged
        );
    }

    fn patched(current: &str, intent: &TrusteeIntent) -> Table {
        match Generation::V0_21.patch(current, intent).unwrap() {
            Patched::Changed(text) => text.parse().unwrap(),
            Patched::Unchanged => current.parse().unwrap(),
        }
    }

    #[test]
    fn an_empty_text_becomes_a_whole_configuration() {
        let expected: Table = r#"
            session_storage_type = "Memory"
            [http_server]
            sockets = ["0.0.0.0:8080"]
            certificate = "/etc/tls/tls.crt"
            private_key = "/etc/tls/tls.key"
            [admin]
            authorization_mode = "AuthenticatedAuthorization"
            [admin.authentication.bearer_jwt]
            identity_providers = [{ public_key_uri = "/k/public.pub" }]
            [admin.authorization.regex_acl]
            acls = [{ role = "admin", allowed_endpoints = "^/kbs/.+$" }]
            [attestation_token]
            trusted_certs_paths = ["/k/ca.crt"]
            [attestation_service]
            type = "coco_as_builtin"
            [attestation_service.attestation_token_broker.signer]
            key_path = "/k/signer.key"
            cert_path = "/k/signer.crt"
            [attestation_service.rvps_config]
            type = "BuiltIn"
            [storage_backend]
            storage_type = "LocalFs"
            [storage_backend.backends.local_fs]
            dir_path = "/data"
            [[plugins]]
            name = "resource"
            storage_backend_type = "kvstorage"
        "#
        .parse()
        .unwrap();
        assert_eq!(patched("", &intent()), expected);
    }

    #[test]
    fn insecure_flags_go_and_unknown_keys_stay() {
        let config = patched(
            r#"
            future = 1
            [http_server]
            insecure_http = true
            worker_count = 4
            [admin]
            insecure_api = true
            personas = []
            [attestation_token]
            insecure_header_jwk = true
            insecure_key = true
            extra_teekey_paths = ["/x"]
            [attestation_service]
            timeout = 7
            [[plugins]]
            name = "pkcs11"
            module = "x"
        "#,
            &intent(),
        );
        let text = toml::to_string(&config).unwrap();
        assert!(
            !text.contains("insecure") && !text.contains("personas"),
            "{text}"
        );
        assert_eq!(config["future"].as_integer(), Some(1));
        assert_eq!(config["http_server"]["worker_count"].as_integer(), Some(4));
        assert_eq!(
            config["attestation_service"]["timeout"].as_integer(),
            Some(7)
        );
        assert_eq!(config["plugins"][0]["name"].as_str(), Some("pkcs11"));
        assert_eq!(config["plugins"][1]["name"].as_str(), Some("resource"));
    }

    #[test]
    fn without_an_admin_key_the_admin_api_is_closed() {
        let mut intent = intent();
        intent.admin_public_key = None;
        let config = patched("", &intent);
        assert_eq!(
            config["admin"]["authorization_mode"].as_str(),
            Some("DenyAll")
        );
        assert_eq!(config["admin"].as_table().unwrap().len(), 1);
    }

    #[test]
    fn shared_storage_is_left_alone() {
        let config = patched(
            "[storage_backend]\nstorage_type = \"Postgres\"\n",
            &intent(),
        );
        assert_eq!(
            config["storage_backend"]["storage_type"].as_str(),
            Some("Postgres")
        );
        assert!(!config.contains_key("session_storage_type"));
    }

    #[test]
    fn wrong_shapes_and_broken_text_are_typed_errors() {
        assert!(matches!(
            Generation::V0_21.patch("[http_server", &intent()),
            Err(PatchError::Parse(_))
        ));
        for (text, culprit) in [
            ("http_server = 1", "http_server"),
            ("plugins = 1", "plugins"),
            (
                "[attestation_service]\nrvps_config = []",
                "attestation_service.rvps_config",
            ),
        ] {
            assert!(matches!(
                Generation::V0_21.patch(text, &intent()),
                Err(PatchError::Shape { key }) if key == culprit
            ));
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
                prop::collection::btree_map(key(), inner, 0..4)
                    .prop_map(|map| Value::Table(map.into_iter().collect())),
            ]
        })
    }

    fn key() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-z]{1,6}",
            prop::sample::select(vec![
                "http_server",
                "admin",
                "attestation_token",
                "attestation_service",
                "storage_backend",
                "storage_type",
                "plugins",
                "backends",
                "signer",
                "insecure_header_jwk",
                "rvps_config",
                "name",
            ])
            .prop_map(str::to_owned),
        ]
    }

    proptest! {
        #[test]
        fn patching_twice_changes_nothing(
            config in prop::collection::btree_map(key(), value(), 0..6), tls in any::<bool>(),
        ) {
            let mut intent = intent();
            if !tls {
                intent.tls = None;
            }
            let current = toml::to_string(&config.into_iter().collect::<Table>()).unwrap();
            if let Ok(Patched::Changed(text)) = Generation::V0_21.patch(&current, &intent) {
                let token = text.parse::<Table>().unwrap()["attestation_token"].clone();
                prop_assert!(token.get("insecure_header_jwk").is_none());
                prop_assert_eq!(Generation::V0_21.patch(&text, &intent).unwrap(), Patched::Unchanged);
            }
        }
    }
}
