//! The texts.

use std::fmt::Write as _;

use tec_core::attest::Tee;

use super::intent::{ClaimValue, MACHINE_CLAIM, MACHINE_CLAIM_KEY, PolicyIntent, SnpRequirement};
use super::name::{PREFIX, SKIP, SNP_MEASUREMENT, TAKE, path_of};
use super::pcr_reference_name;

impl PolicyIntent {
    /// The attestation policy `default_cpu`.
    ///
    /// Codes follow AR4SI: executables 3 approved, 33 not recognized; instance identity 2 recognized, 97 not
    /// recognized.
    pub fn render_attestation(&self) -> String {
        let mut text = [HEAD, APPROVED].concat();
        for tee in &self.tees {
            self.platform(&mut text, *tee);
        }
        if self.snp.minimum.is_some() {
            text.push_str(AT_LEAST);
        }
        text.push_str(&machine());
        self.executables(&mut text);
        self.extensions(&mut text);
        text
    }

    /// The registers in evidence of this type, if the rest of it is good.
    fn platform(&self, text: &mut String, tee: Tee) {
        let Some((root, registers)) = path_of(tee) else {
            return;
        };
        // The bare guard comes first, so that other evidence causes no look-up.
        let _ = write!(text, "\nregisters := {registers} if {{\n\t{root}\n");
        if tee == Tee::AzSnpVtpm {
            snp(text, root, self.snp);
        }
        text.push_str("}\n");
    }

    fn executables(&self, text: &mut String) {
        text.push_str("\nexecutables := 3 if {\n\tmachine\n");
        for pcr in self.pinned.iter() {
            let (name, index) = (pcr_reference_name(pcr), pcr.as_usize());
            let _ = writeln!(text, "\tapproved(\"{name}\", registers.pcr{index:02})");
        }
        text.push_str("}\n");
    }

    fn extensions(&self, text: &mut String) {
        text.push_str("\nextensions := [claim | some claim in claims]\n");
        let machine = claim(MACHINE_CLAIM, MACHINE_CLAIM_KEY, "machine");
        let _ = writeln!(text, "\nclaims contains {machine} if machine");
        for (name, (key, value)) in &self.claims {
            let value = match value {
                ClaimValue::Register(pcr) => format!("registers.pcr{:02}", pcr.as_usize()),
                ClaimValue::Text(text) => quoted(text),
            };
            let claim = claim(name, *key, &value);
            let _ = writeln!(text, "\nclaims contains {claim} if registers");
        }
    }

    /// The resource policy.
    pub fn render_resource(&self) -> String {
        let claim = format!("cpu[\"{MACHINE_CLAIM}\"]");
        format!("{RESOURCE}\tis_string({claim})\n\t{claim} == path[1]\n}}\n")
    }
}

/// Conditions on the report; all its claims are text (Trustee, verifiers).
fn snp(text: &mut String, report: &str, demanded: SnpRequirement) {
    let _ = writeln!(text, "\t{report}.policy_debug_allowed == \"false\"");
    if demanded.is_measured {
        let _ = writeln!(text, "\tapproved(\"{SNP_MEASUREMENT}\", {report}.measurement)");
    }
    let Some(tcb) = demanded.minimum else {
        return;
    };
    for (part, least) in [
        ("bootloader", tcb.bootloader),
        ("tee", tcb.tee),
        ("snp", tcb.snp),
        ("microcode", tcb.microcode),
    ] {
        let _ = writeln!(text, "\tat_least({report}.reported_tcb_{part}, \"{least:03}\")");
    }
}

fn machine() -> String {
    format!(
        r#"
# The machine that the key is bound to: the reference value of the key that signed says it. Revoked is
# null, unknown is null. The name is only a part of the key, so the whole key counts.
machine := known.machine if {{
	is_string(registers.ak_public)
	part := substring(registers.ak_public, {SKIP}, {TAKE})
	name := replace(replace(replace(part, "+", "-"), "/", "_"), "=", "")
	known := query_reference_value(concat("", ["{PREFIX}", name]))
	is_object(known)
	known.ak == registers.ak_public
	is_string(known.machine)
}}

instance_identity := 2 if machine
"#
    )
}

fn claim(name: &str, key: i64, value: &str) -> String {
    format!(r#"{{"name": "{name}", "key": {key}, "value": {value}}}"#)
}

/// Printable ASCII text as a Rego string, which is written like a JSON string.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

const HEAD: &str = r#"# Approved boots of machines whose attestation key is registered.
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
"#;

const APPROVED: &str = r"
# Whether `value` is one of the approved values under `name`; no list, no approval.
approved(name, value) if {
	values := query_reference_value(name)
	is_array(values)
	value in values
}
";

const AT_LEAST: &str = r#"
# Versions come as text of one to three digits; made three digits, they compare as text.
at_least(version, least) if {
	is_string(version)
	count(version) in [1, 2, 3]
	trim(version, "0123456789") == ""
	substring(concat("", ["00", version]), count(version) - 1, 3) >= least
}
"#;

const RESOURCE: &str = r#"# A machine may have the key of its own disk: default/<id>/root.
package policy

import rego.v1

default allow := false

allow if {
	data.plugin == "resource"
	path := data["resource-path"]
	count(path) == 3
	path[0] == "default"
	path[2] == "root"
	# Evidence of a further device vouches for nothing here, so there must be none.
	count(input.submods) == 1
	cpu := input.submods.cpu0
	cpu["ear.status"] == "affirming"
"#;
