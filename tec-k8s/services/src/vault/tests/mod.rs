mod fake;
mod rekey;
mod restore;
mod succession;
pub(crate) mod world;

use proptest::prelude::any;
use proptest::proptest;
use serde_json::json;
use tec_core::plan::Plan as _;
use tec_core::secret::SecretBytes;
use tec_core::testing::{Mishap, crash_everywhere, run_plan, seeded_mishaps};

use self::world::{Controller, Pod, platform};
use super::{
    OnDrift, Ordinal, Outcome, Peers, Platform, Progress, Record, Refused, Response, RootPart,
    SealKind, Sealed, Setup, SetupEffect, SetupEnd, SetupEvent, desired,
};
use crate::Fatal;
use crate::caller::{Account, Role};

/// Far more effects than any run needs.
const LIMIT: usize = 5_000;

fn healthy(pod: &mut Pod) {
    run_plan(pod, LIMIT, |_| Mishap::None);
}

fn up() -> Pod {
    let mut pod = Pod::new();
    healthy(&mut pod);
    pod
}

/// The only end state, whatever happened along the way.
fn assert_up(pod: &Pod) {
    assert_eq!(pod.end, Some(Ok(Outcome::Up)));
    assert!(!pod.vault.sealed && pod.vault.key.is_some());
    assert!(pod.vault.roots.is_empty(), "a root token is left");
    let digest = desired::root_digest(&pod.platform);
    let secret = pod.secret.as_ref().unwrap();
    assert_eq!(secret.progress, Progress::Configured(digest));
    for object in desired::root_objects(&pod.platform, "acc-1") {
        assert_eq!(pod.vault.objects.get(&object.look), Some(&object.want), "{}", object.name);
    }
    assert_eq!(pod.intent, None, "the volume allows a reset");
    // Only an empty vault was ever initialized again, and the disk holds no plain key.
    assert_eq!(pod.vault.inits, pod.resets + 1);
    let file = pod.file.as_ref().unwrap();
    let plain = pod.vault.key.as_ref().unwrap().as_bytes();
    assert!(!file.windows(plain.len()).any(|window| window == plain));
    assert!(!file.windows(secret.key.len()).any(|window| window == secret.key));
}

#[test]
fn a_crash_a_failure_or_a_lost_answer_at_each_step_leads_to_the_same_end() {
    let rows = crash_everywhere(LIMIT, Pod::new, assert_up);
    for row in &rows {
        println!("{row}");
    }
    assert!(rows.len() > 4 * 40, "{}", rows.len());
}

proptest! {
    #[test]
    fn any_series_of_mishaps_leads_to_the_same_end(seed in any::<u64>(), per_mille in 0..400u32) {
        let mut pod = Pod::new();
        run_plan(&mut pod, LIMIT, seeded_mishaps(seed, per_mille, 400));
        assert_up(&pod);
    }

    #[test]
    fn restarts_of_a_vault_in_use_change_nothing_in_it(seed in any::<u64>()) {
        let mut pod = up();
        pod.vault.objects.insert("kubefox/kv-env/data/apps/x".to_owned(), json!({"v": 1}));
        for restart in 0..3 {
            pod.vault.sealed = true;
            run_plan(&mut pod, LIMIT, seeded_mishaps(seed ^ restart, 300, 100));
            assert_up(&pod);
        }
        assert_eq!(pod.vault.inits, 1);
        assert!(pod.vault.objects.contains_key("kubefox/kv-env/data/apps/x"));
    }
}

#[test]
fn a_vault_that_was_sealed_on_purpose_stays_sealed_until_it_may_be_opened() {
    let mut pod = up();
    pod.vault.sealed = true;
    pod.sealed = Sealed::Leave;
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Ok(Outcome::LeftSealed)));
    assert!(pod.vault.sealed);
    pod.sealed = Sealed::Open;
    healthy(&mut pod);
    assert_up(&pod);
}

/// The wrapping key has changed, and only the new one opens the file.
fn assert_rotated(pod: &Pod, old: &str) {
    assert_up(pod);
    let key_id = &pod.secret.as_ref().unwrap().key_id;
    assert!(key_id != old && pod.before.is_none() && !pod.rotate);
    let file = String::from_utf8(pod.file.clone().unwrap()).unwrap();
    assert!(file.contains(key_id) && !file.contains(old));
}

#[test]
fn a_crash_at_each_step_of_a_rotation_leaves_a_key_that_opens_the_file() {
    let old = up().secret.unwrap().key_id;
    let begin = || {
        let mut pod = up();
        pod.vault.sealed = true;
        pod.rotate = true;
        pod
    };
    let rows = crash_everywhere(LIMIT, begin, |pod| assert_rotated(pod, &old));
    assert!(rows.iter().any(|row| format!("{row}").contains("Forget")));
}

#[test]
fn a_follower_wraps_again_or_asks_its_peer_after_a_rotation() {
    let mut first = up();
    let mut follower = Pod::new();
    follower.ordinal = Ordinal::Follower;
    follower.vault = first.vault.clone();
    follower.vault.sealed = true;
    follower.file = first.file.clone();
    follower.platform.peers = Peers::Raft;
    let old = first.secret.clone().unwrap().key_id;
    first.rotate = true;
    healthy(&mut first);

    // It was away until the old key was gone.
    follower.secret = first.secret.clone();
    follower.peer = first.file.clone();
    healthy(&mut follower);
    assert_eq!(follower.end, Some(Ok(Outcome::Up)));
    assert_eq!(follower.file, first.file);

    // It comes back while both keys exist.
    first.rotate = true;
    let before = first.secret.clone().unwrap();
    healthy(&mut first);
    follower.secret = first.secret.clone();
    follower.before = Some((before.key, before.key_id));
    follower.peer = None;
    follower.vault.sealed = true;
    healthy(&mut follower);
    assert_eq!(follower.end, Some(Ok(Outcome::Up)));
    let file = String::from_utf8(follower.file.unwrap()).unwrap();
    assert!(file.contains(&first.secret.unwrap().key_id) && !file.contains(&old));
    assert!(follower.before.is_some(), "only the first pod forgets");
}

#[test]
fn the_wrapping_key_before_stays_until_every_pod_has_wrapped_anew() {
    let mut first = up();
    first.platform.peers = Peers::Raft;
    let mut follower = Pod::new();
    follower.ordinal = Ordinal::Follower;
    follower.platform.peers = Peers::Raft;
    follower.vault = first.vault.clone();
    follower.file = first.file.clone();
    let before = first.secret.clone().unwrap();

    first.rotate = true;
    for told in [follower.file.clone(), None] {
        first.peer = told;
        healthy(&mut first);
        assert_eq!(first.end, Some(Ok(Outcome::Up)));
        assert!(first.before.is_some(), "the follower's file needs it");
    }

    follower.secret = first.secret.clone();
    follower.before = Some((before.key, before.key_id));
    healthy(&mut follower);
    first.peer = follower.file.clone();
    healthy(&mut first);
    assert!(first.before.is_none());
    // Now its own volume is lost: the follower's file opens with the current key.
    let lost = first.file.take();
    healthy(&mut first);
    assert_eq!(first.end, Some(Ok(Outcome::Up)));
    assert!(lost.is_some() && first.file == follower.file);
}

#[test]
fn a_secret_that_is_gone_is_fatal_and_nothing_is_made_in_its_place() {
    let mut pod = up();
    pod.secret = None;
    pod.vault.sealed = true;
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::AesSecretMissing)));
    assert!(pod.secret.is_none() && pod.vault.sealed);
}

#[test]
fn a_file_that_is_gone_altered_or_of_another_vault_is_fatal() {
    let mut pod = up();
    pod.vault.sealed = true;
    let file = pod.file.take().unwrap();
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::KeyFileMissing)));
    pod.file = Some(b"garbage".to_vec());
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::DecryptFailed)));
    pod.file = Some(file);
    pod.vault.key = Some("another".to_owned());
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::UnsealRefused)));
    assert_eq!((pod.vault.inits, pod.resets), (1, 0));
}

#[test]
fn a_wiped_volume_is_never_initialized_again() {
    let mut pod = up();
    pod.vault.wipe();
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::StorageLost)));
    assert_eq!(pod.vault.inits, 1);
    pod.platform.peers = Peers::Raft;
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::StorageLost)), "no peer let it join");
    assert_eq!(pod.vault.inits, 1);
}

#[test]
fn a_first_pod_that_lost_volume_and_secret_initializes_nothing_although_no_peer_answers() {
    for peers in [Peers::Raft, Peers::Alone] {
        let mut pod = up();
        pod.platform.peers = peers;
        pod.published = true;
        pod.file = None;
        pod.secret = None;
        pod.vault.wipe();
        healthy(&mut pod);
        assert_eq!(pod.end, Some(Err(Fatal::AesSecretMissing)));
        assert_eq!(pod.vault.inits, 1);
        assert!(pod.secret.is_none());
    }
}

/// A vault in use, with a Secret from before it was in use.
fn with_old_secret() -> Pod {
    let mut pod = up();
    pod.vault.sealed = true;
    if let Some(secret) = &mut pod.secret {
        secret.progress = Progress::InitIntent;
    }
    pod
}

#[test]
fn a_vault_in_use_is_not_emptied_although_an_old_secret_says_that_it_is_empty() {
    let mut pod = with_old_secret();
    let file = pod.file.take();
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::KeyFileMissing)));

    // A note for another wrapping key does not count either.
    pod.intent = Some(b"another".to_vec());
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::KeyFileMissing)));

    pod.file = Some(b"garbage".to_vec());
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::DecryptFailed)));
    assert_eq!((pod.vault.inits, pod.resets), (1, 0));

    pod.file = file;
    healthy(&mut pod);
    assert_up(&pod);
}

#[test]
fn a_vault_that_somebody_opened_is_not_emptied() {
    let mut pod = with_old_secret();
    pod.file = None;
    pod.intent = pod.secret.as_ref().map(|secret| secret.key_id.clone().into_bytes());
    pod.vault.sealed = false;
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::KeyFileMissing)));
    assert_eq!((pod.vault.inits, pod.resets), (1, 0));
}

#[test]
fn a_vault_that_opens_by_itself_serves_on_without_its_key() {
    let mut pod = up();
    pod.platform.seal = SealKind::Static;
    let file = pod.file.take();
    for peers in [Peers::Alone, Peers::Raft] {
        pod.platform.peers = peers;
        healthy(&mut pod);
        let lost = Outcome::WithoutKey(Fatal::KeyFileMissing);
        assert_eq!(pod.end, Some(Ok(lost)));
    }
    pod.file = Some(b"garbage".to_vec());
    pod.platform.peers = Peers::Alone;
    healthy(&mut pod);
    let lost = Outcome::WithoutKey(Fatal::DecryptFailed);
    assert_eq!(pod.end, Some(Ok(lost)));

    pod.file = file;
    pod.secret = None;
    healthy(&mut pod);
    let lost = Outcome::WithoutKey(Fatal::AesSecretMissing);
    assert_eq!(pod.end, Some(Ok(lost)));
    // Sealed: nothing serves that could continue.
    pod.vault.sealed = true;
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::AesSecretMissing)));
}

#[test]
fn a_crash_at_each_step_of_mending_leaves_no_root_token() {
    let policy = "sys/policies/acl/component";
    let begin = || {
        let mut pod = up();
        let drift = json!({"policy": "path \"*\" {}"});
        pod.vault.objects.insert(policy.to_owned(), drift);
        pod.root_part = RootPart::Always;
        pod
    };
    let mut pod = begin();
    healthy(&mut pod);
    assert_up(&pod);
    let rows = crash_everywhere(LIMIT, begin, |pod| {
        assert_eq!(pod.end, Some(Ok(Outcome::Up)));
        assert!(pod.vault.roots.is_empty(), "a root token is left");
    });
    assert!(rows.iter().any(|row| format!("{row}").contains("update")));
}

#[test]
fn only_the_first_pod_initializes() {
    let mut pod = Pod::new();
    pod.ordinal = Ordinal::Follower;
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Err(Fatal::NotFirst)));
    assert_eq!(pod.vault.inits, 0);
    assert_eq!(Ordinal::of_pod("vault-0"), Some(Ordinal::First));
    assert_eq!(Ordinal::of_pod("vault-12"), Some(Ordinal::Follower));
    assert_eq!(Ordinal::of_pod("vault"), None);
}

#[test]
fn a_follower_unseals_with_the_wrapped_key_of_the_first_pod() {
    let mut pod = up();
    pod.ordinal = Ordinal::Follower;
    pod.peer = pod.file.take();
    pod.vault.sealed = true;
    healthy(&mut pod);
    assert_eq!(pod.end, Some(Ok(Outcome::Up)));
    assert!(pod.file.is_some() && !pod.vault.sealed && pod.vault.roots.is_empty());
}

#[test]
fn an_upgrade_writes_the_new_policies_and_leaves_no_root_token() {
    let mut pod = up();
    pod.platform.component_namespaces.push("more-apps".to_owned());
    healthy(&mut pod);
    assert_up(&pod);
}

#[test]
fn a_stray_root_token_is_found_and_revoked() {
    let mut pod = up();
    pod.vault.roots.insert("s.stray".to_owned());
    pod.root_part = RootPart::Always;
    healthy(&mut pod);
    assert_up(&pod);
}

fn controller() -> Controller {
    Controller::new(up().vault)
}

fn assert_ready(world: &Controller) {
    assert!(matches!(world.end, Some(SetupEnd::Ready { .. })), "{:?}", world.end);
    assert!(!world.published.is_empty());
    let objects = desired::runtime_objects(&world::platform(), "acc-1", Record::FIRST);
    for object in desired::engines().into_iter().chain(objects) {
        assert!(world.vault.objects.contains_key(&object.look), "{}", object.name);
    }
}

#[test]
fn the_setup_ends_alike_whatever_happens_at_each_step() {
    let rows = crash_everywhere(LIMIT, controller, assert_ready);
    assert!(rows.len() > 4 * 60, "{}", rows.len());
}

#[test]
fn a_password_that_exists_is_never_made_again() {
    let mut world = controller();
    let path = "kubefox/kv-opensearch/data/admin".to_owned();
    world.vault.objects.insert(path.clone(), json!({"password": "kept"}));
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    assert_ready(&world);
    assert_eq!(world.vault.objects[&path], json!({"password": "kept"}));
}

#[test]
fn drift_of_an_engine_is_mended_and_of_a_policy_reported() {
    let mut world = controller();
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    let role = "kubefox/pki-int/roles/component".to_owned();
    world.vault.objects.insert(role.clone(), json!({"allow_any_name": true}));
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    assert_ready(&world);
    assert_eq!(world.vault.objects[&role]["allow_bare_domains"], true);
    let policy = "sys/policies/acl/component".to_owned();
    world.vault.objects.insert(policy, json!({"policy": "path \"*\" {}"}));
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    let end = world.end.unwrap();
    assert!(matches!(&end, SetupEnd::RootDrift(name) if name == "policy component"), "{end:?}");
}

#[test]
fn a_login_that_is_refused_again_and_again_is_drift_and_an_outage_is_not() {
    let mut world = controller();
    world.vault.outage = 3;
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    assert_ready(&world);
    let role = world.vault.objects.get_mut("auth/kubernetes/role/controller");
    role.unwrap()["bound_service_account_names"] = json!(["somebody-else"]);
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    let end = world.end.unwrap();
    assert!(
        matches!(&end, SetupEnd::RootDrift(name) if name == "the controller's login"),
        "{end:?}"
    );
}

#[test]
fn a_refused_certificate_is_named_with_its_status() {
    let mut plan = Setup::new(world::platform());
    plan.step(SetupEvent::Start);
    plan.step(SetupEvent::Token(SecretBytes::new(b"jwt".to_vec())));
    let refusal = Response::new(403, b"{}".to_vec());
    let effects = plan.step(SetupEvent::Answered(refusal));
    let expected = Refused { step: "login", status: 403 };
    assert!(
        matches!(effects[..], [SetupEffect::Wait(_, Some(told))] if told == expected),
        "{effects:?}"
    );
}

#[test]
fn a_key_that_became_exportable_is_a_conflict_for_a_person() {
    let mut world = controller();
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    let key = "kubefox/transit-nats/keys/operator".to_owned();
    world.vault.objects.insert(key, json!({"type": "ed25519", "exportable": true}));
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    assert!(matches!(world.end, Some(SetupEnd::Fatal(Fatal::Conflict, _))));
}

#[test]
fn a_role_that_another_controller_writes_too_is_written_again_a_few_times() {
    let mut world = controller();
    // More than one attempt bears.
    world.vault.contests = 50;
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    assert_ready(&world);
    let life = world::platform().certificate_life.as_secs();
    assert_eq!(world.vault.objects["kubefox/pki-int/roles/component"]["max_ttl"], life);
    // Or the vault does not store what it is given.
    let mut world = controller();
    world.vault.contests = u32::MAX;
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    let end = world.end.unwrap();
    assert!(matches!(&end, SetupEnd::Fatal(Fatal::Conflict, _)), "{end:?}");
}

#[test]
fn drift_that_is_accepted_is_named_and_everything_else_is_set_up() {
    let mut world = controller();
    world.on_drift = OnDrift::Accept;
    let policy = "sys/policies/acl/component".to_owned();
    let earlier = json!({"policy": "path \"earlier\" {}"});
    world.vault.objects.insert(policy.clone(), earlier.clone());
    run_plan(&mut world, LIMIT, |_| Mishap::None);
    assert_ready(&world);
    let end = world.end.unwrap();
    assert!(
        matches!(&end, SetupEnd::Ready { drift: Some(name), .. } if name == "policy component"),
        "{end:?}"
    );
    assert_eq!(world.vault.objects[&policy], earlier);
}

#[test]
fn a_role_is_for_configured_pairs_of_namespace_and_name_only() {
    let account = |text: &str| text.parse::<Account>().unwrap();
    let platform = Platform {
        viewers: vec![account("platform/dashboards"), account("apps/grafana")],
        ..platform()
    };
    let admits = |role, text: &str| platform.admits(role, &account(text));
    assert!(admits(Role::Viewer, "platform/dashboards") && admits(Role::Viewer, "apps/grafana"));
    // The vault's own role would accept these.
    for crossed in ["apps/dashboards", "platform/grafana"] {
        assert!(!admits(Role::Viewer, crossed), "{crossed}");
    }
    let namespace = platform.component_namespaces.first().unwrap();
    assert!(admits(Role::Component, &format!("{namespace}/any")));
    assert!(!admits(Role::Component, "elsewhere/any"));
}
