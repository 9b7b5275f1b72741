//! What an OpenSearch node gets, on a real OpenSearch. Runs only on request, as by `cargo xtask test
//! --opensearch`: `cargo test -p tec-e2e --test opensearch`. Without OpenSearch it fails; `cargo xtask tools
//! --opensearch` sets it up.
#![expect(clippy::unwrap_used, reason = "clippy takes helpers of tests for library code")]

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use services::init::run;
use tec_core::secret::{SecretArray, SecretBytes};
use tec_e2e::kube::eventually;
use tec_e2e::services::later::Later;
use tec_e2e::services::opensearch::{Answer, OpenSearch, Place, ask};
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::opensearch;
use tec_services::shell::Http;
use tec_services::shell::client::OpenSearchBootstrapRequest;
use tec_support::certificate::Certificate;
use tokio::sync::{Mutex, MutexGuard};

/// One node at a time: each uses most of a gigabyte, and both cores for half a minute to start.
static TURN: Mutex<()> = Mutex::const_new(());

/// A platform with a node, whose users' passwords have the lifetime in the flag.
struct Scene {
    node: OpenSearch,
    platform: Platform,
    authorities: String,
    nobody: Http,
    clock: Arc<Later>,
    _turn: MutexGuard<'static, ()>,
}

impl Scene {
    async fn new(more: &[&str]) -> Self {
        let turn = TURN.lock().await;
        let stage = Stage::new().await.unwrap();
        let place = Place::on(&stage).unwrap();
        let mut flags = vec!["--opensearch-address", &place.address];
        flags.extend(more);
        let clock = Arc::new(Later::default());
        let mut controller = stage.controller(&flags).await.unwrap();
        controller.clock = Arc::<Later>::clone(&clock);
        let platform = Platform::of(stage, controller).await.unwrap();
        let authorities = platform.stage.authorities().await.unwrap();
        let account = platform.stage.cluster.account("opensearch").unwrap();
        let words = place.flags(&platform.stage).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let args = platform.init(&account, &words).await.unwrap();
        run::run(&args).await.unwrap();
        let node = OpenSearch::start(&platform.stage, place, &authorities);
        let node = node.await.unwrap();
        let nobody = node.client(&authorities, &Arc::default()).unwrap();
        Self { node, platform, authorities, nobody, clock, _turn: turn }
    }

    /// The password that an init container writes for a user.
    async fn password(&self, account: &str, service: &[&str]) -> SecretBytes {
        let account = self.platform.stage.cluster.account(account).unwrap();
        let args = self.platform.init(&account, service).await.unwrap();
        run::run(&args).await.unwrap();
        SecretBytes::new(std::fs::read(args.out.join("password")).unwrap())
    }

    async fn collector(&self) -> SecretBytes {
        let url = format!("https://{}", self.node.address());
        self.password("collector", &["collector", "--opensearch", &url]).await
    }

    async fn viewer(&self) -> SecretBytes {
        self.password("dashboards", &["viewer"]).await
    }

    /// The certificate that authorizes changing passwords.
    async fn admin(&self) -> Http {
        let cluster = &self.platform.stage.cluster;
        let account = cluster.account("opensearch").unwrap();
        let request = OpenSearchBootstrapRequest {
            service_account_token: cluster.token(&account).await.unwrap().into_bytes(),
            request_id: "test".to_owned(),
        };
        let mut client = self.platform.client().await.unwrap();
        let answer = client.bootstrap_open_search(request).await.unwrap();
        let tls = answer.into_inner().admin_tls.unwrap();
        let certificate = Arc::new(Certificate::default());
        let key = SecretBytes::new(tls.private_key);
        certificate.replace(tls.certificate_chain.as_bytes(), &key).unwrap();
        self.node.client(&self.authorities, &certificate).unwrap()
    }

    /// Renews the node's certificate, as beside the node, until `is_seen`.
    async fn renew(&self, what: &str, is_seen: impl AsyncFnMut() -> anyhow::Result<bool>) {
        let stage = &self.platform.stage;
        let account = stage.cluster.account("opensearch").unwrap();
        let place = Place::on(stage).unwrap();
        let words = place.flags(stage).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let args = self.platform.init(&account, &words).await.unwrap();
        let renewing = tokio::time::timeout(Duration::from_mins(1), async {
            run::keep(&args, None, &tec_support::SystemClock).await
        });
        tokio::select! {
            ended = renewing => panic!("{ended:?}"),
            seen = eventually(what, is_seen) => seen.unwrap(),
        }
    }

    async fn call(
        &self,
        user: (&str, &SecretBytes),
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        let body = body.map(Value::to_string);
        let answer = ask(&self.nobody, method, path, Some(user), body.as_deref());
        answer.await.unwrap()
    }
}

const LINES: &str = "/otel-logs/_doc?refresh=true";
const SEARCH: &str = "/otel-logs/_search?q=line";
const USERS: &str = "/_plugins/_security/api/internalusers";

#[tokio::test(flavor = "multi_thread")]
async fn each_user_may_do_what_its_role_says_and_nothing_else() {
    let scene = Scene::new(&[]).await;
    let (collector, viewer) = (scene.collector().await, scene.viewer().await);
    let (writes, reads) = (("telemetry", &collector), ("viewer", &viewer));
    let (post, get, delete) = (Method::POST, Method::GET, Method::DELETE);
    let line = json!({"body": "a line"});
    let other = "/other/_doc";

    let written = scene.call(writes, post.clone(), LINES, Some(&line)).await;
    assert_eq!(written.status, 201, "{}", written.body);
    let found = scene.call(reads, get.clone(), SEARCH, None).await;
    assert_eq!(found.status, 200, "{}", found.body);
    assert_eq!(found.body["hits"]["hits"][0]["_source"], line);

    for (user, method, path, body) in [
        (writes, &get, SEARCH, None),
        (writes, &post, other, Some(&line)),
        (writes, &delete, "/otel-logs", None),
        (writes, &get, USERS, None),
        (reads, &post, LINES, Some(&line)),
        (reads, &delete, "/otel-logs", None),
        (reads, &get, USERS, None),
    ] {
        let answer = scene.call(user, method.clone(), path, body).await;
        assert_eq!(answer.status, 403, "{} {method} {path}", user.0);
    }
    let wrong = SecretBytes::new(b"admin".to_vec());
    for user in ["admin", "telemetry", "viewer", "kibanaserver"] {
        let answer = scene.call((user, &wrong), get.clone(), "/", None).await;
        assert_eq!(answer.status, 401, "{user} has a known password");
    }
    let nobody = ask(&scene.nobody, get, "/", None, None).await.unwrap();
    assert_eq!(nobody.status, 401);
}

/// Statuses of a bulk request that adds a line to each of these indices in both ways used by collectors.
async fn bulk(scene: &Scene, user: (&str, &SecretBytes), indices: &[&str]) -> (u16, Vec<u64>) {
    let both = |index| [(index, "index"), (index, "create")];
    let line = json!({"body": "a line in bulk"});
    let lines: Vec<_> = indices
        .iter()
        .flat_map(both)
        .flat_map(|(index, way)| [json!({way: {"_index": index}}), line.clone()])
        .map(|json| json.to_string())
        .collect();
    let lines = lines.join("\n") + "\n";
    let path = "/_bulk?refresh=true";
    let answer = ask(&scene.nobody, Method::POST, path, Some(user), Some(&lines));
    let answer = answer.await.unwrap();
    let items = answer.body.get("items").and_then(Value::as_array);
    let status = |item: &Value| item.as_object()?.values().next()?.get("status")?.as_u64();
    let statuses = items.into_iter().flatten().filter_map(status);
    (answer.status, statuses.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_writes_in_bulk_to_what_is_its_own_and_to_nothing_else() {
    let scene = Scene::new(&[]).await;
    let (collector, viewer) = (scene.collector().await, scene.viewer().await);
    let (writes, reads) = (("telemetry", &collector), ("viewer", &viewer));
    let written = bulk(&scene, writes, &["otel-logs", "ss4o_traces"]).await;
    assert_eq!(written, (200, vec![201; 4]));
    // One forbidden part does not affect the others.
    let mixed = bulk(&scene, writes, &["otel-logs", "other"]).await;
    assert_eq!(mixed, (200, vec![201, 201, 403, 403]));
    let (status, items) = bulk(&scene, reads, &["otel-logs"]).await;
    assert!(status == 403 || items.iter().all(|item| *item == 403), "{status} {items:?}");
    let search = "/otel-*,ss4o_*/_count";
    let found = scene.call(reads, Method::GET, search, None).await;
    assert_eq!(found.body["count"], 6, "{}", found.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_lived_long_enough_is_replaced_and_the_old_one_counts_no_more() {
    let scene = Scene::new(&["--password-seconds", "1"]).await;
    let (old_writer, old_viewer) = (scene.collector().await, scene.viewer().await);
    let passwords = &scene.platform.controller.passwords;
    // They have expired, since the node took half a minute to start.
    assert_eq!(passwords.ensure(&scene.authorities).await.unwrap(), 3);
    let (writer, viewer) = (scene.collector().await, scene.viewer().await);
    for (user, old, new) in [("telemetry", &old_writer, &writer), ("viewer", &old_viewer, &viewer)]
    {
        let refused = scene.call((user, old), Method::GET, "/", None).await;
        assert_eq!(refused.status, 401, "the old password of {user} counts");
        let login = "/_plugins/_security/authinfo";
        let taken = scene.call((user, new), Method::GET, login, None).await;
        assert_eq!(taken.status, 200, "{user}: {}", taken.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_vault_has_counts_again_after_somebody_changed_it() {
    let scene = Scene::new(&[]).await;
    let passwords = &scene.platform.controller.passwords;
    assert_eq!(passwords.ensure(&scene.authorities).await.unwrap(), 0);
    // As if the controller had stopped between the vault and OpenSearch.
    let somebody = SecretBytes::new(b"somebody".to_vec());
    let salt = SecretArray::new([7; 16]);
    let hash = opensearch::hash(&somebody, &salt, opensearch::BCRYPT_COST).unwrap();
    let (path, change) = opensearch::new_hash("viewer", &hash);
    let (admin, change) = (scene.admin().await, change.to_string());
    let changed = ask(&admin, Method::PATCH, &path, None, Some(&change));
    assert_eq!(changed.await.unwrap().status, 200);
    let viewer = scene.viewer().await;
    let lost = scene.call(("viewer", &viewer), Method::GET, "/", None).await;
    assert_eq!(lost.status, 401);
    assert_eq!(passwords.ensure(&scene.authorities).await.unwrap(), 1);
    let found = scene.call(("viewer", &viewer), Method::GET, "/otel-*/_search", None);
    assert_eq!(found.await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_of_another_release_are_replaced_when_the_controller_starts() {
    let scene = Scene::new(&[]).await;
    let viewer = scene.viewer().await;
    // As if a release that let viewers write had made the node's security index.
    let body = json!({
        "reserved": true, "cluster_permissions": ["*"],
        "index_permissions": [{"index_patterns": ["*"], "allowed_actions": ["*"]}],
    });
    let path = "/_plugins/_security/api/roles/telemetry_viewer";
    let admin = scene.admin().await;
    let changed = ask(&admin, Method::PUT, path, None, Some(&body.to_string())).await.unwrap();
    assert_eq!(changed.status, 200, "{}", changed.body);
    let line = json!({"body": "forged"});
    let write = async || scene.call(("viewer", &viewer), Method::POST, LINES, Some(&line)).await;
    assert_eq!(write().await.status, 201);

    scene.platform.controller.passwords.ensure(&scene.authorities).await.unwrap();
    assert_eq!(write().await.status, 403);
    let found = scene.call(("viewer", &viewer), Method::GET, SEARCH, None).await;
    assert_eq!(found.status, 200, "{}", found.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_served_without_a_restart() {
    let scene = Scene::new(&[]).await;
    let admin = scene.admin().await;
    let serial = async || {
        let path = "/_plugins/_security/api/ssl/certs";
        let answer = ask(&admin, Method::GET, path, None, None).await?;
        let first = &answer.body["http_certificates_list"][0];
        anyhow::ensure!(first.is_object(), "{}: {}", answer.status, answer.body);
        anyhow::Ok((first["not_before"].clone(), first["not_after"].clone()))
    };
    let old = serial().await.unwrap();
    scene.renew("the new certificate", async || Ok(serial().await? != old)).await;
}

/// Whether the node and this client accept each other, the client as an admin.
async fn serves(admin: &Http) -> anyhow::Result<bool> {
    let path = "/_plugins/_security/api/ssl/certs";
    let answer = ask(admin, Method::GET, path, None, None).await;
    Ok(answer.is_ok_and(|answer| answer.status == 200))
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_other_authorities_are_served_and_accepted_without_a_restart() {
    const DAY: i64 = 24 * 60 * 60;
    let mut scene = Scene::new(&[]).await;
    let (stage, controller) = (&scene.platform.stage, &scene.platform.controller);
    let annotation = json!({"metadata": {"annotations": {
        "trusted-execution-clusters.io/rotate-authorities": "now",
    }}});
    let secrets = stage.secrets().unwrap();
    let patch = Patch::Merge(annotation);
    secrets.patch("vault-aes", &PatchParams::default(), &patch).await.unwrap();
    controller.round().await.unwrap();
    // The node has the new ones before they sign.
    let old = scene.admin().await;
    let marker = async || {
        let file = scene.node.trusted();
        Ok(std::fs::read_to_string(file)?.matches("BEGIN").count() == 4)
    };
    scene.renew("both authorities", marker).await;
    assert!(serves(&old).await.unwrap());
    scene.clock.set(2 * DAY);
    controller.round().await.unwrap();
    scene.clock.set(0);
    let both = scene.platform.stage.authorities().await.unwrap();
    let end = "-----END CERTIFICATE-----\n";
    // Those that sign come first.
    scene.authorities = both.split_inclusive(end).take(2).collect();
    let new = scene.admin().await;
    scene.renew("the new authority", async || serves(&new).await).await;
}
