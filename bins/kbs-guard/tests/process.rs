//! `kbs-guard` as a process: the configurations it refuses to start with, what can change while it runs, how
//! it shuts down, and what a client can do to a connection.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "clippy takes helpers of tests for library code"
)]

mod process {
    pub(crate) mod guard;
    pub(crate) mod upstream;
}

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::time::Duration;

use rcgen::CertifiedKey;

use self::process::guard::{Running, exchange, keys, refused, wait_for};
use self::process::upstream::Upstream;

const AUTH: &str = r#"{"version":"0.4.0","tee":"tpm","extra-params":{}}"#;

#[test]
fn wrong_flags_exit_with_2_and_what_cannot_be_used_with_1() {
    let dir = keys();
    let keys = dir.path().join("keys");
    let keys = keys.to_str().unwrap();
    for flags in [
        &["--dangerous-plain-http"][..],
        &["--keys", keys, "--tls-cert", "x"],
        &["--keys", keys, "--tls-key", "x"],
        &["--keys", keys, "--tls-cert", "x", "--tls-key", "y", "--dangerous-plain-http"],
        &["--keys", keys, "--auth-rate", "0"],
        &["--keys", keys, "--listen", "nowhere"],
        &["--keys", keys, "--upstream", "http://127.0.0.1:1/path"],
        &["--keys", keys, "--no-such-flag"],
    ] {
        assert_eq!(refused(&dir, flags).0, 2, "{flags:?}");
    }
    let missing = dir.path().join("missing");
    let missing = missing.to_str().unwrap();
    for (flags, told) in [
        (&["--keys", keys][..], "--dangerous-plain-http"),
        (&["--keys", missing, "--dangerous-plain-http"], "missing"),
        (&["--keys", keys, "--tls-cert", missing, "--tls-key", missing], "TEC-T500"),
    ] {
        let (code, stderr) = refused(&dir, flags);
        assert_eq!(code, 1, "{stderr}");
        assert!(stderr.contains(told), "{stderr}");
    }
}

fn write_certificate(dir: &tempfile::TempDir) -> Vec<u8> {
    let CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(dir.path().join("tls.key"), signing_key.serialize_pem()).unwrap();
    fs::write(dir.path().join("tls.crt"), cert.pem()).unwrap();
    cert.der().to_vec()
}

#[test]
fn a_new_certificate_is_shown_without_a_restart_and_sigterm_ends_in_order() {
    let dir = keys();
    let first = write_certificate(&dir);
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (cert, key) = (at("tls.crt"), at("tls.key"));
    let flags = ["--tls-cert", &cert, "--tls-key", &key];
    let mut guard = Running::start(&dir, &flags);
    assert_eq!(guard.certificate(), first);
    let second = write_certificate(&dir);
    wait_for("the new certificate", || guard.certificate() == second);
    fs::write(dir.path().join("tls.crt"), "garbage").unwrap();
    assert_eq!(guard.certificate(), second);
    assert_eq!(guard.terminate().code(), Some(0));
}

#[test]
fn its_own_metrics_and_readiness_are_on_an_address_of_their_own() {
    let dir = keys();
    let upstream = Upstream::start();
    let guard = Running::start(
        &dir,
        &[
            "--dangerous-plain-http",
            "--metrics-addr",
            "127.0.0.1:0",
            "--upstream",
            &upstream.address,
        ],
    );
    let body = format!(
        "POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{AUTH}",
        AUTH.len()
    );
    assert!(exchange(guard.address, &body).starts_with("HTTP/1.1 200"));
    let get = "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let own = exchange(guard.metrics.unwrap(), get);
    assert!(own.contains("tec_guard_opened_total 1"), "{own}");
    let public = exchange(guard.address, get);
    assert!(public.contains("of the upstream"), "{public}");
    let ready = "GET /readyz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(exchange(guard.metrics.unwrap(), ready).starts_with("HTTP/1.1 200"));
    drop(upstream);
    assert!(exchange(guard.metrics.unwrap(), ready).starts_with("HTTP/1.1 503"));
    let gone = exchange(guard.address, get);
    assert!(gone.starts_with("HTTP/1.1 503") || gone.contains("of the upstream"), "{gone}");
}

/// The key broker behind it must see exactly the requests that the guard saw, unchanged.
#[test]
fn a_request_cannot_hide_another_one() {
    let dir = keys();
    let upstream = Upstream::start();
    let flags = ["--dangerous-plain-http", "--upstream", &upstream.address];
    let guard = Running::start(&dir, &flags);
    let hidden = "DELETE /kbs/v0/resource/a/b/c HTTP/1.1\r\nhost: x\r\n\r\n";
    let post = "POST /kbs/v0/resource-policy HTTP/1.1\r\nhost: x\r\nconnection: close\r\n";
    let chunk = format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len());
    let length = hidden.len();
    for (request, wholes) in [
        (format!("{post}content-length: {length}\r\n\r\n{hidden}"), 1),
        (format!("{post}transfer-encoding: chunked\r\n\r\n{chunk}"), 1),
        (format!("{post}transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n{chunk}"), 1),
        (format!("{post}content-length: 0\r\ncontent-length: {length}\r\n\r\n{hidden}"), 0),
        (format!("{post}content-length: +5\r\n\r\n{hidden}"), 0),
        (format!("{post}transfer-encoding: xchunked\r\n\r\n{chunk}"), 0),
        (format!("{post}transfer-encoding: chunked, identity\r\n\r\n{chunk}"), 0),
        (format!("{post}transfer-encoding : chunked\r\n\r\n{chunk}"), 0),
        (format!("{post}x: a\r\n b: c\r\n\r\n"), 0),
        (format!("{post}x: a\nb: c\r\n\r\n"), 1),
        (format!("{post}x: a\0b\r\n\r\n"), 0),
        (post.replace("HTTP/1.1", "HTTP/1.0") + "transfer-encoding: chunked\r\n\r\n" + &chunk, 0),
        (post.replace("/kbs", "/\u{e9}/../kbs") + "\r\n", 0),
        (post.replace("/kbs/v0", "http://elsewhere/kbs/v0") + "\r\n", 1),
        ("\u{1}\u{2}garbage\r\n\r\n".to_owned(), 0),
    ] {
        upstream.clear();
        let answer = exchange(guard.address, &request);
        let seen = upstream.seen();
        assert!(
            seen.iter().all(|one| one.path == "/kbs/v0/resource-policy"),
            "{request:?} {seen:?}"
        );
        assert_eq!(seen.len(), wholes, "{request:?} {answer}");
        assert!(seen.iter().all(|one| one.body.is_empty() || one.body == hidden), "{seen:?}");
        assert_eq!(answer.starts_with("HTTP/1.1 200"), wholes == 1, "{request:?} {answer}");
    }
}

#[test]
fn old_and_careful_clients_are_served() {
    let dir = keys();
    let upstream = Upstream::start();
    let flags = ["--dangerous-plain-http", "--upstream", &upstream.address];
    let guard = Running::start(&dir, &flags);
    let length = AUTH.len();
    let old = format!("POST /kbs/v0/auth HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{AUTH}");
    assert!(exchange(guard.address, &old).starts_with("HTTP/1.0 200"));
    let trailers = format!(
        "POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntrailer: cookie\r\n\
         transfer-encoding: chunked\r\n\r\n{length:x}\r\n{AUTH}\r\n0\r\ncookie: kbs-session-id=1\r\n\r\n"
    );
    assert!(exchange(guard.address, &trailers).starts_with("HTTP/1.1 200"));
    for seen in upstream.seen() {
        assert_eq!(seen.body, AUTH);
        assert!(
            !seen.headers.iter().any(|(name, _)| matches!(name.as_str(), "cookie" | "trailer"))
        );
    }

    // The server asks for the body before it is sent.
    let mut stream = std::net::TcpStream::connect(guard.address).unwrap();
    let head = format!(
        "POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\n\
         content-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(AUTH.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!upstream.seen()[2].headers.iter().any(|(name, _)| name == "expect"));
}

#[test]
fn what_is_large_or_slow_ends_and_the_guard_goes_on() {
    let dir = keys();
    let upstream = Upstream::start();
    let flags = ["--dangerous-plain-http", "--upstream", &upstream.address];
    let guard = Running::start(&dir, &flags);
    let many = "x: y\r\n".repeat(500);
    let large = format!("x: {}\r\n", "y".repeat(1 << 20));
    for headers in [many, large] {
        let request = format!("GET /healthz HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        let answer = exchange(guard.address, &request);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
    let body = " ".repeat(70_000);
    let request = format!(
        "POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    assert!(exchange(guard.address, &request).starts_with("HTTP/1.1 413"));
    // Many heads and bodies at a time that never arrive: the guard gives up on them after ten seconds.
    let slow = ["POST /kbs", "POST /kbs/v0/auth HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"];
    let mut waiting = Vec::new();
    for part in slow.iter().cycle().take(100) {
        let mut stream = std::net::TcpStream::connect(guard.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream.write_all(part.as_bytes()).unwrap();
        waiting.push(stream);
    }
    let health = "GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(exchange(guard.address, health).starts_with("HTTP/1.1 200"));
    for mut stream in waiting {
        let mut answer = [0; 12];
        match stream.read(&mut answer) {
            Ok(0) => {}
            Ok(_) => assert!(answer.starts_with(b"HTTP/1.1 4"), "{answer:?}"),
            // The connection was closed with unread data.
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
    }
    assert!(upstream.seen().iter().all(|one| one.path == "/healthz"));
}
