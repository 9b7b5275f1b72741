//! LUKS key generation: a machine's disk key is generated once, and seals the passphrase of the disk.
//!
//! ```text
//! cargo run -p tec-examples --bin luks_key
//! ```
//! Nothing secret is printed: secrets cannot be formatted, and only their length is shown.
#![expect(clippy::print_stdout, reason = "an example tells what it does")]

use anyhow::{Context as _, ensure};
use rand_core::UnwrapErr;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::ignition::PinConfig;
use tec_core::luks::{CompatLuksKey, LuksKeyGenerator as _, RandomLuksKey, content_key};
use tec_core::port::{AuditAction, AuditEvent, PutOutcome, SecretStore};
use tec_core::secret::SecretBytes;
use tec_core::testing::MemoryRegistry;
use tec_core::time::Timestamp;
use tec_trustee::clevis::{SealedPassphrase, seal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let machine: MachineId = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse()?;
    let mut rng = UnwrapErr(getrandom::SysRng);

    // The resource as a key broker serves it: {"key_type":"oct","key":"…"}.
    let compatible = CompatLuksKey.generate(&mut rng).into_bytes();
    let random = RandomLuksKey.generate(&mut rng).into_bytes();
    println!("compatible form   {compatible:?}, 192 random bits, every pin reads it");
    println!("own form          {random:?}, 256 random bits");

    // Stored once: an existing key is never overwritten.
    let registry = MemoryRegistry::new();
    let store: &dyn SecretStore = &registry;
    let path = ResourcePath::luks_root(&machine);
    // The audit line is written together with it.
    let (now, action) = (Timestamp::from_unix_seconds(0), AuditAction::KeyGenerated);
    let line = AuditEvent::new(now, action, Some(machine), path.as_str());
    ensure!(store.put_new(&path, &compatible, &line).await? == PutOutcome::Stored);
    ensure!(store.put_new(&path, &random, &line).await? == PutOutcome::Existed);
    println!("stored at         {path}; a second key was not taken");

    // The content key in it seals the passphrase, as `clevis luks bind` does.
    let released = store.find(&path).await?.context("the key that was just stored is missing")?;
    let key = content_key(&released)?;
    let json =
        format!(r#"{{"servers":[{{"url":"https://kbs.example.org:8080"}}],"path":"{path}"}}"#);
    let header = PinConfig::parse(&json)?.to_header();
    let passphrase = SecretBytes::new(b"correct horse battery staple".to_vec());
    let sealed = seal(&header, &key, &passphrase, &mut rng)?;
    println!("sealed            a JWE of {} characters", sealed.len());

    let sealed = SealedPassphrase::parse(&sealed)?;
    ensure!(sealed.open(&key)?.ct_eq(&passphrase));
    ensure!(sealed.open(&content_key(&random)?).is_err());
    println!("opened            with this key; not with another one");
    Ok(())
}
