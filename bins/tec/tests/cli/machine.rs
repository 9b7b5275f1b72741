//! `tec machine readmit` as a process.

use tec_core::ak::{ClockReading, TpmClock};
use tec_core::port::{ClockLog as _, ClockOutcome};
use tec_core::store::Store;
use tec_core::testing::sample;
use tec_support::SystemEntropy;
use tempfile::TempDir;

use crate::world::{json, refused, str};

#[test]
fn a_tpm_is_readmitted_once_for_each_time_that_it_attested() {
    let dir = TempDir::new().unwrap();
    let directory = dir.path().join("state");
    let (machine, key) = (sample::machine_id(1), sample::ak(1, 1).fingerprint());
    let attest = |reset_count| {
        let clock = TpmClock {
            clock_ms: 1,
            reset_count,
            restart_count: 0,
            safe: true,
        };
        let reading = ClockReading::new(clock, sample::time(1), sample::time(1));
        let store = Store::open(&directory, &SystemEntropy).unwrap();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let advanced = store.advance(&key, machine, &reading);
        runtime.block_on(advanced).unwrap()
    };
    assert_eq!(attest(9), ClockOutcome::Follows);
    assert!(matches!(attest(8), ClockOutcome::Refused(_)));

    let (state, id) = (str(&directory), machine.to_string());
    let readmit = ["--state-dir", state, "machine", "readmit", &id];
    assert_eq!(json(&readmit)["machines"], serde_json::json!([id]));
    refused(&readmit, 1, "error TEC-A403");
    let audit = json(&["--state-dir", state, "audit", "list"]);
    let lines = audit.as_array().unwrap();
    assert_eq!(lines.len(), 1, "{audit}");
    assert!(lines[0].to_string().contains("tpm-readmitted"), "{audit}");
    assert_eq!(attest(8), ClockOutcome::Follows);
}
