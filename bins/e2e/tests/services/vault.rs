//! Access to the vault's internals, which requires both halves of its key.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use serde_json::{Value, json};
use services::bootstrap::controller::{Controller, RoundError};
use tec_core::port::PortErrorKind;
use tec_core::secret::{SecretArray, SecretBytes};
use tec_e2e::services::stage::Stage;
use tec_services::Fatal;
use tec_services::shell::Note;
use tec_services::vault::{Binding, Request, Response, WrappedKey};

use crate::secrets::{Needle, astray};

pub(crate) fn fatal(error: &RoundError) -> Option<Fatal> {
    match error {
        RoundError::Fatal(fatal, _) => Some(*fatal),
        _ => None,
    }
}

/// The vault's key, from the Secret and the file; the one in use, if there are two.
pub(crate) async fn stored_key(stage: &Stage, controller: &Controller) -> String {
    let decode = |text: &Value| STANDARD.decode(text.as_str().unwrap()).unwrap();
    let secret = stage.secret("vault-aes").await.unwrap();
    let key: [u8; 32] = decode(&secret["data"]["key"]).try_into().unwrap();
    let key_id = String::from_utf8(decode(&secret["data"]["key-id"])).unwrap();
    let file = controller.disk.read(Note::Key).unwrap().unwrap();
    let binding =
        Binding { namespace: &stage.cluster.platform, stateful_set: "vault", key_id: &key_id };
    let wrapped = WrappedKey::parse(&file).unwrap();
    let opened = wrapped.open(&SecretArray::new(key), &binding).unwrap();
    let text = String::from_utf8(opened.expose("test").to_vec()).unwrap();
    text.lines().next().unwrap().to_owned()
}

/// Checks that secrets are not in plain text on disk or in logs: neither next to the vault nor in its
/// storage.
pub(crate) fn assert_nowhere_in_plain(stage: &Stage, key: &str) {
    let needles = Needle::key("the key", &STANDARD.decode(key).unwrap());
    assert_eq!(astray(stage.dir.path(), &needles), Vec::<String>::new());
}

/// An answer to a question. A busy machine may cut a connection, and a question can be asked again.
async fn answer(stage: &Stage, question: &Request) -> Response {
    let mut answer = stage.bao.vault().call(question).await;
    for _ in 0..3 {
        if answer.as_ref().is_err_and(|error| error.kind() == PortErrorKind::Unavailable) {
            answer = stage.bao.vault().call(question).await;
        }
    }
    answer.unwrap()
}

/// A root token, created with the vault's key. The caller revokes it.
pub(crate) async fn make_root(stage: &Stage, key: &str) -> SecretBytes {
    let vault = stage.bao.vault();
    let attempt = Request::post("sys/generate-root/attempt", &json!({}));
    let attempt: Value = vault.call(&attempt).await.unwrap().json().unwrap();
    let body = json!({"key": key, "nonce": attempt["nonce"]});
    let update = Request::post("sys/generate-root/update", &body);
    let made: Value = vault.call(&update).await.unwrap().json().unwrap();
    let encoded = made["encoded_token"].as_str().unwrap();
    let bytes = STANDARD_NO_PAD.decode(encoded.trim_end_matches('=')).unwrap();
    let otp = attempt["otp"].as_str().unwrap().bytes();
    SecretBytes::new(bytes.into_iter().zip(otp).map(|(a, b)| a ^ b).collect())
}

/// Number of root tokens, not including the one used for counting.
pub(crate) async fn root_tokens(stage: &Stage, key: &str) -> usize {
    let token = make_root(stage, key).await;
    let list = Request::list("auth/token/accessors").by(&token);
    let list: Value = answer(stage, &list).await.data().unwrap();
    let mut roots = 0;
    for accessor in list["keys"].as_array().unwrap() {
        let body = json!({"accessor": accessor});
        let look = Request::post("auth/token/lookup-accessor", &body).by(&token);
        if let Ok(found) = answer(stage, &look).await.data::<Value>() {
            roots += usize::from(found["policies"] == json!(["root"]));
        }
    }
    let revoke = Request::post("auth/token/revoke-self", &json!({})).by(&token);
    stage.bao.vault().call(&revoke).await.unwrap();
    roots - 1
}

/// Seals it, like an admin.
pub(crate) async fn seal(stage: &Stage, key: &str) {
    let token = make_root(stage, key).await;
    let request = Request::post("sys/seal", &json!({})).by(&token);
    let answer = stage.bao.vault().call(&request).await.unwrap();
    assert_eq!(answer.status, 204, "{answer:?}");
}

/// Number of pods with a vote among those that share the storage.
pub(crate) async fn voters(stage: &Stage, key: &str) -> usize {
    let vault = stage.bao.vault();
    let token = make_root(stage, key).await;
    let look = Request::get("sys/storage/raft/configuration").by(&token);
    let found: Value = vault.call(&look).await.unwrap().data().unwrap();
    let revoke = Request::post("auth/token/revoke-self", &json!({})).by(&token);
    vault.call(&revoke).await.unwrap();
    let servers = found["config"]["servers"].as_array().unwrap();
    servers.iter().filter(|server| server["voter"] == true).count()
}

/// The response of `sys/seal-status`.
pub(crate) async fn seal_status(stage: &Stage) -> Value {
    let request = Request::get("sys/seal-status");
    answer(stage, &request).await.json().unwrap()
}
