//! The tutorial with kubectl, word for word, on a real API server.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tec_e2e::kube::{ControlPlane, Guarded, start_operator};
use tec_e2e::packages::tool;
use tec_e2e::settings::own_program;
use tec_e2e::transcript::execute;
use tec_k8s::render::DEFAULT_NAMESPACE;

const OPERATOR: &str = "trusted-cluster-operator";
const POLL: Duration = Duration::from_millis(100);
/// What a new Deployment says of itself once its pods run.
const SINCE: &str = "2026-01-01T00:00:00Z";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What nodes would do: every Deployment is available, and the operator runs while it has one.
async fn play_nodes(plane: &ControlPlane) -> Infallible {
    let deployments: Api<Deployment> = Api::namespaced(plane.admin().unwrap(), DEFAULT_NAMESPACE);
    let mut operator: Option<Guarded> = None;
    loop {
        let all = deployments.list(&ListParams::default()).await.unwrap();
        for deployment in &all.items {
            report_available(&deployments, deployment).await;
        }
        let is_wanted = all.iter().any(|deployment| deployment.name_any() == OPERATOR);
        if !is_wanted {
            operator = None;
        } else if operator.is_none() {
            let kubeconfig = plane.account_kubeconfig(DEFAULT_NAMESPACE, OPERATOR).await;
            let started = kubeconfig
                .and_then(|path| start_operator(plane, DEFAULT_NAMESPACE, "operator-0", &path));
            operator = Some(started.unwrap());
        }
        tokio::time::sleep(POLL).await;
    }
}

async fn report_available(deployments: &Api<Deployment>, deployment: &Deployment) {
    let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let known = deployment.status.as_ref();
    if known.is_some_and(|known| known.available_replicas == replicas) {
        return;
    }
    let status = json!({"status": {
        "observedGeneration": deployment.metadata.generation,
        "replicas": replicas, "readyReplicas": replicas, "availableReplicas": replicas,
        "updatedReplicas": replicas,
        "conditions": [{
            "type": "Available", "status": "True", "reason": "MinimumReplicasAvailable",
            "message": "", "lastTransitionTime": SINCE, "lastUpdateTime": SINCE,
        }],
    }});
    let (name, params) = (deployment.name_any(), PatchParams::default());
    // One that goes away meanwhile needs no status.
    let _ = deployments.patch_status(&name, &params, &Patch::Merge(status)).await;
}

/// A shell in which a newcomer has what the page asks for.
fn shell(plane: &ControlPlane, home: &Path) -> Command {
    let programs = home.join("bin");
    std::fs::create_dir(&programs).unwrap();
    for (name, program) in [
        ("kubectl", tool("kubectl/kubectl").unwrap()),
        ("helm", tool("bin/helm").unwrap()),
        ("kubectl-tec", own_program("tec").unwrap()),
    ] {
        std::os::unix::fs::symlink(program, programs.join(name)).unwrap();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs].into_iter().chain(std::env::split_paths(&path)));
    let mut shell = Command::new("bash");
    shell
        .current_dir(root())
        .env("HOME", home)
        .env("TMPDIR", home)
        .env("PATH", path.unwrap())
        .env("KUBECONFIG", plane.admin_kubeconfig().unwrap());
    shell
}

#[tokio::test]
async fn every_command_of_the_tutorial_prints_what_the_page_says() {
    let plane = ControlPlane::start().await.unwrap();
    let home = tempfile::tempdir().unwrap();
    let mut shell = shell(&plane, home.path());
    let page = root().join("docs/tutorial/a-cluster-with-kubectl.md");
    let reading = tokio::task::spawn_blocking(move || execute(&page, &mut shell));
    tokio::select! {
        read = reading => if let Err(error) = read.unwrap() {
            panic!("{error:#}");
        },
        never = play_nodes(&plane) => match never {},
    }
}
