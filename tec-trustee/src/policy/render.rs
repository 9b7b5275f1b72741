//! The texts.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use tec_core::attest::PinnedPcrs;
use tec_core::attest::Tee;

use super::name::PREFIX;
use super::name::SKIP;
use super::name::TAKE;
use super::pcr_reference_name;

/// Name of the claim in the token that says which machine attested.
pub const MACHINE_CLAIM: &str = "tec.machine";
/// Its integer key, in the private-use range of CWT claims (RFC 8392, section 9.1: below -65536).
const MACHINE_CLAIM_KEY: i64 = -70_001;

/// What the policies shall enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyIntent {
    pinned: PinnedPcrs,
    tees: BTreeSet<Tee>,
}

/// An intent cannot be expressed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyIntentError {
    /// No sort of evidence would be accepted.
    #[error("a policy must accept at least one sort of evidence")]
    NoTee,
    /// Evidence of this sort carries no key and no registers.
    #[error("evidence of the sort {tee} says nothing that a policy could rely on")]
    Tee {
        /// Which.
        tee: Tee,
    },
}

impl PolicyIntent {
    /// Policies that demand approved values of `pinned`, from evidence of one of `tees`.
    ///
    /// # Errors
    /// No sort of evidence, or `sample`.
    ///
    /// # Security
    /// Evidence of Azure virtual machines names its key (`ak_public`) only when this project's
    /// verifier checked it; with others the policy denies it.
    pub fn new(
        pinned: PinnedPcrs,
        tees: impl IntoIterator<Item = Tee>,
    ) -> Result<Self, PolicyIntentError> {
        let tees: BTreeSet<_> = tees.into_iter().collect();
        if tees.is_empty() {
            return Err(PolicyIntentError::NoTee);
        }
        match tees.iter().find(|tee| path_of(**tee).is_none()) {
            Some(tee) => Err(PolicyIntentError::Tee { tee: *tee }),
            None => Ok(Self { pinned, tees }),
        }
    }

    /// The registers that are compared.
    pub fn pinned(&self) -> PinnedPcrs {
        self.pinned
    }

    /// The attestation policy `default_cpu`.
    ///
    /// Codes are those of AR4SI: executables 3 approved, 33 not recognized; instance identity 2
    /// recognized, 97 not recognized.
    pub fn render_attestation(&self) -> String {
        let mut text = String::from(ATTESTATION_HEAD);
        for (root, registers) in self.tees.iter().filter_map(|tee| path_of(*tee)) {
            // The bare guard keeps other evidence from costing look-ups.
            let _ = write!(text, "\nregisters := {registers} if {root}\n");
        }
        let _ = write!(
            text,
            r#"
# The reference value of the key that signed. Revoked is null, unknown is null.
ak_name := concat("", ["{PREFIX}", replace(replace(replace(
	substring(registers.ak_public, {SKIP}, {TAKE}), "+", "-"), "/", "_"), "=", "")]) if {{
	is_string(registers.ak_public)
}}

# The machine that the key is bound to. The name is only a part of the key, so the whole key counts.
machine := known.machine if {{
	known := query_reference_value(ak_name)
	is_object(known)
	known.ak == registers.ak_public
	is_string(known.machine)
}}

instance_identity := 2 if machine

executables := 3 if {{
	machine
"#
        );
        for pcr in self.pinned.iter() {
            let name = pcr_reference_name(pcr);
            let _ = writeln!(
                text,
                "\tapproved(\"{name}\", registers.pcr{:02})",
                pcr.as_usize()
            );
        }
        let _ = write!(
            text,
            r#"}}

extensions := [{{"name": "{MACHINE_CLAIM}", "key": {MACHINE_CLAIM_KEY}, "value": machine}}]
"#
        );
        text
    }

    /// The resource policy.
    pub fn render_resource(&self) -> String {
        format!(
            r#"# A machine may have the key of its own disk: default/<its id>/root.
package policy

import rego.v1

default allow := false

allow if {{
	data.plugin == "resource"
	path := data["resource-path"]
	count(path) == 3
	path[0] == "default"
	path[2] == "root"
	cpu := input.submods.cpu0
	cpu["ear.status"] == "affirming"
	is_string(cpu["{MACHINE_CLAIM}"])
	cpu["{MACHINE_CLAIM}"] == path[1]
}}
"#
        )
    }
}

/// Guard, and path of the object with `pcrNN` and `ak_public` (contract 2.2, 2.3).
fn path_of(tee: Tee) -> Option<(&'static str, &'static str)> {
    match tee {
        Tee::Tpm => Some(("input.tpm", "input.tpm")),
        Tee::AzSnpVtpm => Some((r#"input["az-snp-vtpm"]"#, r#"input["az-snp-vtpm"].tpm"#)),
        _ => None,
    }
}

const ATTESTATION_HEAD: &str = r#"# Approved boots of machines whose attestation key is registered.
package policy

import rego.v1

default executables := 33

default instance_identity := 97

trust_claims := {
	"executables": executables,
	"instance-identity": instance_identity,
	"hardware": 0,
	"configuration": 0,
}

# Whether `value` is one of the approved values under `name`; no list, no approval.
approved(name, value) if {
	values := query_reference_value(name)
	is_array(values)
	value in values
}
"#;
