use std::fs;
use std::path::Path;
use std::time::Duration;

use tec_tpm::compute::testing::{PeBuilder, application};
use tec_tpm::event_log::{EventKind, EventLogBuilder};

use super::*;
use crate::qemu::variables::empty_store;

fn compared(logged: &[&[u8]]) -> Option<Difference> {
    let mut log = EventLogBuilder::new();
    let pcr = PcrIndex::BOOT_MANAGER;
    for data in logged {
        log.measure(pcr, EventKind::EFI_ACTION, data);
    }
    let bytes = log.build();
    let log = EventLog::parse(&bytes).unwrap();
    let logged: Vec<_> = log.events().iter().filter(|event| event.extends() == Some(pcr)).collect();
    let call = Measurement::efi_call(Banks::SHA256);
    first_difference(&[&call], &logged, &log)
}

#[test]
fn the_first_event_that_differs_is_named_with_its_component() {
    let call: &[u8] = b"Calling EFI Application from Boot Option";
    assert!(compared(&[call]).is_none());
    let other = compared(&[b"Something else"]).unwrap();
    assert_eq!(other.banks, [Bank::Sha256]);
    assert!(other.predicted.unwrap().starts_with("Pcr4EfiCall"));
    assert!(other.logged.unwrap().contains("Something else"));
    let more = compared(&[call, call]).unwrap();
    assert_eq!((more.place, more.predicted), (1, None));
    assert_eq!(compared(&[]).unwrap().logged, None);
}

/// Installs a unified kernel image with this kernel, for a machine without keys.
fn install(esp: &Path, kernel: &str) {
    let uki = PeBuilder::new()
        .section(".sdmagic", "#### LoaderInfo: systemd-stub 262.1 ####")
        .section(".linux", application(kernel));
    fs::create_dir_all(esp.join("EFI/BOOT")).unwrap();
    fs::write(esp.join("EFI/BOOT/BOOTX64.EFI"), uki.build()).unwrap();
}

/// A boot that measures exactly what is predicted.
fn recorded(directory: &Path) -> Recording {
    install(&directory.join("esp"), "Linux");
    let image = DirectoryImage::open(directory.join("esp")).unwrap();
    let machine = PlatformState::new();
    let prediction = BootPredictor::new().predict(&image, &machine).unwrap();
    let mut log = EventLogBuilder::new();
    for event in prediction.measurements() {
        log.measure_digest(event.pcr, event.kind, event.digest, b"");
    }
    let log = log.build();
    let quoted = EventLog::parse(&log).unwrap().replay_sha256().unwrap();
    let values = quoted.iter().map(|(pcr, value)| (pcr, value.as_bytes().to_vec()));
    Recording {
        directory: directory.to_owned(),
        variables: empty_store(),
        pcrs: [(Bank::Sha256, values.collect())].into(),
        quoted,
        log: Some(log),
        took: Duration::default(),
    }
}

#[test]
fn a_boot_as_predicted_holds_and_one_of_another_file_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let recording = recorded(directory.path());
    let results = compare(&recording).unwrap();
    assert!(results.iter().all(|result| result.verdict.holds()));
    let of = |pcr, results: &[RegisterResult]| {
        let found = results.iter().find(|result| result.pcr == pcr);
        found.unwrap().verdict.clone()
    };
    let secret = of(PcrIndex::BOOT_FILES, &results);
    assert!(matches!(secret, Verdict::Unpredictable(_)));

    install(&recording.esp(), "Linux of somebody else");
    let verdict = of(PcrIndex::BOOT_MANAGER, &compare(&recording).unwrap());
    assert!(!verdict.holds());
    let Verdict::Predicted { difference: Some(difference), .. } = verdict else {
        panic!("{verdict:?}")
    };
    let predicted = difference.predicted.unwrap();
    assert!(predicted.contains("Pcr4Uki") && predicted.contains("BOOTX64.EFI"));
}

#[test]
fn without_a_log_the_registers_alone_decide() {
    let directory = tempfile::tempdir().unwrap();
    let mut recording = recorded(directory.path());
    recording.log = None;
    let holds = |recording: &Recording| {
        let results = compare(recording).unwrap();
        results.iter().all(|result| result.verdict.holds())
    };
    assert!(holds(&recording));
    install(&recording.esp(), "Linux of somebody else");
    assert!(!holds(&recording));
}

#[test]
fn a_log_that_is_not_what_the_tpm_has_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut recording = recorded(directory.path());
    let bank = recording.pcrs.get_mut(&Bank::Sha256).unwrap();
    bank.insert(PcrIndex::MOK, vec![7; 32]);
    assert!(compare(&recording).is_err());
}

#[test]
fn one_bank_that_differs_is_enough_to_fail() {
    let values = |measured: u8| Values { predicted: vec![1], measured: vec![measured] };
    let verdict = |measured| Verdict::Predicted {
        banks: [(Bank::Sha256, values(1)), (Bank::Sha384, values(measured))].into(),
        events: None,
        difference: None,
    };
    assert!(verdict(1).holds());
    assert!(!verdict(2).holds());
    assert!(Verdict::Unpredictable(String::new()).holds());
}
