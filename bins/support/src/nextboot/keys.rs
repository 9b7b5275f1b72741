//! Whether the variables of a running machine show the state of Secure Boot of its next boot.

use anyhow::Context as _;
use tec_core::platform::{KeyDatabase, PolicyVariable};
use tec_tpm::compute::{Guid, PlatformState};
use tec_tpm::event_log::EventLog;

/// Checks that the machine still has, or still lacks, the platform key with which it booted. Otherwise the
/// firmware turns Secure Boot on or off only at the next boot (UEFI 2.10, 32.3, "Firmware/OS Key Exchange"),
/// and the variable `SecureBoot` still shows the state of this boot.
pub(super) fn check(machine: &PlatformState, log: &[u8]) -> anyhow::Result<()> {
    let log = EventLog::parse(log).context("cannot read the log of the current boot")?;
    let variables = log.policy_variables();
    let had = variables.iter().find_map(|logged| match &logged.variable {
        PolicyVariable::Keys { name: KeyDatabase::Pk, entries } => Some(!entries.is_empty()),
        _ => None,
    });
    let has = machine.variable("PK", Guid::GLOBAL).is_some_and(|key| !key.is_empty());
    let change = match (had, has) {
        (Some(false), true) => "enrolled",
        (Some(true), false) => "removed",
        _ => return Ok(()),
    };
    anyhow::bail!(
        "cannot predict this boot: the platform key was {change} after the boot in the log, so Secure Boot \
         may be on or off next (pass --secure-boot)"
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tec_tpm::compute::DirectoryImage;

    use super::*;

    /// Recorded boots.
    const BOOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tec-tpm/tests/boots");

    #[test]
    fn a_platform_key_that_changed_since_the_boot_leaves_secure_boot_unknown() {
        let boots = Path::new(BOOTS);
        let machine = |boot: &str| {
            let variables = DirectoryImage::open(boots.join(boot).join("efivars")).unwrap();
            PlatformState::from_efivars(&variables, "").unwrap()
        };
        let log = |boot: &str| std::fs::read(boots.join(boot).join("eventlog.bin")).unwrap();
        let (on, off) = ("trixie-sb-on", "trixie-sb-off");
        for boot in [on, off] {
            check(&machine(boot), &log(boot)).unwrap();
        }
        let refused = |now, then| check(&machine(now), &log(then)).unwrap_err().to_string();
        assert!(refused(on, off).contains("enrolled"));
        assert!(refused(off, on).contains("removed"));
    }
}
