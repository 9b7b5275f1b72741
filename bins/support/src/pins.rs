//! Which registers a boot must match, as a flag.

use clap::Args;
use tec_core::attest::PinnedPcrs;
use tec_core::boot::Pins;
use tec_core::pcr::{PcrIndex, PcrSet};

/// The pinned registers of a server that judges boots.
#[derive(Clone, Debug, Default, Args)]
#[non_exhaustive]
pub struct PinsArgs {
    /// PCRs that every boot must match, separated by commas (default predicted: for each image, whichever of
    /// PCR 4, 8, 9, 11, 12, 13 and 14 its prediction states)
    #[arg(
        long,
        env = "TEC_PCRS",
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = parse_pin
    )]
    pub pcrs: Vec<Pin>,
}

/// One item of the flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// The registers that each image's prediction contains.
    Predicted,
    /// This register, for every image.
    Pcr(PcrIndex),
}

impl PinsArgs {
    /// The value of the flag; `None` if it is absent.
    pub fn given(&self) -> anyhow::Result<Option<Pins>> {
        let listed: PcrSet = self.listed().collect();
        let is_predicted = self.pcrs.contains(&Pin::Predicted);
        match (is_predicted, PinnedPcrs::new(listed)) {
            (true, Err(_)) => Ok(Some(Pins::Predicted)),
            (true, Ok(_)) => anyhow::bail!("--pcrs takes `predicted` or a list of PCRs, not both"),
            (false, listed) => Ok(listed.ok().map(Pins::Exactly)),
        }
    }

    /// The value of the flag, or the default.
    pub fn pins(&self) -> anyhow::Result<Pins> {
        Ok(self.given()?.unwrap_or_default())
    }

    /// The registers that are listed.
    pub fn listed(&self) -> impl Iterator<Item = PcrIndex> {
        self.pcrs.iter().filter_map(|pin| match pin {
            Pin::Pcr(index) => Some(*index),
            Pin::Predicted => None,
        })
    }
}

fn parse_pin(text: &str) -> Result<Pin, String> {
    if text == "predicted" { Ok(Pin::Predicted) } else { parse_pcr(text).map(Pin::Pcr) }
}

/// Parses a register number.
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
            parsed.map(|program| program.pins.pins().ok())
        };
        assert_eq!(pins(&[]).unwrap(), Some(Pins::Predicted));
        assert_eq!(pins(&["--pcrs", "predicted"]).unwrap(), Some(Pins::Predicted));
        assert_eq!(pins(&["--pcrs", "predicted,7"]).unwrap(), None, "neither is dropped");
        let both = PinnedPcrs::new([PcrIndex::BOOT_MANAGER, PcrIndex::MOK].into_iter().collect());
        assert_eq!(pins(&["--pcrs", "14,4"]).unwrap(), Some(Pins::Exactly(both.unwrap())));
        assert!(pins(&["--pcrs", "24"]).is_err());
        assert!(pins(&["--pcrs", ""]).is_err());
    }
}
