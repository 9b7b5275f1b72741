use super::*;
use crate::compute::BootPredictor;
use crate::compute::MemoryImage;
use crate::compute::PlatformState;
use crate::compute::Prediction;
use crate::compute::SecureBoot;
use crate::compute::testing::application;
use crate::compute::testing::debian_chain;
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

fn pinned() -> PcrSet {
    PcrSet::default().with(PCR4)
}

fn updated() -> Prediction {
    predict(&debian_chain("2.12").with(KERNEL, application("newer")))
}

#[test]
fn the_next_boot_of_the_same_files_is_as_now() {
    let prediction = predict(&debian_chain("2.12"));
    let bytes = log_of(&prediction);
    let log = EventLog::parse(&bytes).unwrap();
    let current = CurrentBoot {
        log: Some(&log),
        values: None,
    };
    let next = NextBoot::new(report(&prediction), current);
    let register = &next.registers[0];
    assert_eq!((register.pcr, register.changes()), (PCR4, Some(false)));
    assert!(register.gone.is_empty() && register.new.is_empty());
    assert!(next.text().contains("as now"));
}

#[test]
fn an_update_changes_the_event_of_the_file_that_changes() {
    let bytes = log_of(&predict(&debian_chain("2.12")));
    let log = EventLog::parse(&bytes).unwrap();
    let current = CurrentBoot {
        log: Some(&log),
        values: None,
    };
    let next = NextBoot::new(report(&updated()), current);
    let register = &next.registers[0];
    assert_eq!(register.changes(), Some(true));
    assert_eq!((register.gone.len(), register.new.len()), (1, 1));
    assert_eq!(register.new[0].source.as_deref(), Some(KERNEL));
    assert_eq!(
        register.gone[0].number,
        4 + 1,
        "after header and four events"
    );
    assert!(next.text().contains("Pcr4Vmlinuz"));
}

#[test]
fn values_alone_tell_which_registers_change() {
    let now: BTreeMap<_, _> = [(PCR4, Sha256Digest::ZERO)].into();
    let current = CurrentBoot {
        log: None,
        values: Some(&now),
    };
    let next = NextBoot::new(report(&updated()), current);
    assert_eq!(next.registers[0].now, Some(Sha256Digest::ZERO));
    assert_eq!(next.registers[0].changes(), Some(true));
    let unknown = NextBoot::new(report(&updated()), CurrentBoot::default());
    assert_eq!(unknown.registers[0].changes(), None);
}

#[test]
fn the_next_boot_is_accepted_by_an_image_or_a_list_and_else_refused() {
    let (old, new) = (predict(&debian_chain("2.12")).expected(), updated());
    let next = || NextBoot::new(report(&new), CurrentBoot::default());
    let accepted = Accepted {
        images: vec![
            ("old".to_owned(), old.clone()),
            ("new".to_owned(), new.expected()),
        ],
        lists: vec![(
            "list".to_owned(),
            ReferenceValues::of_image(&new.expected()),
        )],
    };
    let verdict = next().judged(&accepted, pinned()).verdict.unwrap();
    let by = vec!["new".to_owned(), "list".to_owned()];
    assert_eq!(verdict, Verdict::Accepted { by });
    let only_old = Accepted {
        images: vec![("old".to_owned(), old)],
        ..Accepted::default()
    };
    let refused = next().judged(&only_old, pinned());
    let verdict = refused.verdict.as_ref().unwrap();
    assert_eq!(*verdict, Verdict::Refused { pcrs: vec![PCR4] });
    assert!(!verdict.is_accepted());
    assert!(refused.text().ends_with("nobody accepts PCR 4\n"));
}

#[test]
fn a_pinned_register_that_cannot_be_told_is_accepted_by_nobody() {
    let accepted = Accepted {
        images: vec![("new".to_owned(), updated().expected())],
        ..Accepted::default()
    };
    let next = NextBoot::new(report(&updated()), CurrentBoot::default());
    let both = pinned().with(PcrIndex::SECURE_BOOT);
    let verdict = next.clone().judged(&accepted, both).verdict;
    let pcrs = vec![PcrIndex::SECURE_BOOT];
    assert_eq!(verdict, Some(Verdict::Undetermined { pcrs }));
    let nothing_pinned = next.judged(&accepted, PcrSet::default()).verdict.unwrap();
    assert!(!nothing_pinned.is_accepted());
}
