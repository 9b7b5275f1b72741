use std::sync::Mutex;

use tec_core::testing::SeededEntropy;
use tec_trustee::jwe::{Curve, EcPrivateKey};

use super::*;
use crate::disk::tests::fake::{FakeHeader, PASSPHRASE};

const SERVER: &str = "https://a:1";

#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Jwe>>);

#[async_trait]
impl Escrow for Kept {
    async fn keep(&self, sealed: &Jwe) -> Result<u32, Failure> {
        let mut kept = self.0.lock().unwrap();
        kept.push(sealed.clone());
        Ok(u32::try_from(kept.len()).unwrap())
    }
}

#[derive(Debug)]
struct Bench {
    header: FakeHeader,
    admin: EcPrivateKey,
    kept: Kept,
    entropy: SeededEntropy,
}

impl Bench {
    fn new() -> Self {
        let entropy = SeededEntropy::new(3);
        Self {
            header: FakeHeader::bound_to(SERVER),
            admin: EcPrivateKey::generate(Curve::P256, &mut EntropyRng::new(&entropy)),
            kept: Kept::default(),
            entropy,
        }
    }

    async fn enroll(&self) -> Result<Enrolled, Failure> {
        let passphrase = SecretBytes::new(PASSPHRASE.to_vec());
        let admin = self.admin.public();
        enroll(&self.header, &passphrase, &admin, &self.kept, &self.entropy).await
    }

    /// Slots that the escrowed keys open, in the order of the keys.
    fn opened(&self) -> Vec<u32> {
        self.header.life.set(None);
        let kept = self.kept.0.lock().unwrap();
        let keys = kept.iter().map(|sealed| self.admin.decrypt(sealed).unwrap());
        let slots = self.header.recovery().unwrap().slots;
        keys.filter_map(|key| {
            let opens = |slot: &&u32| self.header.opens(&slot.to_string(), &key).unwrap();
            slots.iter().find(opens).copied()
        })
        .collect()
    }

    fn pin_opens(&self) -> bool {
        let passphrase = SecretBytes::new(PASSPHRASE.to_vec());
        self.header.opens("1", &passphrase).unwrap()
    }
}

#[tokio::test]
async fn the_escrowed_key_opens_the_slot_and_is_a_recovery_key() {
    let bench = Bench::new();
    let enrolled = bench.enroll().await.unwrap();
    assert_eq!((enrolled.slot, enrolled.number), (31, Some(1)));
    assert_eq!(bench.opened(), [31]);
    let sealed = bench.kept.0.lock().unwrap()[0].clone();
    let key = bench.admin.decrypt(&sealed).unwrap();
    let text = std::str::from_utf8(key.expose("test")).unwrap();
    assert!(RecoveryKey::parse(text).is_ok());
    assert_eq!(settled(&bench.header).unwrap(), Some(31));
}

#[tokio::test]
async fn renewing_removes_the_slot_of_the_key_that_was_typed() {
    let bench = Bench::new();
    bench.enroll().await.unwrap();
    let renewed = bench.enroll().await.unwrap();
    assert_eq!((renewed.slot, renewed.number), (30, Some(2)));
    assert_eq!(bench.opened(), [30]);
    assert_eq!(bench.header.recovery().unwrap().slots, [1, 30]);
    assert!(bench.pin_opens());
}

#[tokio::test]
async fn after_a_power_cut_at_any_step_no_slot_has_a_key_that_nobody_knows() {
    for before in [0, 1] {
        let mut life = 0;
        loop {
            let bench = Bench::new();
            for _ in 0..before {
                bench.enroll().await.unwrap();
            }
            bench.header.life.set(Some(life));
            let first = bench.enroll().await;
            let slots = bench.header.recovery_now().slots;
            let opened = bench.opened();
            assert!(slots.iter().all(|slot| *slot == 1 || opened.contains(slot)));
            assert!(before == 0 || !opened.is_empty(), "after {life} calls");
            assert!(bench.pin_opens(), "after {life} calls");

            bench.enroll().await.unwrap();
            assert_eq!(bench.opened().len(), 1, "after {life} calls");
            assert_eq!(bench.header.recovery_now().slots.len(), 2);
            assert_eq!(bench.header.recovery_now().tokens.len(), 1);
            if first.is_ok() {
                break;
            }
            life += 1;
        }
        assert!(life > 8);
    }
}

#[tokio::test]
async fn a_slot_that_another_program_made_where_one_was_intended_is_kept() {
    // After the intent was written, and before its slot was created.
    let bench = Bench::new();
    bench.header.life.set(Some(4));
    bench.enroll().await.unwrap_err();
    bench.header.life.set(None);
    let view = bench.header.recovery_now();
    assert_eq!((view.slots.as_slice(), view.tokens.len()), (&[1][..], 1));
    bench.header.fill(31, b"theirs");
    assert_eq!(bench.enroll().await.unwrap().slot, 30);
    let theirs = SecretBytes::new(b"theirs".to_vec());
    assert!(bench.header.opens("31", &theirs).unwrap());

    // An admin removes the recovery slot manually, and uses its number.
    bench.header.remove_slot(30).unwrap();
    bench.header.fill(30, b"theirs");
    assert_eq!(bench.enroll().await.unwrap().slot, 29);
    assert!(bench.header.opens("30", &theirs).unwrap());
    assert_eq!(bench.header.recovery_now().tokens.len(), 1);
}
