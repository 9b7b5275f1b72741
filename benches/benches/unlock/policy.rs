//! A policy that is kept parsed against one that is parsed for each request.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde_json::{Value, json};
use tec_benches::Suite;
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::pcr::PcrIndex;
use tec_trustee::policy::{
    AttestationPolicy, Evaluation, PolicyError, PolicyIntent, ResourcePolicy, ak_reference_name,
    ak_reference_value, pcr_reference_name,
};

use crate::server::Machine;

/// Input, reference values, claims and request of one unlock.
struct Case {
    attestation: String,
    resource: String,
    evidence: Value,
    references: BTreeMap<String, Value>,
    claims: Value,
    request: Value,
}

impl Case {
    fn new() -> anyhow::Result<Self> {
        let machine = Machine::new();
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm])?;
        let key = machine.tpm.public_key();
        let mut tpm = serde_json::Map::new();
        for (pcr, value) in machine.tpm.pcrs().iter() {
            tpm.insert(format!("pcr{:02}", pcr.as_usize()), value.to_string().into());
        }
        tpm.insert("ak_public".to_owned(), key.to_base64().into());
        let approved = machine.tpm.pcrs().value(PcrIndex::BOOT_MANAGER).to_string();
        let machine = machine.id.to_string();
        Ok(Self {
            attestation: intent.render_attestation(),
            resource: intent.render_resource(),
            evidence: json!({"tpm": tpm, "report_data": "00", "init_data": null}),
            references: BTreeMap::from([
                (ak_reference_name(&key), ak_reference_value(&key, &machine.parse()?)),
                (pcr_reference_name(PcrIndex::BOOT_MANAGER), json!([approved])),
            ]),
            claims: json!({"submods": {"cpu0": {
                "ear.status": "affirming", "tec.machine": machine,
            }}}),
            request: json!({
                "plugin": "resource", "resource-path": ["default", machine, "root"], "query": {},
            }),
        })
    }

    fn attest(&self, policy: &AttestationPolicy) -> Result<Evaluation, PolicyError> {
        policy.evaluate(&self.evidence, &self.references)
    }

    fn allows(&self, policy: &ResourcePolicy) -> Result<bool, PolicyError> {
        policy.allows(&self.claims, &self.request)
    }
}

pub(crate) fn policies(suite: &mut Suite) -> anyhow::Result<()> {
    let case = Case::new()?;
    let attestation = AttestationPolicy::parse(&case.attestation)?;
    let resource = ResourcePolicy::parse(&case.resource)?;
    let Evaluation::Done(verdict) = case.attest(&attestation)? else {
        anyhow::bail!("a reference value is missing");
    };
    anyhow::ensure!(verdict.status().as_str() == "affirming", "{verdict:?}");
    anyhow::ensure!(case.allows(&resource)?, "the machine's own path is denied");
    suite.compare(
        "kbs/policy",
        "evaluate the attestation policy kept parsed / parse and interpret it",
        || case.attest(&attestation).context("evaluate"),
        || case.attest(&AttestationPolicy::interpreted(&case.attestation)?).context("evaluate"),
    )?;
    suite.compare(
        "kbs/policy/resource",
        "evaluate the resource policy kept parsed / parse and interpret it",
        || case.allows(&resource).context("evaluate"),
        || case.allows(&ResourcePolicy::interpreted(&case.resource)?).context("evaluate"),
    )
}
