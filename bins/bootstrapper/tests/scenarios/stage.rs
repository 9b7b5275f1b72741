//! A machine: its TPM, its disk, its file system, and the programs it uses.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::{fs, thread};

use bootstrapper::instance::node::{Attestation, endpoint};
use bootstrapper::instance::settings::TpmSettings;
use bootstrapper::instance::transport;
use tec_core::ak::Fingerprint;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::secret::SecretBytes;
use tec_node::atls::{
    Endpoint, Expectation, LiveMeasurements, Measurements, PinnedAks, Severity, Variant,
    VtpmValidator,
};
use tec_node::host::{HostPrograms, LuksDisk};
use tec_node::port::StateDisk as _;
use tec_support::testing::free_port;
use tec_tpm::direct::Tpm;
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::AnyTpm as _;
use tempfile::TempDir;
use tonic::transport::Channel;

const BUILT: &str = env!("CARGO_BIN_EXE_bootstrapper");
/// Size of a disk: enough for a LUKS2 header.
const DISK: u64 = 17 * 1024 * 1024;
/// Master key 40..5f, salt 60..7f (Constellation).
pub(crate) const KMS: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                              &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";
/// Secrets to search for everywhere: key and salt of the URI, as bytes and as text.
pub(crate) const CANARIES: [&[u8]; 4] = [
    b"QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8",
    b"@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_",
    b"canary-init-secret",
    b"abcdef.0123456789abcdef",
];
pub(crate) const INIT_SECRET: &[u8] = b"canary-init-secret";

/// Records its call, keeps a copy of the configuration where the search for secrets does not look, and
/// creates the files that kubeadm would.
const KUBEADM: &str = r#"
set -eu
root=$1; shift
echo "kubeadm $*" >> "$root/../calls"
case " $* " in *" --config "*) for last; do :; done; stat -c %a "$last" >> "$root/../modes";; esac
kubernetes=$root/etc/kubernetes
case "$*" in
"init phase preflight"*)
    # As kubeadm does when a kubelet listens, or manifests are there.
    if grep -q "^systemctl enable" "$root/../calls"; then exit 1; fi
    [ ! -e "$root/../refuse-preflight" ];;
"init phase certs"*)
    mkdir -p "$kubernetes/pki/etcd"
    cp "$root/../ca/ca.crt" "$root/../ca/ca.key" "$kubernetes/pki/";;
"init --skip"*)
    while [ -e "$root/../hold" ]; do sleep 0.05; done
    [ ! -e "$root/../fail-once" ] || { rm "$root/../fail-once"; echo "no abcdef.0123456789abcdef" >&2; exit 1; }
    echo "kubeconfig of the admin" > "$kubernetes/admin.conf";;
"join phase preflight"*)
    [ ! -e "$kubernetes/kubelet.conf" ]
    [ ! -e "$root/../refuse-preflight" ];;
"join"*)
    while [ -e "$root/../hold-join" ]; do sleep 0.05; done
    tr -d ' \n' < "$last" | grep -o 'skipPhases":\[[^]]*\]' >> "$root/../skipped"
    if [ -e "$root/../fail-once" ]; then
        rm "$root/../fail-once"; mkdir -p "$kubernetes/pki"; touch "$kubernetes/pki/ca.crt"; exit 1
    fi
    echo "kubelet" > "$kubernetes/kubelet.conf";;
esac
"#;
const SYSTEMCTL: &str = r#"
root=$1; shift
echo "systemctl $*" >> "$root/../calls"
[ ! -e "$root/../refuse-units" ]
"#;

pub(crate) struct Machine {
    pub(crate) directory: TempDir,
    pub(crate) swtpm: Swtpm,
    pub(crate) ak: Fingerprint,
    port: u16,
    recovery_port: u16,
}

impl Machine {
    /// A machine that has never been started.
    pub(crate) fn new(name: &str, role: &str) -> Self {
        Self::with_tpm(Swtpm::start().unwrap(), name, role)
    }

    /// Its TPM has an endorsement key certificate from its own manufacturer.
    pub(crate) fn manufactured(name: &str, role: &str) -> Self {
        Self::with_tpm(Swtpm::manufacture().unwrap(), name, role)
    }

    fn with_tpm(swtpm: Swtpm, name: &str, role: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports = [free_port().unwrap(), free_port().unwrap()];
        let machine = Self {
            ak: attestation(&swtpm).ak,
            swtpm,
            directory,
            port: ports[0],
            recovery_port: ports[1],
        };
        fs::create_dir_all(machine.path("root/etc/kubernetes")).unwrap();
        for (script, text) in [("kubeadm.sh", KUBEADM), ("systemctl.sh", SYSTEMCTL)] {
            fs::write(machine.path(script), text).unwrap();
        }
        machine.make_authority();
        machine.format();
        machine.write_metadata(name, role, &[]);
        machine.write_settings(&[]);
        machine
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make_authority(&self) {
        fs::create_dir(self.path("ca")).unwrap();
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"])
            .args(["-subj", "/CN=kubernetes", "-addext", "keyUsage=keyCertSign,digitalSignature"])
            .arg("-out")
            .arg(self.path("ca/ca.crt"))
            .arg("-keyout")
            .arg(self.path("ca/pkcs8.key"))
            .stderr(Stdio::null())
            .status();
        assert!(made.unwrap().success());
        // kubeadm writes RSA keys in this format.
        let made = Command::new("openssl")
            .args(["rsa", "-traditional", "-in"])
            .args([self.path("ca/pkcs8.key"), "-out".into(), self.path("ca/ca.key")])
            .stderr(Stdio::null())
            .status();
        assert!(made.unwrap().success());
    }

    fn format(&self) {
        let (disk, key) = (self.path("disk"), self.path("state.key"));
        fs::File::create(&disk).unwrap().set_len(DISK).unwrap();
        fs::write(&key, b"initial").unwrap();
        let made = Command::new("cryptsetup")
            .args(["luksFormat", "--batch-mode", "--type", "luks2", "--sector-size", "4096"])
            .args(["--pbkdf", "argon2id", "--pbkdf-memory", "64"])
            .args(["--pbkdf-force-iterations", "4", "--key-file"])
            .args([&key, &disk])
            .status();
        assert!(made.unwrap().success());
    }

    /// Peers are join services on loopback addresses.
    pub(crate) fn write_metadata(&self, name: &str, role: &str, peers: &[&str]) {
        let peers: Vec<String> = peers
            .iter()
            .map(|peer| format!(r#"{{"Name":"peer","Role":"ControlPlane","VPCIP":"{peer}"}}"#))
            .collect();
        let hash = Sha256Digest::of(INIT_SECRET);
        let text = format!(
            r#"{{"self": {{"Name":"{name}","Role":"{role}","VPCIP":"127.0.0.99"}},
                "peers": [{}], "endpoint": "127.0.0.99", "initSecretHash": "sha256:{hash}"}}"#,
            peers.join(",")
        );
        fs::write(self.path("metadata.json"), text).unwrap();
    }

    /// `keys` are the keys of join services.
    pub(crate) fn write_settings(&self, keys: &[Fingerprint]) {
        self.write_settings_with(keys, 1);
    }

    pub(crate) fn write_settings_with(&self, keys: &[Fingerprint], join_port: u16) {
        let keys: Vec<String> = keys.iter().map(|key| format!("'{key}'")).collect();
        let dir = self.directory.path().display();
        let text = format!(
            "listen = '127.0.0.1:{}'\nrecovery_listen = '127.0.0.1:{}'\njoin_port = {join_port}\n\
             root = '{dir}/root'\nstate_directory = '{dir}/root/run/state/constellation'\n\
             [metadata]\nkind = 'file'\npath = '{dir}/metadata.json'\n\
             [tpm]\ntcti = '{}'\n\
             [disk]\ndevice = '{dir}/disk'\nkey_file = '{dir}/state.key'\n\
             header_file = '{dir}/state.header'\nunits = ['state.mount']\n\
             dangerous_formatted_elsewhere = true\n\
             dangerous_without_integrity = true\n\
             dangerous_state_elsewhere = true\n\
             [join_services]\nattestation_keys = [{}]\ndangerous_any_measurements = true\n\
             [programs]\nkubeadm = ['/bin/sh', '{dir}/kubeadm.sh', '{dir}/root']\n\
             systemctl = ['/bin/sh', '{dir}/systemctl.sh', '{dir}/root']\n",
            self.port,
            self.recovery_port,
            self.swtpm.tcti(),
            keys.join(", "),
        );
        fs::write(self.path("settings.toml"), text).unwrap();
    }

    /// Lists key services for Recover.
    pub(crate) fn list_key_services(&self, places: &[&str]) {
        self.add_setting(&format!("recovery_key_services = {places:?}"));
    }

    /// Adds a line before the first table.
    pub(crate) fn add_setting(&self, line: &str) {
        self.change_settings(|text| format!("{line}\n{text}"));
    }

    pub(crate) fn change_settings(&self, change: impl FnOnce(&str) -> String) {
        let path = self.path("settings.toml");
        let settings = fs::read_to_string(&path).unwrap();
        fs::write(path, change(&settings)).unwrap();
    }

    /// Starts the program, and waits until it serves.
    pub(crate) fn start(&self, command: &str) -> Program {
        Program::start(&self.path("settings.toml"), command)
    }

    /// Starts the program in a mount namespace prepared by `script`.
    pub(crate) fn start_after(&self, script: &str, command: &str) -> Program {
        let mut unshare = Command::new("unshare");
        unshare.args(["--map-root-user", "--mount", "/bin/sh", "-euc"]);
        unshare.arg(format!("{script}\nexec \"$0\" \"$@\"")).arg(BUILT);
        Program::spawn(unshare, &self.path("settings.toml"), command)
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, command: &str) -> (ExitStatus, String) {
        self.start(command).wait()
    }

    pub(crate) fn init_address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn recovery_address(&self) -> String {
        format!("127.0.0.1:{}", self.recovery_port)
    }

    /// The TPM's key and evidence, for a join service on this machine. An emulated TPM serves one client at a
    /// time, so this must not be used while the program runs.
    pub(crate) fn attestation(&self) -> Attestation {
        attestation(&self.swtpm)
    }

    /// PCR 15; must not be used while the program runs.
    pub(crate) fn register(&self) -> Sha256Digest {
        let tpm = Tpm::open(&self.swtpm.tcti()).unwrap();
        *tpm.pcr_read().unwrap().value(PcrIndex::CLUSTER)
    }

    /// A client that expects this machine with these register values.
    fn client(&self, measurements: Measurements) -> Endpoint {
        let live = Arc::new(LiveMeasurements::new(measurements));
        let trust = Arc::new(PinnedAks::new([self.ak]));
        let validator = VtpmValidator::new(Variant::QemuVtpm, trust, live);
        let client = endpoint().with_validator(Arc::new(validator));
        client.build().unwrap()
    }

    /// Connects, whether the machine is in a cluster or not.
    pub(crate) async fn dial_any(&self, address: &str) -> Channel {
        let client = self.client(Measurements::default());
        transport::dial(&client, address).await.unwrap()
    }

    /// Connects; the machine proves that it is in no cluster.
    pub(crate) async fn dial(&self, address: &str) -> Channel {
        let unused = Expectation { expected: Sha256Digest::ZERO, severity: Severity::Enforce };
        let client = self.client(Measurements::default().with(PcrIndex::CLUSTER, unused));
        transport::dial(&client, address).await.unwrap()
    }

    /// The CA certificates of its TPM's manufacturer, in a file.
    pub(crate) fn maker(&self) -> PathBuf {
        let ca = self.swtpm.ca().unwrap();
        let path = self.path("maker.pem");
        fs::write(&path, ca.root_pem.clone() + &ca.issuer_pem).unwrap();
        path
    }

    /// The recorded calls of its programs.
    pub(crate) fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }

    pub(crate) fn disk(&self) -> LuksDisk {
        let programs = Arc::new(HostPrograms::new());
        let scratch = self.path("scratch");
        LuksDisk::new(self.path("disk"), self.path("state.key"), scratch, programs)
            .dangerous_without_integrity()
    }

    pub(crate) async fn opens_with(&self, key: &[u8]) -> bool {
        let key = SecretBytes::new(key.to_vec());
        self.disk().opens_with(&key).await.unwrap()
    }

    /// Reboots the machine: registers are reset, and memory is lost.
    pub(crate) fn reboot(&mut self) {
        self.swtpm.restart().unwrap();
        let _ = fs::remove_dir_all(self.path("root/run/tec-bootstrapper"));
        let _ = fs::remove_file(self.path("calls"));
    }

    /// No file below the root contains a canary, except files for secrets.
    pub(crate) fn assert_no_secrets(&self, log: &str) {
        for canary in CANARIES {
            let text = String::from_utf8_lossy(canary);
            assert!(!log.contains(&*text), "the log has {text}: {log}");
        }
        search(&self.path("root"));
        let calls = self.path("calls");
        if calls.exists() {
            assert_clean(&calls);
        }
    }
}

fn attestation(swtpm: &Swtpm) -> Attestation {
    let settings = TpmSettings { tcti: swtpm.tcti(), ..TpmSettings::default() };
    Attestation::open(&settings).unwrap()
}

fn search(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        // For the join service, and readable only by root.
        if path.ends_with("run/state/tec") {
            for file in fs::read_dir(path).unwrap() {
                assert_eq!(mode(&file.unwrap().path()), 0o600);
            }
        } else if path.is_dir() {
            search(&path);
        } else {
            assert_clean(&path);
        }
    }
}

fn assert_clean(path: &Path) {
    let content = fs::read(path).unwrap();
    for canary in CANARIES {
        let found = content.windows(canary.len()).any(|part| part == canary);
        assert!(!found, "{} has a secret", path.display());
    }
}

/// The program, running; stopped with the test at the latest.
pub(crate) struct Program {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<thread::JoinHandle<()>>,
    serving: std::sync::mpsc::Receiver<()>,
}

impl Program {
    fn start(settings: &Path, command: &str) -> Self {
        Self::spawn(Command::new(BUILT), settings, command)
    }

    fn spawn(mut program: Command, settings: &Path, command: &str) -> Self {
        let mut child = program
            .args(["--log", "debug,h2=info", "--config"])
            .arg(settings)
            .arg(command)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (sender, serving) = std::sync::mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let shared = Arc::clone(&log);
        let reader = thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if line.contains(" is served") {
                    let _ = sender.send(());
                }
                shared.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        Self { child, log, reader: Some(reader), serving }
    }

    /// Waits until it serves.
    pub(crate) fn serving(self) -> Self {
        let limit = std::time::Duration::from_mins(1);
        let serves = self.serving.recv_timeout(limit);
        assert!(serves.is_ok(), "{}", self.log.lock().unwrap());
        self
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the program exits; returns status and log.
    pub(crate) fn wait(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().unwrap();
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        (status, self.log())
    }

    /// Kills the program, like a machine that loses power.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Mode of a file.
pub(crate) fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}
