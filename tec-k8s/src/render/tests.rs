use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::rbac::v1::PolicyRule;
use tec_core::attest::PinnedPcrs;

use super::*;
use crate::api::{
    BrokerKind, RegistrationMode, RegistrationSpec, TlsServer, TrustedExecutionClusterSpec,
};

fn stored(spec: TrustedExecutionClusterSpec) -> TrustedExecutionCluster {
    let mut cluster = TrustedExecutionCluster::new("trusted-execution-cluster", spec);
    cluster.metadata.namespace = Some(DEFAULT_NAMESPACE.to_owned());
    cluster.metadata.uid = Some("7d9b3a0e-3f6c-4a53-9a66-6f2f0d1f7c10".to_owned());
    cluster
}

fn with_tls() -> TrustedExecutionCluster {
    stored(TrustedExecutionClusterSpec {
        public_trustee_addr: Some("kbs.example.com:8080".to_owned()),
        public_attestation_key_register_addr: Some("ak.example.com:8001".to_owned()),
        trustee_secret: Some("kbs.example.com".to_owned()),
        register_server_secret: Some("register.example.com".to_owned()),
        attestation_key_register_secret: Some("ak.example.com".to_owned()),
        trustee_kbs_port: Some(443),
        ..TrustedExecutionClusterSpec::default()
    })
}

fn files() -> BrokerFiles {
    BrokerFiles::Trustee(TrusteeFiles::new("a = 1\n", "certificate", "public key"))
}

fn builtin() -> BrokerFiles {
    BrokerFiles::Builtin(BuiltinFiles::new("certificate"))
}

fn with_builtin() -> Vec<Object> {
    let mut owner = with_tls();
    owner.spec.key_broker = Some(BrokerKind::Builtin);
    cluster(&owner, &Deploy::default(), &builtin()).unwrap()
}

fn named<'a>(objects: &'a [Object], kind: &str, name: &str) -> &'a Object {
    let mut found = objects.iter().filter(|object| object.kind() == kind && object.name() == name);
    found.next().unwrap()
}

fn rendered(owner: &TrustedExecutionCluster) -> Vec<Object> {
    cluster(owner, &Deploy::default(), &files()).unwrap()
}

fn yaml(objects: &[Object]) -> String {
    let mut text = String::new();
    for object in objects {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(object).unwrap());
    }
    text
}

fn deployments(objects: &[Object]) -> Vec<&Deployment> {
    objects
        .iter()
        .filter_map(|object| match object {
            Object::Deployment(deployment) => Some(&**deployment),
            _ => None,
        })
        .collect()
}

fn pod_of(deployment: &Deployment) -> &PodSpec {
    let spec = deployment.spec.as_ref().unwrap();
    spec.template.spec.as_ref().unwrap()
}

fn rules_of(objects: &[Object], name: &str) -> Vec<PolicyRule> {
    let rules = objects.iter().find_map(|object| match object {
        Object::Role(role) if role.metadata.name.as_deref() == Some(name) => role.rules.clone(),
        _ => None,
    });
    rules.unwrap()
}

fn touches(rule: &PolicyRule, resource: &str) -> bool {
    rule.resources.iter().flatten().any(|touched| touched == resource || touched == "*")
}

#[test]
fn the_same_cluster_gives_the_same_bytes() {
    let plain = stored(TrustedExecutionClusterSpec {
        dangerous_plain_http: Some(true),
        ..TrustedExecutionClusterSpec::default()
    });
    let mut with_builtin = with_tls();
    with_builtin.spec.key_broker = Some(BrokerKind::Builtin);
    for (mut owner, files, golden) in [
        (with_tls(), files(), include_str!("golden/tls.yaml")),
        (plain, files(), include_str!("golden/plain.yaml")),
        (with_builtin, builtin(), include_str!("golden/builtin.yaml")),
    ] {
        // What a token adds has its own test.
        owner.spec.registration =
            Some(RegistrationSpec { mode: RegistrationMode::Open, ..RegistrationSpec::default() });
        let text = yaml(&cluster(&owner, &Deploy::default(), &files).unwrap());
        assert!(text == golden, "the golden file should be\n{text}");
    }
}

#[test]
fn a_cluster_object_that_names_no_certificate_gets_issued_ones() {
    let objects = rendered(&stored(TrustedExecutionClusterSpec::default()));
    let mut secrets = Vec::new();
    for deployment in deployments(&objects) {
        let volumes = pod_of(deployment).volumes.iter().flatten();
        let mut tls = volumes.filter(|volume| volume.name == "tls");
        let secret = tls.next().unwrap().secret.clone().unwrap();
        secrets.push(secret.secret_name.unwrap());
    }
    secrets.sort_unstable();
    let mut issued = TlsServer::ALL.map(TlsServer::issued_secret);
    issued.sort_unstable();
    assert_eq!(secrets, issued);
    assert!(!yaml(&objects).contains("dangerous"));
}

#[test]
fn volumes_do_not_follow_the_names_of_secrets() {
    let objects = rendered(&with_tls());
    for deployment in deployments(&objects) {
        for volume in pod_of(deployment).volumes.iter().flatten() {
            assert!(!volume.name.contains('.'), "{}", volume.name);
        }
    }
}

#[test]
fn every_pod_fits_the_restricted_profile() {
    let mut objects = rendered(&with_tls());
    objects.extend(with_builtin());
    objects.extend(operator(&Installation::default()));
    let deployments = deployments(&objects);
    assert_eq!(deployments.len(), 7);
    for deployment in deployments {
        let pod = pod_of(deployment);
        let security = pod.security_context.as_ref().unwrap();
        assert_eq!(security.run_as_non_root, Some(true));
        assert_eq!(security.seccomp_profile.as_ref().unwrap().type_, "RuntimeDefault");
        for container in &pod.containers {
            let security = container.security_context.as_ref().unwrap();
            assert_eq!(security.allow_privilege_escalation, Some(false));
            assert_eq!(security.read_only_root_filesystem, Some(true));
            let dropped = security.capabilities.as_ref().unwrap().drop.as_ref();
            assert_eq!(dropped.unwrap(), &["ALL"]);
            assert!(container.liveness_probe.is_some(), "{}", container.name);
            assert!(container.resources.is_some(), "{}", container.name);
        }
    }
}

#[test]
fn a_platform_that_assigns_users_is_left_to_do_so() {
    let deploy = Deploy { user: PodUser::Assigned, ..Deploy::default() };
    let objects = cluster(&with_tls(), &deploy, &files()).unwrap();
    for deployment in deployments(&objects) {
        let security = pod_of(deployment).security_context.as_ref().unwrap();
        assert_eq!(security.run_as_user, None);
        assert_eq!(security.fs_group, None);
        assert_eq!(security.run_as_non_root, Some(true));
    }
}

#[test]
fn only_the_guard_of_the_trustee_pod_holds_a_token() {
    let objects = rendered(&with_tls());
    let trustee = deployments(&objects)[0];
    let pod = pod_of(trustee);
    assert_eq!(pod.automount_service_account_token, Some(false));
    let holders: Vec<&str> = pod
        .containers
        .iter()
        .filter(|container| {
            let mut mounts = container.volume_mounts.iter().flatten();
            mounts.any(|mount| mount.name == "api-token")
        })
        .map(|container| container.name.as_str())
        .collect();
    assert_eq!(holders, ["kbs-guard"]);
}

#[test]
fn no_pod_mounts_the_private_key_of_the_admin() {
    for object in rendered(&with_tls()) {
        let Object::Deployment(deployment) = object else {
            continue;
        };
        for volume in pod_of(&deployment).volumes.iter().flatten() {
            let secret = volume.secret.as_ref();
            let name = secret.and_then(|secret| secret.secret_name.as_deref());
            assert_ne!(name, Some(TRUSTEE_AUTH), "{}", volume.name);
        }
    }
}

#[test]
fn a_named_certificate_is_waited_for_and_never_done_without() {
    let objects = rendered(&with_tls());
    for deployment in deployments(&objects) {
        let volumes = pod_of(deployment).volumes.iter().flatten();
        let mut tls = volumes.filter(|volume| volume.name == "tls");
        let secret = tls.next().unwrap().secret.as_ref().unwrap();
        assert_eq!(secret.optional, None);
    }
    assert!(!yaml(&objects).contains("dangerous"));
}

#[test]
fn a_token_is_asked_for_where_nothing_else_is_said() {
    let secret_of = |registration: Option<RegistrationSpec>| {
        let mut cluster = with_tls();
        cluster.spec.registration = registration;
        let objects = register_server(&cluster, &Deploy::default()).unwrap();
        let pod = pod_of(deployments(&objects)[0]);
        let mut volumes = pod.volumes.iter().flatten();
        let token = volumes.find(|volume| volume.name == "registration-token")?;
        token.secret.as_ref()?.secret_name.clone()
    };
    assert_eq!(secret_of(None).as_deref(), Some("registration-token"));
    let named =
        RegistrationSpec { token_secret: Some("tokens".to_owned()), ..RegistrationSpec::default() };
    assert_eq!(secret_of(Some(named)).as_deref(), Some("tokens"));
    let open = RegistrationSpec { mode: RegistrationMode::Open, ..RegistrationSpec::default() };
    assert_eq!(secret_of(Some(open)), None);
}

#[test]
fn the_registration_server_is_handed_what_it_needs_of_secrets_and_no_more() {
    let mut cluster = with_tls();
    let registration =
        RegistrationSpec { token_secret: Some("tokens".to_owned()), ..RegistrationSpec::default() };
    cluster.spec.registration = Some(registration);
    let objects = register_server(&cluster, &Deploy::default()).unwrap();
    let pod = pod_of(deployments(&objects)[0]);
    let entries: Vec<_> = pod
        .volumes
        .iter()
        .flatten()
        .filter_map(|volume| volume.secret.as_ref()?.items.as_ref())
        .flatten()
        .map(|item| item.key.as_str())
        .collect();
    assert_eq!(entries, ["ca.crt", "ca.crt", "token"]);
    let arguments = pod.containers[0].args.clone().unwrap();
    assert!(arguments.contains(&"--token-file=/etc/registration-token/token".to_owned()));
}

#[test]
fn the_key_broker_starts_again_when_a_file_that_it_reads_once_changes() {
    let stamp = |files: &BrokerFiles| {
        let objects = cluster(&with_tls(), &Deploy::default(), files).unwrap();
        let template = &deployments(&objects)[0].spec.as_ref().unwrap().template;
        template.metadata.clone().unwrap().annotations.unwrap()
    };
    let before = stamp(&files());
    assert_eq!(stamp(&files()), before);
    let other = |config: &str, signer: &str, admin: &str| {
        stamp(&BrokerFiles::Trustee(TrusteeFiles::new(config, signer, admin)))
    };
    assert_ne!(other("a = 2\n", "certificate", "public key"), before);
    assert_ne!(other("a = 1\n", "certificat", "epublic key"), before);
    let builtin = |signer: &str| stamp(&BrokerFiles::Builtin(BuiltinFiles::new(signer)));
    assert_ne!(builtin("one"), builtin("another"));
}

#[test]
fn a_cluster_that_was_never_stored_owns_nothing() {
    let cluster_object =
        TrustedExecutionCluster::new("new", TrustedExecutionClusterSpec::default());
    let error = cluster(&cluster_object, &Deploy::default(), &files()).unwrap_err();
    assert!(matches!(error, RenderError::NotStored { field: "namespace", .. }));
}

#[test]
fn everything_of_a_cluster_goes_with_it() {
    for object in rendered(&with_tls()) {
        let owners = object.metadata().owner_references.clone().unwrap();
        assert_eq!(owners.len(), 1, "{}", object.name());
        assert_eq!(owners[0].kind, "TrustedExecutionCluster");
        assert_eq!(owners[0].controller, Some(true));
        assert_eq!(owners[0].block_owner_deletion, Some(true));
    }
}

#[test]
fn only_the_operator_lists_secrets_and_the_builtin_broker_reads_them_by_name() {
    let objects = operator(&Installation::default());
    for component in Component::ALL {
        let rules = rules_of(&objects, &format!("{}-role", component.service_account()));
        let mut verbs: Vec<_> = rules
            .iter()
            .filter(|rule| touches(rule, "secrets"))
            .flat_map(|rule| rule.verbs.clone())
            .collect();
        verbs.sort_unstable();
        match component {
            Component::Operator => assert!(verbs.contains(&"list".to_owned())),
            Component::KeyBroker => assert_eq!(verbs, ["get"]),
            _ => assert!(verbs.is_empty(), "{component:?}: {verbs:?}"),
        }
    }
}

#[test]
fn the_builtin_broker_serves_where_trustee_would_with_as_many_replicas_as_are_asked_for() {
    let objects = with_builtin();
    let Object::Service(service) = named(&objects, "Service", KBS_SERVICE) else {
        panic!("no Service");
    };
    let spec = service.spec.clone().unwrap();
    assert_eq!(spec.ports.unwrap()[0].port, 443);
    let deployment = deployments(&objects)[0];
    let labels = deployment.spec.clone().unwrap().template.metadata.unwrap().labels.unwrap();
    assert!(spec.selector.unwrap().iter().all(|label| labels.get(label.0) == Some(label.1)));
    assert_eq!(deployment.metadata.name.as_deref(), Some("key-broker"));
    assert_eq!(deployment.spec.as_ref().unwrap().replicas, Some(2));
    assert!(!yaml(&objects).contains(TRUSTEE_DEPLOYMENT), "nothing of Trustee");
    let container = &pod_of(deployment).containers[0];
    let arguments = container.args.clone().unwrap();
    assert!(arguments.contains(&"--session-key=/etc/broker-session/key".to_owned()));

    let mut owner = with_tls();
    owner.spec.key_broker_replicas = Some(5);
    let pins = PinnedPcrs::boot_manager().into();
    let deploy = Deploy { pins, ..Deploy::default() };
    let objects = key_broker(&owner, &deploy, &BuiltinFiles::default()).unwrap();
    let arguments = pod_of(deployments(&objects)[0]).containers[0].args.clone().unwrap();
    assert!(arguments.contains(&"--pcrs=4".to_owned()), "{arguments:?}");
    assert_eq!(deployments(&objects)[0].spec.as_ref().unwrap().replicas, Some(5));
    named(&objects, "PodDisruptionBudget", "key-broker");
}

#[test]
fn what_is_of_one_key_broker_alone_leaves_what_both_have() {
    let (trustee, builtin) = (rendered(&with_tls()), with_builtin());
    for (kind, others) in [(BrokerKind::Trustee, &builtin), (BrokerKind::Builtin, &trustee)] {
        let alone = only_of(kind, &with_tls(), &Deploy::default()).unwrap();
        for object in &alone {
            let is_it =
                |other: &Object| (other.kind(), other.name()) == (object.kind(), object.name());
            assert!(!others.iter().any(is_it), "{} {}", object.kind(), object.name());
        }
        assert_eq!(alone.last().unwrap().kind(), "Deployment");
    }
}

#[test]
fn no_right_reaches_beyond_the_namespace_or_covers_everything() {
    for object in operator(&Installation::default()) {
        assert!(!object.kind().starts_with("ClusterRole"), "{}", object.name());
        let namespace = object.metadata().namespace.as_deref();
        assert_eq!(namespace, Some(DEFAULT_NAMESPACE), "{}", object.name());
        if let Object::Role(role) = object {
            for rule in role.rules.unwrap() {
                assert!(!rule.verbs.iter().any(|verb| verb == "*"));
                assert!(!touches(&rule, "*"));
            }
        }
    }
}

#[test]
fn an_empty_variable_is_no_image() {
    let images = Images::from_variables(|name| match name {
        "RELATED_IMAGE_TRUSTEE" => Some(String::new()),
        "RELATED_IMAGE_KBS_GUARD" => Some("registry.example/guard@sha256:00".to_owned()),
        REGISTRY_VARIABLE => Some("registry.example/tec/".to_owned()),
        _ => None,
    });
    let images = images.unwrap();
    assert_eq!(images.trustee, Images::default().trustee);
    assert_eq!(images.kbs_guard, "registry.example/guard@sha256:00");
    let broker = concat!("registry.example/tec/tec-key-broker:v", env!("CARGO_PKG_VERSION"));
    assert_eq!(images.key_broker, broker);
}

#[test]
fn images_are_pulled_only_from_a_registry_that_someone_named() {
    for unset in [None, Some(String::new())] {
        let error = Images::from_variables(|_| unset.clone()).unwrap_err();
        assert!(error.to_string().contains("TEC_REGISTRY"), "{error}");
    }
    let images = Images::default();
    for related in RelatedImage::ALL.into_iter().filter(|image| *image != RelatedImage::Trustee) {
        let image = images.of(related);
        assert!(image.starts_with("registry.invalid/tec-"), "{image}");
    }
    assert!(Installation::default().image.starts_with("registry.invalid/tec-operator:"));
}

#[test]
fn a_trustee_whose_files_are_mounted_has_no_admin_and_no_configuration_from_here() {
    let mut cluster = with_tls();
    cluster.spec.publish = Some(crate::api::PublishSpec {
        mode: crate::api::PublishMode::Volumes,
        ..crate::api::PublishSpec::default()
    });
    let objects = rendered(&cluster);
    let is_config = |object: &Object| matches!(object, Object::ConfigMap(_));
    assert!(!objects.iter().any(is_config), "whoever publishes makes it");
    let pod = yaml(&[deployments(&objects)[0].clone().into()]);
    assert!(!pod.contains("trustee-auth") && !pod.contains("trustee-data"), "{pod}");
    assert_eq!(mounted_intent().admin_public_key, None);
}

#[test]
fn the_servers_are_told_of_networks_whose_addresses_stand_for_many_nodes() {
    let mut deploy = Deploy::default();
    let flags = |deploy: &Deploy| {
        let mut objects = register_server(&with_tls(), deploy).unwrap();
        objects.extend(attestation_key_register(&with_tls(), deploy).unwrap());
        let all = deployments(&objects).into_iter().flat_map(|one| &pod_of(one).containers);
        let all = all.flat_map(|container| container.args.iter().flatten().cloned());
        all.filter(|flag| flag.starts_with("--shared-sources")).collect::<Vec<_>>()
    };
    assert!(flags(&deploy).is_empty(), "nobody is exempt unless an admin says so");
    deploy.shared_sources = ["10.0.0.0/8", "fd00::/8"].map(str::to_owned).into();
    assert_eq!(flags(&deploy), ["--shared-sources=10.0.0.0/8,fd00::/8"; 2]);
}

#[test]
fn what_proves_endorsement_keys_is_mounted_only_where_it_counts() {
    let volumes = |approval: serde_json::Value| {
        let mut cluster = with_tls();
        cluster.spec.approval = serde_json::from_value(approval).unwrap();
        let objects = attestation_key_register(&cluster, &Deploy::default()).unwrap();
        let volumes = pod_of(deployments(&objects)[0]).volumes.iter().flatten();
        volumes.map(|volume| volume.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(volumes(serde_json::json!({"policy": "Manual"})), ["tls"]);
    let any = serde_json::json!({"policy": "EndorsementKey"});
    assert_eq!(volumes(any), ["tls", "challenge-key"]);
    let roots = serde_json::json!({
        "policy": "EndorsementKey", "endorsementRootsConfigMap": "makers",
    });
    assert_eq!(volumes(roots), ["tls", "challenge-key", "ek-roots"]);
}

#[test]
fn the_builtin_broker_accepts_the_evidence_of_the_cluster_object_and_tpm_quotes_otherwise() {
    let arguments = |evidence: Option<serde_json::Value>| {
        let mut owner = with_tls();
        owner.spec.key_broker = Some(BrokerKind::Builtin);
        owner.spec.evidence = evidence.map(|said| serde_json::from_value(said).unwrap());
        let objects = cluster(&owner, &Deploy::default(), &builtin()).unwrap();
        let text = yaml(&[named(&objects, "Deployment", "key-broker").clone()]);
        let is_evidence = |line: &&str| line.contains("--evidence") || line.contains("--snp-");
        let lines: Vec<_> = text.lines().filter(is_evidence).collect();
        lines.join("\n").replace([' ', '"', '\''], "")
    };
    assert_eq!(arguments(None), "");
    let azure = serde_json::json!({
        "kinds": ["Tpm", "AzSnpVtpm"],
        "snp": {
            "idKeys": ["1d", "2d"], "measurements": ["3d"],
            "minimumTcb": {"bootloader": 4, "tee": 0, "snp": 24, "microcode": 219},
        },
    });
    let expected = [
        "---evidence=tpm",
        "---evidence=az-snp-vtpm",
        "---snp-id-key=1d",
        "---snp-id-key=2d",
        "---snp-measurement=3d",
        "---snp-minimum-tcb=4,0,24,219",
    ];
    assert_eq!(arguments(Some(azure)), expected.join("\n"));
}
