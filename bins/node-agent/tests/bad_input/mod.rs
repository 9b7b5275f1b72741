//! Faults around a node: it either unlocks or fails with three lines and a code, and it unlocks as soon as
//! the fault is gone.

use std::fs::OpenOptions;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tec_core::code::Code;
use tec_tpm::testing::Swtpm;

use crate::world::{Node, PASSPHRASE, Wire, good, pipe, refused};

/// The node fails with this code in three lines; the second line contains this string.
#[track_caller]
fn told(output: &Output, code: Code, cause: &str) {
    let lines = refused(output);
    assert_eq!(lines[0], format!("{code} {}", code.title()));
    assert!(lines[1].contains(cause), "{lines:?}");
    assert!(lines[2].ends_with(&format!("tec explain {code}")));
}

#[track_caller]
fn opens(node: &Node, sealed: &[u8]) {
    assert_eq!(good(node.decrypt(sealed)), PASSPHRASE.as_bytes());
}

/// Runs one of the tpm2-tools on the node's TPM, in a directory for its files.
fn tpm2(tpm: &Swtpm, files: &Path, tool: &str, arguments: &str) -> bool {
    let mut command = Command::new(tool);
    let command = command.args(arguments.split(' ')).current_dir(files);
    let command = command.env("TPM2TOOLS_TCTI", tpm.tcti());
    command.output().unwrap().status.success()
}

/// Guesses a key's password until the TPM locks out further attempts.
fn lock_out(tpm: &Swtpm, files: &Path) {
    let run = |tool, arguments| tpm2(tpm, files, tool, arguments);
    let parameters =
        "--setup-parameters --max-tries=1 --recovery-time=9999 --lockout-recovery-time=9999";
    assert!(run("tpm2_dictionarylockout", parameters));
    assert!(run("tpm2_createprimary", "-C o -G ecc -p right -c guessed.ctx"));
    for _ in 0..2 {
        assert!(!run("tpm2_create", "-C guessed.ctx -P wrong -u a.pub -r a.priv"));
    }
    assert!(
        !run("tpm2_create", "-C guessed.ctx -P right -u a.pub -r a.priv"),
        "the right password counts no more"
    );
    assert!(run("tpm2_flushcontext", "-t"));
}

#[test]
fn a_tpm_in_lockout_attests_all_the_same() {
    let node = Node::start(Wire::Plain);
    let sealed = good(node.encrypt());
    lock_out(&node.tpm, node.world.directory.path());
    opens(&node, &sealed);
}

#[test]
fn a_key_that_is_not_exempt_waits_for_the_end_of_the_lockout() {
    let node = Node::start(Wire::Plain);
    let files = node.world.directory.path();
    let run = |tool, arguments| tpm2(&node.tpm, files, tool, arguments);
    let key = "-C o -G rsa2048:rsassa-sha256:null -c ak.ctx \
               -a fixedtpm|fixedparent|sensitivedataorigin|userwithauth|restricted|sign";
    assert!(run("tpm2_createprimary", key));
    assert!(run("tpm2_evictcontrol", "-C o -c ak.ctx 0x81010002"));
    assert!(run("tpm2_flushcontext", "-t"));
    let sealed = good(node.encrypt());
    lock_out(&node.tpm, files);
    told(&node.decrypt(&sealed), Code::NodeLockout, "in lockout");
    assert!(run("tpm2_dictionarylockout", "--clear-lockout"));
    opens(&node, &sealed);
}

#[test]
fn something_else_at_the_handle_of_the_key_is_named_and_kept() {
    let node = Node::start(Wire::Plain);
    let files = node.world.directory.path();
    let run = |tool, arguments| tpm2(&node.tpm, files, tool, arguments);
    assert!(run("tpm2_createprimary", "-C o -G ecc -c other.ctx"));
    assert!(run("tpm2_evictcontrol", "-C o -c other.ctx 0x81010002"));
    assert!(run("tpm2_flushcontext", "-t"));
    told(&node.encrypt(), Code::NodeHandle, "0x81010002");
    assert!(run("tpm2_readpublic", "-c 0x81010002"), "it is still there");
    assert!(run("tpm2_evictcontrol", "-C o -c 0x81010002"));
    let sealed = good(node.encrypt());
    opens(&node, &sealed);
}

#[test]
fn a_node_without_its_tpm_says_so_and_opens_when_it_is_back() {
    let node = Node::start(Wire::Plain);
    let sealed = good(node.encrypt());
    let mut command = Command::new(node.world.link("clevis-decrypt-trustee"));
    let command = node.world.prepare(&mut command, &node.tpm);
    let gone = command.env("TEC_TCTI", "device:/nonexistent/tpmrm0");
    told(&pipe(gone, &sealed), Code::NodeTpm, "/nonexistent/tpmrm0");
    opens(&node, &sealed);
}

#[test]
fn a_server_that_takes_the_connection_and_says_nothing_is_given_up() {
    let mut node = Node::start(Wire::Plain);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let alive = node.config["servers"][0].clone();
    node.config["servers"] = serde_json::json!([{ "url": url, "cert": "" }]);
    let encrypt = |node: &Node| {
        let mut command = Command::new(node.world.link("clevis-encrypt-trustee"));
        command.arg(node.config.to_string());
        let command = node.world.prepare(&mut command, &node.tpm);
        pipe(command.env("TEC_TIMEOUT", "1"), PASSPHRASE.as_bytes())
    };
    told(&encrypt(&node), Code::ServerUnreachable, &url);
    node.config["servers"] = serde_json::json!([{ "url": url, "cert": "" }, alive]);
    good(encrypt(&node));
}

#[test]
fn a_clock_that_is_years_off_is_named() {
    for (years, why) in [(10, "not valid yet"), (-10, "expired")] {
        let mut node = Node::start(Wire::TlsAhead(years));
        told(&node.encrypt(), Code::NodeClock, why);
        // So far this was the registration; without it, the key broker is asked.
        node.config.as_object_mut().unwrap().remove("attestation_key");
        told(&node.encrypt(), Code::NodeClock, why);
    }
}

#[test]
fn a_full_disk_is_named_and_nothing_is_lost() {
    let node = Node::start(Wire::Plain);
    let full = || {
        let device = OpenOptions::new().write(true).open("/dev/full");
        Stdio::from(device.unwrap())
    };
    let run = |link: &str, argument: Option<String>, input: &[u8]| {
        let mut command = Command::new(node.world.link(link));
        let command = node.world.prepare(command.args(argument), &node.tpm);
        command.stdout(full()).stdin(Stdio::piped());
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input).unwrap();
        child.wait_with_output().unwrap()
    };
    let config = Some(node.config.to_string());
    let first = run("clevis-encrypt-trustee", config, PASSPHRASE.as_bytes());
    told(&first, Code::NodeFull, "write to stdout");
    let sealed = good(node.encrypt());
    let later = run("clevis-decrypt-trustee", None, &sealed);
    told(&later, Code::NodeFull, "write to stdout");
    opens(&node, &sealed);
}
