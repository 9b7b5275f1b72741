//! `tec pcr`: the values of images and fleets, and the measurements behind them.

mod args;
pub(super) mod bundle;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_core::port::Clock as _;
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::exit::OK;
use tec_tpm::combine::{
    Catalog, Combined, Combiner, Grouping, Identification, IdentifiedEvent, KnownEvent, Loaders,
    Made, MokLists, SbatLevels,
};
use tec_tpm::compute::{Banks, Prediction};
use tec_tpm::event_log::{Bank, EventLog};
use tec_tpm::output as form;
use tec_tpm::output::{FleetReport, PredictionReport, ReferenceValues};

pub(crate) use self::args::PcrCommand;
use self::args::{Form, FormArgs};
use super::input;
use super::input::log_bytes;
use crate::output::{Output, raw};
use tec_support::boot;

/// Seconds in a year of 365 days, as counted by the existing operator.
const YEAR: i64 = 365 * 24 * 3600;

/// The expiry of values, by default in a year.
fn end(given: Option<Timestamp>) -> Timestamp {
    given.unwrap_or_else(|| SystemClock.now().plus_seconds(YEAR))
}

pub(crate) async fn pcr(
    state_dir: &Path,
    command: PcrCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        PcrCommand::Compute { image, chain, machine, banks, form } => {
            let machine = boot::machine(&machine)?;
            let banks = banks.into_iter().map(Bank::from);
            let banks = banks.fold(Banks::SHA256, Banks::with);
            let prediction = boot::predict(&image, &chain, &machine, banks)?;
            one_image(&prediction, form, output)?;
        }
        PcrCommand::Bundle(command) => bundle::bundle(command, output)?,
        PcrCommand::Combine {
            images,
            together,
            separate_loaders,
            independent_mok,
            stored_sbat_level,
            form,
        } => {
            let images = input::images(state_dir, &images).await?;
            let combined = Combiner::new()
                .with_grouping(grouping(separate_loaders, independent_mok))
                .with_sbat_levels(stored_levels(&stored_sbat_level)?)
                .combine(&input::named(&images))?;
            fleet(&combined, together.into_iter().collect(), form, output)?;
        }
        PcrCommand::Identify { images, pcr, value, log_file } => {
            let images = input::images(state_dir, &images).await?;
            let catalog = Catalog::new(&input::named(&images))?;
            if let Some(value) = value {
                output.print(&catalog.value(pcr, &value), identification_text)?;
            }
            if let Some(file) = log_file {
                let bytes = log_bytes(&file)?;
                let log = EventLog::parse(&bytes).with_context(|| file.display().to_string())?;
                output.print(&catalog.log(&log), |events| events_text(events))?;
            }
        }
        PcrCommand::Diff { before, after } => {
            let (before, after) = (input::label(&before)?, input::label(&after)?);
            let difference = form::difference(&before, &after);
            output.print(&difference, |d| form::difference_text(d))?;
        }
    }
    Ok(OK)
}

fn stored_levels(files: &[PathBuf]) -> anyhow::Result<SbatLevels> {
    let mut levels = SbatLevels::default();
    for file in files {
        levels = levels
            .with_stored(&input::text(file, boot::MAX_LEVEL)?)
            .with_context(|| file.display().to_string())?;
    }
    Ok(levels)
}

fn fleet(
    combined: &Combined,
    together: PcrSet,
    args: FormArgs,
    output: &Output,
) -> anyhow::Result<()> {
    match args.form {
        Form::Report => output.print(&FleetReport::new(combined, together)?, FleetReport::text),
        Form::TrusteeConfigMap | Form::TrusteeMessage => {
            reference_values(&ReferenceValues::of_fleet(combined), args)
        }
        Form::Label | Form::Pcrlock | Form::Tpm2Tools | Form::Measurements => {
            anyhow::bail!("this format holds only one value per register, but a fleet has several")
        }
    }
}

fn grouping(separate_loaders: bool, independent_mok: bool) -> Grouping {
    let loaders = if separate_loaders { Loaders::Separate } else { Loaders::OneUnit };
    let mok_lists = if independent_mok { MokLists::Independent } else { MokLists::FollowShim };
    Grouping::new(loaders, mok_lists)
}

fn one_image(prediction: &Prediction, args: FormArgs, output: &Output) -> anyhow::Result<()> {
    let expected = &prediction.expected();
    let values = || expected.pcrs.iter().map(|pcr| (pcr.id, pcr.value)).collect();
    match args.form {
        Form::Report => {
            let report = PredictionReport::new(prediction, boot::remedy);
            output.print(&report, PredictionReport::text)
        }
        Form::Label => raw(&form::label(expected)?),
        Form::Pcrlock => raw(&form::pcrlock(expected)?),
        Form::Tpm2Tools => raw(&form::pcrread(&values())),
        Form::Measurements => raw(&form::measurements(&values())?),
        Form::TrusteeConfigMap | Form::TrusteeMessage => {
            reference_values(&ReferenceValues::of_image(expected), args)
        }
    }
}

fn reference_values(values: &ReferenceValues, args: FormArgs) -> anyhow::Result<()> {
    raw(&match args.form {
        Form::TrusteeConfigMap => values.to_config_map(end(args.expires))?,
        _ => values.to_message()?,
    })
}

fn identification_text(found: &Identification) -> String {
    let pcr: PcrIndex = found.pcr;
    let mut text = format!("PCR {pcr} = {}\n", found.value);
    for made in &found.made {
        match made {
            Made::By(provenance) => {
                let _ = writeln!(text, "  made by {provenance}");
            }
            Made::From(sequence) => {
                text += "  made from\n";
                for (known, times) in sequence {
                    let _ = writeln!(text, "    {times} × {}", known_text(known));
                }
            }
            _ => {}
        }
    }
    let verdict = match (found.liberty, found.exhaustive) {
        (Some(liberty), _) => format!("which is {}", super::word(&liberty)),
        (None, true) => "made by nothing known".to_owned(),
        (None, false) => "nothing found; there were too many ways to try all".to_owned(),
    };
    let _ = writeln!(text, "  {verdict}");
    text
}

fn events_text(events: &[IdentifiedEvent]) -> String {
    let mut text = String::new();
    for identified in events {
        let event = &identified.event;
        let known = match (identified.known_as.as_slice(), identified.well_known) {
            ([], Some(name)) => name.to_owned(),
            ([], None) => "unknown".to_owned(),
            (known, _) => known_text(known),
        };
        let said = event.detail.as_deref().unwrap_or("");
        let _ = writeln!(
            text,
            "{:>4}  PCR {:2}  {:<34}  {known}  ({said})",
            event.number,
            u8::from(event.pcr),
            event.kind
        );
    }
    text
}

fn known_text(known: &[KnownEvent]) -> String {
    let one = |event: &KnownEvent| format!("{} of {}", event.component, event.image);
    known.iter().map(one).collect::<Vec<_>>().join(" or ")
}
