//! `next-boot` as a process, with the registers of a real TPM emulator.

use std::fs;
use std::path::Path;
use std::process::Output;
use std::thread;

use serde_json::Value;
use tec_core::boot::Pins;
use tec_core::image::ExpectedPcrs;
use tec_core::reference::BootImage as _;
use tec_tpm::compute::testing::{application, debian_chain};
use tec_tpm::compute::{BootPredictor, MemoryImage, PlatformState};
use tec_tpm::direct::Tpm;
use tec_tpm::output::{PredictionReport, read_label};
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm as _;
use tempfile::TempDir;

use crate::world::{Node, Wire, boot, good, refused};

const KERNEL: &str = "boot/vmlinuz-6.12.0-amd64";

/// GRUB 2.14 measures the kernel into PCR 4 even without Secure Boot.
fn image(kernel: &str) -> MemoryImage {
    debian_chain("2.14").with(KERNEL, application(kernel))
}

fn unpacked(image: &MemoryImage) -> TempDir {
    let directory = TempDir::new().unwrap();
    for path in image.files("").unwrap() {
        let file = directory.path().join(&path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, image.content(&path).unwrap()).unwrap();
    }
    directory
}

/// A node whose TPM measured the boot of this image, without Secure Boot.
fn booted(image: &MemoryImage) -> Node {
    let mut node = Node::start(Wire::Plain);
    node.tpm = Swtpm::start().unwrap();
    let prediction = BootPredictor::new().predict(image, &PlatformState::new());
    let report = PredictionReport::new(&prediction.unwrap(), |_| None);
    let tpm = Tpm::open(&node.tpm.tcti()).unwrap();
    let events = report.pcrs.iter().flat_map(|register| &register.events);
    for event in events.filter(|event| Pins::of_images().any(|pcr| pcr == event.pcr)) {
        tpm.pcr_extend(event.pcr, &event.hash).unwrap();
    }
    drop(tpm);
    node
}

fn next_boot(node: &Node, image: &Path, more: &[&str]) -> Output {
    let variables = node.world.directory.path().join("efivars");
    fs::create_dir_all(&variables).unwrap();
    let (image, variables) = (image.to_str().unwrap(), variables.to_str().unwrap());
    let own = ["next-boot", image, "--efivars", variables];
    node.world.agent(&node.tpm, &[&own[..], more].concat())
}

/// What an admin approves for an image.
fn expected(image: &MemoryImage) -> ExpectedPcrs {
    let prediction = BootPredictor::new().predict(image, &PlatformState::new());
    let report = PredictionReport::new(&prediction.unwrap(), |_| None);
    read_label(&serde_json::to_string(&report).unwrap()).unwrap()
}

/// The arguments of a check that asks the server.
fn asking(node: &Node) -> [String; 5] {
    let url = node.world.endpoint.url.to_string();
    ["--ask", "--url", &url, "--output", "json"].map(str::to_owned)
}

fn answer(output: &Output) -> (Option<i32>, Value) {
    let next: Value = serde_json::from_slice(&output.stdout).unwrap();
    (output.status.code(), next["verdict"]["answer"].clone())
}

#[test]
fn a_node_tells_whether_it_will_unlock_after_the_next_boot() {
    let (now, next) = (image("now"), image("next"));
    let node = booted(&now);
    let (same, staged) = (unpacked(&now), unpacked(&next));
    let json = ["--output", "json"];
    let told = next_boot(&node, same.path(), &json);
    assert_eq!(answer(&told), (Some(0), "as-now".into()));
    let told = next_boot(&node, staged.path(), &json);
    assert_eq!(answer(&told), (Some(3), "changed".into()));
    let text = next_boot(&node, staged.path(), &[]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("changes PCR 4: approve this image before"), "{text}");

    // The values supplied with the image, for example as a bundle.
    let prediction = BootPredictor::new().predict(&next, &PlatformState::new());
    let report = PredictionReport::new(&prediction.unwrap(), |_| None);
    let label = staged.path().join("next.json");
    fs::write(&label, serde_json::to_vec(&report).unwrap()).unwrap();
    let accepted = ["--accepted", label.to_str().unwrap(), "--output", "json"];
    let told = next_boot(&node, staged.path(), &accepted);
    assert_eq!(answer(&told), (Some(0), "accepted".into()));
}

#[test]
fn what_is_no_image_is_refused_with_a_code() {
    let node = Node::start(Wire::Plain);
    let nothing = TempDir::new().unwrap();
    let lines = refused(&next_boot(&node, nothing.path(), &[]));
    assert!(lines[0].starts_with("TEC-I400 "), "{lines:?}");
}

#[test]
fn a_server_says_whether_it_would_accept_the_next_boot() {
    let (now, next) = (image("now"), image("next"));
    let node = booted(&now);
    node.world.approve_values("now", expected(&now));
    good(node.encrypt());
    let (same, staged) = (unpacked(&now), unpacked(&next));
    let more = asking(&node);
    let more = more.each_ref().map(String::as_str);
    assert_eq!(answer(&next_boot(&node, same.path(), &more)), (Some(0), "server-accepts".into()));
    let told = next_boot(&node, staged.path(), &more);
    assert_eq!(answer(&told), (Some(3), "server-refuses".into()));
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!(told["verdict"]["code"], "TEC-A412");

    // Waits until the image is approved.
    let waits = [&more[..], &["--wait-every", "1"]].concat();
    thread::scope(|scope| {
        let waits = scope.spawn(|| next_boot(&node, staged.path(), &waits));
        node.world.approve_values("next", expected(&next));
        assert_eq!(answer(&waits.join().unwrap()), (Some(0), "server-accepts".into()));
    });
}

#[test]
fn a_node_that_is_refused_now_would_be_refused_after_a_reboot() {
    let now = image("now");
    let node = booted(&now);
    node.world.approve_values("now", expected(&now));
    good(node.encrypt());
    boot(&node.tpm, "a module");
    let same = unpacked(&now);
    let more = asking(&node);
    let told = next_boot(&node, same.path(), &more.each_ref().map(String::as_str));
    assert_eq!(answer(&told), (Some(3), "server-refuses".into()));
}

#[test]
fn a_machine_that_does_not_attest_asks_in_vain() {
    let now = image("now");
    let node = booted(&now);
    node.world.approve_values("now", expected(&now));
    let same = unpacked(&now);
    let more = asking(&node);
    let lines = refused(&next_boot(&node, same.path(), &more.each_ref().map(String::as_str)));
    assert!(lines[1].contains("there is no attestation key"), "{lines:?}");
}
