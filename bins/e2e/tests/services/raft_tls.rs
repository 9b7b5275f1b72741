//! The certificate with which pods join the vault's storage is replaced while the vault runs.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tec_e2e::kube::eventually;
use tec_e2e::services::bao::Seal;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::follower::Follower;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_support::files::write_public;

use crate::kills::guard_with;
use crate::raft::health;
use crate::vault::{stored_key, voters};

/// Files as the chart's Secret has them, from a new authority.
fn issue(directory: &Path) {
    let (ca_key, key) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    let names = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let own = names.signed_by(&key, &issuer).unwrap();
    // The certificate last: the vault then reads all of them.
    for (name, content) in
        [("ca.crt", authority.pem()), ("tls.key", key.serialize_pem()), ("tls.crt", own.pem())]
    {
        write_public(&directory.join(name), content.as_bytes()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_join_with_a_replaced_certificate_and_none_restarts_for_it() {
    let mut stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let tls = stage.path("tls");
    fs::create_dir(&tls).unwrap();
    issue(&tls);
    stage.bao.serve_tls(tls.clone());
    stage.bao.configure(&Seal::Shamir).unwrap();
    let _vault = guard_with(&stage, Some(tls.join("tls.crt"))).await;
    let platform = Platform::on(stage, &["--peers", "127.0.0.1:1"]).await.unwrap();
    let stage = &platform.stage;
    let join = async |number| {
        let pod = Follower::start(stage, number, &[&stage.bao]).await.unwrap();
        let controller = pod.controller(stage, &[platform.address]).await.unwrap();
        controller.round().await.unwrap();
        pod
    };
    let one = join(1).await;
    let started = || fs::metadata(stage.bao.socket()).map(|file| (file.ino(), file.ctime_nsec()));
    let before = started().unwrap();

    // The new pod trusts only the new authority.
    issue(&tls);
    let two = join(2).await;
    let key = stored_key(stage, &platform.controller).await;
    eventually("three votes", async || Ok(voters(stage, &key).await == 3)).await.unwrap();
    assert_eq!(health(&stage.bao.vault()).await, 200);
    for pod in [&one, &two] {
        assert_eq!(health(&pod.vault()).await, 429, "{}", pod.pod);
    }
    assert_eq!(started().unwrap(), before, "the vault restarted");
}
