use super::*;

fn certificate(ca: &str) -> Certificate {
    Certificate {
        chain: format!("leaf of {ca}"),
        key: SecretBytes::new(b"key".to_vec()),
        ca: ca.to_owned(),
    }
}

fn with_ca(ca: &str) -> Belongings {
    Belongings { ca: Some(certificate(ca)), ..Belongings::default() }
}

fn serving(place: Place) -> Belongings {
    Belongings { servers: BTreeMap::from([(Service::KeyBroker, place)]), ..Belongings::default() }
}

fn demanding(entry: Entry) -> Belongings {
    let demands = Demands { entry, ..Demands::default() };
    Belongings { demands: Some(demands), ..Belongings::default() }
}

fn verdict(comes: &Belongings, here: &Belongings) -> Option<Verdict> {
    let weighed = weigh(comes, here, |_| false);
    assert!(weighed.len() <= 1, "{weighed:?}");
    weighed.first().map(|(_, verdict)| *verdict)
}

#[test]
fn a_ca_comes_where_there_is_none_and_never_replaces_one() {
    let (one, two, none) = (with_ca("one"), with_ca("two"), Belongings::default());
    assert_eq!(verdict(&one, &none), Some(Verdict::Bring));
    assert_eq!(verdict(&one, &with_ca("one\n")), Some(Verdict::Same));
    assert!(matches!(verdict(&one, &two), Some(Verdict::Clash(_))));
    assert_eq!(verdict(&none, &two), None);
}

#[test]
fn another_ca_is_fine_where_nodes_are_told_of_it() {
    let (mut one, two) = (with_ca("one"), with_ca("two"));
    one.told.insert("two".to_owned());
    assert_eq!(verdict(&one, &two), Some(Verdict::Known));
}

#[test]
fn a_certificate_comes_where_one_is_missing() {
    let holds = || serving(Place::Holds(certificate("one")));
    assert_eq!(verdict(&holds(), &serving(Place::Empty)), Some(Verdict::Bring));
    assert_eq!(verdict(&holds(), &holds()), Some(Verdict::Same));
    let plain = verdict(&holds(), &serving(Place::Plain));
    assert!(matches!(plain, Some(Verdict::Clash(_))));
    let other = verdict(&holds(), &serving(Place::Holds(certificate("two"))));
    assert!(matches!(other, Some(Verdict::Clash(_))));
    assert_eq!(verdict(&serving(Place::Plain), &serving(Place::Plain)), None);
}

#[test]
fn demands_come_where_nothing_was_said_and_follow_their_source() {
    let (open, manual) = (demanding(Entry::Open), demanding(Entry::Manual));
    let mut here = Belongings::default();
    assert_eq!(verdict(&open, &here), Some(Verdict::Same), "it is what silence means");
    assert_eq!(verdict(&manual, &here), Some(Verdict::Bring));
    here = demanding(Entry::Token);
    assert!(matches!(verdict(&manual, &here), Some(Verdict::Clash(_))));
    here.follows = true;
    assert_eq!(verdict(&manual, &here), Some(Verdict::Bring));
}

#[test]
fn fewer_or_more_registers_contradict() {
    let pins = |list: &[PcrIndex]| Belongings {
        pcrs: Some(list.iter().copied().collect()),
        ..Belongings::default()
    };
    let (one, none) = (pins(&[PcrIndex::BOOT_MANAGER]), pins(&[]));
    assert_eq!(verdict(&one, &one), Some(Verdict::Same));
    assert!(matches!(verdict(&one, &none), Some(Verdict::Clash(_))));
    assert_eq!(verdict(&one, &Belongings::default()), None, "nobody knows yet");
}

#[test]
fn whoever_says_so_keeps_what_is_there() {
    let weighed = weigh(&with_ca("one"), &with_ca("two"), |article| !article.is_policy());
    assert_eq!(weighed, [(Article::Ca, Verdict::Stays)]);
}

#[test]
fn forgotten_flags_demand_less_and_other_keys_or_roots_do_not() {
    let mut before = Demands {
        entry: Entry::Token,
        binding: Binding::EndorsementKey,
        endorsement_keys: BTreeSet::from(["a".to_owned()]),
        endorsement_roots: Some("roots".to_owned()),
    };
    let less = |now: &Demands, before: &Demands| now.less_than(before).is_some();
    assert!(!less(&before, &before) && !less(&before, &Demands::default()));
    assert!(less(&Demands::default(), &before));
    for forget in [
        |now: &mut Demands| now.entry = Entry::Open,
        |now: &mut Demands| now.binding = Binding::FirstUse,
        |now: &mut Demands| (now.endorsement_keys, now.endorsement_roots) = (BTreeSet::new(), None),
    ] {
        let mut now = before.clone();
        forget(&mut now);
        assert!(less(&now, &before), "{now:?}");
        assert!(!less(&before, &now));
    }
    let mut now = Demands { entry: Entry::Token, binding: Binding::Manual, ..Demands::default() };
    assert!(!less(&now, &before), "an admin looks at each key");
    now = before.clone();
    now.endorsement_keys.clear();
    assert!(!less(&now, &before), "its maker is known");
    before.endorsement_keys.insert("b".to_owned());
    before.endorsement_roots = Some("others".to_owned());
    assert!(!less(&now, &before) && !less(&before, &now));
}
