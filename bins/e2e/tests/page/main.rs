//! The page of `tec status --html` and `tec serve --ui-addr`, as a browser shows it.
#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's own tools may fail the test"
)]

mod live;

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tec_support::page::{Change, Mark, Page, Refusal, Row, Span, Track};

/// A text that a hostile machine might log.
const HOSTILE: &str =
    "<script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)>\"'&";

fn row(machine: &str, mark: Mark, result: &str, images: &[&str]) -> Row {
    Row {
        machine: machine.to_owned(),
        state: "active".to_owned(),
        at: "2026-11-26T01:02:03Z".to_owned(),
        mark,
        result: result.to_owned(),
        images: images.iter().map(|&image| image.to_owned()).collect(),
    }
}

fn sample() -> Page {
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let span = |from, mark| Span { from, length: 40, mark, title: HOSTILE.to_owned() };
    Page {
        title: "Trusted machines".to_owned(),
        lead: "As of 2026-11-26T01:02:03Z, from the last 5 boot attempts.".to_owned(),
        needs_you: vec!["boots were refused: tec explain <attempt>".to_owned()],
        flow: [("Trust anchor", "checks every boot"), ("Images", "2 approved")]
            .iter()
            .chain(&[("Machines", "3 registered"), ("Keys", "4 released")])
            .map(|&(name, what)| [name.to_owned(), what.to_owned()])
            .collect(),
        images: vec!["debian-12.8-6.1.0-28".to_owned(), "debian-12.9-6.1.0-31".to_owned()],
        machines: vec![
            row("worker-7", Mark::No, "refused TEC-A412", &["debian-12.9-6.1.0-31"]),
            row("worker-8", Mark::No, "refused TEC-A407", &[]),
            row(id, Mark::Waiting, "no attempt yet", &[]),
            row("worker-3", Mark::Out, "revoked, gets no key; last result: key released", &["old"]),
            row("worker-1", Mark::Ok, "key released", &["debian-12.9-6.1.0-31"]),
            row("worker-2", Mark::Ok, "key released", &["debian-12.8-6.1.0-28"]),
        ],
        refusals: vec![Refusal {
            who: "worker-7".to_owned(),
            at: "2026-11-26T01:02:03Z".to_owned(),
            code: "TEC-A412".to_owned(),
            why: HOSTILE.to_owned(),
            changes: vec![Change {
                what: "kernel, PCR 4".to_owned(),
                file: "boot/vmlinuz-6.1.0-31-amd64".to_owned(),
                approved: "a1".repeat(32),
                measured: "b2".repeat(32),
            }],
            next: format!("tec explain {id}"),
        }],
        tracks: vec![
            Track { name: id.to_owned(), spans: vec![span(0, Mark::No), span(980, Mark::Ok)] },
            Track { name: HOSTILE.to_owned(), spans: vec![span(500, Mark::Ok)] },
        ],
        axis: ["01:00", "01:01", "01:02"].map(|at| format!("2026-11-26T{at}:03Z")).into(),
        ..Page::default()
    }
}

fn chromium(dark: bool) -> Command {
    let mut command = Command::new("chromium");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]);
    command.arg("--disable-dev-shm-usage");
    command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)));
    command
}

/// The problems of a page, as measured by a browser at both widths.
fn measure(html: &str, dark: bool, directory: &Path) -> Vec<String> {
    // A script must not end inside of the text that it holds.
    let text = serde_json::to_string(html).unwrap().replace('<', "\\u003c");
    let file = directory.join("measure.html");
    fs::write(&file, include_str!("measure.html").replace("PAGE", &text)).unwrap();
    let output = chromium(dark)
        .arg(format!("--user-data-dir={}", directory.join("profile").display()))
        .args(["--window-size=1800,1000", "--virtual-time-budget=5000", "--dump-dom"])
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("no chromium: apt-get install chromium, or cargo xtask test");
    let dom = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    let from = dom.rfind("MEASURED ").unwrap_or_else(|| panic!("nothing measured: {stderr}"));
    let found = dom[from..].strip_prefix("MEASURED ").unwrap().split(" END").next().unwrap();
    let found = found.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["dark"], dark);
    let found = found["found"].as_array().unwrap();
    found.iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

#[test]
fn nothing_is_cut_hidden_or_loaded_at_either_width_light_or_dark() {
    let directory = tempfile::tempdir().unwrap();
    let html = sample().render();
    // For those who would rather look.
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join("page.html"), &html).unwrap();
    for dark in [false, true] {
        assert_eq!(measure(&html, dark, directory.path()), Vec::<String>::new(), "dark: {dark}");
    }
}

#[test]
fn the_measuring_finds_what_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let mut page = sample();
    page.dangerous_html = "<p style='color:#888;background:#999'>pale</p>\
                           <p style='width:1400px;background:#000;color:#fff'>wide</p>\
                           <p style='width:40px;overflow:hidden;white-space:nowrap'>too long for it</p>\
                           <img src='http://127.0.0.1:9/x' alt='outside'>\
                           <script>1</script>"
        .to_owned();
    let found = measure(&page.render(), false, directory.path()).join("\n");
    for wrong in [
        "contrast",
        "1300: overflow",
        "400: overflow",
        "cut in its box: too long",
        "script",
        "outside",
    ] {
        assert!(found.contains(wrong), "{wrong} in {found}");
    }
}
