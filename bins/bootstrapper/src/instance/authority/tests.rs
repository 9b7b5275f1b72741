use rcgen::{BasicConstraints, CertificateParams};
use tec_core::system::{SystemClock, SystemEntropy};

use crate::instance::identity::Identity;

use super::*;

fn ca(directory: &Path, key: &str) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let pair = ca_key(&SecretBytes::new(key.as_bytes().to_vec())).unwrap();
    let certificate = params.self_signed(&pair).unwrap();
    fs::write(directory.join("ca.crt"), certificate.pem()).unwrap();
    fs::write(directory.join("ca.key"), key).unwrap();
}

fn authority(directory: &Path) -> Authority {
    Authority::new(directory, Arc::new(SystemClock), Arc::new(SystemEntropy))
}

#[test]
fn keys_in_every_form_of_kubeadm_sign() {
    let pair = KeyPair::generate().unwrap();
    let sec1 = p256::SecretKey::from_slice(&[7; 32]).unwrap();
    let sec1 = sec1.to_sec1_pem(p256::pkcs8::LineEnding::LF).unwrap();
    for key in [pair.serialize_pem(), sec1.to_string()] {
        let dir = tempfile::tempdir().unwrap();
        ca(dir.path(), &key);
        let name = "node-1".parse().unwrap();
        let identity = Identity::generate(&name, [10, 0, 0, 1].into(), authority("".as_ref()));
        let request = &identity.unwrap();
        let request = &tec_node::host::KubeletIdentity::key(request).request;
        let signed = authority(dir.path()).certify(request).unwrap();
        assert!(signed.starts_with("-----BEGIN CERTIFICATE-----"));
        assert_eq!(node_request(request).unwrap().0, name);
    }
}

#[test]
fn requests_that_ask_for_more_than_a_node_may_have_are_refused() {
    let service = "system:node:kubernetes.default.svc";
    let cases: [(&str, &str, &[&str]); 7] = [
        ("system:masters", "system:node:a", &[]),
        ("system:nodes", "admin", &[]),
        ("system:nodes", "system:node:A_b", &[]),
        ("system:nodes", "system:node:a", &["kubernetes.default"]),
        ("system:nodes", "system:node:a", &["10.0.0.1", "10.0.0.2"]),
        // Its own name, if the name in the subject is to be believed.
        ("system:nodes", service, &["kubernetes.default.svc"]),
        ("system:nodes", "system:node:a", &["10.0.0.1", "a"]),
    ];
    for (organization, name, names) in cases {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, name);
        let request = params.serialize_request(&KeyPair::generate().unwrap()).unwrap();
        assert!(matches!(node_request(request.der()), Err(AuthorityError::Refused(_))));
    }
    let error = node_request(b"no request").err().unwrap();
    assert!(matches!(error, AuthorityError::Request(_)));
}

#[test]
fn no_node_gets_a_certificate_for_an_address_of_an_api_server() {
    let dir = tempfile::tempdir().unwrap();
    ca(dir.path(), &KeyPair::generate().unwrap().serialize_pem());
    let reserved = BTreeSet::from([IpAddr::from([10, 0, 0, 1])]);
    let strict = authority(dir.path()).reserving(reserved);
    for (address, is_signed) in
        [("10.0.0.1", false), ("::ffff:10.0.0.1", false), ("10.0.0.2", true)]
    {
        let name = "node-1".parse().unwrap();
        let own = authority("".as_ref());
        let identity = Identity::generate(&name, address.parse().unwrap(), own).unwrap();
        let request = &tec_node::host::KubeletIdentity::key(&identity).request;
        assert_eq!(strict.named(request).is_ok(), is_signed);
        assert_eq!(strict.certify(request).is_ok(), is_signed);
    }
}
