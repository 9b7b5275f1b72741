//! What an OpenSearch node gets; the node itself is in tests/opensearch.

use tec_e2e::services::platform::Platform;
use tec_services::shell::client::OpenSearchBootstrapRequest;

#[tokio::test(flavor = "multi_thread")]
async fn an_opensearch_node_gets_hashes_and_certificates_and_no_password() {
    let platform = Platform::new(&[]).await.unwrap();
    let cluster = &platform.stage.cluster;
    let account = cluster.account("opensearch").unwrap();
    let request = OpenSearchBootstrapRequest {
        service_account_token: cluster.token(&account).await.unwrap().into_bytes(),
        request_id: "test".to_owned(),
    };
    let mut client = platform.client().await.unwrap();
    let answer = client.bootstrap_open_search(request).await.unwrap().into_inner();
    let mut users: Vec<&str> = answer.password_hashes.keys().map(String::as_str).collect();
    users.sort_unstable();
    assert_eq!(users, ["admin", "telemetry", "viewer"]);
    let mut hashes = answer.password_hashes.values();
    assert!(hashes.all(|hash| hash.starts_with("$2b$12$")));
    let key = answer.node_tls.unwrap().private_key;
    // OpenSearch accepts only PKCS#8.
    assert!(key.starts_with(b"-----BEGIN PRIVATE KEY-----"));
    assert!(answer.admin_tls.is_some());
}
