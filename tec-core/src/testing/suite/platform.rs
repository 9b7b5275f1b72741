use super::{at_once, kind, ok};
use crate::ak::Fingerprint;
use crate::platform::{KeyDatabase, Platform};
use crate::port::{PlatformLog, PlatformOutcome, PlatformRecord, PortErrorKind};
use crate::testing::{PlatformBoot, sample};

/// Checks the contract of [`PlatformLog`]; `make` returns an empty log.
///
/// # Panics
/// If the contract is broken.
pub async fn platform_log<L: PlatformLog>(make: impl AsyncFn() -> L) {
    the_first_boot_is_the_baseline(&make().await).await;
    a_refused_boot_is_kept_and_changes_nothing_else(&make().await).await;
    an_update_moves_the_baseline_and_a_rollback_is_refused(&make().await).await;
    keys_do_not_mix(&make().await).await;
    a_new_key_has_the_baseline_of_the_last_one(&make().await).await;
    of_two_first_boots_at_once_one_is_the_baseline(&make().await).await;
    an_approval_counts_for_all_with_the_same_baseline(&make().await).await;
    only_what_was_refused_and_shown_last_is_approved(&make().await).await;
    an_image_is_held_to_its_first_boot_on_each_machine(&make().await).await;
    each_image_has_a_first_boot_and_the_last_four_are_kept(&make().await).await;
    what_an_image_leaves_open_stays_with_a_new_key_and_new_firmware(&make().await).await;
    a_boot_is_accepted_once_firmware_and_image_are_approved(&make().await).await;
}

fn key(number: u64) -> Fingerprint {
    sample::ak(number, 1).fingerprint()
}

fn old() -> Platform {
    PlatformBoot::new().platform()
}

/// A boot with an initramfs that its image does not state.
fn with(initramfs: &str) -> PlatformBoot {
    PlatformBoot::new().initramfs(initramfs)
}

fn new() -> Platform {
    PlatformBoot::new().firmware("2.0").platform()
}

async fn admit(log: &dyn PlatformLog, number: u64, seen: &Platform) -> PlatformOutcome {
    let (key, machine) = (key(number), sample::machine_id(number));
    ok(log.admit(&key, machine, seen, sample::time(5)).await)
}

async fn is_refused(log: &dyn PlatformLog, number: u64, seen: &Platform) {
    let outcome = admit(log, number, seen).await;
    assert!(matches!(&outcome, PlatformOutcome::Refused(changes) if !changes.is_empty()));
}

/// The record of a key that booted.
async fn known(log: &dyn PlatformLog, number: u64) -> PlatformRecord {
    match ok(log.find(&key(number)).await) {
        Some(record) => record,
        None => unreachable!("a boot was recorded"),
    }
}

async fn the_first_boot_is_the_baseline(log: &dyn PlatformLog) {
    assert_eq!(ok(log.find(&key(1)).await), None);
    assert_eq!(admit(log, 1, &old()).await, PlatformOutcome::Recorded);
    let moved = PlatformBoot::new().boot_order("network").platform();
    assert_eq!(admit(log, 1, &moved).await, PlatformOutcome::Matches);
    let record = known(log, 1).await;
    assert_eq!((record.baseline, record.seen), (old(), moved));
    assert_eq!((record.machine, record.refused_at), (sample::machine_id(1), None));
}

async fn a_refused_boot_is_kept_and_changes_nothing_else(log: &dyn PlatformLog) {
    admit(log, 1, &old()).await;
    is_refused(log, 1, &new()).await;
    is_refused(log, 1, &new()).await;
    let record = known(log, 1).await;
    assert_eq!((&record.baseline, &record.seen), (&old(), &new()));
    assert_eq!(record.refused_at, Some(sample::time(5)));
    assert_eq!(admit(log, 1, &old()).await, PlatformOutcome::Matches);
    assert_eq!(known(log, 1).await.refused_at, None);
}

async fn an_update_moves_the_baseline_and_a_rollback_is_refused(log: &dyn PlatformLog) {
    admit(log, 1, &old()).await;
    let updated = PlatformBoot::new().keys(KeyDatabase::Dbx, &[4, 40]).platform();
    assert_eq!(admit(log, 1, &updated).await, PlatformOutcome::Moved);
    assert_eq!(admit(log, 1, &updated).await, PlatformOutcome::Matches);
    is_refused(log, 1, &old()).await;
}

async fn keys_do_not_mix(log: &dyn PlatformLog) {
    assert_eq!(admit(log, 1, &old()).await, PlatformOutcome::Recorded);
    assert_eq!(admit(log, 2, &new()).await, PlatformOutcome::Recorded);
    assert_eq!(admit(log, 3, &old()).await, PlatformOutcome::Recorded);
    let entries = ok(log.list().await);
    let machines: Vec<_> = entries.iter().map(|entry| (entry.machine, entry.key)).collect();
    assert_eq!(machines, [1, 2, 3].map(|number| (sample::machine_id(number), key(number))));
    let baselines: Vec<_> = entries.iter().map(|entry| entry.baseline).collect();
    let id = |platform: &Platform| platform.firmware.id().unwrap_or_default();
    assert_eq!(baselines, [id(&old()), id(&new()), id(&old())]);
}

async fn a_new_key_has_the_baseline_of_the_last_one(log: &dyn PlatformLog) {
    admit(log, 1, &old()).await;
    let (second, machine) = (key(2), sample::machine_id(1));
    let again =
        async |seen: &Platform| ok(log.admit(&second, machine, seen, sample::time(6)).await);
    assert!(matches!(again(&new()).await, PlatformOutcome::Refused(_)), "another firmware");
    assert_eq!(known(log, 2).await.baseline, old());
    ok(log.approve(&second, &new(), &sample::line()).await);
    assert_eq!(again(&new()).await, PlatformOutcome::Moved);
    // Another machine is none of its business.
    assert_eq!(admit(log, 3, &new()).await, PlatformOutcome::Recorded);
}

async fn of_two_first_boots_at_once_one_is_the_baseline(log: &dyn PlatformLog) {
    let (key, machine) = (key(1), sample::machine_id(1));
    let (old, new) = (old(), new());
    let calls = [&old, &new].map(|seen| log.admit(&key, machine, seen, sample::time(5)));
    let answers: Vec<_> = at_once(calls.into()).await.into_iter().map(ok).collect();
    let recorded = answers.iter().filter(|outcome| **outcome == PlatformOutcome::Recorded);
    assert_eq!(recorded.count(), 1);
    let refused = |outcome: &&PlatformOutcome| matches!(outcome, PlatformOutcome::Refused(_));
    assert_eq!(answers.iter().filter(refused).count(), 1);
}

async fn an_approval_counts_for_all_with_the_same_baseline(log: &dyn PlatformLog) {
    let other = PlatformBoot::new().option_rom("another card").platform();
    for (number, platform) in [(1, &old()), (2, &old()), (3, &other)] {
        admit(log, number, platform).await;
    }
    is_refused(log, 1, &new()).await;
    let approved = ok(log.approve(&key(1), &new(), &sample::line()).await);
    assert_eq!(approved, [1, 2].map(sample::machine_id));
    assert!(ok(log.list().await).iter().all(|entry| entry.refused_at.is_none()));
    // Machines are updated one after the other.
    assert_eq!(admit(log, 2, &old()).await, PlatformOutcome::Matches);
    for number in [1, 2] {
        assert_eq!(admit(log, number, &new()).await, PlatformOutcome::Moved);
        assert_eq!(admit(log, number, &new()).await, PlatformOutcome::Matches);
        is_refused(log, number, &old()).await;
    }
    is_refused(log, 3, &new()).await;
    // An approval ends with the last machine that has the baseline.
    assert_eq!(admit(log, 4, &old()).await, PlatformOutcome::Recorded);
    is_refused(log, 4, &new()).await;
}

async fn only_what_was_refused_and_shown_last_is_approved(log: &dyn PlatformLog) {
    let line = sample::line();
    let approve = async |seen: &Platform| log.approve(&key(1), seen, &line).await;
    assert_eq!(kind(approve(&new()).await), PortErrorKind::NotFound);
    admit(log, 1, &old()).await;
    assert_eq!(kind(approve(&new()).await), PortErrorKind::Conflict);
    assert_eq!(kind(approve(&old()).await), PortErrorKind::Conflict, "nothing was refused");
    is_refused(log, 1, &new()).await;
    let newest = PlatformBoot::new().firmware("3.0").platform();
    is_refused(log, 1, &newest).await;
    assert_eq!(kind(approve(&new()).await), PortErrorKind::Conflict, "it shows another one");
    is_refused(log, 1, &new()).await;
}

async fn an_image_is_held_to_its_first_boot_on_each_machine(log: &dyn PlatformLog) {
    let (first, other) = (with("first").platform(), with("other").platform());
    // As recorded by earlier versions, or with registers that are set for all images.
    assert_eq!(admit(log, 1, &old()).await, PlatformOutcome::Recorded);
    assert_eq!(admit(log, 1, &first).await, PlatformOutcome::NewImage);
    assert_eq!(admit(log, 1, &first).await, PlatformOutcome::Matches);
    assert_eq!(known(log, 1).await.baseline.boots, first.boots);
    is_refused(log, 1, &other).await;
    assert_eq!(known(log, 1).await.baseline.boots, first.boots);
    assert_eq!(admit(log, 1, &old()).await, PlatformOutcome::Matches);

    assert_eq!(admit(log, 2, &first).await, PlatformOutcome::Recorded);
    is_refused(log, 1, &other).await;
    is_refused(log, 2, &other).await;
    let approve = async |seen: &Platform| log.approve(&key(1), seen, &sample::line()).await;
    assert_eq!(kind(approve(&first).await), PortErrorKind::Conflict, "it shows another one");
    assert_eq!(ok(approve(&other).await), [sample::machine_id(1)]);
    let waits = ok(log.list().await).into_iter().filter(|entry| entry.refused_at.is_some());
    assert_eq!(waits.map(|entry| entry.machine).collect::<Vec<_>>(), [sample::machine_id(2)]);
    assert_eq!(kind(approve(&other).await), PortErrorKind::Conflict, "it is accepted by now");
    assert_eq!(admit(log, 1, &other).await, PlatformOutcome::Matches);
    is_refused(log, 1, &first).await;
    is_refused(log, 2, &other).await;
}

async fn each_image_has_a_first_boot_and_the_last_four_are_kept(log: &dyn PlatformLog) {
    let boot =
        |kernel: usize, initramfs| with(initramfs).kernel(&format!("kernel-{kernel}")).platform();
    assert_eq!(admit(log, 1, &boot(1, "first")).await, PlatformOutcome::Recorded);
    for kernel in 2..=4 {
        assert_eq!(admit(log, 1, &boot(kernel, "first")).await, PlatformOutcome::NewImage);
    }
    assert_eq!(admit(log, 1, &boot(1, "first")).await, PlatformOutcome::Matches);
    assert_eq!(admit(log, 1, &boot(5, "first")).await, PlatformOutcome::NewImage);
    // The second one was booted longest ago.
    for kernel in [1, 3, 4, 5] {
        is_refused(log, 1, &boot(kernel, "other")).await;
    }
    assert_eq!(known(log, 1).await.baseline.boots.len(), 4);
    assert_eq!(admit(log, 1, &boot(2, "other")).await, PlatformOutcome::NewImage);
}

async fn what_an_image_leaves_open_stays_with_a_new_key_and_new_firmware(log: &dyn PlatformLog) {
    let (first, other) = (with("first"), with("other"));
    admit(log, 1, &first.platform()).await;
    let (second, machine) = (key(2), sample::machine_id(1));
    let again = async |boot: &PlatformBoot| {
        ok(log.admit(&second, machine, &boot.platform(), sample::time(6)).await)
    };
    assert!(matches!(again(&other).await, PlatformOutcome::Refused(_)));
    assert_eq!(again(&first).await, PlatformOutcome::Matches);
    let updated = first.keys(KeyDatabase::Dbx, &[4, 40]);
    assert_eq!(again(&updated).await, PlatformOutcome::Moved);
    let edited = updated.clone().initramfs("other");
    assert!(matches!(again(&edited).await, PlatformOutcome::Refused(_)));
    assert_eq!(again(&updated).await, PlatformOutcome::Matches);
}

async fn a_boot_is_accepted_once_firmware_and_image_are_approved(log: &dyn PlatformLog) {
    for number in [1, 2] {
        admit(log, number, &with("first").platform()).await;
        is_refused(log, number, &with("other").firmware("2.0").platform()).await;
    }
    let seen = known(log, 1).await.seen;
    let approved = ok(log.approve(&key(1), &seen, &sample::line()).await);
    assert_eq!(approved, [1, 2].map(sample::machine_id));
    // The firmware was approved for both, the initramfs for one.
    let waits = ok(log.list().await).into_iter().filter(|entry| entry.refused_at.is_some());
    assert_eq!(waits.map(|entry| entry.machine).collect::<Vec<_>>(), [sample::machine_id(2)]);
    is_refused(log, 2, &seen).await;
    assert_eq!(admit(log, 1, &seen).await, PlatformOutcome::Moved);
    assert_eq!(admit(log, 1, &seen).await, PlatformOutcome::Matches);
    is_refused(log, 1, &with("first").firmware("2.0").platform()).await;
}
