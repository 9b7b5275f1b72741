//! `tec serve --pcrs 4,14`: machines between two images, with all registers of a boot judged together.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::fs;
use std::sync::Arc;

use serde_json::json;
use tec_core::digest::Sha256Digest;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_e2e::anchor::Anchor;
use tec_e2e::load::machine_of;
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;
use tec_e2e::wire;
use tec_tpm::event_log::{EventKind, EventLogBuilder};
use tec_tpm::testing::SoftTpm;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// The boot chain of a machine, by the image of each component.
#[derive(Clone, Copy)]
struct Chain {
    loader: &'static str,
    kernel: &'static str,
    keys: &'static str,
}

fn of(image: &'static str) -> Chain {
    Chain { loader: image, kernel: image, keys: image }
}

/// An update with the boot loader installed, but not the kernel.
const HALF: Chain = Chain { loader: "new", kernel: "old", keys: "new" };

impl Chain {
    fn events(self) -> Vec<ImageEvent> {
        let event = |pcr, id: &str, file: String| {
            let digest = Sha256Digest::of(&file);
            ImageEvent::new("E", pcr, digest, id).from_file(file)
        };
        let (pcr4, pcr14) = (PcrIndex::BOOT_MANAGER, PcrIndex::MOK);
        vec![
            event(pcr4, "Pcr4Shim", format!("shim-{}", self.loader)),
            event(pcr4, "Pcr4Grub", format!("grub-{}", self.loader)),
            event(pcr4, "Pcr4Vmlinuz", format!("vmlinuz-{}", self.kernel)),
            event(pcr14, "Pcr14MokList", format!("keys-{}", self.keys)),
        ]
    }

    fn expected(self) -> ExpectedPcrs {
        let fold = |pcr| ExpectedPcr::from_events(pcr, self.events());
        ExpectedPcrs::new(vec![fold(PcrIndex::BOOT_MANAGER), fold(PcrIndex::MOK)])
    }

    fn boot(self, tpm: &SoftTpm) {
        tpm.reboot();
        let mut log = EventLogBuilder::new();
        for event in self.events() {
            tpm.extend(event.pcr, &event.hash);
            log.measure_digest(event.pcr, EventKind::EFI_ACTION, event.hash, b"");
        }
        tpm.set_event_log(log.build());
    }
}

/// A server with two approved images, and a machine with a bound key.
struct World {
    directory: TempDir,
    runtime: Runtime,
    anchor: Anchor,
    tpm: SoftTpm,
    machine: MachineId,
}

impl World {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings::for_tests(&directory.path().join("unused.html")).unwrap();
        let logs = Arc::new(Transcript::new(directory.path().join("logs")).unwrap());
        let state = directory.path().join("state");
        let anchor = Anchor::start(&settings, &state, &logs, &["--pcrs", "4,14"]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let tpm = SoftTpm::p256(1);
        let machine = runtime.block_on(register(&anchor, &tpm));
        let world = Self { directory, runtime, anchor, tpm, machine };
        for image in ["old", "new"] {
            world.approve(image, of(image));
        }
        world
    }

    fn approve(&self, name: &str, chain: Chain) {
        let file = self.directory.path().join(format!("{name}.json"));
        fs::write(&file, serde_json::to_vec(&chain.expected()).unwrap()).unwrap();
        let file = file.to_str().unwrap();
        let approval = ["image", "approve", name, "--pcrs", file, "--accept-unpinned"];
        self.anchor.tec(&approval).unwrap();
    }

    fn revoke(&self, name: &str) {
        self.anchor.tec(&["image", "revoke", name, "--yes"]).unwrap();
    }

    /// Boots and requests the key. `between` runs after the attestation. Returns the code of a refusal.
    fn unlock(&self, chain: Chain, between: impl FnOnce()) -> Option<String> {
        chain.boot(&self.tpm);
        let kbs = self.anchor.kbs().unwrap();
        let path = ResourcePath::luks_root(&self.machine);
        self.runtime.block_on(async {
            let session = wire::Session::open(&kbs).await.unwrap();
            let proof = session.prove(&self.tpm, wire::some_pubkey()).await.unwrap();
            let reply = session.attest(&proof).await.unwrap();
            assert_eq!(reply.status, 200, "{}", reply.body);
            between();
            let reply = session.resource(path.as_str()).await.unwrap();
            (reply.status != 200).then(|| reply.code())
        })
    }

    fn opens(&self, chain: Chain) {
        assert_eq!(self.unlock(chain, || ()), None);
    }

    fn refused(&self, chain: Chain) {
        let refused = self.unlock(chain, || ());
        assert_eq!(refused.as_deref(), Some("TEC-A412"));
    }

    fn explained(&self) -> String {
        self.anchor.tec_text(&["explain"]).unwrap()
    }
}

async fn register(anchor: &Anchor, tpm: &SoftTpm) -> MachineId {
    let ([register, ak, _], ca) = (anchor.urls().unwrap(), anchor.ca().unwrap());
    let url = format!("{register}/ignition-clevis-pin-trustee");
    let machine = machine_of(&wire::get(&ca, &url).await.unwrap().body).unwrap();
    let body = json!({ "public_key": tpm.public_key().to_pem(), "uuid": machine.to_string() });
    let url = format!("{ak}/register-ak");
    let reply = wire::put(&ca, &url, &body).await.unwrap();
    assert_eq!(reply.status, 201, "{}", reply.body);
    machine
}

#[test]
fn a_machine_unlocks_at_each_step_of_an_update_and_back() {
    let world = World::start();
    for chain in [of("old"), HALF, of("new"), HALF, of("old")] {
        world.opens(chain);
    }
    let other_order = Chain { kernel: "new", ..of("old") };
    world.opens(other_order);
    let told = world.explained();
    assert!(told.contains("bootloader (PCR 4, 14): old"), "{told}");
    assert!(told.contains("kernel (PCR 4): new"), "{told}");
    let attempt = world.anchor.tec(&["explain"]).unwrap();
    assert_eq!(attempt["booted"]["parts"][1]["images"], json!(["new"]));
    let audit = world.anchor.tec(&["audit", "list"]).unwrap();
    let last = audit.as_array().unwrap().first().unwrap();
    let subject = last["event"]["subject"].as_str().unwrap();
    assert!(
        subject.contains("boot between images: bootloader of old + kernel of new"),
        "{subject}"
    );
}

#[test]
fn registers_that_do_not_occur_together_are_refused_and_explained() {
    let world = World::start();
    // The lists of keys depend on shim, so no machine has those of the other image.
    world.refused(Chain { keys: "old", ..HALF });
    let told = world.explained();
    for line in [
        "PCR 14: machine owner keys (keys-new) differs",
        "closest: bootloader of new + kernel of old",
        "PCR 4 alone: bootloader of new + kernel of old",
        "PCR 14 alone: old",
    ] {
        assert!(told.contains(line), "{line} is not in {told}");
    }
}

#[test]
fn a_revoked_image_ends_its_mixes_between_attestation_and_release_too() {
    let world = World::start();
    world.opens(HALF);
    let would = ["image", "revoke", "old", "--dry-run"];
    let would = world.anchor.tec(&would).unwrap();
    let machine = world.machine.to_string();
    assert_eq!(would["last_booted_by"], json!([machine]));

    let refused = world.unlock(HALF, || world.revoke("old"));
    assert_eq!(refused.as_deref(), Some("TEC-A412"));
    let told = world.explained();
    assert!(told.contains("the approval of bootloader of new + kernel of old ended"), "{told}");

    world.refused(HALF);
    let told = world.explained();
    assert!(
        told.contains("kernel (vmlinuz-new) is that of old, whose approval expired or was revoked"),
        "{told}"
    );
    world.opens(of("new"));
}
