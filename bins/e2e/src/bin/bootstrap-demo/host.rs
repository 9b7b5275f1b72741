//! A host: namespaces, a TPM, a disk, a container runtime and a kubelet.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Context as _;

use crate::network::{BRIDGE, GATEWAY, ip, run};

/// Size of a disk: enough for a LUKS2 header.
const DISK: u64 = 17 * 1024 * 1024;
/// Port of swtpm, in its host's network.
pub(crate) const TPM_PORT: u16 = 2321;
const PROCESS_LIMIT: Duration = Duration::from_mins(5);
const STEP: Duration = Duration::from_millis(50);
const BOOT: &str = include_str!("boot.sh");
const SYSTEMCTL: &str = include_str!("systemctl.sh");
const CONTAINERD: &str = include_str!("containerd.toml");

/// A process that is stopped on drop.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn wait(mut self) -> anyhow::Result<Option<i32>> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status.code());
            }
            anyhow::ensure!(begin.elapsed() < PROCESS_LIMIT, "a program does not end");
            pause();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for processes, with deadlines around it")]
pub(crate) fn pause() {
    thread::sleep(STEP);
}

/// The parts of a host that run between two boots.
#[derive(Debug)]
struct Running {
    /// Dropping the first one ends process 1 of the host, and with it all others.
    processes: Vec<Process>,
    /// Process 1, by its PID on this machine.
    init: String,
}

/// A host; removed on drop.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) dir: PathBuf,
    number: u8,
    running: Option<Running>,
}

impl Host {
    /// Creates the host with this number, with a new TPM and a new disk; its files are in this folder.
    pub(crate) fn create(base: &Path, number: u8, folder: &str) -> anyhow::Result<Self> {
        let name = format!("n{number}");
        let (address, dir) = (format!("198.51.100.{number}"), base.join(folder));
        for part in ["run", "tpm", "kubelet.d"] {
            fs::create_dir_all(dir.join(part))?;
        }
        for (file, text) in [
            ("boot.sh", BOOT.to_owned()),
            ("systemctl", SYSTEMCTL.to_owned()),
            ("containerd.toml", CONTAINERD.to_owned()),
            ("kubelet.d/10-host.conf", kubelet(&name)),
        ] {
            fs::write(dir.join(file), text)?;
        }
        executable(&dir.join("systemctl"))?;
        let mut host = Self { name, address, dir, number, running: None };
        host.format()?;
        host.boot()?;
        Ok(host)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn namespace(&self) -> String {
        format!("tec-{}", self.name)
    }

    /// A command inside the host, with its output in a file of this name.
    fn command(&self, log: &str, program: &Path) -> anyhow::Result<Command> {
        let log =
            File::options().create(true).append(true).open(self.path(&format!("{log}.log")))?;
        let init = &self.running.as_ref().context("the host is off")?.init;
        let mut command = Command::new("nsenter");
        command
            .args(["--target", init, "--mount", "--net", "--pid", "--"])
            .arg(program)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command)
    }

    pub(crate) fn spawn(
        &self,
        log: &str,
        program: &Path,
        arguments: &[&str],
    ) -> anyhow::Result<Process> {
        let mut command = self.command(log, program)?;
        let started = command.args(arguments).spawn();
        let started = started.with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Process(started))
    }

    /// Runs a program to its end, and returns its output.
    pub(crate) fn output(&self, program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command("output", program)?;
        let output = command.args(arguments).stdout(Stdio::piped()).output()?;
        anyhow::ensure!(
            output.status.success(),
            "{} {} failed on {}; see {}",
            program.display(),
            arguments.join(" "),
            self.name,
            self.path("output.log").display()
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Runs a program that must fail, and returns its error output.
    pub(crate) fn refusal(&self, program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command("refusal", program)?;
        let output = command.args(arguments).stderr(Stdio::piped()).output()?;
        let what = arguments.join(" ");
        anyhow::ensure!(!output.status.success(), "{what} was not refused");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Loads an image into the container runtime, which pulls none.
    pub(crate) fn load(&self, archive: &Path) -> anyhow::Result<()> {
        let archive = archive.display().to_string();
        let import = ["--namespace", "k8s.io", "images", "import", &archive];
        self.output(Path::new("ctr"), &import).map(drop)
    }

    fn format(&self) -> anyhow::Result<()> {
        let (disk, key) = (self.path("disk"), self.path("state.key"));
        File::create(&disk)?.set_len(DISK)?;
        fs::write(&key, "initial")?;
        let (disk, key) = (disk.display().to_string(), key.display().to_string());
        let arguments = format!(
            "luksFormat --batch-mode --type luks2 --sector-size 4096 --pbkdf argon2id \
             --pbkdf-memory 64 --pbkdf-force-iterations 4 --key-file {key} {disk}"
        );
        let arguments: Vec<&str> = arguments.split(' ').collect();
        run("cryptsetup", &arguments).map(drop)
    }

    fn boot(&mut self) -> anyhow::Result<()> {
        connect(&self.namespace(), self.number, &self.address)?;
        let ready = self.path("ready");
        let _ = fs::remove_file(&ready);
        let log = File::create(self.path("boot.log"))?;
        let started = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{}", self.namespace()))
            .args(["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--propagation", "private", "sh"])
            .arg(self.path("boot.sh"))
            .env("BASE", &self.dir)
            .env("NAME", &self.name)
            .env("GATEWAY", GATEWAY)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn();
        let namespaces = Process(started.context("cannot create namespaces")?);
        await_file(&ready)?;
        let parent = namespaces.0.id();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let init = fs::read_to_string(&children).context("cannot find process 1 of the host")?;
        let init = init.trim().to_owned();
        self.running = Some(Running { processes: vec![namespaces], init });
        let tpm = self.start_tpm()?;
        self.running.as_mut().context("the host is off")?.processes.push(tpm);
        let socket = self.path("run/containerd/containerd.sock");
        await_file(&socket)
    }

    fn start_tpm(&self) -> anyhow::Result<Process> {
        let state = format!("dir={}", self.path("tpm").display());
        let pid = self.path("tpm.pid");
        let _ = fs::remove_file(&pid);
        let (server, control) = (
            format!("type=tcp,bindaddr=127.0.0.1,port={TPM_PORT}"),
            format!("type=tcp,bindaddr=127.0.0.1,port={}", TPM_PORT + 1),
        );
        let pid_file = format!("file={}", pid.display());
        let arguments = [
            "socket",
            "--tpm2",
            "--flags",
            "not-need-init,startup-clear",
            "--tpmstate",
            &state,
            "--server",
            &server,
            "--ctrl",
            &control,
            "--pid",
            &pid_file,
        ];
        let tpm = self.spawn("swtpm", Path::new("swtpm"), &arguments)?;
        await_file(&pid)?;
        Ok(tpm)
    }

    /// Ends everything in the host immediately, as in a power failure.
    fn end(&mut self) {
        if let Some(Running { processes, init }) = self.running.take() {
            drop(processes);
            gone(&init);
        }
        let _ = ip(&format!("netns del {}", self.namespace()));
        remove_cgroups(&self.namespace());
    }

    /// Reboots the host: its network and the TPM's registers are new, and only the mount of the state disk
    /// survives.
    pub(crate) fn reboot(&mut self) -> anyhow::Result<()> {
        self.end();
        for entry in fs::read_dir(self.path("run"))? {
            let entry = entry?;
            if entry.file_name() == "state" {
                continue;
            }
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(path)?;
            } else {
                fs::remove_file(path)?;
            }
        }
        self.boot()
    }
}

/// Kubelet settings for what differs from a node here: who manages the cgroups, and the disk, which belongs
/// to the user of the demo and may be nearly full.
fn kubelet(name: &str) -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         cgroupDriver: cgroupfs\ncgroupRoot: /tec-{name}\nfailCgroupV1: false\n\
         evictionHard: {{memory.available: 100Mi, nodefs.available: 0%, \
         nodefs.inodesFree: 0%, imagefs.available: 0%}}\nimageGCHighThresholdPercent: 100\n"
    )
}

fn executable(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o755))?)
}

fn connect(namespace: &str, number: u8, address: &str) -> anyhow::Result<()> {
    // Left behind by a run that was killed.
    let left = run("ip", &["netns", "pids", namespace]).unwrap_or_default();
    for pid in String::from_utf8_lossy(&left).split_whitespace() {
        let _ = run("kill", &["-9", pid]);
    }
    let _ = ip(&format!("netns del {namespace}"));
    ip(&format!("netns add {namespace}"))?;
    let veth = format!("tec-v{number}");
    // The peer device may outlive a namespace that is being removed.
    let _ = ip(&format!("link del {veth}"));
    ip(&format!("link add {veth} type veth peer name eth0 netns {namespace}"))?;
    ip(&format!("link set {veth} master {BRIDGE} up"))?;
    ip(&format!("-n {namespace} addr add {address}/24 dev eth0"))?;
    ip(&format!("-n {namespace} link set eth0 up"))?;
    ip(&format!("-n {namespace} link set lo up"))?;
    ip(&format!("-n {namespace} route add default via {GATEWAY}"))
}

/// Waits for the end of a process; all others in its namespace end before it.
fn gone(pid: &str) {
    let begin = Instant::now();
    // The state comes after the name, which is in parentheses (proc_pid_stat(5)).
    let runs = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(!stat.rsplit_once(") ")?.1.starts_with('Z'))
    };
    while runs() == Some(true) && begin.elapsed() < Duration::from_secs(10) {
        pause();
    }
}

/// Removes the cgroups of a host whose processes are ending, innermost first.
fn remove_cgroups(name: &str) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(10) {
        let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
        let ours = hierarchies.map(|one| one.path().join(name));
        let ours = ours.chain([Path::new("/sys/fs/cgroup").join(name)]);
        let left: Vec<_> = ours.filter(|path| path.is_dir()).collect();
        if left.is_empty() {
            return;
        }
        for path in left {
            let path = path.display().to_string();
            let _ = run("find", &[&path, "-depth", "-type", "d", "-exec", "rmdir", "{}", "+"]);
        }
        pause();
    }
}

fn await_file(path: &Path) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !path.exists() {
        anyhow::ensure!(
            begin.elapsed() < Duration::from_secs(30),
            "{} does not appear",
            path.display()
        );
        pause();
    }
    Ok(())
}

impl Drop for Host {
    fn drop(&mut self) {
        self.end();
    }
}
