//! Bootstrap tokens of kubeadm.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff;
use kube::Api;
use kube::Client;
use kube::api::ObjectMeta;
use kube::api::PostParams;
use tec_core::port::Clock;
use tec_core::port::Entropy;
use tec_core::port::PortError;
use tec_core::port::PortErrorKind;
use tec_core::secret::SecretBytes;

use super::super::error::port_error;

/// Where tokens are, their type, and what they may (Kubernetes, "Authenticating with Bootstrap
/// Tokens").
const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";
const GROUP: &str = "system:bootstrappers:kubeadm:default-node-token";
const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const ID: usize = 6;
const SECRET: usize = 16;
/// Life of a token (contract, 1.9).
const SECONDS: i64 = 15 * 60;
/// Bytes from here on would make some characters likelier.
const FAIR: u8 = 252;

/// Makes tokens.
#[derive(Clone)]
pub struct BootstrapTokens {
    secrets: Api<Secret>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl fmt::Debug for BootstrapTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BootstrapTokens").finish_non_exhaustive()
    }
}

fn characters(entropy: &dyn Entropy, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(length);
    while out.len() < length {
        let mut byte = [0];
        entropy.fill(&mut byte);
        let [byte] = byte;
        if byte < FAIR {
            out.extend(ALPHABET.get(usize::from(byte) % ALPHABET.len()));
        }
    }
    out
}

impl BootstrapTokens {
    /// In this cluster.
    pub fn new(client: Client, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self {
            secrets: Api::namespaced(client, NAMESPACE),
            clock,
            entropy,
        }
    }

    /// A new token, for a quarter of an hour.
    ///
    /// # Errors
    /// The API server refuses.
    pub async fn make(&self) -> Result<SecretBytes, PortError> {
        let id = String::from_utf8_lossy(&characters(&*self.entropy, ID)).into_owned();
        let secret = SecretBytes::new(characters(&*self.entropy, SECRET));
        let end = self.clock.now().plus_seconds(SECONDS).unix_seconds();
        let end = jiff::Timestamp::from_second(end).map_err(|error| {
            PortError::new(PortErrorKind::Invalid, "say until when a token lives").because(error)
        })?;
        let word = secret.expose("the API server compares it with what a node shows");
        let word = String::from_utf8_lossy(word).into_owned();
        let yes = || "true".to_owned();
        let members = [
            ("token-id", id.clone()),
            ("token-secret", word),
            ("expiration", end.to_string()),
            ("usage-bootstrap-authentication", yes()),
            ("usage-bootstrap-signing", yes()),
            ("auth-extra-groups", GROUP.to_owned()),
        ];
        let members = members.map(|(name, value)| (name.to_owned(), value));
        let object = Secret {
            metadata: ObjectMeta {
                name: Some(format!("bootstrap-token-{id}")),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            string_data: Some(BTreeMap::from(members)),
            ..Secret::default()
        };
        let made = self.secrets.create(&PostParams::default(), &object).await;
        made.map_err(|error| port_error("make a bootstrap token", error))?;
        let mut token = format!("{id}.").into_bytes();
        token.extend(secret.expose("the node shows it"));
        Ok(SecretBytes::new(token))
    }
}

#[cfg(test)]
mod tests {
    use tec_core::testing::SeededEntropy;

    use super::*;

    #[test]
    fn every_character_of_a_token_is_as_likely_as_the_others() {
        let many = characters(&SeededEntropy::new(1), 36_000);
        let mut counts = BTreeMap::<u8, u32>::new();
        for one in many {
            *counts.entry(one).or_default() += 1;
        }
        assert_eq!(counts.len(), ALPHABET.len());
        let is_fair = |count: &u32| (800..1200).contains(count);
        assert!(counts.values().all(is_fair), "{counts:?}");
    }
}
