//! Kubernetes objects as JSON: what is read from them, and how they are written.

use crate::nats::Revocations;
use crate::vault::{AesSecret, Progress, Rotation, Wish};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use tec_core::secret::SecretArray;
use tec_core::time::Timestamp;

use super::{PodObject, Replaceable, Warning};

/// Annotation that an admin sets on the Secret to have the wrapping key replaced.
const ROTATE: &str = "trusted-execution-clusters.io/rotate-wrapping-key";
/// Annotation that an admin sets on the same Secret to have something else replaced.
const fn annotation(what: Replaceable) -> &'static str {
    match what {
        Replaceable::Authorities => "trusted-execution-clusters.io/rotate-authorities",
        Replaceable::VaultKey => "trusted-execution-clusters.io/rotate-vault-key",
        Replaceable::NatsOperatorKey => "trusted-execution-clusters.io/rotate-nats-operator-key",
        Replaceable::NatsAccountKeys => "trusted-execution-clusters.io/rotate-nats-account-keys",
    }
}
/// Value of an annotation that the controller sets itself.
const DUE: &str = "due";
/// Members of the Secret that hold the wrapping key, and the previous one.
const KEY: [&str; 2] = ["key", "key-id"];
const BEFORE: [&str; 2] = ["previous-key", "previous-key-id"];
/// Records how far the bootstrap has come.
const PROGRESS: &str = "trusted-execution-clusters.io/bootstrap-state";
/// Maximum length of an object's name (RFC 1123, section 2.1, as used by Kubernetes).
const MAX_NAME: usize = 253;
/// Reporter of events.
const REPORTER: &str = "services-bootstrap";

fn data(object: &Value, member: &str) -> Option<Vec<u8>> {
    let text = object.get("data")?.get(member)?.as_str()?;
    STANDARD.decode(text).ok()
}

/// A member of a Secret that is text.
pub(super) fn text(object: &Value, member: &str) -> Option<String> {
    String::from_utf8(data(object, member)?).ok()
}

/// Name of the wrapping key.
pub(super) fn key_id(object: &Value) -> Option<String> {
    text(object, KEY[1])
}

/// Whether the previous wrapping key is still there.
pub(super) fn is_under_rotation(object: &Value) -> bool {
    data(object, BEFORE[0]).is_some()
}

/// A new Secret for the wrapping key.
pub(super) fn created(name: &str, key: &SecretArray<32>, key_id: &str) -> Value {
    let key = STANDARD.encode(key.expose("to store the wrapping key"));
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "Opaque",
        "metadata": {"name": name, "annotations": {PROGRESS: Progress::Created.to_string()}},
        "data": {KEY[0]: key, KEY[1]: STANDARD.encode(key_id)},
    })
}

/// Where the Secret records how far the bootstrap has come.
pub(super) fn progress(object: &mut Value) -> Option<&mut Value> {
    members(object, &["metadata", "annotations"])?.get_mut(PROGRESS)
}

/// The wrapping key, how far the bootstrap has come, and whether the key should be replaced.
pub(super) fn aes(object: &Value) -> Option<AesSecret> {
    let annotations = object.get("metadata")?.get("annotations")?;
    let (key, key_id) = named_key(object, KEY)?;
    let rotation = match data(object, BEFORE[0]) {
        Some(_) => {
            let (key, key_id) = named_key(object, BEFORE)?;
            Rotation::Under { key, key_id }
        }
        None if annotations.get(ROTATE).is_some() => Rotation::Wanted,
        None => Rotation::None,
    };
    Some(AesSecret {
        key,
        key_id,
        progress: annotations.get(PROGRESS)?.as_str()?.parse().ok()?,
        rotation,
        vault_key: if is_requested(object, Replaceable::VaultKey) {
            Wish::Next
        } else {
            Wish::None
        },
    })
}

fn named_key(object: &Value, [key, key_id]: [&str; 2]) -> Option<(SecretArray<32>, String)> {
    let bytes: [u8; 32] = data(object, key)?.try_into().ok()?;
    let name = text(object, key_id)?;
    Some((SecretArray::new(bytes), name))
}

/// The members of an object in an object.
fn members<'a>(object: &'a mut Value, path: &[&str]) -> Option<&'a mut Map<String, Value>> {
    path.iter().try_fold(object, |at, name| at.get_mut(*name))?.as_object_mut()
}

/// Puts a new wrapping key in the Secret, next to the previous one.
pub(super) fn rotate(object: &mut Value, key: &SecretArray<32>, key_id: &str) -> Option<()> {
    let data = members(object, &["data"])?;
    for (now, before) in KEY.into_iter().zip(BEFORE) {
        let value = data.get(now)?.clone();
        data.insert(before.to_owned(), value);
    }
    let key = STANDARD.encode(key.expose("to store the wrapping key"));
    data.insert(KEY[0].to_owned(), json!(key));
    data.insert(KEY[1].to_owned(), json!(STANDARD.encode(key_id)));
    members(object, &["metadata", "annotations"])?.remove(ROTATE);
    Some(())
}

/// Removes the previous wrapping key from the Secret.
pub(super) fn forget(object: &mut Value) {
    if let Some(data) = members(object, &["data"]) {
        data.retain(|name, _| !BEFORE.contains(&name.as_str()));
    }
}

/// Whether a replacement is requested.
pub(super) fn is_requested(object: &Value, what: Replaceable) -> bool {
    let annotations = object.get("metadata").and_then(|metadata| metadata.get("annotations"));
    annotations.is_some_and(|annotations| annotations.get(annotation(what)).is_some())
}

/// Requests a replacement.
pub(super) fn request(object: &mut Value, what: Replaceable) -> Option<()> {
    let annotations = members(object, &["metadata", "annotations"])?;
    annotations.insert(annotation(what).to_owned(), json!(DUE));
    Some(())
}

/// Removes the request for a replacement; returns whether there was one.
pub(super) fn clear_request(object: &mut Value, what: Replaceable) -> bool {
    let annotations = members(object, &["metadata", "annotations"]);
    annotations.is_some_and(|annotations| annotations.remove(annotation(what)).is_some())
}

/// Last line of a certificate (RFC 7468, section 5.1).
const END: &str = "-----END CERTIFICATE-----";

/// Puts these CAs in a copy of the published ConfigMap; returns whether that changed it. A copy without any of
/// these CAs belongs to another platform.
pub(super) fn update_copy(object: &mut Value, authorities: &str) -> bool {
    let Some(copy) = object.get_mut("data").and_then(|data| data.get_mut("ca.crt")) else {
        return false;
    };
    let text = copy.as_str().unwrap_or_default();
    // Whoever copied it may have lost the last line break.
    let mut ours = authorities.split(END).map(str::trim).filter(|pem| !pem.is_empty());
    if text.trim() == authorities.trim() || !ours.any(|pem| text.contains(pem)) {
        return false;
    }
    *copy = json!(authorities);
    true
}

/// Whether it can become part of a path: an RFC 1123 subdomain, except for the length of a label, which
/// Kubernetes does not limit.
pub(super) fn is_pod_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    (1..=MAX_NAME).contains(&name.len())
        && name.chars().all(is_plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// The properties of a pod that its certificates need.
pub(super) fn pod(object: &Value) -> Option<PodObject> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let status = object.get("status");
    let addresses = status.and_then(|status| status.get("podIPs")?.as_array());
    let address = |entry: &Value| entry.get("ip")?.as_str()?.parse().ok();
    // On the node's network the addresses are the node's.
    let on_host = object.get("spec")?.get("hostNetwork") == Some(&json!(true));
    let phase = status.and_then(|status| status.get("phase")?.as_str());
    Some(PodObject {
        on_host,
        ended: matches!(phase, Some("Succeeded" | "Failed")),
        uid: text(object.get("metadata")?.get("uid")?)?,
        account: text(object.get("spec")?.get("serviceAccountName")?)?,
        addresses: addresses.into_iter().flatten().map(address).collect::<Option<_>>()?,
    })
}

/// An Event of a pod.
pub(super) fn event(namespace: &str, warning: &Warning) -> Value {
    let (pod, at) = (&warning.pod, warning.at.to_string());
    json!({
        "apiVersion": "v1", "kind": "Event", "type": "Warning",
        "metadata": {"generateName": format!("{pod}."), "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod,
            "uid": warning.pod_uid,
        },
        "reason": warning.reason, "message": warning.message,
        "firstTimestamp": at, "lastTimestamp": at, "count": 1,
        "source": {"component": REPORTER},
        "reportingComponent": REPORTER, "reportingInstance": pod,
    })
}

/// Revoked users of NATS. One malformed line invalidates the whole object: nobody who should be revoked may
/// slip through.
pub(super) fn revoked(object: &Value) -> Option<Revocations> {
    let Some(data) = object.get("data") else {
        return Some(Revocations::new());
    };
    let line = |(user, since): (&String, &Value)| {
        let since = since.as_str()?.parse().ok()?;
        Some((user.parse().ok()?, Timestamp::from_unix_seconds(since)))
    };
    data.as_object()?.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(content: &str) -> String {
        format!("-----BEGIN CERTIFICATE-----\n{content}\n{END}\n")
    }

    fn copied(authorities: &str) -> Value {
        json!({"metadata": {"name": "services-bootstrap-ca"}, "data": {"ca.crt": authorities}})
    }

    #[test]
    fn a_copy_of_these_authorities_is_updated_and_that_of_another_platform_is_not() {
        let (old, both) = (pem("AAAA"), pem("AAAA") + &pem("BBBB"));
        let mut copy = copied(old.trim());
        assert!(update_copy(&mut copy, &both));
        assert_eq!(copy, copied(&both));
        assert!(!update_copy(&mut copy, &both), "it is up to date");
        for mut other in [copied(&pem("CCCC")), copied(""), json!({"data": {}}), json!({})] {
            let before = other.clone();
            assert!(!update_copy(&mut other, &both));
            assert_eq!(other, before);
        }
    }

    #[test]
    fn a_request_is_there_until_it_is_cleared_and_other_annotations_stay() {
        let what = Replaceable::Authorities;
        let mut secret = created("vault-aes", &SecretArray::new([1; 32]), "k1");
        let before = secret.clone();
        assert!(!is_requested(&secret, what) && !clear_request(&mut secret, what));
        request(&mut secret, what).unwrap();
        assert!(is_requested(&secret, what));
        assert!(clear_request(&mut secret, what));
        assert_eq!(secret, before);
    }
}
