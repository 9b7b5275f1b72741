//! Which registers a boot must match, as a flag.

use clap::Args;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::Pins;
use tec_core::pcr::PcrIndex;

/// The registers of a server that judges boots.
#[derive(Clone, Debug, Default, Args)]
#[non_exhaustive]
pub struct PinsArgs {
    /// Registers that the boot of every approved image must match, separated by commas. Default: for
    /// each image those of PCR 4, 8, 9, 11, 12, 13 and 14 that its prediction states
    #[arg(
        long,
        env = "TEC_PCRS",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = parse_pcr
    )]
    pub pcrs: Vec<PcrIndex>,
}

impl PinsArgs {
    /// What the flag says.
    pub fn pins(&self) -> Pins {
        PinnedPcrs::new(self.pcrs.iter().copied().collect()).map_or(Pins::Predicted, Pins::Exactly)
    }
}

/// Reads the number of a register.
///
/// # Errors
/// What it is not, for a person.
pub fn parse_pcr(text: &str) -> Result<PcrIndex, String> {
    let index: u8 = text.parse().map_err(|_| format!("{text} is not a number from 0 to 23"))?;
    PcrIndex::new(index).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        pins: PinsArgs,
    }

    #[test]
    fn without_the_flag_the_prediction_of_each_image_decides() {
        let pins = |more: &[&str]| {
            let parsed = Program::try_parse_from([&["program"], more].concat());
            parsed.map(|program| program.pins.pins())
        };
        assert_eq!(pins(&[]).unwrap(), Pins::Predicted);
        let both = PinnedPcrs::new([PcrIndex::BOOT_MANAGER, PcrIndex::MOK].into_iter().collect());
        assert_eq!(pins(&["--pcrs", "14,4"]).unwrap(), Pins::Exactly(both.unwrap()));
        assert!(pins(&["--pcrs", "24"]).is_err());
        assert!(pins(&["--pcrs", ""]).is_err());
    }
}
