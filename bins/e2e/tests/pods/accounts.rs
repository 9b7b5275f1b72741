//! Tries with real tokens what the tokens of our service accounts must not be able to do.

use std::process::Command;

use tec_e2e::pods::{ADDRESS, Charts, NAMESPACE, OPERATOR};

/// Requests that must be forbidden to every account of a program that nodes or images can reach.
const FORBIDDEN: [&[&str]; 9] = [
    &["get", "secrets"],
    &["get", "secret", "trust-anchor-ca"],
    &["get", "nodes"],
    &["get", "secrets", "--namespace=kube-system"],
    &["delete", "machines", "--all"],
    &["delete", "trustedexecutioncluster", "cluster"],
    &["create", "configmap", "mine"],
    &["create", "token", "trusted-cluster-operator"],
    &["run", "mine", "--image=registry.k8s.io/pause:3.10"],
];
/// The key broker releases disk keys, so it reads Secrets by name.
const KEY_BROKER: &str = "key-broker";
/// Requests that must be forbidden even to the operator, which has a Role only in its namespace.
const FORBIDDEN_TO_ALL: [&[&str]; 4] = [
    &["get", "nodes"],
    &["get", "secrets", "--namespace=kube-system"],
    &["create", "clusterrolebinding", "mine", "--clusterrole=cluster-admin", "--user=me"],
    &["create", "rolebinding", "mine", "--clusterrole=admin", "--user=me"],
];

pub(crate) fn no_account_may_do_what_it_must_not(charts: &Charts) {
    let words = ["get", "serviceaccounts", "--output=jsonpath={.items[*].metadata.name}"];
    let accounts = charts.kubectl(&words).unwrap();
    let accounts: Vec<&str> = accounts.split_whitespace().collect();
    assert!(accounts.len() > 4, "{accounts:?}");
    for account in accounts {
        let token = charts.kubectl(&["create", "token", account]).unwrap();
        let forbidden = if account == OPERATOR { &FORBIDDEN_TO_ALL[..] } else { &FORBIDDEN[..] };
        for words in forbidden {
            // Permissions cannot distinguish disk keys from other Secrets whose name is known.
            if account == KEY_BROKER && words.starts_with(&["get", "secret"]) {
                continue;
            }
            let said = attempt(charts, token.trim(), words);
            assert!(said.to_lowercase().contains("forbidden"), "{account} {words:?}: {said}");
        }
    }
}

/// kubectl's answer with only this token: an admin's kubeconfig would take precedence.
fn attempt(charts: &Charts, token: &str, words: &[&str]) -> String {
    let server = [&format!("--server=https://{ADDRESS}:6443"), "--insecure-skip-tls-verify"];
    let mut kubectl: Command = charts.command("kubectl");
    kubectl.env("KUBECONFIG", "/dev/null").args(server).arg(format!("--token={token}"));
    if !words.iter().any(|word| word.starts_with("--namespace")) {
        kubectl.arg(format!("--namespace={NAMESPACE}"));
    }
    let output = kubectl.args(words).output().unwrap();
    assert!(!output.status.success(), "{words:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
