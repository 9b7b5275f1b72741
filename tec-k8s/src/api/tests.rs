use kube::core::cel::{validate_cel, validate_cel_update};
use serde_json::{Value, json};
use tec_core::ak::{AkRecord, AkState};
use tec_core::image::ExpectedPcrs;
use tec_core::machine;
use tec_core::machine::{MachineState, RegisteredBy};
use tec_core::time::Timestamp;

use super::*;

const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
const IMAGE: &str = "registry.example/os@sha256:\
    3d6772b4f84ed47595d72a2c4c5ffd15f5bb72c7507fe26f2aaee2c69d5633ba";
const CREATED: &str = "2026-11-18T11:06:40Z";
/// A P-256 key generated for these tests with `openssl ecparam -name prime256v1 -genkey`.
const KEY: &str = include_str!("../../tests/data/ak.pem");

fn created() -> Timestamp {
    CREATED.parse().unwrap()
}

/// Reads an object as the API server stores it, and checks that writing it gives the same result.
fn stored<T: serde::de::DeserializeOwned + serde::Serialize>(
    kind: &str,
    name: &str,
    rest: &Value,
) -> T {
    let mut object = json!({
        "apiVersion": "trusted-execution-clusters.io/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "tec", "creationTimestamp": CREATED},
    });
    let members = object.as_object_mut().unwrap();
    members.extend(rest.as_object().unwrap().clone());
    let parsed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&parsed).unwrap(), object);
    parsed
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": "m",
        "observedGeneration": 1, "lastTransitionTime": CREATED,
    })
}

fn cluster(spec: &Value) -> TrustedExecutionCluster {
    stored("TrustedExecutionCluster", "c", &json!({ "spec": spec }))
}

fn image(reference: &str) -> ApprovedImage {
    stored("ApprovedImage", "os", &json!({"spec": {"image": reference}}))
}

fn key(public_key: &str, uuid: Option<&str>, conditions: &[Value]) -> AttestationKey {
    let mut object = json!({"spec": {"publicKey": public_key}});
    if let Some(uuid) = uuid {
        object["spec"]["uuid"] = uuid.into();
    }
    if !conditions.is_empty() {
        object["status"] = json!({ "conditions": conditions });
    }
    stored("AttestationKey", "ak-1", &object)
}

#[test]
fn objects_of_existing_clusters_are_read_and_written_unchanged() {
    let full = json!({
        "spec": {
            "publicTrusteeAddr": "kbs.example:8080",
            "publicAttestationKeyRegisterAddr": "ak.example:8001",
            "trusteeSecret": "a",
            "registerServerSecret": "b",
            "attestationKeyRegisterSecret": "c",
            "trusteeKbsPort": 8080,
            "registerServerPort": 8000,
            "attestationKeyRegisterPort": 8001,
        },
        "status": {"conditions": [
            condition("Installed", "True", "InstallationCompleted"),
            condition("SomebodyElses", "Unknown", "Whatever"),
        ]},
    });
    let _: TrustedExecutionCluster = stored("TrustedExecutionCluster", "c", &full);
    cluster(&json!({}));
    let _: Machine = stored("Machine", "machine-x", &json!({"spec": {"id": "anything"}}));
    image(IMAGE);
    key("not even PEM", None, &[]);
    key(KEY, Some(ID), &[condition("Approved", "True", "MachineCreated")]);
}

#[test]
fn nulls_of_go_clients_mean_absent() {
    let spec: TrustedExecutionClusterSpec =
        serde_json::from_value(json!({"trusteeSecret": null})).unwrap();
    assert_eq!(spec, TrustedExecutionClusterSpec::default());
}

#[test]
fn the_address_may_be_added_later_and_never_changed() {
    let (without, with) = (cluster(&json!({})), cluster(&json!({"publicTrusteeAddr": "a"})));
    let other = cluster(&json!({"publicTrusteeAddr": "b"}));
    validate_cel(&with).unwrap();
    validate_cel_update(&with, &without).unwrap();
    validate_cel_update(&with, &with).unwrap();
    let unset = validate_cel_update(&without, &with).unwrap_err();
    assert!(unset.to_string().contains("Value is required once set"), "{unset}");
    let changed = validate_cel_update(&other, &with).unwrap_err();
    assert!(changed.to_string().contains("Value is immutable"), "{changed}");
}

#[test]
fn a_recovery_key_has_one_name_and_never_changes() {
    let id: tec_core::id::MachineId = ID.parse().unwrap();
    let first = RecoveryKey::of(id, 1, "{}");
    validate_cel(&first).unwrap();
    validate_cel_update(&first, &first).unwrap();
    let mut other = RecoveryKey::of(id, 2, "{}");
    other.metadata.name.clone_from(&first.metadata.name);
    let refused = validate_cel(&other).unwrap_err();
    assert!(refused.to_string().contains("recovery-<machine>-<number>"), "{refused}");
    let refused = validate_cel_update(&RecoveryKey::of(id, 1, "[]"), &first).unwrap_err();
    assert!(refused.to_string().contains("Value is immutable"), "{refused}");
}

#[test]
fn the_key_broker_is_trustee_unless_said_and_can_be_changed_at_any_time() {
    let absent = cluster(&json!({}));
    assert_eq!(absent.key_broker(), BrokerKind::Trustee);
    let builtin = cluster(&json!({"keyBroker": "Builtin", "keyBrokerReplicas": 3}));
    assert_eq!(builtin.key_broker(), BrokerKind::Builtin);
    for (to, from) in [(&builtin, &absent), (&absent, &builtin)] {
        validate_cel_update(to, from).unwrap();
    }
}

#[test]
fn everything_else_is_fixed_at_creation() {
    for (field, one, two) in [
        ("publicAttestationKeyRegisterAddr", json!("a"), json!("b")),
        ("trusteeSecret", json!("a"), json!("b")),
        ("registerServerSecret", json!("a"), json!("b")),
        ("attestationKeyRegisterSecret", json!("a"), json!("b")),
        ("trusteeKbsPort", json!(1), json!(2)),
        ("registerServerPort", json!(1), json!(2)),
        ("attestationKeyRegisterPort", json!(1), json!(2)),
    ] {
        let absent = cluster(&json!({}));
        let (one, two) = (cluster(&json!({field: one})), cluster(&json!({field: two})));
        validate_cel(&one).unwrap();
        validate_cel_update(&one, &one).unwrap();
        for (new, old, message) in [
            (&one, &absent, "Value must be set at creation"),
            (&absent, &one, "Value is required once set"),
            (&two, &one, "Value is immutable"),
        ] {
            let error = validate_cel_update(new, old).unwrap_err().to_string();
            assert!(error.contains(message), "{field}: {error}");
        }
    }
}

#[test]
fn an_image_needs_a_digest_and_stays_what_it_is() {
    validate_cel(&image(IMAGE)).unwrap();
    assert!(validate_cel(&image("registry.example/os:latest")).is_err());
    let other = image(&IMAGE.replace("/os@", "/other@"));
    assert!(validate_cel_update(&other, &image(IMAGE)).is_err());
}

#[test]
fn the_id_of_a_machine_never_changes() {
    let machine = |id: &str| {
        let spec = MachineSpec { id: id.to_owned(), ..MachineSpec::default() };
        Machine::new("m", spec)
    };
    assert!(validate_cel_update(&machine("b"), &machine("a")).is_err());
    validate_cel_update(&machine("a"), &machine("a")).unwrap();
}

#[test]
fn a_machine_survives_the_way_there_and_back() {
    for registered_by in [RegisteredBy::FirstBoot, RegisteredBy::Admin, RegisteredBy::JoinService] {
        for state in [
            MachineState::Unclaimed,
            MachineState::Quarantined,
            MachineState::Revoked,
            MachineState::Retired,
        ] {
            let id = ID.parse().unwrap();
            let mut machine = machine::Machine::unclaimed(id, registered_by, created());
            machine.state = state;
            let object = Machine::from_core(&machine);
            assert_eq!(object.metadata.name.as_deref(), Some(format!("machine-{ID}").as_str()));
            assert_eq!(object.to_core().unwrap(), machine);
        }
    }
}

#[test]
fn an_object_without_a_time_of_its_own_counts_from_its_creation() {
    let mut object: Machine = stored("Machine", "m", &json!({"spec": {"id": ID}}));
    assert_eq!(object.to_core().unwrap().registered_at, created());
    object.metadata.creation_timestamp = None;
    assert!(matches!(object.to_core(), Err(ConvertError::NotCreated(_))));
}

#[test]
fn an_image_survives_the_way_there_and_back() {
    let mut approved = image(IMAGE).to_core().unwrap();
    assert_eq!((approved.reference.as_str(), approved.approved_at), (IMAGE, created()));
    assert_eq!(approved.expected, ExpectedPcrs::default());
    approved.expires_at = Some(created().plus_seconds(60));
    approved.revoked_at = Some(created().plus_seconds(30));
    approved.expected = tec_core::testing::sample::image(1).expected;
    approved.expected.root_hash = Some(false);
    approved.expected.first_boot = true;
    let object = ApprovedImage::from_core(&approved);
    assert_eq!(object.to_core().unwrap(), approved);
    for bad in ["os@sha256:12", "@sha256:", "os@sha256:"] {
        let error = image(bad).digest().map(str::to_owned);
        assert!(matches!(error, Err(ConvertError::NoDigest(_))), "{bad}");
    }
    assert_eq!(image(IMAGE).digest().unwrap().len(), 64);
}

#[test]
fn how_an_image_boots_is_set_at_its_creation() {
    let boots = |boot: Option<Value>| {
        let mut object = image(IMAGE);
        object.spec.boot = boot.map(|boot| serde_json::from_value(boot).unwrap());
        object
    };
    let off = || Some(json!({"secureBoot": "Disabled"}));
    validate_cel(&boots(off())).unwrap();
    validate_cel_update(&boots(off()), &boots(off())).unwrap();
    for (new, old) in [(None, off()), (off(), None), (off(), Some(json!({})))] {
        assert!(validate_cel_update(&boots(new), &boots(old)).is_err());
    }
    assert!(validate_cel(&boots(Some(json!({"shimStarts": "a"})))).is_err());
    validate_cel(&boots(Some(json!({"shimStarts": "a", "firmwareStarts": "b"})))).unwrap();
}

#[test]
fn what_was_revoked_stays_revoked() {
    let revoked = |time: Option<&str>| {
        let mut object = image(IMAGE);
        object.spec.revoked_at = time.map(str::to_owned);
        object
    };
    validate_cel_update(&revoked(Some(CREATED)), &revoked(None)).unwrap();
    assert!(validate_cel_update(&revoked(None), &revoked(Some(CREATED))).is_err());
    let other = revoked(Some("2027-01-01T00:00:00Z"));
    assert!(validate_cel_update(&other, &revoked(Some(CREATED))).is_err());
}

fn machine_bound_to(name: &str, fingerprint: &str) -> Machine {
    let bound = json!({"name": name, "fingerprint": fingerprint});
    let rest = json!({"spec": {"id": ID}, "status": {"attestationKey": bound}});
    stored("Machine", "machine-x", &rest)
}

#[test]
fn a_key_is_bound_exactly_when_its_machine_names_it_and_what_it_holds() {
    let approved = [condition("Approved", "True", "MachineCreated")];
    let object = key(KEY, Some(ID), &approved);
    let fingerprint = object.public().unwrap().fingerprint().to_string();
    let state = |machine: Option<&Machine>| object.to_core(machine).unwrap().state;
    assert_eq!(state(None), AkState::Pending, "a condition binds nothing");
    let right = machine_bound_to("ak-1", &fingerprint);
    assert_eq!(state(Some(&right)), AkState::Bound);
    for wrong in [machine_bound_to("ak-2", &fingerprint), machine_bound_to("ak-1", &"0".repeat(64))]
    {
        assert_eq!(state(Some(&wrong)), AkState::Pending);
    }
    let mut revoked = object.clone();
    revoked.spec.revoked_at = Some(CREATED.to_owned());
    let record = revoked.to_core(Some(&right)).unwrap();
    assert_eq!(record.state, AkState::Revoked);
}

#[test]
fn a_key_survives_the_way_there_and_back() {
    let public = tec_core::ak::PublicKey::from_pem(KEY).unwrap();
    let ek = Some(public.fingerprint());
    for (state, ek) in [(AkState::Pending, ek), (AkState::Revoked, None)] {
        let mut record = AkRecord::pending(public.clone(), ID.parse().unwrap(), ek, created());
        record.state = state;
        let object = AttestationKey::from_core(&record);
        assert_eq!(object.to_core(None).unwrap(), record);
        let name = object.metadata.name.unwrap();
        assert_eq!(name, AttestationKey::name_of(&record.fingerprint()));
        assert_eq!(name.len(), 35);
    }
}

#[test]
fn an_admin_approves_what_was_looked_at_and_nothing_later() {
    let mut object = key(KEY, Some(ID), &[condition("AdminApproved", "True", "Me")]);
    assert!(!object.is_approved_by_admin(), "an object without generation");
    object.metadata.generation = Some(1);
    assert!(object.is_approved_by_admin());
    object.metadata.generation = Some(2);
    assert!(!object.is_approved_by_admin());
}

#[test]
fn keys_that_the_domain_cannot_take_are_told_apart() {
    let refused = |key: AttestationKey| key.to_core(None).unwrap_err();
    assert!(matches!(refused(key("x", Some(ID), &[])), ConvertError::PublicKey { .. }));
    assert!(matches!(refused(key(KEY, None, &[])), ConvertError::NoMachine(_)));
    assert!(matches!(refused(key(KEY, Some("x"), &[])), ConvertError::MachineId { .. }));
    let mut odd = key(KEY, Some(ID), &[]);
    odd.spec.endorsement_key = Some("x".to_owned());
    assert!(matches!(refused(odd), ConvertError::EndorsementKey { .. }));
}

#[test]
fn setting_a_condition_keeps_the_others_and_moves_time_only_with_the_status() {
    let mut conditions: Vec<_> = [condition("Foreign", "Unknown", "X")]
        .into_iter()
        .map(|value| serde_json::from_value(value).unwrap())
        .collect();
    let mut set = |reason, now: Timestamp| {
        set_condition(&mut conditions, ConditionKind::Installed, reason, "", Some(1), now).unwrap();
        let last = conditions.last().unwrap();
        (conditions.len(), last.last_transition_time.0.as_second())
    };
    let (start, later) = (created(), created().plus_seconds(60));
    assert_eq!(set(Reason::Installing, start), (2, start.unix_seconds()));
    assert_eq!(set(Reason::NonUnique, later), (2, start.unix_seconds()));
    assert_eq!(set(Reason::InstallationCompleted, later), (2, later.unix_seconds()));
}

#[test]
fn the_committed_definitions_are_those_of_the_types() {
    for crd in crds() {
        let name = crd.metadata.name.clone().unwrap();
        let path = format!("{}/crds/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let committed = std::fs::read_to_string(&path).unwrap();
        let committed: Value = serde_saphyr::from_str(&committed).unwrap();
        assert_eq!(committed, serde_json::to_value(&crd).unwrap(), "{path}");
    }
}

#[test]
fn the_definitions_are_namespaced_with_status_columns_and_no_nullable_fields() {
    for crd in crds() {
        let name = crd.metadata.name.clone().unwrap();
        assert_eq!((crd.spec.group.as_str(), crd.spec.scope.as_str()), (GROUP, "Namespaced"));
        let version = crd.spec.versions.first().unwrap();
        assert_eq!(version.name, VERSION);
        // Each of these is a single value from one kind of writer.
        let status = version.subresources.as_ref().and_then(|all| all.status.as_ref());
        let plain = [
            "TpmClock",
            "AttestationRecord",
            "RecoveryKey",
            "PlatformBaseline",
            "PlatformApproval",
        ];
        let is_plain = plain.contains(&crd.spec.names.kind.as_str());
        assert!(is_plain || status.is_some(), "{name}");
        assert!(version.additional_printer_columns.as_ref().unwrap().len() >= 2, "{name}");
        let schema = serde_json::to_value(version.schema.as_ref().unwrap()).unwrap();
        let spec = schema.pointer("/openAPIV3Schema/properties/spec").unwrap();
        // If a null were kept, it would count as set in the rules on presence.
        assert!(!spec.to_string().contains(r#""nullable":true"#), "{name}: {spec}");
    }
}

#[test]
fn people_see_of_a_machine_its_node_its_boot_and_its_last_refusal() {
    let columns = Machine::crd().spec.versions[0].additional_printer_columns.clone().unwrap();
    let short = columns.into_iter().filter(|column| column.priority.unwrap_or(0) == 0);
    let names: Vec<_> = short.map(|column| column.name).collect();
    assert_eq!(names, ["Node", "State", "Image", "Booted", "Refused", "Age"]);
}
