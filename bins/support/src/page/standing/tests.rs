//! What a page shows about machines and attempts.

use serde_json::json;

use super::*;

const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

fn refused(unsigned: bool) -> Attempt {
    let (expected, measured) = ("a".repeat(64), "b".repeat(64));
    let mut ladder = serde_json::to_value(tec_core::explain::Ladder::new()).unwrap();
    ladder["code"] = json!("TEC-A412");
    ladder["mismatch"] = json!({ "pcr": 4, "quoted": measured, "events": [{
        "event": { "number": 3, "pcr": 4, "digest": measured, "kind": "EV_IPL",
                   "detail": "<script>alert(1)</script>" },
        "known_as": [],
        "expected": { "component": "Pcr4Vmlinuz", "file": "boot/<b>", "digest": expected },
    }, {
        "event": { "number": 4, "pcr": 4, "digest": measured, "kind": "EV_IPL",
                   "detail": "<script>alert(2)</script>" },
        "known_as": [],
        "surplus": true,
    }] });
    serde_json::from_value(json!({
        "id": "b29cc891-b221-4b22-a410-2f39998fa3d9", "at": "2026-11-21T10:57:11Z",
        "machine": ID, "ak": null, "unsigned": unsigned, "ladder": ladder,
    }))
    .unwrap()
}

fn seen() -> Seen {
    seen_as("active")
}

fn seen_as(state: &str) -> Seen {
    let machine = json!({
        "id": ID, "registered_by": "admin", "registered_at": "2026-11-21T10:57:11Z",
        "state": state,
    });
    (serde_json::from_value(machine).unwrap(), Some("worker-7".to_owned()))
}

#[test]
fn a_refusal_shows_what_changed_and_escapes_the_log() {
    let page = standing(&[seen()], &[], &[refused(false)]);
    assert_eq!(page.machines[0].mark, Mark::No);
    let [kernel, more] = page.refusals[0].changes.as_slice() else { panic!("two changes") };
    assert_eq!(kernel.what, "kernel, PCR 4");
    assert_eq!((kernel.approved.as_str(), more.approved.as_str()), (&*"a".repeat(64), "nothing"));
    let html = page.render();
    assert!(!html.contains("<script") && !html.contains("<b>boot"), "{html}");
    assert!(html.contains("&lt;script&gt;alert(2)") && html.contains("boot/&lt;b&gt;"), "{html}");
}

#[test]
fn a_machine_is_shown_with_the_age_of_its_last_result() {
    let mut page = standing(&[seen()], &[], &[refused(false)]);
    assert!(!page.render().contains("last seen"));
    page.as_of = Some("2026-11-21T11:01:11Z".parse().unwrap());
    assert!(page.render().contains("last seen 4m ago, 2026-11-21T10:57:11Z"));
}

#[test]
fn evidence_that_anybody_could_send_changes_no_machine() {
    let page = standing(&[seen()], &[], &[refused(true)]);
    assert_eq!(page.machines[0].mark, Mark::Waiting);
    assert!(page.refusals[0].who.starts_with("unsigned"));
}

fn attested(image: &str) -> Attempt {
    let mut attempt = serde_json::to_value(refused(false)).unwrap();
    attempt["ladder"] = serde_json::to_value(tec_core::explain::Ladder::new()).unwrap();
    attempt["booted"] = json!(image);
    serde_json::from_value(attempt).unwrap()
}

#[test]
fn a_machine_that_gets_no_key_is_never_fine() {
    let image: ImageName = "debian".parse().unwrap();
    for state in ["quarantined", "revoked", "retired"] {
        for attempts in [vec![attested("debian")], vec![]] {
            let page = standing(&[seen_as(state)], std::slice::from_ref(&image), &attempts);
            assert_eq!(page.machines[0].mark, Mark::Out);
            let html = page.render();
            assert!(html.contains("✓ 0 fine") && html.contains("⊘ 1 shut out"), "{html}");
            assert!(html.contains(&format!("⊘ {state}, gets no key")), "{html}");
        }
    }
}

#[test]
fn machines_that_are_not_shown_are_counted() {
    let html = standing(&vec![seen(); 250], &[], &[attested("debian")]).render();
    assert!(html.contains("✓ 250 fine"), "{html}");
    assert!(html.contains("50 more machines are not shown"), "{html}");
}

#[test]
fn an_image_that_was_revoked_is_not_unknown() {
    let live: ImageName = "new".parse().unwrap();
    let html = standing(&[seen()], &[live], &[attested("old")]).render();
    assert!(html.contains("No longer approved") && !html.contains("Image unknown"), "{html}");
}

#[test]
fn attempts_of_strangers_hide_no_refusal_of_a_machine() {
    let mut stranger = refused(false);
    stranger.machine = None;
    let mut attempts = vec![stranger; 100];
    attempts.push(refused(false));
    let page = standing(&[seen()], &[], &attempts);
    assert_eq!(page.refusals[0].who, "worker-7");
}
