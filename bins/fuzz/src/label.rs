//! Image labels: read, written and read again.

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_tpm::output;

use crate::{Seed, outcome};

/// The events of a label replay to its values, and a label written from it has the same content, as a whole
/// and register by register.
pub(crate) fn label(data: &[u8]) {
    let Some(expected) = text(data).and_then(|text| output::read_label(text).ok()) else {
        return;
    };
    let order: Vec<PcrIndex> = expected.pcrs.iter().map(|pcr| pcr.id).collect();
    assert!(order.is_sorted_by(|a, b| a < b), "each register once, in order");
    assert!(expected.pcrs.iter().all(ExpectedPcr::is_consistent));
    let written = output::label(&expected).expect("a label is written");
    let again = output::read_label(&written).expect("a label that was written");
    assert_eq!(again, without_files(&expected));
    assert_eq!(output::label(&again).expect("a label is written"), written);
    assert_eq!(output::difference(&expected, &again), []);
    for pcr in &again.pcrs {
        let one = output::register(pcr).expect("a register is written");
        let one = output::read_label(&one).expect("a register that was written");
        assert_eq!(one.pcrs, std::slice::from_ref(pcr));
    }
}

/// Labels do not name files.
fn without_files(expected: &ExpectedPcrs) -> ExpectedPcrs {
    let mut expected = expected.clone();
    for event in expected.pcrs.iter_mut().flat_map(|pcr| &mut pcr.events) {
        event.source = None;
    }
    expected
}

/// Text of at most 64 KiB; more would show nothing new.
pub(crate) fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok().filter(|text| text.len() <= 64 << 10)
}

/// The measurements of a small image.
pub(crate) fn image(shim: &str, kernel: &str) -> ExpectedPcrs {
    let register = |index: u8, events: &[(&str, &str)]| {
        let id = PcrIndex::new(index).expect("a register");
        let event = |(component, content): &(&str, &str)| {
            ImageEvent::new("EV", id, Sha256Digest::of(content), *component)
        };
        ExpectedPcr::from_events(id, events.iter().map(event))
    };
    ExpectedPcrs::new(vec![
        register(4, &[("Pcr4Shim", shim), ("Pcr4Vmlinuz", kernel)]),
        register(14, &[("Pcr14MokList", shim)]),
    ])
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(output::read_label(text(data).ok_or("no text")?))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let image = image("shim", "kernel");
    let register = image.pcrs.first().map(output::register).expect("two registers");
    let written = output::label(&image).expect("a label is written");
    let seeds = vec![
        Seed::new("label", written.clone()),
        Seed::new("register", register.expect("a register is written")),
        Seed::new("old_name_of_events", written.replace("\"events\"", "\"parts\"")),
        Seed::new("empty", "{\"pcrs\":[]}"),
        Seed::new(
            "register_without_events",
            format!("{{\"id\":7,\"value\":\"{}\",\"events\":[]}}", Sha256Digest::ZERO),
        ),
    ];
    [seeds, hostile(&written)].concat()
}

fn hostile(good: &str) -> Vec<Seed> {
    let lying = |name, text: String| Seed::new(name, text).refused(read);
    let replaced = |from: &str, to: &str| good.replacen(from, to, 1);
    let value = image("shim", "kernel").pcrs.first().map(|pcr| pcr.value.to_string());
    let value = value.expect("two registers");
    vec![
        lying("nothing", String::new()),
        lying("cut_off", good.get(..100).unwrap_or_default().to_owned()),
        lying("brackets", "[".repeat(2000)),
        lying("brackets_within_a_label", format!("{{\"pcrs\":{}", "[".repeat(2000))),
        lying("register_24", replaced("\"id\": 4", "\"id\": 24")),
        lying("negative_register", replaced("\"id\": 4", "\"id\": -4")),
        lying("value_of_63_digits", replaced(&value, value.get(1..).unwrap_or(""))),
        lying("pcrs_twice", "{\"pcrs\":[],\"pcrs\":[]}".to_owned()),
        lying(
            "register_twice",
            replaced("\"id\": 14", "\"id\": 4").replace("\"pcr\": 14", "\"pcr\": 4"),
        ),
        lying("value_of_other_events", replaced(&value, &Sha256Digest::ZERO.to_string())),
        lying("event_of_another_register", replaced("\"pcr\": 14", "\"pcr\": 13")),
    ]
}
