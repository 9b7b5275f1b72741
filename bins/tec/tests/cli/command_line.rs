//! What all commands share: formats, completions, terminal-only output.

use tec_tpm::compute::testing::debian_chain;

use crate::world::{json, said, str, tec, text, unpacked};

#[test]
fn completions_know_the_commands_and_their_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&["completion", shell]);
        for word in ["nextboot", "bundle", "firmware-starts", "variable-store"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn progress_is_for_terminals_only() {
    let image = unpacked(&debian_chain("2.12"));
    let output = tec(&["pcr", "compute", str(image.path())]);
    assert!(output.status.success());
    assert_eq!(said(&output), "");
}

#[test]
fn equal_input_gives_equal_output() {
    let image = unpacked(&debian_chain("2.12"));
    let compute = ["pcr", "compute", str(image.path())];
    assert_eq!(json(&compute), json(&compute));
}

#[test]
fn the_reference_has_every_command_with_its_flags() {
    let page = text(&["reference"]);
    for part in
        ["## tec node nextboot", "## tec pcr bundle sign", "`--pin-pcr <INDEX>`", "`TEC_STATE_DIR`"]
    {
        assert!(page.contains(part), "{part}");
    }
}
