//! Sealed passphrases of the Clevis pin.

use serde_json::Value;
use tec_core::ignition::{HeaderConfig, PIN_NAME, PinConfig};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_trustee::clevis::{SealedPassphrase, seal};

use crate::Seed;
use crate::sample::{MACHINE, rng};

const KEY: [u8; 32] = [7; 32];
/// Maximum number of servers that a pin may name.
const MAX_SERVERS: usize = 32;

/// A header has one value in any form; what opens still opens after it was sealed again; and nothing opens
/// with a different key.
pub(crate) fn clevis(data: &[u8]) {
    if let Ok(value) = serde_json::from_slice::<Value>(data)
        && let Ok(config) = HeaderConfig::from_value(value)
    {
        check_config(&config);
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(sealed) = SealedPassphrase::parse(text) else {
        return;
    };
    check_config(sealed.config());
    assert!(sealed.open(&SecretArray::new([8; 32])).is_err());
    let Ok(passphrase) = sealed.open(&SecretArray::new(KEY)) else {
        return;
    };
    check_seal(sealed.config(), &passphrase);
}

fn check_config(config: &HeaderConfig) {
    assert_eq!(config.pin, PIN_NAME);
    assert!((1..=MAX_SERVERS).contains(&config.servers.len()));
    let value = serde_json::to_value(config).expect("a header is an object");
    assert_eq!(HeaderConfig::from_value(value).ok().as_ref(), Some(config));
    check_seal(config, &SecretBytes::new(b"passphrase".to_vec()));
}

fn check_seal(config: &HeaderConfig, passphrase: &SecretBytes) {
    let key = SecretArray::new(KEY);
    let text = seal(config, &key, passphrase, &mut rng(20)).expect("a small passphrase is sealed");
    let again = SealedPassphrase::parse(&text).expect("what was sealed parses");
    assert_eq!(again.config(), config);
    let opened = again.open(&key).expect("what was sealed opens");
    assert!(opened.ct_eq(passphrase));
}

pub(crate) fn seeds() -> Vec<Seed> {
    let config = |json: &str| PinConfig::parse(json).expect("a configuration").to_header();
    let full = config(&format!(
        r#"{{"servers":[{{"url":"https://kbs.example.org:8080","cert":"PEM"}},
            {{"url":"http://[::1]:8080"}}],"path":"default/{MACHINE}/root",
            "initdata":"{{}}","num_retries":"infinity"}}"#
    ));
    let small = config(&format!(
        r#"{{"servers":[{{"url":"http://kbs"}}],"path":"default/{MACHINE}/root","num_retries":3}}"#
    ));
    let sealed = |config: &HeaderConfig, passphrase: &[u8]| {
        let passphrase = SecretBytes::new(passphrase.to_vec());
        seal(config, &SecretArray::new(KEY), &passphrase, &mut rng(21)).expect("a small passphrase")
    };
    vec![
        Seed::new("sealed", sealed(&full, b"correct horse battery staple")),
        Seed::new("sealed_small", sealed(&small, b"")),
        Seed::new("newline", sealed(&small, b"x") + "\n"),
        Seed::new("header", serde_json::to_vec(&full).expect("a header is an object")),
    ]
}
