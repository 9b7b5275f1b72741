//! The page of a real server, as a file and live.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use tec_e2e::anchor::Anchor;
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;
use tec_support::testing::free_port;

/// One request, as a browser sends it to a server that it knows as `host`.
fn ask(address: &str, method: &str, path: &str, host: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

#[test]
fn the_page_is_written_and_served_on_loopback_only() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings::for_tests(&directory.path().join("unused.html")).unwrap();
    let logs = Arc::new(Transcript::new(directory.path().join("logs")).unwrap());
    let address = format!("127.0.0.1:{}", free_port().unwrap());
    let flags = ["--ui-addr", address.as_str()];
    let state = directory.path().join("state");
    let anchor = Anchor::start(&settings, &state, &logs, &flags).unwrap();
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    anchor.tec(&["machine", "add", "--id", id]).unwrap();

    let page = ask(&address, "GET", "/", &address);
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    assert!(page.contains(id) && page.contains("no attempt yet"), "{page}");
    assert!(page.contains("Needs you") && page.contains("no image is approved"), "{page}");
    assert!(page.contains("active at epoch 0") && page.contains("running"), "{page}");
    assert!(page.contains("content-security-policy: default-src 'none'; style-src 'sha256-"));
    for (method, path, host, status) in [
        ("GET", "/", "evil.example", "421"),
        ("POST", "/", address.as_str(), "405"),
        ("DELETE", "/", &address, "405"),
        ("GET", "/healthz", &address, "404"),
    ] {
        let reply = ask(&address, method, path, host);
        assert!(
            reply.starts_with(&format!("HTTP/1.1 {status}")),
            "{method} {path} {host}: {reply}"
        );
        assert!(!reply.contains(id), "{reply}");
    }

    let file = directory.path().join("status.html");
    let mut status = Command::new(settings.tec());
    status.arg("--state-dir").arg(&state).arg("status").arg("--html").arg(&file);
    // No image is approved yet.
    assert_eq!(status.status().unwrap().code(), Some(3));
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.contains(id) && written.contains("no image is approved"), "{written}");
    drop(anchor);

    let mut open = Command::new(settings.tec());
    open.arg("--state-dir").arg(&state).args(["serve", "--ui-addr", "0.0.0.0:0"]);
    let refused = open.output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not a loopback address"));
}
