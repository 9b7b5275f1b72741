//! In place of a kubelet.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, thread};

use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

const KUBERNETES: &str = "/etc/kubernetes";
const PKI: &str = "/var/lib/kubelet/pki";
/// A copy of the kubeconfig that kubeadm left for the bootstrap of the kubelet.
const KEPT: &str = "bootstrap-kubelet.conf";
/// Where kubeadm asks whether the kubelet is well (kubelet Configuration v1beta1, healthzPort).
const HEALTH: &str = "127.0.0.1:10248";
const STEP: Duration = Duration::from_millis(250);

struct Kubelet<'a> {
    node: &'a str,
    programs: &'a Path,
    pods: BTreeMap<PathBuf, Child>,
    is_known: bool,
}

/// Runs for ever, from when the kubelet is wanted on.
pub(super) fn run(node: &str, programs: &Path, wanted: &Path) -> anyhow::Result<()> {
    while !wanted.exists() {
        pause();
    }
    let listener = TcpListener::bind(HEALTH).context("serve the kubelet's health")?;
    thread::spawn(move || be_well(&listener));
    fs::create_dir_all("/var/log/kubernetes/audit")?;
    fs::create_dir_all(PKI)?;
    let mut kubelet = Kubelet { node, programs, pods: BTreeMap::new(), is_known: false };
    loop {
        // What fails is tried again, as a kubelet does.
        for done in [kubelet.run_pods(), kubelet.bootstrap(), kubelet.register()] {
            if let Err(error) = done {
                writeln!(std::io::stderr(), "{error:#}")?;
            }
        }
        pause();
    }
}

#[expect(clippy::disallowed_methods, reason = "a loop of this program, which has no deadline")]
fn pause() {
    thread::sleep(STEP);
}

fn be_well(listener: &TcpListener) {
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { continue };
        let _ = stream.read(&mut [0; 1024]);
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
        let _ = stream.write_all(answer);
    }
}

fn read_yaml(path: &Path) -> anyhow::Result<Value> {
    let text = fs::read_to_string(path)?;
    serde_saphyr::from_str(&text).with_context(|| format!("read {}", path.display()))
}

impl Kubelet<'_> {
    /// The command of each manifest's container, as a process.
    fn run_pods(&mut self) -> anyhow::Result<()> {
        for entry in fs::read_dir(Path::new(KUBERNETES).join("manifests"))? {
            let path = entry?.path();
            let runs = self.pods.get_mut(&path);
            if runs.is_some_and(|pod| matches!(pod.try_wait(), Ok(None))) {
                continue;
            }
            let pod = read_yaml(&path)?;
            let words = pod.pointer("/spec/containers/0/command");
            let words = words.and_then(Value::as_array).into_iter().flatten();
            let words: Vec<&str> = words.filter_map(Value::as_str).collect();
            let [program, arguments @ ..] = words.as_slice() else {
                continue;
            };
            let log = File::options()
                .create(true)
                .append(true)
                .open(format!("/var/log/{program}.log"))?;
            let started = Command::new(self.programs.join(program))
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .spawn();
            let started = started.with_context(|| format!("start {program}"))?;
            self.pods.insert(path, started);
        }
        Ok(())
    }

    fn kubectl(
        &self,
        kubeconfig: &Path,
        arguments: &[&str],
        input: &Value,
    ) -> anyhow::Result<Vec<u8>> {
        let mut child = Command::new(self.programs.join("kubectl"))
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.to_string().as_bytes())?;
        }
        let output = child.wait_with_output()?;
        let words = String::from_utf8_lossy(&output.stderr);
        let is_fine = output.status.success() || words.contains("AlreadyExists");
        anyhow::ensure!(is_fine, "kubectl {}: {}", arguments.join(" "), words.trim());
        Ok(output.stdout)
    }

    /// A client certificate for what the node may ask for (Kubernetes, "TLS bootstrapping").
    fn bootstrap(&self) -> anyhow::Result<()> {
        let (from, to) = (
            Path::new(KUBERNETES).join("bootstrap-kubelet.conf"),
            Path::new(KUBERNETES).join("kubelet.conf"),
        );
        if !from.exists() || to.exists() {
            return Ok(());
        }
        // What whoever takes over this node has, too.
        fs::copy(&from, Path::new(PKI).join(KEPT))?;
        let (key, csr) = self.request()?;
        let name = format!("node-{}", self.node);
        let object = json!({
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": STANDARD.encode(csr),
                "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
                "usages": ["digital signature", "client auth"],
            },
        });
        let create = ["create", "--validate=false", "-f", "-"];
        self.kubectl(&from, &create, &object)?;
        let found = self.kubectl(&from, &["get", "csr", &name, "-o", "json"], &Value::Null)?;
        let found: Value = serde_json::from_slice(&found)?;
        let certificate = found.pointer("/status/certificate").and_then(Value::as_str);
        let certificate = STANDARD.decode(certificate.context("no certificate yet")?)?;
        let pair = Path::new(PKI).join("kubelet-client-current.pem");
        fs::write(&pair, [certificate, key].concat())?;
        let mut config = read_yaml(&from)?;
        let user = config.pointer("/contexts/0/context/user").cloned();
        let members = config.as_object_mut().context("no kubeconfig")?;
        let pair = pair.display().to_string();
        let with = json!({"client-certificate": pair, "client-key": pair});
        members.insert("users".to_owned(), json!([{"name": user, "user": with}]));
        let temporary = to.with_extension("tmp");
        fs::write(&temporary, config.to_string())?;
        Ok(fs::rename(temporary, to)?)
    }

    /// A key and a request for it; made once.
    fn request(&self) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        let (key, csr) =
            (Path::new(PKI).join("bootstrap.key"), Path::new(PKI).join("bootstrap.csr"));
        if !csr.exists() {
            let made = Command::new("openssl")
                .args(["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
                .args(["-nodes", "-subj", &format!("/O=system:nodes/CN=system:node:{}", self.node)])
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&csr)
                .stderr(Stdio::null())
                .status()?;
            anyhow::ensure!(made.success(), "openssl makes no request");
        }
        Ok((fs::read(key)?, fs::read(csr)?))
    }

    /// The Node object, with the rights of the node itself.
    fn register(&mut self) -> anyhow::Result<()> {
        let config = Path::new(KUBERNETES).join("kubelet.conf");
        if self.is_known || !config.exists() {
            return Ok(());
        }
        // kubeadm takes a node without this label for one whose kubelet is not there yet.
        let labels = json!({"kubernetes.io/hostname": self.node, "kubernetes.io/os": "linux"});
        let metadata = json!({"name": self.node, "labels": labels});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
        self.kubectl(&config, &["create", "--validate=false", "-f", "-"], &node)?;
        self.is_known = true;
        Ok(())
    }
}

impl Drop for Kubelet<'_> {
    fn drop(&mut self) {
        for pod in self.pods.values_mut() {
            let _ = pod.kill();
        }
    }
}
