//! A control plane, a worker, and a revoked worker; requests as kubelets create them.

use std::convert::Infallible;
use std::sync::Mutex;

use async_trait::async_trait;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::ByteString;
use kube::client::Body;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::Value;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::port::CreateOutcome;
use tec_core::testing::sample;
use tec_node::rpc::Settled;

use super::*;

const NODES: &str = r#"{"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": [
    {"metadata": {"name": "c-1"}, "status": {"addresses": [
        {"type": "InternalIP", "address": "10.0.0.1"}]}},
    {"metadata": {"name": "w-1"}, "status": {"addresses": [
        {"type": "InternalIP", "address": "10.0.0.3"}, {"type": "Hostname", "address": "w-1"}]}}]}"#;

#[derive(Debug)]
struct Members;

impl Members {
    fn claim(number: u64, name: &str, role: Role) -> Claim {
        Claim {
            ak: sample::public_key(number).fingerprint(),
            name: name.parse().unwrap(),
            role,
            disk: format!("00000000-0000-0000-0000-0000000000{number:02x}").parse().unwrap(),
            addresses: BTreeSet::new(),
        }
    }

    /// A dual-stack node.
    fn dual() -> Claim {
        let addresses = ["10.0.0.7", "fd00::7"].map(|one| one.parse().unwrap()).into();
        Claim { addresses, ..Self::claim(6, "w-6", Role::Worker) }
    }
}

#[async_trait]
impl Enrollments for Members {
    async fn list(&self) -> Result<Vec<Claim>, PortError> {
        Ok(vec![
            Self::claim(1, "c-1", Role::ControlPlane),
            Self::claim(2, "w-1", Role::Worker),
            Self::claim(3, "w-2", Role::Worker),
            Self::claim(4, "kubernetes", Role::Worker),
            Self::claim(5, "dns.kube-system.svc", Role::Worker),
            Self::dual(),
        ])
    }

    async fn add(&self, _claim: &Claim) -> Result<CreateOutcome, PortError> {
        unreachable!("nobody joins")
    }

    async fn was_removed(&self, name: &NodeName) -> Result<bool, PortError> {
        Ok(name.as_str() == "w-8")
    }

    async fn readdress(&self, _claim: &Claim) -> Result<(), PortError> {
        unreachable!("nobody joins")
    }

    async fn settle(
        &self,
        _claim: &Claim,
        _key: &PublicKey,
        _ek: Option<Fingerprint>,
    ) -> Result<Settled, PortError> {
        unreachable!("nobody joins")
    }

    async fn is_in_service(&self, claim: &Claim) -> Result<bool, PortError> {
        Ok(claim.name.as_str() != "w-2")
    }
}

/// The request and the caller.
struct Asking<'a> {
    user: &'a str,
    subject: &'a str,
    names: &'a [&'a str],
    usages: &'a [&'a str],
    signer: &'a str,
}

impl Asking<'_> {
    fn spec(&self) -> CertificateSigningRequestSpec {
        let names: Vec<String> = self.names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, ORGANIZATION);
        params.distinguished_name.push(DnType::CommonName, format!("{PREFIX}{}", self.subject));
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        CertificateSigningRequestSpec {
            request: ByteString(request.pem().unwrap().into_bytes()),
            signer_name: self.signer.to_owned(),
            usages: Some(self.usages.iter().map(ToString::to_string).collect()),
            username: Some(format!("{PREFIX}{}", self.user)),
            groups: Some(vec![ORGANIZATION.to_owned(), "system:authenticated".to_owned()]),
            ..CertificateSigningRequestSpec::default()
        }
    }
}

fn reserved() -> ApiServerNames {
    ApiServerNames {
        addresses: [[10, 0, 0, 1], [10, 96, 0, 1]].map(IpAddr::from).into(),
        names: ["c-1", "kubernetes"].map(str::to_owned).into(),
    }
}

/// Runs an API server with these nodes and one open request; returns the patches that it received.
fn api_server(spec: &CertificateSigningRequestSpec) -> (Client, Arc<Mutex<Vec<Value>>>) {
    let patches = Arc::new(Mutex::new(Vec::new()));
    let request = json!({"metadata": {"name": "csr-1", "resourceVersion": "7"}, "spec": spec});
    let answered = json!({"metadata": {"name": "csr-2"}, "spec": spec,
        "status": {"conditions": [{"type": "Denied", "status": "True"}]}});
    let list = |items| {
        json!({"kind": "CertificateSigningRequestList",
        "apiVersion": "certificates.k8s.io/v1", "metadata": {}, "items": items})
    };
    let (list, none) = (list(json!([answered, request])), list(json!([])));
    let signer = spec.signer_name.replace('/', "%2F");
    let seen = Arc::clone(&patches);
    let service = tower::service_fn(move |request: Request<Body>| {
        let (seen, list, none) = (Arc::clone(&seen), list.clone(), none.clone());
        let signer = signer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let answer = if parts.uri.path() == "/api/v1/nodes" {
                NODES.to_owned()
            } else if parts.method == Method::PATCH {
                assert!(parts.uri.path().ends_with("/csr-1/approval"), "{}", parts.uri);
                let body = body.collect().await.unwrap().to_bytes();
                seen.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                list["items"][1].to_string()
            } else if parts.uri.query().is_some_and(|query| query.contains(&signer)) {
                list.to_string()
            } else {
                none.to_string()
            };
            Ok::<_, Infallible>(Response::new(Body::from(answer.into_bytes())))
        }
    });
    (Client::new(service, "default"), patches)
}

async fn answer(asking: &Asking<'_>) -> (String, String) {
    let (client, patches) = api_server(&asking.spec());
    let renewals = Renewals::new(client, Arc::new(Members), reserved());
    renewals.answer_all().await.unwrap();
    let patches = patches.lock().unwrap();
    let [patch] = &patches[..] else { panic!("{patches:?}") };
    assert_eq!(patch["metadata"]["resourceVersion"], "7");
    let condition = &patch["status"]["conditions"][0];
    let text = |name: &str| condition[name].as_str().unwrap().to_owned();
    (text("type"), text("message"))
}

#[tokio::test]
async fn members_in_service_get_certificates_for_their_own_name_and_address() {
    for (node, address) in [("c-1", "10.0.0.1"), ("w-1", "10.0.0.3")] {
        let (names, usages) = (&[node, address], &["digital signature", "server auth"]);
        let asking = Asking { user: node, subject: node, names, usages, signer: SERVING };
        assert_eq!(answer(&asking).await.0, "Approved", "{node}");
    }
}

/// User, subject, names, usages, and the reason for refusal.
type Case<'a> = (&'a str, &'a str, &'a [&'a str], &'a [&'a str], Refusal);

#[tokio::test]
async fn requests_for_anything_else_are_denied_with_a_reason() {
    let own = ["w-1", "10.0.0.3"];
    let cases: [Case<'_>; 12] = [
        ("w-1", "c-1", &["c-1", "10.0.0.9"], &USAGES, Refusal::Subject),
        ("w-1", "w-1", &own, &["server auth", "client auth"], Refusal::Usages),
        ("w-2", "w-2", &["w-2", "10.0.0.4"], &USAGES, Refusal::NotInService),
        ("w-1", "w-1", &["c-1", "10.0.0.3"], &USAGES, Refusal::Name),
        ("w-1", "w-1", &["w-1", "kubernetes.default.svc", "10.0.0.3"], &USAGES, Refusal::Name),
        ("kubernetes", "kubernetes", &["kubernetes", "10.0.0.5"], &USAGES, Refusal::Name),
        (
            "dns.kube-system.svc",
            "dns.kube-system.svc",
            &["dns.kube-system.svc", "10.0.0.5"],
            &USAGES,
            Refusal::Name,
        ),
        ("w-1", "w-1", &["w-1", "10.0.0.1"], &USAGES, Refusal::Address),
        ("w-1", "w-1", &["w-1", "10.96.0.1"], &USAGES, Refusal::Address),
        ("w-1", "w-1", &["w-1", "::ffff:10.96.0.1"], &USAGES, Refusal::Address),
        ("w-1", "w-1", &["w-1", "10.0.0.3", "10.0.0.9"], &USAGES, Refusal::Address),
        ("w-1", "w-1", &["w-1"], &USAGES, Refusal::Address),
    ];
    for (user, subject, names, usages, refusal) in cases {
        let asking = Asking { user, subject, names, usages, signer: SERVING };
        let expected = ("Denied".to_owned(), refusal.to_string());
        assert_eq!(answer(&asking).await, expected, "{user} asks for {names:?}");
    }
}

#[tokio::test]
async fn a_request_of_somebody_who_is_no_node_is_denied() {
    let (names, usages) = (&["w-1", "10.0.0.3"], &USAGES);
    let mut spec = Asking { user: "w-1", subject: "w-1", names, usages, signer: SERVING }.spec();
    spec.groups = Some(vec!["system:authenticated".to_owned()]);
    assert_eq!(asked(&spec).err(), Some(Refusal::Subject));
    spec.request = ByteString(b"no request".to_vec());
    assert_eq!(asked(&spec).err(), Some(Refusal::Subject));
}

#[tokio::test]
async fn a_registry_that_does_not_answer_leaves_the_request_open() {
    #[derive(Debug)]
    struct Away;

    #[async_trait]
    impl Enrollments for Away {
        async fn list(&self) -> Result<Vec<Claim>, PortError> {
            Err(PortError::new(tec_core::port::PortErrorKind::Unavailable, "list"))
        }

        async fn add(&self, _claim: &Claim) -> Result<CreateOutcome, PortError> {
            unreachable!("nobody joins")
        }

        async fn was_removed(&self, _name: &NodeName) -> Result<bool, PortError> {
            unreachable!("nobody is listed")
        }

        async fn readdress(&self, _claim: &Claim) -> Result<(), PortError> {
            unreachable!("nobody joins")
        }

        async fn settle(
            &self,
            _claim: &Claim,
            _key: &PublicKey,
            _ek: Option<Fingerprint>,
        ) -> Result<Settled, PortError> {
            unreachable!("nobody joins")
        }

        async fn is_in_service(&self, _claim: &Claim) -> Result<bool, PortError> {
            unreachable!("nobody is listed")
        }
    }

    let (names, usages) = (&["w-1", "10.0.0.3"], &USAGES);
    let spec = Asking { user: "w-1", subject: "w-1", names, usages, signer: SERVING }.spec();
    let (client, patches) = api_server(&spec);
    let renewals = Renewals::new(client, Arc::new(Away), reserved());
    renewals.answer_all().await.unwrap_err();
    assert!(patches.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_request_of_a_node_that_came_by_somebody_else_is_left_to_others() {
    let (names, usages) = (&["w-9", "10.0.0.9"], &USAGES);
    let spec = Asking { user: "w-9", subject: "w-9", names, usages, signer: SERVING }.spec();
    let (client, patches) = api_server(&spec);
    let renewals = Renewals::new(client, Arc::new(Members), reserved());
    renewals.answer_all().await.unwrap();
    assert!(patches.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_certificate_is_for_addresses_that_the_node_joined_with() {
    for own in [&["10.0.0.7"][..], &["fd00::7"], &["10.0.0.7", "fd00::7"]] {
        let names = &[&["w-6"], own].concat();
        let asking =
            Asking { user: "w-6", subject: "w-6", names, usages: &USAGES, signer: SERVING };
        assert_eq!(answer(&asking).await.0, "Approved", "{own:?}");
    }
    let other = "10.0.0.99";
    for own in [&[other][..], &["10.0.0.7", other]] {
        let names = &[&["w-6"], own].concat();
        let asking =
            Asking { user: "w-6", subject: "w-6", names, usages: &USAGES, signer: SERVING };
        let refusal = Refusal::OtherAddress(other.parse().unwrap()).to_string();
        assert_eq!(answer(&asking).await, ("Denied".to_owned(), refusal), "{own:?}");
    }
}

#[tokio::test]
async fn client_certificates_are_renewed_for_members_in_service_alone() {
    let case = async |node: &str, names: &[&str], usages: &[&str]| {
        answer(&Asking { user: node, subject: node, names, usages, signer: CLIENT }).await
    };
    assert_eq!(case("w-1", &[], &CLIENT_USAGES).await.0, "Approved");
    for (node, names, usages, refusal) in [
        ("w-2", &[][..], CLIENT_USAGES, Refusal::NotInService),
        // If left open, it would be approved as soon as another node has the name.
        ("w-8", &[], CLIENT_USAGES, Refusal::Removed),
        ("w-1", &["w-1"], CLIENT_USAGES, Refusal::Name),
        ("w-1", &[], USAGES, Refusal::Usages),
    ] {
        let expected = ("Denied".to_owned(), refusal.to_string());
        assert_eq!(case(node, names, &usages).await, expected, "{node} {names:?}");
    }
}
