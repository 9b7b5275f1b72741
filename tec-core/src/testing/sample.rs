//! Sample values: different numbers give different values, equal numbers give equal values.

use uuid::Uuid;

use crate::ak::{AkRecord, ApprovedAk, PublicKey, TpmBoot};
use crate::attest::Attempt;
use crate::boot::Unpinned;
use crate::digest::Sha256Digest;
use crate::explain::{Gate, Ladder};
use crate::id::{AttemptId, ImageName, MachineId, ResourcePath};
use crate::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use crate::machine::{Machine, RegisteredBy};
use crate::pcr::PcrIndex;
use crate::port::{AuditAction, AuditEvent};
use crate::secret::SecretBytes;
use crate::time::Timestamp;

/// SubjectPublicKeyInfo of a P-256 key up to the coordinates (RFC 5480, section 2):
/// SEQUENCE { SEQUENCE { id-ecPublicKey, prime256v1 }, BIT STRING { 04 ‖ X ‖ Y } }.
const P256_PREFIX: [u8; 27] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
];

/// A point in time: `seconds` after 2026-01-01T00:00:00Z.
pub fn time(seconds: i64) -> Timestamp {
    Timestamp::from_unix_seconds(1_767_225_600).plus_seconds(seconds)
}

/// A machine ID; IDs sort like their numbers.
pub fn machine_id(number: u64) -> MachineId {
    MachineId::from(Uuid::from_u128(u128::from(number)))
}

/// A machine that registered itself at second 0.
pub fn machine(number: u64) -> Machine {
    Machine::unclaimed(machine_id(number), RegisteredBy::FirstBoot, time(0))
}

/// A public key that parses. Its point may not be on the curve: nothing can be verified with it.
///
/// # Panics
/// Never: the encoding is fixed.
#[expect(clippy::expect_used, reason = "the encoding is fixed and tested")]
pub fn public_key(number: u64) -> PublicKey {
    let x = Sha256Digest::of(number.to_be_bytes());
    let mut der = P256_PREFIX.to_vec();
    der.extend(x.as_bytes());
    der.extend(Sha256Digest::of(x.as_bytes()).as_bytes());
    PublicKey::from_der(&der).expect("the sample key is canonical")
}

/// Key `key`, as submitted for a machine.
pub fn ak(key: u64, machine: u64) -> AkRecord {
    AkRecord::pending(public_key(key), machine_id(machine), None, time(1))
}

/// Key `key`, as if a matcher had approved it for a machine.
pub fn approved_ak(key: u64, machine: u64) -> ApprovedAk {
    ApprovedAk::dangerous_assume_approved(ak(key, machine))
}

/// An image name; names sort like their numbers up to 9999.
///
/// # Panics
/// Never: the name is well formed for any number.
#[expect(clippy::expect_used, reason = "the format is a valid name for any number")]
pub fn image_name(number: u64) -> ImageName {
    format!("image-{number:04}").parse().expect("an image name")
}

/// An approved image with one consistent register.
pub fn image(number: u64) -> ApprovedImage {
    let event = ImageEvent::new(
        "EV_EFI_BOOT_SERVICES_APPLICATION",
        PcrIndex::BOOT_MANAGER,
        Sha256Digest::of(number.to_be_bytes()),
        "Pcr4Shim",
    );
    let pcr = ExpectedPcr::from_events(PcrIndex::BOOT_MANAGER, [event]);
    let reference = format!("registry.example/os@sha256:{number:064x}");
    ApprovedImage::new(image_name(number), reference, ExpectedPcrs::new(vec![pcr]), time(2))
}

/// Path of the disk key of a machine.
pub fn secret_path(machine: u64) -> ResourcePath {
    ResourcePath::luks_root(&machine_id(machine))
}

/// A secret.
pub fn secret(number: u64) -> SecretBytes {
    SecretBytes::new(Sha256Digest::of(number.to_le_bytes()).as_bytes().to_vec())
}

/// A recovery key that, to a store, looks sealed to an admin: text, like every JWE.
pub fn sealed(number: u64) -> SecretBytes {
    SecretBytes::new(format!("{{\"ciphertext\":\"{number}\"}}").into_bytes())
}

/// Path of a recovery key of the first machine.
pub fn recovery_path(number: u32) -> ResourcePath {
    ResourcePath::recovery(&machine_id(1), number)
}

/// An audit event that contains its number.
pub fn audit_event(number: u64) -> AuditEvent {
    AuditEvent::new(
        time(3),
        AuditAction::AkBound,
        Some(machine_id(number)),
        format!("event {number}"),
    )
}

/// The audit line for a change.
pub fn line() -> AuditEvent {
    line_at(3)
}

/// The audit line for a change at this time.
pub fn line_at(seconds: i64) -> AuditEvent {
    AuditEvent::new(time(seconds), AuditAction::AkBound, None, "a change")
}

/// The ID of an attempt.
///
/// # Panics
/// Never: the text is a UUID.
#[expect(clippy::expect_used, reason = "a hyphenated UUID parses")]
pub fn attempt_id(number: u64) -> AttemptId {
    Uuid::from_u128(u128::from(number)).hyphenated().to_string().parse().expect("a UUID")
}

/// An attempt at second `number` that failed at the attestation key.
pub fn attempt(number: u64, machine: Option<u64>) -> Attempt {
    let mut ladder = Ladder::new();
    ladder.pass(Gate::ReachedServer, "evidence received");
    ladder.fail(Gate::AkBound, format!("attempt {number}"));
    Attempt {
        id: attempt_id(number),
        at: time(i64::try_from(number).unwrap_or(i64::MAX)),
        machine: machine.map(machine_id),
        ak: Some(public_key(number).fingerprint()),
        booted: None,
        unpinned: Unpinned::default(),
        unsigned: false,
        boot: None,
        repeats: None,
        earlier: Vec::new(),
        measured: ExpectedPcrs::default(),
        late: None,
        ladder,
    }
}

/// An attempt at second `number` that passed every check up to the key, signed by the first key of
/// the first machine after this many resets of its TPM.
pub fn attempt_in_boot(number: u64, resets: u32) -> Attempt {
    let mut ladder = Ladder::new();
    for gate in Gate::ALL.into_iter().take_while(|gate| *gate != Gate::ReleasePolicy) {
        ladder.pass(gate, "passed");
    }
    Attempt {
        ak: Some(public_key(1).fingerprint()),
        boot: Some(TpmBoot { resets, restarts: 0 }),
        ladder,
        ..attempt(number, Some(1))
    }
}
