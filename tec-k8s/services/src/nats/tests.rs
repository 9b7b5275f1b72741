use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use proptest::prelude::any;
use proptest::proptest;
use serde_json::Value;
use tec_core::time::Timestamp;

use super::*;

const NOW: i64 = 1_700_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_unix_seconds(seconds)
}

fn key(kind: KeyKind, seed: u8) -> PublicKey {
    PublicKey::new(kind, [seed; 32])
}

fn claims(unsigned: &Unsigned) -> Value {
    let text = std::str::from_utf8(unsigned.message()).unwrap();
    let claims = text.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
}

#[test]
fn the_first_letter_of_a_key_tells_its_kind() {
    for (kind, letter) in [(KeyKind::Operator, 'O'), (KeyKind::Account, 'A'), (KeyKind::User, 'U')]
    {
        let text = key(kind, 7).to_string();
        assert!(text.starts_with(letter) && text.len() == 56, "{text}");
    }
}

proptest! {
    #[test]
    fn a_key_survives_its_text_and_a_changed_letter_is_seen(bytes in any::<[u8; 32]>(), at in 1..56usize) {
        let key = PublicKey::new(KeyKind::User, bytes);
        let text = key.to_string();
        assert_eq!(text.parse(), Ok(key));
        let mut changed = text.into_bytes();
        changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
        assert!(String::from_utf8(changed).unwrap().parse::<PublicKey>().is_err());
    }

    #[test]
    fn no_text_makes_the_reader_of_keys_panic(text in ".{0,80}") {
        let _ = text.parse::<PublicKey>();
        let _ = text.parse::<Nonce>();
    }
}

#[test]
fn a_nonce_can_never_be_the_body_of_a_jwt() {
    assert!("VkJmSAcW_DgK2-8".parse::<Nonce>().is_ok());
    for text in ["", "short", "eyJhbGciOiJ.eyJqdGkiOiJ", "with space", &"x".repeat(65)] {
        assert_eq!(text.parse::<Nonce>(), Err(NonceError), "{text}");
    }
}

fn component() -> Unsigned {
    let user = User {
        name: user_name(&"apps/comp-a".parse().unwrap()),
        key: key(KeyKind::User, 1),
        account: key(KeyKind::Account, 2),
        issuer: key(KeyKind::Account, 3),
        scope: Scope::Component,
        expires: at(NOW + 3600),
    };
    user.unsigned(at(NOW))
}

#[test]
fn a_component_says_nothing_about_its_own_permissions() {
    let claims = claims(&component());
    assert_eq!(claims["name"], "apps.comp-a");
    assert_eq!(claims["exp"], NOW + 3600);
    assert_eq!(claims["iss"], key(KeyKind::Account, 3).to_string());
    assert_eq!(claims["nats"]["issuer_account"], key(KeyKind::Account, 2).to_string());
    for member in ["pub", "sub", "subs", "bearer_token"] {
        assert!(claims["nats"].get(member).is_none(), "{member}");
    }
}

#[test]
fn the_same_claims_give_the_same_bytes() {
    assert_eq!(component(), component());
    assert!(!component().id().is_empty());
}

#[test]
fn an_account_gives_subjects_by_name_and_remembers_who_is_shut_out() {
    let account = Account {
        name: "APP".to_owned(),
        key: key(KeyKind::Account, 2),
        issuer: key(KeyKind::Operator, 4),
        signing_keys: vec![
            (key(KeyKind::Account, 3), Scope::Component),
            (key(KeyKind::Account, 4), Scope::Stream),
        ],
        revocations: Revocations::from([(key(KeyKind::User, 1), at(NOW))]),
    };
    let claims = claims(&account.unsigned(at(NOW)));
    let template = |key: usize| &claims["nats"]["signing_keys"][key]["template"];
    assert_eq!(template(0)["pub"]["allow"][0], "evt.{{name()}}.>");
    let calls = ["$JS.API.STREAM.CREATE.EVENTS", "$JS.API.STREAM.UPDATE.EVENTS"];
    assert_eq!(template(1)["pub"]["allow"], serde_json::json!(calls));
    let user = key(KeyKind::User, 1).to_string();
    assert_eq!(claims["nats"]["revocations"][user], NOW);
}

#[test]
fn the_identity_of_the_operator_stays_cold() {
    let operator = Operator {
        name: "tec".to_owned(),
        key: key(KeyKind::Operator, 5),
        signing_keys: vec![key(KeyKind::Operator, 4)],
        system_account: key(KeyKind::Account, 6),
    };
    let claims = claims(&operator.unsigned(at(NOW)));
    assert_eq!(claims["nats"]["strict_signing_key_usage"], true);
    assert_eq!(claims["iss"], claims["sub"]);
}

fn config() -> ServerConfig {
    ServerConfig {
        listen: "127.0.0.1:4222".parse().unwrap(),
        monitor: None,
        operator: "a.b.c".to_owned(),
        system_account: key(KeyKind::Account, 6),
        accounts: BTreeMap::from([(key(KeyKind::Account, 6), "d.e.f".to_owned())]),
        resolver: Resolver::Memory,
        storage: None,
        pid_file: "/data/nats.pid".to_owned(),
        cert_file: "/data/tls.crt".to_owned(),
        key_file: "/data/tls.key".to_owned(),
        ca_file: "/data/ca.crt".to_owned(),
    }
}

#[test]
fn a_configuration_has_accounts_and_demands_certificates() {
    let text = config().render().unwrap();
    assert!(text.contains("verify: true") && text.contains("timeout: 5"));
    assert_eq!(text, config().render().unwrap());
}

#[test]
fn a_value_cannot_leave_its_place_in_the_file() {
    let mut hostile = config();
    hostile.operator = "a.b.c\"\ninclude \"/etc/passwd".to_owned();
    assert!(matches!(hostile.render(), Err(ConfigError::Jwt(_))));
    let mut hostile = config();
    hostile.cert_file = "/data/\"\nno_auth_user: x".to_owned();
    assert!(matches!(hostile.render(), Err(ConfigError::Path(_))));
    let mut hostile = config();
    let (name, dir, cluster) = ("nats-0".to_owned(), "/d".to_owned(), hostile.listen);
    let routes = vec!["nats-1\"\nno_tls: true".to_owned()];
    hostile.storage = Some(Storage { name, dir, cluster, routes });
    assert!(matches!(hostile.render(), Err(ConfigError::Name(_))));
    let mut incomplete = config();
    incomplete.accounts.clear();
    assert_eq!(incomplete.render(), Err(ConfigError::NoSystemAccount));
}
