use tec_core::testing::sample;

use super::*;

fn claim(number: u8, name: &str) -> Claim {
    Claim {
        ak: sample::public_key(number.into()).fingerprint(),
        name: name.parse().unwrap(),
        role: Role::Worker,
        disk: format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap(),
        addresses: BTreeSet::from([[10, 0, 0, number].into()]),
    }
}

fn read_back(roll: &Roll) -> Roll {
    let data = Some(roll.lines().unwrap());
    Roll::of(&ConfigMap { data, ..ConfigMap::default() }).unwrap()
}

/// `n2` leaves at this time.
fn without_n2(at: Timestamp) -> Roll {
    let mut roll = Roll { claims: vec![claim(1, "n1"), claim(2, "n2")], removed: Vec::new() };
    roll.begin_removal(&claim(2, "n2"), &BTreeSet::new(), at).unwrap();
    roll.end_removal(&claim(2, "n2"));
    roll
}

#[test]
fn a_member_keeps_its_name_while_it_leaves_and_its_disk_is_nobodys_then() {
    let (first, now) = (claim(2, "n2"), sample::time(60));
    let mut roll = Roll { claims: vec![claim(1, "n1"), first.clone()], removed: Vec::new() };
    for at in [now, sample::time(90)] {
        roll.begin_removal(&first, &BTreeSet::new(), at).unwrap();
        roll.claims.sort_by_key(|one| one.ak);
        assert_eq!(read_back(&roll), roll);
        assert_eq!(roll.removed.len(), 1);
        assert!(roll.has_removed(first.disk));
        let reinstalled = Claim { disk: claim(3, "n3").disk, ..first.clone() };
        assert!(roll.refuses(&reinstalled, now), "it did not leave yet");
    }
    roll.end_removal(&first);
    let reinstalled = Claim { disk: claim(3, "n3").disk, ..first.clone() };
    assert!(!roll.refuses(&reinstalled, now), "the same key with a new disk");
    let thief = Claim { disk: first.disk, ..claim(3, "n3") };
    assert!(roll.refuses(&thief, now), "whoever has the UUID of the old disk gets its key");
    assert!(roll.refuses(&claim(4, "n1"), now));
}

#[test]
fn the_name_of_a_removed_member_is_held_for_its_key_until_its_certificates_expired() {
    let (at, other) = (sample::time(60), claim(3, "n2"));
    let mut roll = without_n2(at);
    assert!(roll.refuses(&other, at.plus_seconds(HELD - 1)));
    assert!(!roll.refuses(&other, at.plus_seconds(HELD)));
    roll.claims.push(other.clone());
    assert_eq!(roll.holder(&other, at), None, "it is a member, whoever had the name before");
    roll.claims.pop();
    roll.dangerous_free_name(&"n2".parse().unwrap());
    assert!(!read_back(&roll).refuses(&other, at));
}

#[test]
fn a_control_plane_stays_until_another_one_is_ready_and_stays() {
    let plane = |number, name| Claim { role: Role::ControlPlane, ..claim(number, name) };
    let names = |names: &[&str]| names.iter().map(|one| one.parse().unwrap()).collect();
    let (now, both) = (sample::time(0), names(&["n1", "n2"]));
    let planes = vec![plane(1, "n1"), plane(2, "n2"), plane(3, "n3"), claim(4, "n4")];
    let mut roll = Roll { claims: planes, removed: Vec::new() };
    let alone = names(&["n1", "n4"]);
    assert!(roll.begin_removal(&plane(1, "n1"), &alone, now).is_err(), "no other is Ready");
    roll.begin_removal(&claim(4, "n4"), &BTreeSet::new(), now).unwrap();
    roll.begin_removal(&plane(1, "n1"), &both, now).unwrap();
    let second = roll.begin_removal(&plane(2, "n2"), &both, now).unwrap_err();
    assert_eq!(second.code(), Some(Code::ClusterConflict), "n1 is leaving");
}

#[test]
fn members_are_refused_while_each_that_is_there_can_still_be_removed() {
    let name = "n".repeat(63).parse::<NodeName>().unwrap();
    let mut roll = Roll::default();
    for number in 0..5000_u32 {
        let claim = Claim {
            ak: format!("{number:064x}").parse().unwrap(),
            disk: format!("00000000-0000-0000-0000-{number:012x}").parse().unwrap(),
            ..claim(1, name.as_str())
        };
        if !roll.has_room().unwrap() {
            break;
        }
        roll.claims.push(claim);
    }
    let members = roll.claims.clone();
    assert!((1000..5000).contains(&members.len()), "{}", members.len());
    for claim in &members {
        roll.begin_removal(claim, &BTreeSet::new(), sample::time(0)).unwrap();
    }
    let size: usize = roll.lines().unwrap().iter().map(|(key, line)| key.len() + line.len()).sum();
    assert!(size <= ROOM, "{size}");
}

#[test]
fn claims_of_earlier_versions_have_no_addresses_and_a_malformed_line_counts_for_all() {
    let old = r#"{"name":"n1","role":"Worker","disk":"00000000-0000-0000-0000-000000000001"}"#;
    let key = claim(1, "n1").ak.to_string();
    let object = |key: &str, line: &str| ConfigMap {
        data: Some(BTreeMap::from([(key.to_owned(), line.to_owned())])),
        ..ConfigMap::default()
    };
    let roll = Roll::of(&object(&key, &old.replace("Worker", &role()))).unwrap();
    assert_eq!(roll.claims, [Claim { addresses: BTreeSet::new(), ..claim(1, "n1") }]);
    assert!(Roll::of(&object(&key, "{}")).is_err());
    assert!(Roll::of(&object("disk-1", old)).is_err());
}

fn role() -> String {
    let json = serde_json::to_string(&Role::Worker).unwrap();
    json.trim_matches('"').to_owned()
}
