//! Who obtains a disk key and who does not: one table for every engine that runs policies.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tec_core::ak::PublicKey;
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::pcr::PcrIndex;
use tec_trustee::policy::{
    ClaimValue, PolicyIntent, SnpRequirement, SnpTcb, ak_reference_name, ak_reference_value,
};

const MACHINE: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
const OTHER: &str = "16fd2706-8baf-433b-82eb-8c7fada847da";

/// One attempt.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) intent: PolicyIntent,
    pub(crate) evidence: Value,
    pub(crate) references: BTreeMap<String, Value>,
    /// Submodules besides `cpu0`.
    pub(crate) devices: Map<String, Value>,
    /// Status that the token should have, instead of the verdict's.
    pub(crate) status: Option<&'static str>,
    pub(crate) path: Vec<&'static str>,
    pub(crate) is_allowed: bool,
}

impl Case {
    /// The claims of the token, if the policy gave this status and these extensions to `cpu0`.
    pub(crate) fn token(&self, status: &str, extensions: Map<String, Value>) -> Value {
        let mut cpu = extensions;
        cpu.insert("ear.status".to_owned(), self.status.unwrap_or(status).into());
        let evidence = self.evidence.clone();
        cpu.insert("ear.veraison.annotated-evidence".to_owned(), evidence);
        let mut submods = self.devices.clone();
        submods.insert("cpu0".to_owned(), cpu.into());
        json!({"submods": submods})
    }

    /// The request that the resource policy receives as `data`.
    pub(crate) fn request(&self) -> Value {
        json!({"plugin": "resource", "resource-path": self.path, "query": {}})
    }

    fn allowed(mut self) -> Self {
        self.is_allowed = true;
        self
    }

    fn at(mut self, path: &[&'static str]) -> Self {
        self.path = path.to_vec();
        self
    }

    fn claiming(mut self, pointer: &str, value: Value) -> Self {
        *self.evidence.pointer_mut(pointer).unwrap() = value;
        self
    }

    fn without(mut self, parent: &str, member: &str) -> Self {
        let parent = self.evidence.pointer_mut(parent).unwrap();
        parent.as_object_mut().unwrap().remove(member).unwrap();
        self
    }

    fn sending(mut self, evidence: Value) -> Self {
        self.evidence = evidence;
        self
    }

    fn storing(mut self, name: impl Into<String>, value: Value) -> Self {
        self.references.insert(name.into(), value);
        self
    }

    fn with_status(mut self, status: &'static str) -> Self {
        self.status = Some(status);
        self
    }

    fn with_device(mut self, name: &str, claims: Value) -> Self {
        self.devices.insert(name.to_owned(), claims);
        self
    }
}

fn ak(fill: u8) -> PublicKey {
    let mut der = vec![0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02];
    der.extend([0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03]);
    der.extend([0x42, 0x00, 0x04]);
    der.extend([fill; 64]);
    PublicKey::from_der(&der).unwrap()
}

fn value_of(fill: &str) -> String {
    fill.repeat(32)
}

fn registers() -> Value {
    let mut registers: Map<String, Value> =
        (0..24).map(|index| (format!("pcr{index:02}"), value_of("00").into())).collect();
    registers.insert("pcr04".to_owned(), value_of("bb").into());
    registers.insert("pcr14".to_owned(), value_of("cc").into());
    registers.into()
}

/// What an attestation service adds to each type of evidence (EAR, draft-ietf-rats-ear).
fn annotated(tee: &str, claims: impl Into<Value>) -> Value {
    let claims = claims.into();
    json!({
        tee: claims, "report_data": value_of("0a"), "init_data": value_of("00"),
        "init_data_claims": null,
        "runtime_data_claims": {"nonce": "bm9uY2U=", "additional-evidence": "", "tee-pubkey": {}},
    })
}

fn tpm() -> Value {
    let mut claims = registers();
    claims["ak_public"] = ak(1).to_base64().into();
    annotated("tpm", claims)
}

/// All claims of a report are text (Trustee, verifiers).
fn azure() -> Value {
    let mut registers = registers();
    registers["ak_public"] = ak(1).to_base64().into();
    annotated(
        "az-snp-vtpm",
        json!({
            "tpm": registers, "measurement": "bWVhc3VyZW1lbnQ=",
            "policy_abi_major": "0", "policy_debug_allowed": "false",
            "reported_tcb_bootloader": "4", "reported_tcb_tee": "0",
            "reported_tcb_snp": "22", "reported_tcb_microcode": "213",
        }),
    )
}

fn pinned() -> PinnedPcrs {
    let pinned = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK];
    PinnedPcrs::new(pinned.into_iter().collect()).unwrap()
}

fn bound() -> PolicyIntent {
    PolicyIntent::new(pinned(), [Tee::Tpm]).unwrap()
}

pub(crate) fn azure_too() -> PolicyIntent {
    let minimum = SnpTcb { bootloader: 4, tee: 0, snp: 21, microcode: 100 };
    let snp = SnpRequirement::default().with_approved_measurement().with_minimum_tcb(minimum);
    PolicyIntent::new(pinned(), [Tee::Tpm, Tee::AzSnpVtpm])
        .and_then(|intent| intent.with_snp(snp))
        .and_then(|intent| {
            let site = ClaimValue::Text("north \"1\"".to_owned());
            intent.with_claim("tec.site", -70_010, site)
        })
        .and_then(|intent| {
            let register = ClaimValue::Register(PcrIndex::BOOT_MANAGER);
            intent.with_claim("tec.pcr04", -70_011, register)
        })
        .unwrap()
}

fn base(name: &'static str, intent: PolicyIntent, evidence: Value) -> Case {
    let machine = MACHINE.parse().unwrap();
    let mut references = BTreeMap::new();
    let key = ak_reference_value(&ak(1), &machine);
    references.insert(ak_reference_name(&ak(1)), key);
    references.insert("tpm_pcr4".to_owned(), json!([value_of("aa"), value_of("bb")]));
    references.insert("tpm_pcr14".to_owned(), json!([value_of("cc")]));
    references.insert("snp_measurement".to_owned(), json!(["bWVhc3VyZW1lbnQ="]));
    Case {
        name,
        intent,
        evidence,
        references,
        devices: Map::new(),
        status: None,
        path: vec!["default", MACHINE, "root"],
        is_allowed: false,
    }
}

/// The table.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = paths();
    cases.extend(keys());
    cases.extend(boots());
    cases.extend(tokens());
    cases.extend(reports());
    cases
}

fn paths() -> Vec<Case> {
    let case = |name| base(name, bound(), tpm());
    vec![
        case("own path").allowed(),
        case("path of another machine").at(&["default", OTHER, "root"]),
        case("another repository").at(&["other", MACHINE, "root"]),
        case("another tag").at(&["default", MACHINE, "home"]),
        case("short path").at(&["default", MACHINE]),
        case("long path").at(&["default", MACHINE, "root", "x"]),
        case("no path").at(&[]),
    ]
}

fn keys() -> Vec<Case> {
    let case = |name| base(name, bound(), tpm());
    let name = ak_reference_name(&ak(1));
    let machine = MACHINE.parse().unwrap();
    let key = ak(1).to_base64();
    vec![
        case("unknown key").claiming("/tpm/ak_public", ak(2).to_base64().into()),
        case("key is no text").claiming("/tpm/ak_public", json!(["x"])),
        case("key is short").claiming("/tpm/ak_public", json!("AAAA")),
        case("no key").without("/tpm", "ak_public"),
        case("key revoked").storing(&name, Value::Null),
        case("key revoked with an object").storing(&name, json!({})),
        case("key revoked with a list").storing(&name, json!([])),
        case("value of a colliding key").storing(&name, ak_reference_value(&ak(2), &machine)),
        case("value without a machine").storing(&name, json!({"ak": key})),
        case("machine is no text").storing(&name, json!({"ak": key, "machine": [MACHINE]})),
        case("key bound to another machine")
            .storing(&name, ak_reference_value(&ak(1), &OTHER.parse().unwrap())),
    ]
}

fn boots() -> Vec<Case> {
    let case = |name| base(name, bound(), tpm());
    vec![
        case("unknown boot").claiming("/tpm/pcr04", value_of("dd").into()),
        case("revoked image").storing("tpm_pcr4", json!([value_of("aa")])),
        case("all images revoked").storing("tpm_pcr4", json!([])),
        case("list taken away").storing("tpm_pcr14", Value::Null),
        case("list is a text").storing("tpm_pcr4", value_of("bb").into()),
        case("value of another register").claiming("/tpm/pcr14", value_of("bb").into()),
        case("register missing").without("/tpm", "pcr14"),
        case("register is null").claiming("/tpm/pcr04", Value::Null),
        case("null is approved and sent")
            .claiming("/tpm/ak_public", Value::Null)
            .storing("tpm_pcr4", json!([null])),
    ]
}

fn tokens() -> Vec<Case> {
    let case = |name| base(name, bound(), tpm());
    let sample = json!({
        "svn": "1", "launch_digest": "abcde", "debug": false,
        "platform_version": {"major": 1, "minor": 4},
    });
    let mut as_sample = tpm();
    as_sample["sample"] = as_sample["tpm"].take();
    as_sample.as_object_mut().unwrap().remove("tpm");
    let good = json!({"ear.status": "affirming", "tec.machine": MACHINE});
    vec![
        case("sample evidence").sending(annotated("sample", sample)),
        case("a TPM's claims as sample").sending(as_sample),
        case("platform that is not asked for").sending(azure()),
        case("no evidence").sending(json!({})),
        case("status none").with_status("none"),
        case("status warning").with_status("warning"),
        case("status contraindicated").with_status("contraindicated"),
        case("a device that is not affirmed")
            .with_device("gpu0", json!({"ear.status": "contraindicated"})),
        case("a device that is affirmed").with_device("gpu0", good.clone()),
        case("two processors").with_device("cpu1", good),
    ]
}

fn reports() -> Vec<Case> {
    const REPORT: &str = "/az-snp-vtpm";
    let case = |name| base(name, azure_too(), azure());
    let claiming =
        |name, claim: &str, value: Value| case(name).claiming(&format!("{REPORT}/{claim}"), value);
    vec![
        case("Azure machine").allowed(),
        base("TPM where both are taken", azure_too(), tpm()).allowed(),
        claiming("TCB as old as allowed", "reported_tcb_snp", json!("21")).allowed(),
        claiming("TCB of three digits", "reported_tcb_microcode", json!("100")).allowed(),
        claiming("older TCB", "reported_tcb_snp", json!("20")),
        claiming("older TCB of one digit", "reported_tcb_microcode", json!("99")),
        claiming("TCB with zeros in front", "reported_tcb_snp", json!("022")).allowed(),
        claiming("older TCB with a zero in front", "reported_tcb_snp", json!("020")),
        claiming("TCB of four digits", "reported_tcb_snp", json!("0022")),
        claiming("TCB is a number", "reported_tcb_snp", json!(22)),
        claiming("TCB is empty", "reported_tcb_snp", json!("")),
        claiming("TCB is negative", "reported_tcb_snp", json!("-1")),
        claiming("TCB is a word", "reported_tcb_snp", json!("new")),
        claiming("debugging", "policy_debug_allowed", json!("true")),
        case("no word on debugging").without(REPORT, "policy_debug_allowed"),
        claiming("other measurement", "measurement", json!("b3RoZXI=")),
        case("no measurement").without(REPORT, "measurement"),
        case("measurements revoked").storing("snp_measurement", json!([])),
        // An unmodified Trustee checks the key, but does not name it.
        case("Azure key not named").without(&format!("{REPORT}/tpm"), "ak_public"),
        case("unknown boot on Azure").claiming("/az-snp-vtpm/tpm/pcr04", value_of("dd").into()),
    ]
}
