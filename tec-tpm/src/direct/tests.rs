use std::collections::VecDeque;
use std::io;

use proptest::prelude::*;
use zeroize::Zeroizing;

use super::command::{Code, Command};
use super::template::RH_OWNER;
use super::transport::Transport;
use super::*;
use crate::testing::Swtpm;

const AK: AkHandle = AkHandle::DEFAULT;

/// Answers from a list, then nothing.
#[derive(Debug)]
struct Scripted(VecDeque<Vec<u8>>);

impl Transport for Scripted {
    fn transmit(&mut self, _: &[u8]) -> io::Result<Zeroizing<Vec<u8>>> {
        let answer = self.0.pop_front().map(Zeroizing::new);
        answer.ok_or_else(|| io::ErrorKind::TimedOut.into())
    }
}

fn scripted(answers: impl IntoIterator<Item = Vec<u8>>) -> Tpm {
    Tpm::over(Channel::new(Box::new(Scripted(answers.into_iter().collect()))))
}

/// An answer whose header is right.
fn framed(tag: u16, code: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(10 + body.len()).unwrap();
    let mut answer = tag.to_be_bytes().to_vec();
    answer.extend(size.to_be_bytes());
    answer.extend(code.to_be_bytes());
    answer.extend(body);
    answer
}

fn command_error(error: &TpmError) -> &CommandError {
    match error {
        TpmError::Command { source, .. } => source.downcast_ref().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_busy_tpm_is_asked_again() {
    // No handle: TPM_RC_RETRY first.
    let nothing = framed(0x8001, 0, &[0, 0, 0, 0, 1, 0, 0, 0, 0]);
    let tpm = scripted([framed(0x8001, 0x922, &[]), nothing]);
    assert!(matches!(tpm.ak_public_area(AK), Err(TpmError::NoAk(AK))));
}

#[test]
fn after_a_lost_answer_none_is_taken_for_another() {
    let tpm = scripted([]);
    let error = tpm.pcr_read().unwrap_err();
    assert!(matches!(command_error(&error), CommandError::Transport(_)));
    let error = tpm.pcr_read().unwrap_err();
    assert!(matches!(command_error(&error), CommandError::Broken));
}

#[test]
fn a_refusal_names_the_code() {
    let tpm = scripted([framed(0x8001, 0x101, &[])]);
    let error = tpm.pcr_read().unwrap_err();
    assert!(matches!(
        command_error(&error),
        CommandError::Refused(code) if code.as_u32() == 0x101
    ));
}

#[test]
fn registers_that_the_tpm_never_gives_are_named() {
    // A selection and a list of digests, both empty.
    let tpm = scripted([framed(0x8001, 0, &[0; 12])]);
    assert!(matches!(tpm.pcr_read(), Err(TpmError::Bank(_))));
}

/// Everything that is asked of a TPM; what it says does not matter.
fn use_all(tpm: &Tpm) {
    let credential = Credential::new(vec![0, 1, 0], vec![0, 1, 0]);
    drop(tpm.ensure_ak(AK, AkAlgorithm::EccP256));
    drop(tpm.evict_ak(AK));
    drop(tpm.quote(AK, &[0; 32]));
    drop(tpm.read_ek());
    drop(tpm.activate_credential(AK, &credential));
    drop(tpm.pcr_event(PcrIndex::CLUSTER, b"x"));
    drop(tpm.pcr_read());
}

fn arbitrary_answer() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..64),
        // The handle is there, or a list of one, so that reading goes on behind it.
        proptest::collection::vec(any::<u8>(), 0..64).prop_map(|tail| {
            let mut body = vec![0, 0, 0, 0, 1, 0, 0, 0, 1, 0x81, 1, 0, 2];
            body.extend(tail);
            body
        }),
        proptest::collection::vec(0_u8..4, 0..64),
    ];
    (prop_oneof![Just(0x8001), Just(0x8002)], body).prop_map(|(tag, body)| framed(tag, 0, &body))
}

proptest! {
    #[test]
    fn whatever_a_tpm_answers_nothing_panics_or_goes_on_for_ever(
        answers in proptest::collection::vec(arbitrary_answer(), 0..40),
    ) {
        use_all(&scripted(answers));
    }
}

/// Creates a key with a password under the owner hierarchy, and tries to use it without the
/// password until the TPM protects itself.
fn lock_out(tpm: &Tpm) {
    let channel = &mut tpm.channel.lock();
    let primary = Command::new(Code::CreatePrimary)
        .handle_by_password(RH_OWNER)
        .raw(&[0, 5, 0, 1, b'x', 0, 0]) // the password x, no data
        .sized(&protected_key())
        .sized(&[])
        .raw(&[0; 4]);
    let key = channel.run(&primary).unwrap().handle();
    let is_locked = (0..40).any(|_| {
        let quoted = register::quote(channel, key, &[0; 32]);
        matches!(quoted, Err(TpmError::Lockout(_)))
    });
    assert!(is_locked);
    flush::flush(channel, key).unwrap();
}

/// As an attestation key, without noDA.
fn protected_key() -> Vec<u8> {
    let mut area = template::attestation_key(AkAlgorithm::EccP256);
    // Bit 10 of the attributes, which follow type and nameAlg.
    area[6] &= !0x04;
    area
}

#[test]
fn lockout_does_not_keep_a_node_from_its_first_boot_or_later_ones() {
    let swtpm = Swtpm::start().unwrap();
    let tpm = Tpm::open(&swtpm.tcti()).unwrap();
    lock_out(&tpm);
    let ak = tpm.ensure_ak(AK, AkAlgorithm::EccP256).unwrap();
    let evidence = tpm.quote(AK, &[1; 32]).unwrap();
    assert!(evidence.quote().verify(ak.key.public(), &[1; 32]).is_ok());
    assert!(tpm.read_ek().is_ok());
}

#[cfg(feature = "tss")]
#[test]
fn a_key_that_is_not_exempt_is_told_to_be_in_lockout_by_both_ways() {
    let swtpm = Swtpm::start().unwrap();
    let through_libtss2 = crate::tss::Tpm::open(&swtpm.tcti()).unwrap();
    through_libtss2.ensure_ak(AK, AkAlgorithm::EccP256).unwrap();
    drop(through_libtss2);
    let tpm = Tpm::open(&swtpm.tcti()).unwrap();
    lock_out(&tpm);
    let is_lockout = |quoted| matches!(quoted, Err(TpmError::Lockout(_)));
    assert!(is_lockout(tpm.quote(AK, &[1; 32])));
    drop(tpm);
    let through_libtss2 = crate::tss::Tpm::open(&swtpm.tcti()).unwrap();
    assert!(is_lockout(through_libtss2.quote(AK, &[1; 32])));
}
