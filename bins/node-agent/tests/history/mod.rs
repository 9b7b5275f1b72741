//! A TPM continues from its last state, and a copy of its state does not.

use tec_core::code::Code;
use tec_core::explain::Gate;
use tec_core::flow;
use tec_support::SystemClock;
use tec_tpm::testing::Swtpm;

use crate::world::{Node, PASSPHRASE, Wire, boot, good, refused};

/// A node that was rebooted once since the state of its TPM was copied.
fn copied() -> (Node, Swtpm, Vec<u8>) {
    let mut node = Node::start(Wire::Plain);
    let sealed = good(node.encrypt());
    let copy = Swtpm::of_state(node.tpm.state_path()).unwrap();
    boot(&copy, "kernel");
    for _ in 0..2 {
        node.reboot("kernel");
        assert_eq!(good(node.decrypt(&sealed)), PASSPHRASE.as_bytes());
    }
    (node, copy, sealed)
}

#[test]
fn a_copy_of_a_tpm_is_refused_after_the_tpm_went_on_and_an_admin_is_told_why() {
    let (mut node, copy, sealed) = copied();
    let lines = refused(&node.world.decrypt(&copy, &sealed));
    assert_eq!(lines[0], format!("TEC-A408 {}", Code::TpmSetBack.title()));
    let attempt = node.world.attempt(node.machine);
    assert_eq!(lines[1], format!("attempt {}", attempt.id));
    let failed = attempt.ladder.first_failure().unwrap();
    assert_eq!(failed.gate, Gate::TpmHistory);
    assert!(failed.detail.contains("counts 1 fewer resets than at "));

    node.reboot("kernel");
    let output = node.decrypt(&sealed);
    assert_eq!(good(output), PASSPHRASE.as_bytes(), "the TPM itself goes on");
}

#[test]
fn of_two_copies_the_second_is_refused_even_if_it_is_the_right_machine() {
    let (mut node, mut copy, sealed) = copied();
    for _ in 0..2 {
        copy.restart().unwrap();
    }
    boot(&copy, "kernel");
    // Nothing distinguishes it from the machine, which was switched on equally often.
    good(node.world.decrypt(&copy, &sealed));
    let lines = refused(&node.decrypt(&sealed));
    assert!(lines[0].starts_with("TEC-A408 "), "{lines:?}");
    for _ in 0..2 {
        node.reboot("kernel");
    }
    good(node.decrypt(&sealed));
}

#[test]
fn an_admin_readmits_a_tpm_that_was_set_back_on_purpose() {
    let (node, copy, sealed) = copied();
    refused(&node.world.decrypt(&copy, &sealed));
    let registry = &*node.world.registry;
    let readmitted = flow::readmit_tpm(registry, &SystemClock, node.machine);
    node.world.runtime.block_on(readmitted).unwrap();
    good(node.world.decrypt(&copy, &sealed));
}
