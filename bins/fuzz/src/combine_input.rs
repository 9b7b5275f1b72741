//! Arbitrary images in JSON: combined or refused, whatever their order.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_tpm::combine::{CombineError, Combined, Combiner};
use tec_tpm::output::{FleetReport, ReferenceValues};

use crate::label::{image, text};
use crate::{Seed, outcome};

/// Images by name.
type Images = BTreeMap<String, ExpectedPcrs>;

/// Images are refused exactly if one contradicts itself. Their order and names change no value, and each
/// image's own values are among those of the fleet.
pub(crate) fn combine_input(data: &[u8]) {
    let Some(images) = images(data) else { return };
    let named: Vec<(&str, &ExpectedPcrs)> = images.iter().map(|(n, e)| (n.as_str(), e)).collect();
    let is_sound = images.values().all(is_sound);
    let combined = Combiner::new().combine(&named);
    assert_eq!(combined.is_ok(), is_sound, "{:?}", combined.err());
    let Ok(combined) = combined else { return };

    let backwards: Vec<_> = named.iter().rev().map(|(_, expected)| ("same", *expected)).collect();
    let again = Combiner::new().combine(&backwards).expect("the same images");
    assert!(combined.registers().iter().eq(again.registers().iter()));
    for pcr in combined.registers().iter() {
        assert_eq!(combined.values(pcr), again.values(pcr));
        let values = combined.values(pcr);
        let own = images.values().filter_map(|image| image.pcr(pcr));
        assert!(own.clone().all(|own| values.contains(&own.value)), "PCR {pcr}");
    }
    check_report(&combined);
}

/// Whether an image can be combined: each register occurs once, with events that replay to its value.
fn is_sound(image: &ExpectedPcrs) -> bool {
    let registers: PcrSet = image.pcrs.iter().map(|pcr| pcr.id).collect();
    let once = registers.iter().count() == image.pcrs.len();
    once && image.pcrs.iter().all(ExpectedPcr::is_consistent)
}

fn check_report(combined: &Combined) {
    let together = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK].into_iter().collect();
    let report = FleetReport::new(combined, together).expect("a few tuples");
    let values = ReferenceValues::of_fleet(combined);
    for register in &report.registers {
        let listed: Vec<Sha256Digest> = register.values.iter().map(|value| value.value).collect();
        assert_eq!(listed, combined.values(register.pcr));
        assert!(values.values(register.pcr).eq(&listed));
        assert!(register.values.iter().all(|value| !value.made_by.is_empty()));
    }
    assert!(serde_json::to_string(&report).is_ok());
    assert_eq!(report.text().is_empty(), report.registers.is_empty());
}

fn images(data: &[u8]) -> Option<Images> {
    serde_json::from_str(text(data)?).ok()
}

fn read(data: &[u8]) -> Result<(), String> {
    let images = images(data).ok_or("no images")?;
    let named: Vec<_> = images.iter().map(|(name, image)| (name.as_str(), image)).collect();
    outcome::<Combined, CombineError>(Combiner::new().combine(&named))
}

fn written(images: &[(&str, ExpectedPcrs)]) -> String {
    let images: BTreeMap<_, _> = images.iter().map(|(name, image)| (*name, image)).collect();
    serde_json::to_string(&images).expect("images can be written")
}

pub(crate) fn seeds() -> Vec<Seed> {
    let two = || written(&[("a", image("shim a", "kernel a")), ("b", image("shim b", "kernel b"))]);
    let other = two().replacen("Pcr4Vmlinuz", "Pcr4Other", 1);
    let lying = |name, text: String| Seed::new(name, text).refused(read);
    let value = |image: &ExpectedPcrs| image.pcrs.first().map(|pcr| pcr.value.to_string());
    let value = value(&image("shim b", "kernel b")).expect("two registers");
    vec![
        Seed::new("none", "{}"),
        Seed::new("two", two()),
        Seed::new("without_registers", written(&[("a", ExpectedPcrs::default())])),
        Seed::new("other_components", other),
        lying("value_of_other_events", two().replace(&value, &Sha256Digest::ZERO.to_string())),
        lying("event_of_another_register", two().replacen("\"pcr\":14", "\"pcr\":4", 1)),
        lying(
            "register_twice",
            two().replacen("\"id\":14", "\"id\":4", 1).replacen("\"pcr\":14", "\"pcr\":4", 1),
        ),
    ]
}
