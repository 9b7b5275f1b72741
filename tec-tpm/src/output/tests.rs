use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_core::time::Timestamp;

use super::*;
use crate::combine::Combiner;

const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;

fn image(shim: &str, kernel: &str) -> ExpectedPcrs {
    let event = |id: &str, content: &str| {
        ImageEvent::new("EV_E", PCR4, Sha256Digest::of(content), id).from_file(content)
    };
    let events = [event("Pcr4Shim", shim), event("Pcr4Vmlinuz", kernel)];
    ExpectedPcrs::new(vec![ExpectedPcr::from_events(PCR4, events)])
}

fn without_files(mut image: ExpectedPcrs) -> ExpectedPcrs {
    let events = image.pcrs.iter_mut().flat_map(|pcr| &mut pcr.events);
    events.for_each(|event| event.source = None);
    image
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_label_has_the_members_that_its_readers_know_in_their_order() {
    let image = image("shim", "kernel");
    let text = label(&image).unwrap();
    let event = parsed(&text)["pcrs"][0]["events"][0].clone();
    assert_eq!(event.as_object().unwrap().len(), 4);
    let places =
        ["\"id\": 4", "\"value\"", "\"events\"", "\"name\"", "\"pcr\"", "\"hash\"", "\"Pcr4Shim\""];
    let found: Vec<_> = places.iter().map(|member| text.find(member).unwrap()).collect();
    assert!(found.is_sorted(), "{text}");
    assert_eq!(read_label(&text).unwrap(), without_files(image.clone()));
    let one = register(&image.pcrs[0]).unwrap();
    assert_eq!(parsed(&one), parsed(&text)["pcrs"][0]);
    assert_eq!(read_label(&one).unwrap(), without_files(image));
}

#[test]
fn a_label_names_authorities_as_its_readers_know_them() {
    let pcr = PcrIndex::SECURE_BOOT;
    let ids = ["Pcr7KernelMokListCert", "Pcr7UkiDbCert", "Pcr7ShimCert"];
    let events = ids.map(|id| ImageEvent::new("EV_E", pcr, Sha256Digest::of(id), id));
    let image = ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr, events)]);
    let text = label(&image).unwrap();
    let events = &parsed(&text)["pcrs"][0]["events"];
    let known = ["Pcr7GrubMokListCert", "Pcr7GrubDbCert", "Pcr7ShimCert"];
    for (number, id) in known.iter().enumerate() {
        assert_eq!(events[number]["id"], *id);
    }
}

#[test]
fn labels_of_old_images_are_read_too() {
    let image = image("shim", "kernel");
    let old = label(&image).unwrap().replace("\"events\"", "\"parts\"");
    assert_eq!(read_label(&old).unwrap(), without_files(image));
}

#[test]
fn a_label_that_contradicts_itself_is_refused() {
    let image = image("shim", "kernel");
    let text = label(&image).unwrap();
    let value = image.pcrs[0].value.to_string();
    let wrong = text.replace(&value, &Sha256Digest::ZERO.to_string());
    assert!(matches!(read_label(&wrong), Err(OutputError::Inconsistent(PCR4))));
    let mut twice = image;
    twice.pcrs.push(twice.pcrs[0].clone());
    let twice = label(&twice).unwrap();
    assert!(matches!(read_label(&twice), Err(OutputError::Repeated(PCR4))));
    assert!(matches!(read_label("{\"pcrs\":1}"), Err(OutputError::Json { .. })));
    let large = " ".repeat(MAX_INPUT + 1);
    assert!(matches!(read_label(&large), Err(OutputError::TooLarge { .. })));
}

#[test]
fn a_fleet_gives_reference_values_in_both_forms_of_trustee() {
    let (a, b) = (image("shim a", "kernel a"), image("shim b", "kernel b"));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let values = ReferenceValues::of_fleet(&combined);
    assert_eq!(values.values(PCR4).count(), 4);

    let list = values.to_config_map(Timestamp::from_unix_seconds(1_800_000_000)).unwrap();
    let json = parsed(&list);
    assert_eq!(
        json[0],
        json!({"version": "0.1.0", "name": "tpm_pcr4",
        "expiration": "2027-01-15T08:00:00Z", "value": json[0]["value"]})
    );
    assert_eq!(json[1]["value"], json!(["1"]), "tpm_svn comes last by name");
    assert_eq!(ReferenceValues::read_config_map(&list).unwrap(), values);

    let message = values.to_message().unwrap();
    let json = parsed(&message);
    assert_eq!((&json["version"], &json["type"]), (&json!("0.1.0"), &json!("sample")));
    let payload = STANDARD.decode(json["payload"].as_str().unwrap()).unwrap();
    let payload: Value = serde_json::from_slice(&payload).unwrap();
    assert_eq!(payload["tpm_pcr4"].as_array().unwrap().len(), 4);
    assert_eq!(ReferenceValues::read_message(&message).unwrap(), values);
}

#[test]
fn reference_values_of_another_form_are_refused() {
    let list = |name: &str, value: &str| {
        let record = json!({"version": "0.1.0", "name": name, "expiration": "", "value": [value]});
        ReferenceValues::read_config_map(&json!([record]).to_string())
    };
    let digest = Sha256Digest::ZERO.to_string();
    assert!(list("tpm_pcr4", &digest).is_ok());
    assert_eq!(list("something_else", "x").unwrap(), ReferenceValues::new());
    assert!(matches!(list("tpm_pcr24", &digest), Err(OutputError::Member { .. })));
    assert!(matches!(list("tpm_pcr4", "abc"), Err(OutputError::Member { .. })));
    let swid = json!({"version": "0.1.0", "type": "swid", "payload": ""}).to_string();
    let refused = ReferenceValues::read_message(&swid);
    assert!(matches!(refused, Err(OutputError::Member { member, .. }) if member == "type"));
}

#[test]
fn a_component_of_pcrlock_has_the_measurements_in_order() {
    let text = pcrlock(&image("shim", "kernel")).unwrap();
    let record = |file: &str| {
        let digest = Sha256Digest::of(file);
        json!({"pcr": 4, "digests": [{"hashAlg": "sha256", "digest": digest}]})
    };
    assert_eq!(parsed(&text), json!({"records": [record("shim"), record("kernel")]}));
}

#[test]
fn the_text_of_tpm2_tools_is_read_as_it_was_written() {
    let values: BTreeMap<_, _> =
        [(PCR4, Sha256Digest::of("a")), (PcrIndex::MOK, Sha256Digest::of("b"))].into();
    let text = pcrread(&values);
    assert!(text.starts_with("  sha256:\n    4 : 0x"), "{text}");
    assert_eq!(read_pcrread(&text).unwrap(), values);
    let banks = format!("sha1:\n  0 : 0x00\n{text}");
    assert_eq!(read_pcrread(&banks).unwrap(), values);
    let wrong = read_pcrread("  sha256:\n    4 : 0x12\n");
    assert!(matches!(wrong, Err(OutputError::Member { member, .. }) if member == "line 2"));
}

#[test]
fn the_own_form_says_what_makes_each_value() {
    let (a, b) = (image("shim a", "kernel a"), image("shim b", "kernel b"));
    let combined = Combiner::new().combine(&[("a", &a), ("b", &b)]).unwrap();
    let report = FleetReport::new(&combined, [PCR4].into_iter().collect()).unwrap();
    let made_by: Vec<_> = report.registers[0].values.iter().flat_map(|v| &v.made_by).collect();
    assert!(made_by.iter().any(|text| *text == "bootloader of a + kernel of b"), "{made_by:?}");
    assert_eq!(report.joint.len(), 4);
    let json = serde_json::to_value(&report).unwrap();
    assert!(json["registers"][0]["values"][0]["origins"][0][0]["groups"].is_array());
    assert!(report.text().contains("bootloader of b + kernel of a"));
}

#[test]
fn a_comparison_names_the_components_that_differ() {
    let (a, b) = (image("shim", "old"), image("shim", "new"));
    assert!(difference(&a, &a).is_empty());
    let found = difference(&a, &b);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].before, found[0].after), (Some(a.pcrs[0].value), Some(b.pcrs[0].value)));
    let components: Vec<_> = found[0].components.iter().map(|c| c.component.as_str()).collect();
    assert_eq!(components, ["Pcr4Vmlinuz"]);
    let gone = difference(&a, &ExpectedPcrs::default());
    assert_eq!((gone[0].after, gone[0].components.len()), (None, 2));
    assert!(difference_text(&found).contains("Pcr4Vmlinuz"));
}
