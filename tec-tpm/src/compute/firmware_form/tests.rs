use tec_core::digest::Sha256Digest;

use super::*;
use crate::compute::hash::{BankDigests, Banks};
use crate::event_log::{EventLog, EventLogBuilder};

const CONFIG: EventKind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
const AUTHORITY: EventKind = EventKind::EFI_VARIABLE_AUTHORITY;

/// One event in a log, or in a prediction.
#[derive(Clone, Debug)]
enum Said {
    Variable(EventKind, &'static str, &'static str),
    Separator,
    Action(&'static str),
    Program(&'static str),
    /// As GRUB and shim measure one: without a path.
    Kernel(&'static str),
}

fn written(pcr: PcrIndex, events: &[Said]) -> Vec<u8> {
    let mut log = EventLogBuilder::new();
    for event in events {
        match event {
            Said::Variable(kind, name, data) => {
                log.variable(pcr, *kind, [7; 16], name, data.as_bytes())
            }
            Said::Separator => log.separator(pcr),
            Said::Action(text) => log.measure(pcr, EventKind::EFI_ACTION, text.as_bytes()),
            Said::Program(path) => log.image(Sha256Digest::of(path), path),
            Said::Kernel(text) => {
                let kind = EventKind::EFI_BOOT_SERVICES_APPLICATION;
                log.measure_digest(pcr, kind, Sha256Digest::of(text), &[0; WITHOUT_PATH])
            }
        };
    }
    log.build()
}

/// A prediction that measures these.
fn stated(pcr: PcrIndex, events: &[(Component, Said)]) -> Prediction {
    let said: Vec<_> = events.iter().map(|(_, said)| said.clone()).collect();
    let bytes = written(pcr, &said);
    let log = EventLog::parse(&bytes).unwrap();
    let measured = log.events()[1..].iter().zip(events).map(|(event, (component, said))| {
        let digest = Sha256Digest::new(*event.digests.sha256.unwrap());
        let measured =
            Measurement::new(*component, pcr, event.kind, BankDigests::from_sha256(digest));
        match said {
            Said::Variable(_, name, _) => measured.about(*name),
            _ => measured,
        }
    });
    Prediction::new(measured.collect(), std::collections::BTreeMap::new(), Banks::SHA256)
}

/// The next boot in the form of a log, and how many of its events are not in the log.
fn next(pcr: PcrIndex, next: &[(Component, Said)], log: &[Said]) -> (bool, usize) {
    let bytes = written(pcr, log);
    let log = EventLog::parse(&bytes).unwrap();
    let quoted = log.replay_sha256().unwrap();
    let chosen = [pcr].into_iter().collect();
    let verified = log.clone().verify(&quoted, chosen).unwrap();
    let next = stated(pcr, next).in_form_of(&verified);
    let is_same = next.expected().pcr(pcr).unwrap().value == *quoted.value(pcr);
    let is_logged = |m: &&Measurement| {
        log.events().iter().any(|e| e.digests.sha256 == Some(m.digest.as_bytes()))
    };
    (is_same, next.of_register(pcr).filter(|m| !is_logged(m)).count())
}

fn policy(dbx: &'static str, shim: &'static str) -> Vec<(Component, Said)> {
    vec![
        (Component::Pcr7SecureBoot, Said::Variable(CONFIG, "SecureBoot", "1")),
        (Component::Pcr7Pk, Said::Variable(CONFIG, "PK", "pk")),
        (Component::Pcr7Kek, Said::Variable(CONFIG, "KEK", "kek")),
        (Component::Pcr7Db, Said::Variable(CONFIG, "db", "db")),
        (Component::Pcr7Dbx, Said::Variable(CONFIG, "dbx", dbx)),
        (Component::Pcr7Separator, Said::Separator),
        (Component::Pcr7ShimCert, Said::Variable(AUTHORITY, "db", shim)),
        (Component::Pcr7SbatLevel, Said::Variable(AUTHORITY, "SbatLevel", "1")),
    ]
}

/// What real firmware makes of that, as public logs show it.
fn policy_forms() -> Vec<(&'static str, Vec<Said>)> {
    let plain: Vec<_> = policy("dbx", "cert").into_iter().map(|(_, said)| said).collect();
    let with = |at: usize, said: &[Said]| {
        let mut form = plain.clone();
        form.splice(at..at, said.iter().cloned());
        form
    };
    let mut late = plain.clone();
    late.swap(5, 6);
    let mut without_authority = plain.clone();
    without_authority.remove(6);
    let modes =
        [Said::Variable(CONFIG, "AuditMode", "0"), Said::Variable(CONFIG, "DeployedMode", "1")];
    vec![
        ("as predicted", plain.clone()),
        ("DMA protection", with(5, &[Said::Action("DMA Protection Disabled")])),
        ("debug mode", with(0, &[Said::Action("UEFI Debug Mode")])),
        ("modes", with(1, &modes)),
        ("dbr", with(5, &[Said::Variable(CONFIG, "dbr", "x")])),
        ("late separator", late),
        ("no authority of db", without_authority),
        ("option ROM", with(6, &[Said::Variable(AUTHORITY, "db", "another cert")])),
        ("early option ROM", with(5, &[Said::Variable(AUTHORITY, "db", "another cert")])),
    ]
}

#[test]
fn an_unchanged_boot_is_unchanged_on_every_firmware() {
    for (form, log) in policy_forms() {
        let same = next(PcrIndex::SECURE_BOOT, &policy("dbx", "cert"), &log);
        assert_eq!(same, (true, 0), "{form}");
    }
    let programs = [Said::Program("\\shimx64.efi"), Said::Program("\\grubx64.efi")];
    let [shim, grub] = programs.clone();
    let (call, separator) =
        (Said::Action("Calling EFI Application from Boot Option"), Said::Separator);
    let predicted = [
        (Component::Pcr4EfiCall, call.clone()),
        (Component::Pcr4Separator, separator.clone()),
        (Component::Pcr4Shim, shim),
        (Component::Pcr4Grub, grub),
    ];
    for firmware in [
        vec![call.clone(), separator.clone()],
        vec![separator.clone()],
        vec![Said::Program("setup"), call.clone(), separator.clone()],
        // Of Dell: a file on the same disk.
        vec![Said::Program("\\System_Services.efi"), call.clone(), separator.clone()],
        vec![call.clone(), separator.clone(), Said::Action("Returning"), call],
    ] {
        let log = [firmware, programs.to_vec()].concat();
        assert_eq!(next(PcrIndex::BOOT_MANAGER, &predicted, &log), (true, 0), "{log:?}");
    }
}

#[test]
fn an_updated_kernel_takes_the_place_of_the_one_that_grub_measured() {
    let boot = |kernel| {
        [
            (Component::Pcr4EfiCall, Said::Action("Calling EFI Application from Boot Option")),
            (Component::Pcr4Separator, Said::Separator),
            (Component::Pcr4Shim, Said::Program("\\shimx64.efi")),
            (Component::Pcr4Grub, Said::Program("\\grubx64.efi")),
            (Component::Pcr4Vmlinuz, Said::Kernel(kernel)),
        ]
    };
    let pcr = PcrIndex::BOOT_MANAGER;
    let bytes = written(pcr, &boot("old").map(|(_, said)| said));
    let log = EventLog::parse(&bytes).unwrap();
    let quoted = log.replay_sha256().unwrap();
    let verified = log.verify(&quoted, [pcr].into_iter().collect()).unwrap();
    for kernel in ["old", "new"] {
        let plain = stated(pcr, &boot(kernel));
        let here = plain.clone().in_form_of(&verified);
        assert_eq!(here.expected().pcr(pcr), plain.expected().pcr(pcr), "{kernel}");
    }
}

/// What EDK II would measure of the boot in a log: its variables in their order, the separator, the authorities;
/// the constants, then the programs after them.
fn as_predicted(log: &EventLog<'_>) -> Prediction {
    let mut measured = Vec::new();
    let mut state = |component, pcr, kind, digest: Sha256Digest, name: Option<String>| {
        let one = Measurement::new(component, pcr, kind, BankDigests::from_sha256(digest));
        measured.push(match name {
            Some(name) => one.about(name),
            None => one,
        });
    };
    let (programs, policy) = (PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT);
    let of = |pcr| log.events().iter().filter(move |event| event.extends() == Some(pcr));
    let digest = |event: &Event<'_>| Sha256Digest::new(*event.digests.sha256.unwrap());
    let call = Sha256Digest::of("Calling EFI Application from Boot Option");
    state(Component::Pcr4EfiCall, programs, EventKind::EFI_ACTION, call, None);
    let separator = Sha256Digest::of([0; 4]);
    state(Component::Pcr4Separator, programs, EventKind::SEPARATOR, separator, None);
    let own = of(programs).position(|event| event.kind == EventKind::SEPARATOR).unwrap_or(0);
    for event in of(programs).skip(own) {
        let is_file = event.detail().is_some_and(|path| path.to_lowercase().ends_with(".efi"));
        if event.kind == EventKind::EFI_BOOT_SERVICES_APPLICATION && is_file {
            state(Component::Pcr4Shim, programs, event.kind, digest(event), None);
        }
    }
    for (name, component) in [
        ("SecureBoot", Component::Pcr7SecureBoot),
        ("PK", Component::Pcr7Pk),
        ("KEK", Component::Pcr7Kek),
        ("db", Component::Pcr7Db),
        ("dbx", Component::Pcr7Dbx),
    ] {
        for event in of(policy).filter(|event| variable(event, CONFIG).as_deref() == Some(name)) {
            state(component, policy, event.kind, digest(event), Some(name.to_owned()));
        }
    }
    state(Component::Pcr7Separator, policy, EventKind::SEPARATOR, separator, None);
    // Of those of db that the firmware measures, the last is of the boot loader; the others are of option ROMs.
    let authorities: Vec<_> = of(policy).filter(|event| event.kind == AUTHORITY).collect();
    let of_firmware = authorities.iter().take_while(|event| is_authority_of_db(event)).count();
    for event in authorities.into_iter().skip(of_firmware.saturating_sub(1)) {
        state(Component::Pcr7ShimCert, policy, event.kind, digest(event), None);
    }
    Prediction::new(measured, std::collections::BTreeMap::new(), Banks::SHA256)
}

/// The registers that are said to change although the boot of the log comes again; `None` if it is not of a boot.
fn changes(bytes: &[u8]) -> Option<Vec<PcrIndex>> {
    let log = EventLog::parse(bytes).ok()?;
    let quoted = log.replay_sha256().ok()?;
    let registers = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT];
    let verified = log.clone().verify(&quoted, registers.into_iter().collect()).unwrap();
    let next = as_predicted(&log);
    next.measurements.iter().find(|one| one.component == Component::Pcr4Shim)?;
    let next = next.in_form_of(&verified).expected();
    let value = |pcr: PcrIndex| next.pcr(pcr).map(|stated| stated.value);
    Some(registers.into_iter().filter(|pcr| value(*pcr) != Some(*quoted.value(*pcr))).collect())
}

fn given(folder: &str) -> Vec<std::path::PathBuf> {
    let fixtures = std::env::var_os("TEC_FIXTURES").unwrap();
    let folder = std::fs::read_dir(Path::new(&fixtures).join(folder)).unwrap();
    folder.map(|entry| entry.unwrap().path()).collect()
}

#[test]
#[ignore = "needs event-logs: set TEC_FIXTURES"]
fn unchanged_boots_of_other_machines_are_unchanged() {
    let logs = given("eventlogs");
    let judged: Vec<_> =
        logs.iter().filter_map(|log| Some((log, changes(&std::fs::read(log).unwrap())?))).collect();
    println!("{} of {} logs are of a boot", judged.len(), logs.len());
    let changed: Vec<_> = judged.iter().filter(|(_, changes)| !changes.is_empty()).collect();
    assert!(changed.is_empty(), "{changed:#?}");
}

#[test]
#[ignore = "needs recorded-boots: set TEC_FIXTURES"]
fn boots_that_were_said_to_change_are_unchanged() {
    for log in given("hunt").iter().filter(|log| log.extension().is_some_and(|e| e == "bin")) {
        let is_whole = !log.display().to_string().contains("/log-");
        let expected = is_whole.then(Vec::new);
        assert_eq!(changes(&std::fs::read(log).unwrap()), expected, "{}", log.display());
    }
}

#[test]
fn a_change_is_the_only_difference() {
    for (form, log) in policy_forms() {
        let dbx = next(PcrIndex::SECURE_BOOT, &policy("newer dbx", "cert"), &log);
        assert_eq!(dbx, (false, 1), "{form}");
        let expected = if form == "no authority of db" { (true, 0) } else { (false, 1) };
        let shim = next(PcrIndex::SECURE_BOOT, &policy("dbx", "newer cert"), &log);
        assert_eq!(shim, expected, "{form}");
    }
}
