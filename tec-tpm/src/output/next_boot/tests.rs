use tec_core::image::{ApprovedImage, ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::time::Timestamp;

use super::*;
use crate::combine::MixedStates;
use crate::compute::testing::{application, debian_chain};
use crate::compute::{BootPredictor, MemoryImage, PlatformState, Prediction, SecureBoot};
use crate::event_log::EventLogBuilder;

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
const KERNEL: &str = "boot/vmlinuz-6.12.0-amd64";

fn predict(image: &MemoryImage) -> Prediction {
    let machine = PlatformState::with_unknown_variables(SecureBoot::On);
    BootPredictor::new().predict(image, &machine).unwrap()
}

fn report(prediction: &Prediction) -> PredictionReport {
    PredictionReport::new(prediction, |_| None)
}

/// The log of a boot as it was predicted.
fn log_of(prediction: &Prediction) -> Vec<u8> {
    let mut log = EventLogBuilder::new();
    for measurement in prediction.measurements() {
        let (pcr, kind) = (measurement.pcr, measurement.kind);
        log.measure_digest(pcr, kind, measurement.digest, b"");
    }
    log.build()
}

fn pinned() -> Pins {
    exactly(&[PCR4])
}

fn exactly(pcrs: &[PcrIndex]) -> Pins {
    Pins::Exactly(PinnedPcrs::new(pcrs.iter().copied().collect()).unwrap())
}

fn image(name: &str, expected: ExpectedPcrs) -> ApprovedImage {
    let now = Timestamp::from_unix_seconds(0);
    ApprovedImage::new(name.parse().unwrap(), "", expected, now)
}

fn judged(
    next: NextBoot,
    images: &[ApprovedImage],
    lists: &[(String, ReferenceValues)],
    pins: Pins,
) -> NextBoot {
    let accepted = Accepted {
        states: &MixedStates::default(),
        live: &LiveImages::at(images, Timestamp::from_unix_seconds(0)),
        lists,
    };
    next.judged(accepted, pins)
}

fn updated() -> Prediction {
    predict(&debian_chain("2.12").with(KERNEL, application("newer")))
}

#[test]
fn the_next_boot_of_the_same_files_is_as_now() {
    let prediction = predict(&debian_chain("2.12"));
    let bytes = log_of(&prediction);
    let log = EventLog::parse(&bytes).unwrap();
    let current = CurrentBoot { log: Some(&log), values: None };
    let next = NextBoot::new(report(&prediction), current).unwrap();
    let register = &next.registers[0];
    assert_eq!((register.pcr, register.changes()), (PCR4, Some(false)));
    assert!(register.gone.is_empty() && register.new.is_empty());
    assert!(next.text().contains("as now"));
}

#[test]
fn an_update_changes_the_event_of_the_file_that_changes() {
    let bytes = log_of(&predict(&debian_chain("2.12")));
    let log = EventLog::parse(&bytes).unwrap();
    let current = CurrentBoot { log: Some(&log), values: None };
    let next = NextBoot::new(report(&updated()), current).unwrap();
    let register = &next.registers[0];
    assert_eq!(register.changes(), Some(true));
    assert_eq!((register.gone.len(), register.new.len()), (1, 1));
    assert_eq!(register.new[0].source.as_deref(), Some(KERNEL));
    assert_eq!(register.gone[0].kind, "EV_EFI_BOOT_SERVICES_APPLICATION");
    assert!(next.text().contains("Pcr4Vmlinuz"));
}

#[test]
fn values_alone_tell_which_registers_change() {
    let now: BTreeMap<_, _> = [(PCR4, Sha256Digest::ZERO)].into();
    let current = CurrentBoot { log: None, values: Some(&now) };
    let next = NextBoot::new(report(&updated()), current).unwrap();
    assert_eq!(next.registers[0].now, Some(Sha256Digest::ZERO));
    assert_eq!(next.registers[0].changes(), Some(true));
    let unknown = NextBoot::new(report(&updated()), CurrentBoot::default()).unwrap();
    assert_eq!(unknown.registers[0].changes(), None);
}

#[test]
fn the_next_boot_is_accepted_by_an_image_or_a_list_and_else_refused() {
    let (old, new) = (predict(&debian_chain("2.12")).expected(), updated());
    let next = || NextBoot::new(report(&new), CurrentBoot::default()).unwrap();
    let images = [image("old", old), image("new", new.expected())];
    let list = ReferenceValues::of_image(&new.expected());
    let lists = [("list".to_owned(), list)];
    let verdict = judged(next(), &images, &lists, pinned()).verdict.unwrap();
    let states = vec![BootState::whole([images[1].name.clone()], [PCR4])];
    let lists = vec!["list".to_owned()];
    assert_eq!(verdict, Verdict::Accepted { states, lists });
    let refused = judged(next(), &images[..1], &[], pinned());
    let verdict = refused.verdict.as_ref().unwrap();
    let (pcrs, trouble) = (vec![PCR4], None);
    assert_eq!(*verdict, Verdict::Refused { pcrs, trouble });
    assert!(!verdict.is_accepted());
    assert!(refused.text().ends_with("nobody accepts PCR 4\n"));
}

#[test]
fn a_pinned_register_that_cannot_be_told_is_accepted_by_nobody() {
    let images = [image("new", updated().expected())];
    let next = NextBoot::new(report(&updated()), CurrentBoot::default()).unwrap();
    let both = exactly(&[PCR4, PcrIndex::SECURE_BOOT]);
    let verdict = judged(next, &images, &[], both).verdict;
    let pcrs = vec![PcrIndex::SECURE_BOOT];
    assert_eq!(verdict, Some(Verdict::Undetermined { pcrs }));
}

#[test]
fn by_default_every_register_counts_that_an_image_or_a_list_states() {
    let mut expected = updated().expected();
    let keys = ImageEvent::new("EV_IPL", PcrIndex::MOK, Sha256Digest::of("keys"), "MokList");
    expected.pcrs.push(ExpectedPcr::from_events(PcrIndex::MOK, [keys]));
    let next = || NextBoot::new(report(&updated()), CurrentBoot::default()).unwrap();
    let images = [image("new", expected.clone())];
    let lists = [("list".to_owned(), ReferenceValues::of_image(&expected))];
    let pcrs = vec![PcrIndex::MOK];
    for verdict in [
        judged(next(), &images, &[], Pins::Predicted).verdict,
        judged(next(), &[], &lists, Pins::Predicted).verdict,
    ] {
        assert_eq!(verdict, Some(Verdict::Undetermined { pcrs: pcrs.clone() }));
    }
    let four = judged(next(), &images, &lists, pinned()).verdict.unwrap();
    assert!(four.is_accepted());
}

#[test]
fn a_state_between_two_images_is_accepted_and_told_part_by_part() {
    let (old, new) = (debian_chain("2.12"), debian_chain("2.14"));
    let new = new.with(KERNEL, application("newer"));
    let images = [("old", &old), ("new", &new)].map(|(name, i)| image(name, predict(i).expected()));
    let between = new.with(KERNEL, old.content(KERNEL).unwrap());
    let next = NextBoot::new(report(&predict(&between)), CurrentBoot::default()).unwrap();
    let accepted = judged(next.clone(), &images, &[], pinned());
    let said = "accepted: boot between images: bootloader of new + kernel of old\n";
    assert!(accepted.text().ends_with(said), "{}", accepted.text());
    let refused = judged(next, &images[1..], &[], pinned()).verdict.unwrap();
    assert!(!refused.is_accepted(), "without the image of the kernel");
}
