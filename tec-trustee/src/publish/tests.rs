//! Publishing: against the embedded KBS, against a fake that fails on purpose, and, if the
//! environment names one, against a real KBS.

mod admin;
mod converge;
mod fake;
mod fanout;
mod plan;
mod restart;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tec_core::endpoint::Endpoint;
use tec_core::pcr::PcrIndex;
use tec_core::port::{Clock, EntropyRng};
use tec_core::secret::SecretBytes;
use tec_core::testing::{ManualClock, SeededEntropy, sample};

use super::*;
use crate::client::Deadlines;
use crate::testing::provider;

/// The key of an admin: equal seeds give equal keys.
fn admin_key(seed: u64) -> AdminKey {
    AdminKey::generate(&mut EntropyRng::new(&*entropy(seed)))
}

#[test]
fn an_admin_key_is_not_printed() {
    assert_eq!(format!("{:?}", admin_key(1)), "AdminKey { audience: None, .. }");
}

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::new(sample::time(1000)))
}

fn entropy(seed: u64) -> Arc<SeededEntropy> {
    Arc::new(SeededEntropy::new(seed))
}

fn api(url: &str, key: AdminKey, clock: Arc<dyn Clock>) -> AdminApi {
    let endpoint = Endpoint::new(url.parse().unwrap(), "");
    let deadlines = Deadlines::new(Duration::from_secs(20), Duration::from_secs(20));
    AdminApi::new(&endpoint, key, clock, deadlines, &provider()).unwrap()
}

/// A policy that compiles, with a number in it.
fn rego(number: u64) -> String {
    format!("package policy\n\nimport rego.v1\n\n# {number}\ndefault allow := false\n")
}

/// Policies, one register, and machines with their keys.
fn desired(machines: impl IntoIterator<Item = u64>) -> Desired {
    let desired = Desired::new(rego(1), rego(2));
    let good = sample::image(1).expected.pcrs[0].value;
    desired.set_pcr(PcrIndex::BOOT_MANAGER, [good]).unwrap();
    for number in machines {
        register(&desired, number);
    }
    desired
}

fn register(desired: &Desired, number: u64) {
    let ak = sample::public_key(number);
    desired.bind_key(&ak, &sample::machine_id(number)).unwrap();
    desired.put_secret(sample::secret_path(number), sample::secret(number));
}

/// The result of a round that took this many changes.
fn converged(changes: usize, desired: &Desired) -> Progress {
    let revision = desired.revision();
    Progress::Converged { changes, revision }
}

fn revoke(desired: &Desired, number: u64) {
    desired.unbind_key(&sample::public_key(number));
    desired.remove_secret(&sample::secret_path(number));
}

#[test]
fn a_key_is_bound_once_and_reserved_names_are_not_for_policies() {
    let desired = desired([1]);
    let before = desired.revision();
    register(&desired, 1);
    desired.set_policies(rego(1), rego(2));
    assert_eq!(desired.revision(), before, "what is set already is no change");

    let reserved = desired.set_reference("tec-index-a-0", json!([]));
    assert!(matches!(reserved, Err(DesiredError::Reserved(_))));
    assert!(matches!(desired.set_reference("../x", json!(1)), Err(DesiredError::Name(_))));

    // Another key with the same name as the first.
    let name = crate::policy::ak_reference_name(&sample::public_key(1));
    desired.set_reference(&name, json!({"ak": "other", "machine": "x"})).unwrap();
    let taken = desired.bind_key(&sample::public_key(1), &sample::machine_id(1));
    assert!(matches!(taken, Err(DesiredError::KeyNameTaken(_))));
    let before = desired.revision();
    desired.unbind_key(&sample::public_key(1));
    assert_eq!(desired.revision(), before, "the value of the other key stays");
}
