//! Every seed, and some mutations of the seeds, satisfy the properties of their target.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "all of this is a test"
)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use tec_fuzz::manifest::{COMMITTED, manifest};
use tec_fuzz::mutate::mutate;
use tec_fuzz::{TARGETS, Target};

/// Maximum number of bytes of all seeds together: they stay in the repository forever.
const MAX_CORPUS: usize = 512 << 10;

fn manifest_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn corpus(name: &str) -> BTreeMap<String, Vec<u8>> {
    let dir = manifest_dir().join("corpus").join(name);
    fs::read_dir(&dir)
        .unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect()
}

fn target(name: &str) -> Target {
    let found = TARGETS.iter().find(|target| target.name == name);
    *found.unwrap_or_else(|| panic!("no target {name}"))
}

/// Prints the input when the target panics, so that the failure can be reproduced.
struct Witness<'a>(&'a str, &'a [u8]);

impl Drop for Witness<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("input of {}: b\"{}\"", self.0, self.1.escape_ascii());
        }
    }
}

fn run(name: &str) {
    let target = target(name);
    let seeds: Vec<Vec<u8>> = corpus(name).into_values().collect();
    assert!(!seeds.is_empty());
    let mut rng = ChaCha20Rng::seed_from_u64(7);
    let mutations = (0..target.mutations).map(|_| mutate(&mut rng, &seeds));
    for input in seeds.iter().cloned().chain(mutations) {
        let _witness = Witness(name, &input);
        (target.run)(&input);
    }
}

macro_rules! tests {
    ($($target:ident: $test:ident;)*) => {
        $(#[test] fn $test() { run(stringify!($target)); })*

        #[test]
        fn every_target_has_a_test() {
            let tested = [$(stringify!($target)),*];
            assert!(TARGETS.iter().map(|target| target.name).eq(tested));
        }
    };
}

tests! {
    az_snp_evidence: evidence_of_azure_keeps_its_properties;
    clevis: sealed_passphrases_keep_their_properties;
    combine: fleets_on_the_move_keep_their_properties;
    combine_input: images_to_combine_keep_their_properties;
    efivars: files_of_efivarfs_keep_their_properties;
    ek_certificate: certificates_of_endorsement_keys_keep_their_properties;
    event_log: event_logs_keep_their_properties;
    event_log_sha1: event_logs_of_the_older_form_keep_their_properties;
    evidence: evidence_keeps_its_properties;
    grub_script: scripts_of_grub_keep_their_properties;
    guard: nothing_unchecked_gets_past_the_guard;
    hcl_report: reports_of_the_paravisor_keep_their_properties;
    ignition: pin_configurations_keep_their_properties;
    image: images_in_every_form_keep_their_properties;
    jwe: responses_and_session_keys_keep_their_properties;
    kbs: the_key_broker_keeps_its_properties;
    kbs_config: patched_configurations_keep_their_properties;
    label: labels_keep_their_properties;
    pcrread: printed_registers_keep_their_properties;
    pe: boot_files_keep_their_properties;
    pkcs7: embedded_signatures_keep_their_properties;
    policy_evidence: decisions_of_policies_keep_their_properties;
    policy_text: texts_of_policies_keep_their_properties;
    predict: predictions_keep_their_properties;
    public_key: public_keys_keep_their_properties;
    quote: quotes_keep_their_properties;
    rcar: bodies_of_the_handshake_keep_their_properties;
    reference_values: reference_values_keep_their_properties;
    registration: registrations_keep_their_properties;
    sbat: sbat_sections_keep_their_properties;
    service_uri: uris_of_key_services_keep_their_properties;
    signature_list: signature_lists_keep_their_properties;
    snp_certificate: certificates_of_chips_keep_their_properties;
    snp_report: reports_of_snp_keep_their_properties;
    systemd_log: logs_of_systemd_keep_their_properties;
    token: tokens_keep_their_properties;
    tpm2b_public: public_areas_keep_their_properties;
    transfer: transfers_of_trust_keep_their_properties;
    uki: unified_kernel_images_keep_their_properties;
    variable_store: variable_stores_keep_their_properties;
    vendor_cert: vendor_keys_keep_their_properties;
    x509: certificates_keep_their_properties;
}

#[test]
fn the_committed_seeds_are_those_that_are_made() {
    let mut total = 0;
    for target in TARGETS {
        let made: BTreeMap<_, _> =
            (target.seeds)().into_iter().map(|seed| (seed.name, seed.content)).collect();
        total += made.values().map(Vec::len).sum::<usize>();
        let committed = corpus(target.name);
        assert!(committed.keys().eq(made.keys()), "{}", target.name);
        for (name, content) in &committed {
            assert!(
                made.get(name) == Some(content),
                "{}/{name}: run `cargo run -p tec-fuzz --example seed`",
                target.name
            );
        }
    }
    assert!(total < MAX_CORPUS, "{total} bytes of seeds");
}

#[test]
fn no_seeds_are_left_over() {
    let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
    let entries = fs::read_dir(manifest_dir().join("corpus")).unwrap();
    let mut folders: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "README.md")
        .collect();
    folders.sort();
    assert_eq!(folders, names);
}

/// The list contains each seed with the parser's current answer, so a change in either shows.
#[test]
fn hostile_seeds_are_refused_with_the_error_that_the_list_says() {
    let found = manifest();
    for (committed, found) in COMMITTED.lines().zip(found.lines()) {
        assert_eq!(committed, found, "run `cargo run -p tec-fuzz --example seed`");
    }
    assert_eq!(COMMITTED.len(), found.len());
    let refused = found.lines().filter(|line| line.contains(" | `")).count();
    assert!(refused > 150, "{refused}");
}
