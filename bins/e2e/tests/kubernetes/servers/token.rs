//! The token for registrations that the operator makes, from its Secret to a node.

use std::ffi::OsStr;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use tec_e2e::kube::{Bench, Server, eventually, plain_cluster};
use tec_e2e::wire;
use tec_k8s::api::Machine;
use tec_k8s::render::Component;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_register_with_the_token_that_the_operator_makes_where_nothing_is_said() {
    let mut bench = Bench::at_work_on(&plain_cluster("cluster")).await.unwrap();
    let secrets: Api<Secret> = bench.objects().unwrap();
    let mut token = None;
    eventually("the token is made", async || {
        let secret = secrets.get_opt("registration-token").await?;
        token = secret.and_then(|secret| secret.data?.remove("token"));
        Ok(token.is_some())
    })
    .await
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    std::fs::write(&file, &token.unwrap().0).unwrap();
    let flags = [OsStr::new("--token-file"), file.as_os_str()];
    let component = Component::RegisterServer;
    let server = Server::start(&bench.plane, component, &bench.namespace, &flags);
    let server = server.await.unwrap();
    let url = format!("http://{}/ignition-clevis-pin-trustee", server.address);
    eventually("the server asks for the token", async || {
        Ok(wire::get("", &url).await?.code() == "TEC-R401")
    })
    .await
    .unwrap();
    let bearer = format!("Bearer {}", std::fs::read_to_string(&file).unwrap());
    let request = wire::client("").unwrap().get(&url);
    let answer = request.header("authorization", bearer).send().await;
    assert_eq!(answer.unwrap().status(), 200);
    let machines: Api<Machine> = bench.objects().unwrap();
    let machines = machines.list(&ListParams::default()).await.unwrap().items;
    assert_eq!(machines.len(), 1);
    bench.stop().await.unwrap();
}
