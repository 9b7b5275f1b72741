//! Which PCRs a boot must match.

use std::path::Path;

use tec_core::boot::Pins;
use tec_support::pins::PinsArgs;

use crate::state::Said;

/// The registers that boots must match: from the flag, otherwise from the server that ran here before.
///
/// Earlier versions pinned PCR 4 by default. Machines that they admitted may have boot files that were never
/// approved, so a directory that such a version created keeps its setting until an admin changes it.
pub(super) fn pins(state_dir: &Path, args: &PinsArgs) -> anyhow::Result<Pins> {
    if let Some(pins) = args.given()? {
        return Ok(pins);
    }
    let Pins::Exactly(kept) = Said::pins(state_dir)? else {
        return Ok(Pins::Predicted);
    };
    tracing::warn!(
        pcrs = %kept.iter().map(|pcr| pcr.to_string()).collect::<Vec<_>>().join(","),
        "boots must match only these PCRs, as before (once every machine has booted an approved image, \
         use --pcrs predicted)"
    );
    Ok(Pins::Exactly(kept))
}

#[cfg(test)]
mod tests {
    use tec_core::attest::PinnedPcrs;
    use tec_core::migrate::belonging::Demands;
    use tec_core::pcr::PcrIndex;
    use tec_support::pins::Pin;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_directory_keeps_the_list_of_an_earlier_server_until_somebody_chooses() {
        let directory = TempDir::new().unwrap();
        let chosen = |word: Option<Pin>| {
            let mut args = PinsArgs::default();
            args.pcrs.extend(word);
            pins(directory.path(), &args).unwrap()
        };
        assert_eq!(chosen(None), Pins::Predicted, "a new directory");
        let only = PinnedPcrs::boot_manager();
        let said = |pcrs| Said { demands: Demands::default(), pcrs };
        said([PcrIndex::BOOT_MANAGER].into()).write(directory.path()).unwrap();
        assert_eq!(chosen(None), Pins::Exactly(only));
        assert_eq!(chosen(Some(Pin::Predicted)), Pins::Predicted);
        said([].into()).write(directory.path()).unwrap();
        assert_eq!(chosen(None), Pins::Predicted, "the choice is kept");
        assert_eq!(chosen(Some(Pin::Pcr(PcrIndex::BOOT_MANAGER))), Pins::Exactly(only));
    }
}
