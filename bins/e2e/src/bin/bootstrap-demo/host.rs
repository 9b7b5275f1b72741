//! A host: namespaces, a TPM, a disk, and processes.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::Context as _;

use crate::network::{BRIDGE, GATEWAY, ip, run};

/// Room for a header of LUKS2.
const DISK: u64 = 17 * 1024 * 1024;
/// Ports of swtpm, each in the network of its host.
const TPM_PORT: u16 = 2321;
const PROCESS_LIMIT: Duration = Duration::from_mins(5);
const STEP: Duration = Duration::from_millis(50);

/// A process that ends with this value.
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

/// A host; gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) address: String,
    pub(crate) dir: PathBuf,
    namespace: String,
    keeper: Process,
    tpm: Option<Process>,
    kubelet: Option<Process>,
}

impl Host {
    /// The host of this number, with a new TPM and a new disk.
    pub(crate) fn create(base: &Path, number: u8) -> anyhow::Result<Self> {
        let name = format!("n{number}");
        let namespace = format!("tec-{name}");
        let address = format!("10.99.0.{number}");
        let dir = base.join(&name);
        for part in ["etc", "lib", "log"] {
            for sort in ["upper", "work"] {
                fs::create_dir_all(dir.join(part).join(sort))?;
            }
        }
        fs::create_dir_all(dir.join("run"))?;
        fs::create_dir_all(dir.join("tpm"))?;
        connect(&namespace, number, &address)?;
        let keeper = keeper(&namespace, &dir)?;
        let mut host = Self { name, address, dir, namespace, keeper, tpm: None, kubelet: None };
        host.format()?;
        host.start_tpm()?;
        Ok(host)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A command inside the host; what it says goes to a file of this name.
    fn command(&self, log: &str, program: &Path) -> anyhow::Result<Command> {
        let log =
            File::options().create(true).append(true).open(self.path(&format!("{log}.log")))?;
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.keeper.0.id().to_string(), "-m", "-n", "--"])
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
        let started = started.with_context(|| format!("start {}", program.display()))?;
        Ok(Process(started))
    }

    /// Runs a program to its end, and returns what it printed.
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

    /// Runs a program that must fail, and returns what it said of that.
    pub(crate) fn refusal(&self, program: &Path, arguments: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command("refusal", program)?;
        let output = command.args(arguments).stderr(Stdio::piped()).output()?;
        let what = arguments.join(" ");
        anyhow::ensure!(!output.status.success(), "{what} was not refused");
        Ok(String::from_utf8_lossy(&output.stderr).into_owned())
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

    fn start_tpm(&mut self) -> anyhow::Result<()> {
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
        self.tpm = Some(self.spawn("swtpm", Path::new("swtpm"), &arguments)?);
        await_file(&pid)
    }

    /// What stands for the kubelet begins to wait until it is wanted.
    pub(crate) fn start_kubelet(&mut self, stub: &Path, programs: &Path) -> anyhow::Result<()> {
        let programs = programs.display().to_string();
        let arguments = ["kubelet", "--node", &self.name, "--programs", &programs];
        self.kubelet = Some(self.spawn("kubelet", stub, &arguments)?);
        Ok(())
    }

    /// Ends every process of the host but the one that keeps its namespaces: static pods outlive
    /// what stands for their kubelet.
    fn end_all(&mut self) -> anyhow::Result<()> {
        self.kubelet = None;
        self.tpm = None;
        let keeper = self.keeper.0.id().to_string();
        let listed = run("ip", &["netns", "pids", &self.namespace])?;
        for pid in String::from_utf8(listed)?.split_whitespace() {
            if pid != keeper {
                // It may have ended meanwhile.
                let _ = run("kill", &["-9", pid]);
            }
        }
        Ok(())
    }

    /// The host boots again: processes are gone, the TPM's registers are new, and of memory only
    /// the mount of the state disk is kept.
    pub(crate) fn reboot(&mut self) -> anyhow::Result<()> {
        self.end_all()?;
        let _ = fs::remove_file(self.path("run/kubelet-wanted"));
        let _ = fs::remove_dir_all(self.path("run/tec-bootstrapper"));
        self.start_tpm()
    }
}

/// Namespaces of a process that sleeps.
fn keeper(namespace: &str, dir: &Path) -> anyhow::Result<Process> {
    let base = dir.display();
    let overlay = |part: &str, over: &str| {
        format!(
            "mount -t overlay tec -o lowerdir={over},upperdir={base}/{part}/upper,\
             workdir={base}/{part}/work {over}\n"
        )
    };
    let script = format!(
        "set -e\n{}{}{}mount --bind {base}/run /run\n\
         mkdir -p /etc/kubernetes/manifests /var/lib/kubelet\n: > {base}/ready\n\
         exec sleep infinity\n",
        overlay("etc", "/etc"),
        overlay("lib", "/var/lib"),
        overlay("log", "/var/log"),
    );
    let log = File::create(dir.join("namespaces.log"))?;
    let started = Command::new("ip")
        .args(["netns", "exec", namespace, "unshare", "-m", "--propagation", "private"])
        .args(["sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    let keeper = Process(started.context("make namespaces")?);
    await_file(&dir.join("ready"))?;
    Ok(keeper)
}

fn connect(namespace: &str, number: u8, address: &str) -> anyhow::Result<()> {
    let _ = ip(&format!("netns del {namespace}"));
    ip(&format!("netns add {namespace}"))?;
    let veth = format!("tec-v{number}");
    ip(&format!("link add {veth} type veth peer name eth0 netns {namespace}"))?;
    ip(&format!("link set {veth} master {BRIDGE} up"))?;
    ip(&format!("-n {namespace} addr add {address}/24 dev eth0"))?;
    ip(&format!("-n {namespace} link set eth0 up"))?;
    ip(&format!("-n {namespace} link set lo up"))?;
    ip(&format!("-n {namespace} route add default via {GATEWAY}"))
}

fn await_file(path: &Path) -> anyhow::Result<()> {
    let begin = Instant::now();
    while !path.exists() {
        anyhow::ensure!(
            begin.elapsed() < Duration::from_secs(20),
            "{} does not come",
            path.display()
        );
        pause();
    }
    Ok(())
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.end_all();
        let _ = ip(&format!("netns del {}", self.namespace));
    }
}
