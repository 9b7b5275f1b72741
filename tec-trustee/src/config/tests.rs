//! Golden files, laws, and the linter.

mod lossless;

use std::collections::BTreeSet;

use proptest::prelude::*;

use toml::{Table, Value};

use super::*;

fn intent() -> TrusteeIntent {
    let signer = ("/k/signer.key".to_owned(), "/k/signer.crt".to_owned());
    let mut intent =
        TrusteeIntent::new("0.0.0.0:8080", signer, vec!["/k/ca.crt".to_owned()], "/data");
    intent.tls = Some(("/etc/tls/tls.crt".to_owned(), "/etc/tls/tls.key".to_owned()));
    intent.admin_public_key = Some("/k/public.pub".to_owned());
    intent
}

#[test]
fn a_value_that_is_no_number_does_not_count_as_a_change() {
    let Ok(Patched::Changed(text)) = Schema.patch("other = nan", &intent()) else {
        panic!("an empty configuration must change");
    };
    assert_eq!(Schema.patch(&text, &intent()).unwrap(), Patched::Unchanged);
}

fn text(current: &str, intent: &TrusteeIntent) -> String {
    match Schema.patch(current, intent).unwrap() {
        Patched::Changed(text) => text,
        Patched::Unchanged => current.to_owned(),
    }
}

fn patched(current: &str, intent: &TrusteeIntent) -> Table {
    text(current, intent).parse().unwrap()
}

#[test]
fn an_empty_text_becomes_a_whole_configuration() {
    let golden = include_str!("golden/v0_21.toml");
    assert_eq!(text("", &intent()), golden);
    assert_eq!(lint(golden, None).unwrap(), []);
}

#[test]
fn comments_and_layout_stay() {
    let current = "# ours\nworker = 1 # why\n\n[http_server] # the front\nsockets = ['0.0.0.0:8080'] # all\n\
        certificate = \"/old.crt\" # rotate\n";
    let after = text(current, &intent());
    for kept in [
        "# ours\nworker = 1 # why\n",
        "[http_server] # the front\n",
        "sockets = ['0.0.0.0:8080'] # all\n",
        "certificate = \"/etc/tls/tls.crt\" # rotate\n",
    ] {
        assert!(after.contains(kept), "{after}");
    }
}

#[test]
fn plugins_in_one_line_are_understood() {
    let after = text("plugins = [{ name = \"pkcs11\" }]\n", &intent());
    let table: Table = after.parse().unwrap();
    assert_eq!(table["plugins"][1]["storage_backend_type"].as_str(), Some("kvstorage"));
}

/// Tables of the schema of v0.19 and v0.20, whose admin the KBS would reject.
#[test]
fn a_configuration_of_an_older_trustee_becomes_one_of_this_schema() {
    let older = "[admin]\ntype = \"Simple\"\n[[admin.personas]]\nid = \"admin\"\n\
        public_key_path = \"/k/public.pub\"\n[[plugins]]\nname = \"resource\"\ntype = \"kvstorage\"\n";
    let found = rules(older, None);
    assert!(found.contains(&Rule::UnknownAdminKey), "{found:?}");
    let current = text(older, &intent());
    assert_eq!(lint(&current, None).unwrap(), [], "{current}");
}

#[test]
fn a_diff_names_keys_and_not_lines() {
    let before = "a = 1\n[b]\nc = [1]\nd = 'x'\n[[plugins]]\nname = 'p'\n";
    let after =
        "b = { d = \"x\", c = [2] } # new\n[[plugins]]\nname = 'p'\n[[plugins]]\nname = 'q'\n";
    let lines: Vec<String> =
        changes(before, after).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(lines, ["- a: 1", "~ b.c: [1] -> [2]", "+ plugins[1].name: \"q\""]);
}

fn rules(text: &str, mounted: Option<&BTreeSet<String>>) -> Vec<Rule> {
    let findings = lint(text, mounted).unwrap();
    findings.into_iter().map(|finding| finding.rule).collect()
}

#[test]
fn what_is_dangerous_is_found_and_mended_by_the_patch() {
    let intent = intent();
    for (spoil, rule) in [
        ("[attestation_token]\ninsecure_header_jwk = true", Rule::SelfSignedTokens),
        ("[attestation_token]\ninsecure_key = true", Rule::SelfSignedTokens),
        ("[admin]\nauthorization_mode = \"InsecureAllowAll\"", Rule::OpenAdmin),
        ("[admin]\ntype = \"InsecureAllowAll\"", Rule::OpenAdmin),
        ("[admin]\ninsecure_api = true", Rule::OpenAdmin),
        ("[admin]\ntype = \"Simple\"", Rule::UnknownAdminKey),
        ("[admin]\npersonas = []", Rule::UnknownAdminKey),
        ("", Rule::NoTable),
        ("", Rule::NoTrustedSigner),
        ("", Rule::NoResourcePlugin),
        ("", Rule::MemoryOnly),
        ("[storage_backend]\nstorage_type = \"memory\"", Rule::MemoryOnly),
        ("[storage_backend]\nstorage_type = \"local_json\"", Rule::JsonFile),
        ("[storage_backend]\nstorage_type = \"LocalJson\"", Rule::LostSessions),
        ("[storage_backend]\nstorage_type = \"LocalJson\"", Rule::JsonFile),
        ("[http_server]\nsockets = [\"0.0.0.0:8080\"]\ninsecure_http = true", Rule::PlainHttp),
    ] {
        let found = rules(spoil, None);
        assert!(found.contains(&rule), "{rule:?} in {found:?}");
        let mended = text(spoil, &intent);
        assert_eq!(rules(&mended, None), [], "{mended}");
    }
}

#[test]
fn what_only_the_deployment_shows_is_found_too() {
    let config = text("", &intent());
    let mounted = ["default_cpu", "default_gpu"].map(str::to_owned).into();
    assert_eq!(rules(&config, Some(&mounted)), [Rule::NoDefaultPolicy, Rule::NoDefaultPolicy]);
}

#[test]
fn a_loopback_listener_may_speak_plain_http() {
    let mut intent = intent();
    intent.tls = None;
    intent.socket = "127.0.0.1:8081".to_owned();
    let config = text("", &intent);
    assert_eq!(rules(&config, None), []);
}

/// Whole configurations with one thing about them.
#[test]
fn aliases_and_a_remote_attestation_service_are_understood() {
    let config = |service: &str, storage: &str| {
        format!(
            "[http_server]\nsockets = [\"0.0.0.0:8080\"]\nprivate_key = \"/k\"\ncertificate = \"/c\"\n\
             [attestation_token]\ntrusted_certs_paths = [\"/ca\"]\n\
             [attestation_service]\n{service}\n[admin]\nauthorization_mode = \"DenyAll\"\n\
             [storage_backend]\nstorage_type = \"{storage}\"\n\
             [[plugins]]\nname = \"resource\"\nstorage_backend_type = \"kvstorage\"\n"
        )
    };
    let signer = "[attestation_service.attestation_token_broker.signer]\n\
                  key_path = \"/t\"\ncert_path = \"/t2\"";
    for (service, storage, found) in [
        (signer, "LocalFs", &[][..]),
        (signer, "local_fs", &[]),
        (signer, "memory", &[Rule::MemoryOnly]),
        ("type = \"coco_as_grpc\"", "LocalFs", &[]),
        ("type = \"intel_ta\"", "LocalFs", &[]),
        ("type = \"coco_as_builtin\"", "LocalFs", &[Rule::NoTrustedSigner; 2]),
        ("", "LocalFs", &[Rule::NoTrustedSigner; 2]),
    ] {
        let config = config(service, storage);
        assert_eq!(rules(&config, None), found, "{config}");
    }
}

#[test]
#[ignore = "needs recorded-boots: set TEC_FIXTURES"]
fn configurations_that_were_judged_wrong_are_judged_right() {
    let folder = std::env::var_os("TEC_FIXTURES").unwrap();
    let found = |file: &str| {
        let path = std::path::Path::new(&folder).join("hunt").join(file);
        rules(&std::fs::read_to_string(path).unwrap(), None)
    };
    assert_eq!(found("lint-memory.toml"), [Rule::MemoryOnly]);
    assert_eq!(found("lint-grpc.toml"), []);
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
    assert!(!text.contains("insecure") && !text.contains("personas"), "{text}");
    assert_eq!(config["future"].as_integer(), Some(1));
    assert_eq!(config["http_server"]["worker_count"].as_integer(), Some(4));
    assert_eq!(config["attestation_service"]["timeout"].as_integer(), Some(7));
    assert_eq!(config["plugins"][0]["name"].as_str(), Some("pkcs11"));
    assert_eq!(config["plugins"][1]["name"].as_str(), Some("resource"));
}

#[test]
fn without_an_admin_key_the_admin_api_is_closed() {
    let mut intent = intent();
    intent.admin_public_key = None;
    let config = patched("", &intent);
    assert_eq!(config["admin"]["authorization_mode"].as_str(), Some("DenyAll"));
    assert_eq!(config["admin"].as_table().unwrap().len(), 1);
}

#[test]
fn admin_tokens_for_somebody_else_are_refused_where_an_audience_is_intended() {
    let mut intent = intent();
    intent.admin_audience = Some("us".to_owned());
    let config = patched("", &intent);
    let bearer = &config["admin"]["authentication"]["bearer_jwt"];
    let provider = &bearer["identity_providers"][0];
    assert_eq!(provider["audience"].as_str(), Some("us"));
}

#[test]
fn shared_storage_is_left_alone() {
    for kind in ["Postgres", "postgres", "redis"] {
        let current = format!("[storage_backend]\nstorage_type = \"{kind}\"\n");
        let config = patched(&current, &intent());
        assert_eq!(config["storage_backend"]["storage_type"].as_str(), Some(kind));
        assert!(!config.contains_key("session_storage_type"));
    }
}

#[test]
fn wrong_shapes_and_broken_text_are_typed_errors() {
    assert!(matches!(Schema.patch("[http_server", &intent()), Err(PatchError::Parse(_))));
    for (text, culprit) in [
        ("http_server = 1", "http_server"),
        ("plugins = 1", "plugins"),
        ("[attestation_service]\nrvps_config = []", "attestation_service.rvps_config"),
    ] {
        assert!(matches!(
            Schema.patch(text, &intent()),
            Err(PatchError::Shape(key)) if key == culprit
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
        if let Ok(Patched::Changed(text)) = Schema.patch(&current, &intent) {
            let token = text.parse::<Table>().unwrap()["attestation_token"].clone();
            prop_assert!(token.get("insecure_header_jwk").is_none());
            prop_assert_eq!(Schema.patch(&text, &intent).unwrap(), Patched::Unchanged);
        }
    }
}
