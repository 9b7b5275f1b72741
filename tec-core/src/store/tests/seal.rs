use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use super::{Place, fill};
use crate::code::Code;
use crate::port::{PortErrorKind, SecretStore};
use crate::secret::SecretBytes;
use crate::store::StoreError;
use crate::testing::sample;

fn assert_misfit(place: &Place) {
    let error = place.try_open().unwrap_err();
    assert!(matches!(error, StoreError::Seal(_)), "{error:?}");
    assert_eq!(error.code(), Code::KeySealed);
}

#[tokio::test]
async fn another_seal_key_is_refused_at_opening() {
    let place = Place::new();
    fill(&place.open()).await;
    let path = place.file("seal.key");
    let key = fs::read(&path).unwrap();
    assert_eq!(key.len(), 32);
    let mut other = key.clone();
    other[31] ^= 1;
    for wrong in [&other[..], &key[..31], &[], &[&key[..], &[0]].concat()] {
        fs::write(&path, wrong).unwrap();
        assert_misfit(&place);
        assert_eq!(fs::read(&path).unwrap(), wrong, "nothing was written");
    }
    fs::remove_file(&path).unwrap();
    assert_misfit(&place);
    assert!(!path.exists(), "no new key is made for old secrets");
    fs::write(&path, key).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    super::assert_filled(&place.open()).await;
}

#[tokio::test]
async fn a_first_start_that_crashed_after_the_key_goes_on_with_it() {
    let place = Place::new();
    drop(place.open());
    let key = fs::read(place.file("seal.key")).unwrap();
    place.raw().execute_batch("DELETE FROM seal_check").unwrap();
    fill(&place.open()).await;
    assert_eq!(fs::read(place.file("seal.key")).unwrap(), key);
    super::assert_filled(&place.open()).await;
}

#[tokio::test]
async fn a_first_start_that_crashed_while_it_wrote_the_key_begins_again() {
    let place = Place::new();
    drop(place.open());
    place.raw().execute_batch("DELETE FROM seal_check").unwrap();
    fs::rename(place.file("seal.key"), place.file("seal.key.new")).unwrap();
    fs::write(place.file("seal.key.new"), b"half").unwrap();
    fill(&place.open()).await;
    assert_eq!(fs::read(place.file("seal.key")).unwrap().len(), 32);
    assert!(!place.file("seal.key.new").exists());
}

#[tokio::test]
async fn a_secret_that_was_moved_or_altered_does_not_open() {
    let place = Place::new();
    let store = place.open();
    fill(&store).await;
    let raw = place.raw();
    let (own, other) = (sample::secret_path(1), sample::secret_path(2));
    let copy = "INSERT INTO secret SELECT ?1, sealed, seal FROM secret WHERE path = ?2";
    raw.execute(copy, (other.as_str(), own.as_str())).unwrap();
    raw.execute(
        "UPDATE secret SET sealed = substr(sealed, 1, 20) WHERE path = ?1",
        (own.as_str(),),
    )
    .unwrap();
    for path in [own, other] {
        let error = SecretStore::find(&store, &path).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Internal);
        assert_eq!(error.code(), Some(Code::KeySealed));
    }
}

#[tokio::test]
async fn secrets_never_lie_in_the_files_in_plain_text() {
    const CANARY: &[u8] = b"canary-7f3a9c51-the-disk-key";
    let place = Place::new();
    let store = place.open();
    for machine in 0..20 {
        let secret = SecretBytes::new(CANARY.repeat(10));
        store.put_new(&sample::secret_path(machine), &secret, &sample::line()).await.unwrap();
    }
    store.remove(&sample::secret_path(3)).await.unwrap();
    let holds = |needle: &[u8]| {
        fs::read_dir(place.dir()).unwrap().any(|entry| {
            let bytes = fs::read(entry.unwrap().path()).unwrap();
            bytes.windows(needle.len()).any(|window| window == needle)
        })
    };
    assert!(holds(sample::secret_path(1).as_str().as_bytes()), "the search works");
    assert!(place.file("tec.db-wal").exists());
    assert!(!holds(CANARY));
    let found = SecretStore::find(&store, &sample::secret_path(1)).await.unwrap().unwrap();
    assert_eq!(found.expose("test"), CANARY.repeat(10));
    drop(store);
    assert!(!holds(CANARY));
}

#[tokio::test]
async fn equal_secrets_are_sealed_differently_after_a_restart_too() {
    let place = Place::new();
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..4_u64 {
        // Another seed per start, like real randomness.
        let entropy = crate::testing::SeededEntropy::new(round);
        let store = crate::store::Store::open(place.dir(), &entropy).unwrap();
        for _ in 0..4 {
            let path = sample::secret_path(1);
            store.remove(&path).await.unwrap();
            store.put_new(&path, &sample::secret(1), &sample::line()).await.unwrap();
            let sql = "SELECT sealed FROM secret";
            let sealed: Vec<u8> = place.raw().query_row(sql, (), |row| row.get(0)).unwrap();
            assert!(seen.insert(sealed[..12].to_vec()), "a nonce came twice");
        }
    }
}

/// Records that other programs and later versions must open. Created with the Python package
/// `cryptography`: `nonce + AESGCM(key).encrypt(nonce, text, aad)` for the key 00 01 … 1f, the
/// nonce 12 times a5, and `b"tec store secret v1\0default/…0001/root"` or `b"tec store check
/// v1\0"`.
#[tokio::test]
async fn the_sealed_form_is_the_documented_one() {
    const SECRET: &str =
        "a5a5a5a5a5a5a5a5a5a5a5a5552ff98056f55be208c7c69bbf8f2be31eaa02e1c20cfb89c5e74be0";
    const CHECK: &str = "a5a5a5a5a5a5a5a5a5a5a5a5552ff5d312ef4de8448cc887d103114cf969d8524d9fc9e51ecf02e5643392903a0f";
    let place = Place::new();
    drop(place.open());
    fs::write(place.file("seal.key"), (0..32).collect::<Vec<u8>>()).unwrap();
    let raw = place.raw();
    let check = hex::decode(CHECK).unwrap();
    raw.execute("UPDATE seal_check SET sealed = ?1", (check,)).unwrap();
    let path = sample::secret_path(1);
    let record = (path.as_str(), hex::decode(SECRET).unwrap());
    raw.execute("INSERT INTO secret VALUES (?1, ?2, 1)", record).unwrap();
    drop(raw);
    let found = SecretStore::find(&place.open(), &path).await.unwrap().unwrap();
    assert_eq!(found.expose("test"), b"the disk key");
}
