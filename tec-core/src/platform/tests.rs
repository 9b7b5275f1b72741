use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::attest::LogEvidence;
use crate::testing::PlatformBoot;

fn boot() -> PlatformBoot {
    PlatformBoot::new()
}

fn judged(before: &PlatformBoot, after: &PlatformBoot) -> Judgement {
    judge(&before.platform(), &after.platform())
}

/// Registers and details of the changes for which a boot is refused.
fn refused(before: &PlatformBoot, after: &PlatformBoot) -> Vec<String> {
    match judged(before, after) {
        Judgement::Refused(changes) => changes.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_changes_in_normal_use_matches() {
    for after in [
        boot(),
        boot().without_log(),
        boot().boot_order("network"),
        boot().boot_order("network").without_log(),
        boot().authorities(&["another shim", "a kernel"]),
        boot().authorities(&[]),
    ] {
        assert_eq!(judged(&boot(), &after), Judgement::Matches, "{after:?}");
    }
}

#[test]
fn entries_that_the_firmware_took_are_admitted_and_move_the_baseline() {
    for after in [
        boot().keys(KeyDatabase::Db, &[3, 30]),
        boot().keys(KeyDatabase::Dbx, &[4, 40, 41]),
        boot().keys(KeyDatabase::Db, &[3, 30]).keys(KeyDatabase::Dbx, &[4, 40]),
        boot().keys(KeyDatabase::Kek, &[2, 20]),
        boot().keys(KeyDatabase::Dbt, &[5]),
        boot().keys(KeyDatabase::Dbr, &[6]).keys(KeyDatabase::Dbt, &[5]),
    ] {
        assert_eq!(judged(&boot(), &after), Judgement::Updated, "{after:?}");
        assert!(matches!(judged(&after, &boot()), Judgement::Refused(_)), "a rollback");
    }
}

/// An update of the initramfs to systemd 261 or later, and its way back.
#[test]
fn the_separator_of_systemd_is_no_change() {
    let separated = |boot: PlatformBoot| boot.word("os-separator");
    for has_log in [true, false] {
        let after = if has_log { boot() } else { boot().without_log() };
        let after = separated(after);
        assert_eq!(judged(&boot(), &after), Judgement::Matches, "log: {has_log}");
        assert_eq!(judged(&after, &boot()), Judgement::Matches, "log: {has_log}");
        let changes = changes(&boot().platform(), &after.platform());
        let is_refused = |change: &PlatformChange| change.effect == ChangeEffect::Refused;
        assert!(!changes.iter().any(is_refused), "{changes:?}");
    }
    assert!(matches!(judged(&boot(), &boot().word("implant")), Judgement::Refused(_)));
    let updated = separated(boot().keys(KeyDatabase::Dbx, &[4, 40]));
    assert_eq!(judged(&boot(), &updated), Judgement::Updated, "both at once");
    let refused = refused(&boot(), &separated(boot().firmware("2.0")));
    assert!(refused.iter().all(|change| !change.contains("PCR 7")), "{refused:?}");
}

#[test]
fn what_the_firmware_admits_not_to_protect_is_named() {
    let weaknesses = |boot: PlatformBoot| boot.platform().firmware.policy.weaknesses();
    let weak = boot().word("DMA Protection Disabled");
    assert!(matches!(weaknesses(weak.clone())[..], [what] if what.contains("DMA protection")));
    assert!(weaknesses(boot()).is_empty() && weaknesses(weak.without_log()).is_empty());
}

#[test]
fn programs_of_the_firmware_are_enforced() {
    let program = |text: &str| {
        let digest = Sha256Digest::of(text);
        LoggedEvent::new(
            9,
            PcrIndex::BOOT_MANAGER,
            digest,
            "EV_EFI_BOOT_SERVICES_APPLICATION",
            None,
        )
    };
    let with = |programs: &[&str]| {
        let programs: Vec<_> = programs.iter().map(|text| program(text)).collect();
        boot().platform().with_programs(&programs)
    };
    assert_eq!(judge(&with(&["agent"]), &with(&["agent"])), Judgement::Matches);
    for (before, after) in [
        (with(&[]), with(&["agent"])),
        (with(&["agent"]), with(&[])),
        (with(&["agent"]), with(&["other"])),
        (with(&["agent", "setup"]), with(&["setup", "agent"])),
    ] {
        let Judgement::Refused(changes) = judge(&before, &after) else {
            panic!("{after:?}");
        };
        assert_eq!(u8::from(changes[0].pcr), 4, "{changes:?}");
    }
    let json = serde_json::to_string(&boot().platform()).unwrap();
    assert!(!json.contains("programs"), "machines without any keep the ID of their firmware");
}

#[test]
fn every_other_change_is_refused_and_named() {
    let off = boot().secure_boot(SecureBootState::Off);
    for (before, after, named) in [
        (boot(), boot().firmware("2.0"), "PCR 0 EV_S_CRTM_VERSION 1.0 -> 2.0"),
        (boot(), boot().option_rom("implant"), "PCR 2 EV_EFI_BOOT_SERVICES_DRIVER"),
        (boot(), off.clone(), "SecureBoot, on -> off"),
        (boot(), boot().keys(KeyDatabase::Pk, &[9]), "PK, 1 added, 1 removed"),
        (boot(), boot().keys(KeyDatabase::Pk, &[1, 9]), "PK, 1 added, 0 removed"),
        (boot(), boot().keys(KeyDatabase::Kek, &[9]), "KEK, 1 added, 1 removed"),
        (boot(), boot().keys(KeyDatabase::Db, &[30]), "db, 1 added, 1 removed"),
        (boot(), boot().keys(KeyDatabase::Dbx, &[]), "dbx, 0 added, 1 removed"),
        (boot(), boot().other("UEFI Debug Mode"), "EV_EFI_ACTION UEFI Debug Mode"),
        // Nobody's signature is checked while Secure Boot is off.
        (off.clone(), off.keys(KeyDatabase::Db, &[3, 30]), "db, 1 added"),
    ] {
        let refused = refused(&before, &after);
        assert!(refused.iter().any(|change| change.contains(named)), "{named}: {refused:?}");
        assert_eq!(refused.len(), 1, "{refused:?}");
    }
}

#[test]
fn a_change_that_no_log_explains_is_refused() {
    let (plain, other) = (boot(), boot().authorities(&["another shim"]));
    for (before, after) in [
        (plain.clone(), other.clone().without_log()),
        (plain.clone().without_log(), other),
        (plain, boot().keys(KeyDatabase::Dbx, &[4, 40]).without_log()),
    ] {
        let refused = refused(&before, &after);
        assert!(refused[0].starts_with("PCR 7: "), "{refused:?}");
    }
}

#[test]
fn relabeled_events_explain_nothing() {
    // Whoever sends the log chooses the types of events, and none of them is believed.
    let mut evidence = boot().secure_boot(SecureBootState::Off).evidence(1);
    if let LogEvidence::Parsed { events, .. } = &mut evidence.log {
        for event in events {
            event.kind = "EV_EFI_VARIABLE_AUTHORITY".to_owned();
        }
    }
    let judged = judge(&boot().platform(), &Platform::of(&evidence));
    assert!(matches!(judged, Judgement::Refused(_)), "{judged:?}");

    // Data that was left out of the log proves no variable.
    let mut evidence = boot().keys(KeyDatabase::Dbx, &[4, 40]).evidence(1);
    evidence.variables.clear();
    let judged = judge(&boot().platform(), &Platform::of(&evidence));
    assert!(matches!(judged, Judgement::Refused(_)), "{judged:?}");
}

#[test]
fn an_authority_before_the_separator_counts() {
    let mut evidence = boot().other("an authority").evidence(1);
    let LogEvidence::Parsed { events, .. } = &evidence.log else {
        panic!("no log");
    };
    let other = events.iter().find(|event| event.kind == "EV_EFI_ACTION").unwrap().number;
    evidence.variables.push(LoggedVariable::new(other, PolicyVariable::Authority));
    let judged = judge(&boot().platform(), &Platform::of(&evidence));
    assert!(matches!(judged, Judgement::Refused(_)), "{judged:?}");
}

/// Root of a running machine can extend PCR 7 with whatever the firmware would.
#[test]
fn variables_behind_the_separator_move_no_baseline() {
    let mut evidence = boot().evidence(1);
    let (pcr, digest, last) = (PcrIndex::SECURE_BOOT, Sha256Digest::of("a variable"), 1000);
    let value = evidence.pcrs.value(pcr).extended(&digest);
    evidence.pcrs = evidence.pcrs.with(pcr, value);
    if let LogEvidence::Parsed { events, .. } = &mut evidence.log {
        events.push(LoggedEvent::new(last, pcr, digest, "E", None));
    }
    let entries = [Sha256Digest::of("a key")].into();
    let keys = PolicyVariable::Keys { name: KeyDatabase::Dbt, entries };
    evidence.variables.push(LoggedVariable::new(last, keys));
    let judged = judge(&boot().platform(), &Platform::of(&evidence));
    assert!(matches!(judged, Judgement::Refused(_)), "{judged:?}");
}

#[test]
fn recorded_changes_are_shown_and_not_refused() {
    let after = boot().boot_order("network").platform();
    let changes = changes(&boot().platform(), &after);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].effect, ChangeEffect::Recorded);
    assert_eq!(changes[0].detail.as_deref(), Some("disk -> network"));
}

#[test]
fn a_register_with_too_many_events_counts_as_unexplained() {
    let many: Vec<String> = (0..MAX_EVENTS).map(|number| number.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let platform = boot().authorities(&many).platform();
    assert!(matches!(platform.firmware.policy, Policy::Value(_)));
}

#[test]
fn a_platform_that_is_too_long_counts_as_unexplained() {
    let entries: Vec<u64> = (0..MAX_ENTRIES as u64).collect();
    let (boot, updated) =
        (boot().keys(KeyDatabase::Dbx, &entries), boot().keys(KeyDatabase::Dbx, &entries[1..]));
    let platform = boot.platform();
    assert!(matches!(platform.firmware.policy, Policy::Value(_)));
    assert!(platform.registers().values().all(|register| register.events.is_none()));
    assert_eq!(judge(&platform, &boot.platform()), Judgement::Matches);
    assert!(matches!(judge(&updated.platform(), &platform), Judgement::Refused(_)));
}

#[test]
fn machines_of_one_model_share_the_firmware_part() {
    let (one, other) =
        (boot().platform(), boot().boot_order("network").authorities(&["kernel"]).platform());
    assert_eq!(one.firmware, other.firmware);
    assert_ne!(one.recorded, other.recorded);
    let json = serde_json::to_string(&one).unwrap();
    assert_eq!(serde_json::from_str::<Platform>(&json).unwrap(), one);
}

fn any_boot() -> impl Strategy<Value = PlatformBoot> {
    let keys = || proptest::collection::vec(0_u64..4, 0..4);
    (0_u8..2, 0_u8..2, any::<bool>(), any::<bool>(), keys(), keys(), keys(), 0_u8..3).prop_map(
        |(firmware, rom, on, has_log, kek, db, dbx, authority)| {
            let state = if on { SecureBootState::On } else { SecureBootState::Off };
            let boot = boot()
                .firmware(&firmware.to_string())
                .option_rom(&rom.to_string())
                .secure_boot(state)
                .keys(KeyDatabase::Kek, &kek)
                .keys(KeyDatabase::Db, &db)
                .keys(KeyDatabase::Dbx, &dbx)
                .authorities(&[&authority.to_string()]);
            if has_log { boot } else { boot.without_log() }
        },
    )
}

fn entries(platform: &Platform, wanted: KeyDatabase) -> Option<BTreeSet<Sha256Digest>> {
    let Policy::Events(events) = &platform.firmware.policy else {
        return None;
    };
    events.iter().find_map(|event| match &event.proven {
        Some(PolicyVariable::Keys { name, entries }) if *name == wanted => Some(entries.clone()),
        _ => None,
    })
}

proptest! {
    /// Whatever a machine boots, and in whatever order, what its baseline forbids stays forbidden.
    #[test]
    fn a_baseline_never_becomes_weaker_without_an_approval(
        boots in proptest::collection::vec(any_boot(), 1..12),
    ) {
        let mut boots = boots.iter().map(PlatformBoot::platform);
        let first = boots.next().unwrap();
        let mut baseline = first.clone();
        for seen in boots {
            if judge(&baseline, &seen) != Judgement::Updated {
                continue;
            }
            for database in [KeyDatabase::Kek, KeyDatabase::Db, KeyDatabase::Dbx] {
                let (had, has) = (entries(&baseline, database), entries(&seen, database));
                prop_assert!(has.unwrap().is_superset(&had.unwrap()));
            }
            prop_assert_ne!(judge(&seen, &baseline), Judgement::Updated, "no way back");
            baseline = seen;
        }
        let values = |platform: &Platform| -> Vec<_> {
            platform.firmware.code.values().map(|register| register.value).collect()
        };
        prop_assert_eq!(values(&first), values(&baseline));
        let is_on = |platform: &Platform| policy::is_secure_boot_on(platform);
        prop_assert_eq!(is_on(&first), is_on(&baseline));
    }
}
