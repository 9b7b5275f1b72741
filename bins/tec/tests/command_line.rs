//! What all commands have in common: forms, completions, what goes to a terminal only.

mod world;

use tec_tpm::compute::testing::debian_chain;

use crate::world::json;
use crate::world::said;
use crate::world::str;
use crate::world::tec;
use crate::world::text;
use crate::world::unpacked;

#[test]
fn completions_know_every_command_and_no_hidden_one() {
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
    for part in [
        "## tec node nextboot",
        "## tec pcr bundle sign",
        "`--pin-pcr <INDEX>`",
        "`TEC_STATE_DIR`",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("## tec reference"));
}
