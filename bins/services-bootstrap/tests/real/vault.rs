//! The vault's bootstrap on a real OpenBao: the contract's section 8, item 1.

use services_bootstrap::controller::Controller;
use services_bootstrap::controller::RoundError;
use tec_core::secret::SecretArray;
use tec_core::secret::SecretBytes;
use tec_core::service::Fatal;
use tec_core::service::vault::Request;

use crate::stage::Stage;

async fn stage() -> Option<Stage> {
    let stage = Stage::new().await;
    if stage.is_none() {
        println!("no bao: run `cargo xtask tools`");
    }
    stage
}

fn fatal(error: &RoundError) -> Option<Fatal> {
    match error {
        RoundError::Fatal(fatal, _) => Some(*fatal),
        _ => None,
    }
}

/// What nobody may find on disk or in logs.
fn assert_no_plain_key(stage: &Stage, key: &SecretBytes) {
    let key = String::from_utf8(key.expose("test").to_vec()).unwrap();
    assert!(!stage.bao.log().contains(&key));
    for entry in std::fs::read_dir(stage.dir.path().join("volume")).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(
            !bytes
                .windows(key.len())
                .any(|window| window == key.as_bytes())
        );
    }
}

/// The unseal key, as only who has both halves can read it.
fn unseal_key(stage: &Stage, controller: &Controller) -> SecretBytes {
    use base64::Engine as _;
    let decode = |text: &serde_json::Value| {
        base64::engine::general_purpose::STANDARD
            .decode(text.as_str().unwrap())
            .unwrap()
    };
    let secret = stage.api.secret("vault-aes").unwrap();
    let key: [u8; 32] = decode(&secret["data"]["key"]).try_into().unwrap();
    let key_id = String::from_utf8(decode(&secret["data"]["key-id"])).unwrap();
    let file = controller.disk.read().unwrap().unwrap();
    let binding = tec_core::service::vault::Binding {
        namespace: "platform",
        stateful_set: "vault",
        key_id: &key_id,
    };
    let wrapped = tec_core::service::vault::WrappedKey::parse(&file).unwrap();
    wrapped.open(&SecretArray::new(key), &binding).unwrap()
}

/// With a root token made from the unseal key: how many others there are.
async fn stray_root_tokens(stage: &Stage, key: &SecretBytes) -> usize {
    let vault = stage.vault();
    let key = String::from_utf8(key.expose("test").to_vec()).unwrap();
    let attempt = Request::post("sys/generate-root/attempt", &serde_json::json!({}));
    let attempt: serde_json::Value = vault.call(&attempt).await.unwrap().json().unwrap();
    let body = serde_json::json!({"key": key, "nonce": attempt["nonce"]});
    let update = Request::post("sys/generate-root/update", &body);
    let made: serde_json::Value = vault.call(&update).await.unwrap().json().unwrap();
    let encoded = made["encoded_token"].as_str().unwrap();
    let bytes = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD_NO_PAD
            .decode(encoded)
            .unwrap()
    };
    let otp = attempt["otp"].as_str().unwrap().bytes();
    let token = SecretBytes::new(bytes.into_iter().zip(otp).map(|(a, b)| a ^ b).collect());
    let list = Request::list("auth/token/accessors").by(&token);
    let list: serde_json::Value = vault.call(&list).await.unwrap().data().unwrap();
    let mut roots = 0;
    for accessor in list["keys"].as_array().unwrap() {
        let body = serde_json::json!({"accessor": accessor});
        let look = Request::post("auth/token/lookup-accessor", &body).by(&token);
        let answer = vault.call(&look).await.unwrap();
        if let Ok(found) = answer.data::<serde_json::Value>() {
            roots += usize::from(found["policies"] == serde_json::json!(["root"]));
        }
    }
    let revoke = Request::post("auth/token/revoke-self", &serde_json::json!({})).by(&token);
    vault.call(&revoke).await.unwrap();
    roots - 1
}

#[tokio::test(flavor = "multi_thread")]
async fn item_1_a_vault_comes_up_from_nothing_and_again_after_a_power_cut() {
    let Some(mut stage) = stage().await else {
        return;
    };
    let controller = stage.controller();
    let next = controller.round().await.unwrap();
    assert!(next.as_secs() > 0);
    let published = stage.api.secret("services-bootstrap-tls").unwrap();
    assert!(published["data"]["ca.crt"].is_string());
    assert!(
        published["data"].get("tls.key").is_none(),
        "a key was published"
    );
    let key = unseal_key(&stage, &controller);
    assert_no_plain_key(&stage, &key);
    assert_eq!(stray_root_tokens(&stage, &key).await, 0);

    // The second round finds everything in place; after a power cut it unseals.
    controller.round().await.unwrap();
    stage.bao.restart().await;
    stage.controller().round().await.unwrap();
    assert_eq!(stray_root_tokens(&stage, &key).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn item_1_what_is_lost_is_named_and_never_made_anew() {
    let Some(mut stage) = stage().await else {
        return;
    };
    let controller = stage.controller();
    controller.round().await.unwrap();
    let file = controller.disk.read().unwrap().unwrap();

    controller.disk.remove().unwrap();
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::KeyFileMissing));
    controller.disk.write(b"{}").unwrap();
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::DecryptFailed));
    controller.disk.write(&file).unwrap();
    controller.round().await.unwrap();

    stage.bao.wipe().await;
    let error = controller.round().await.unwrap_err();
    assert_eq!(fatal(&error), Some(Fatal::StorageLost));
    let status: serde_json::Value = {
        let request = Request::get("sys/seal-status");
        stage.vault().call(&request).await.unwrap().json().unwrap()
    };
    assert_eq!(
        status["initialized"], false,
        "a lost volume was initialized again"
    );
}
