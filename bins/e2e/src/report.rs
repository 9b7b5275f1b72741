//! The report: one self-contained HTML file.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::anchor::Anchor;
use crate::story::{Outcome, Scene, Story};

const STYLE: &str = "
:root { color-scheme: light dark; --ok: #2a7d4f; --no: #b3541e; --line: #8885; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
code, pre { font: 12.5px/1.45 ui-monospace, monospace; } td code { word-break: break-all }
pre { background: #8881; padding: .8rem; overflow-x: auto; white-space: pre-wrap }
.ok { color: var(--ok); font-weight: 600 } .no { color: var(--no); font-weight: 600 }
.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif }
.small { opacity: .75 }";

/// Writes the report.
///
/// # Errors
/// The server's state cannot be read, or the file cannot be written.
pub fn write(path: &Path, story: &Story, anchor: &Anchor) -> anyhow::Result<()> {
    let images = anchor.tec(&["image", "list"])?;
    let mut html = String::from("<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">");
    let _ = write!(
        html,
        "<meta name=\"viewport\" content=\"width=device-width\"><title>TEC: the main job</title>\
         <style>{STYLE}</style><h1>The main job, end to end</h1>\
         <p class=\"small\">From power-on to an unlocked disk, and everything that must be refused on \
         the way. {} scenes in {:.1} s; the server was ready in {} ms and used {:.1} MiB.</p>",
        story.scenes.len(),
        story.elapsed().as_secs_f64(),
        anchor.time_to_ready.as_millis(),
        mib(anchor.memory()?),
    );
    html += &timeline(story);
    html += &refusals(story);
    html += &releases(&anchor.tec(&[
        "audit",
        "list",
        "--action",
        "key-released",
        "--limit",
        "1000",
    ])?);
    html += &pcr_table(&images);
    for scene in &story.scenes {
        html += &scene_table(scene);
    }
    html += "</html>\n";
    std::fs::write(path, html).with_context(|| format!("write {}", path.display()))
}

/// A page with one picture.
pub(crate) fn page(title: &str, picture: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title>\
         <style>{STYLE}</style><h1>{title}</h1>{picture}</html>\n"
    )
}

#[expect(clippy::cast_precision_loss, reason = "one decimal of mebibytes is shown")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

/// Steps as bars over time, one row per scene.
fn timeline(story: &Story) -> String {
    let total = story.elapsed().as_secs_f64().max(0.001);
    let x = |at: Duration| 290.0 + at.as_secs_f64() / total * 690.0;
    let height = 26 * story.scenes.len() + 30;
    let mut svg = format!(
        "<h2>Timeline</h2><svg viewBox=\"0 0 1000 {height}\" role=\"img\" \
         aria-label=\"Steps of each scene over time\">"
    );
    for (row, scene) in story.scenes.iter().enumerate() {
        let y = 26 * row + 6;
        let title: String = scene.title.chars().take(48).collect();
        let _ = write!(
            svg,
            "<text x=\"0\" y=\"{}\" fill=\"currentColor\">{} {}</text>",
            y + 13,
            scene.letter,
            escape(&title)
        );
        for step in &scene.steps {
            let (from, to) = (x(step.begin), x(step.begin + step.took));
            let color = if step.outcome == Outcome::Worked { "--ok" } else { "--no" };
            let _ = write!(
                svg,
                "<rect x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"18\" rx=\"2\" \
                 fill=\"var({color})\"><title>{} ({} ms)</title></rect>",
                (to - from).max(2.0),
                escape(first_line(&step.what)),
                step.took.as_millis()
            );
        }
    }
    let _ = write!(
        svg,
        "<text x=\"980\" y=\"{}\" text-anchor=\"end\" fill=\"currentColor\">{total:.1} s</text></svg>",
        height - 6
    );
    svg
}

fn refusals(story: &Story) -> String {
    let mut html = String::from(
        "<h2>What was refused, and why</h2><table><tr><th>Scene<th>Attempt<th>Code<th>Why",
    );
    for scene in &story.scenes {
        for step in &scene.steps {
            let Outcome::Refused(code) = &step.outcome else {
                continue;
            };
            let why = code.parse::<tec_core::code::Code>().map_or("", |code| code.title());
            let _ = write!(
                html,
                "<tr><td>{}<td>{}<td><code class=\"no\">{code}</code><td>{}",
                scene.letter,
                escape(&step.what),
                escape(why)
            );
        }
    }
    html + "</table>"
}

/// The audit log entries of released keys: to which machine, and what it had booted.
fn releases(entries: &Value) -> String {
    let mut html = String::from(
        "<h2>Keys that were released, and to which boots</h2><table><tr><th>At<th>Machine<th>What",
    );
    for entry in entries.as_array().into_iter().flatten().rev() {
        let event = &entry["event"];
        let text = |key: &str| escape(event[key].as_str().unwrap_or(""));
        let _ = write!(
            html,
            "<tr><td>{}<td><code>{}</code><td>{}",
            text("at"),
            text("machine"),
            text("subject")
        );
    }
    html + "</table>"
}

fn pcr_table(images: &Value) -> String {
    let mut html = String::from(
        "<h2>PCR values of the approved images</h2><table><tr><th>Image<th>PCR<th>Measured<th>Digest",
    );
    for image in images.as_array().into_iter().flatten() {
        let name = image["name"].as_str().unwrap_or("");
        let ended = if image["revoked_at"].is_null() { "" } else { " (revoked)" };
        for pcr in image["pcrs"].as_array().into_iter().flatten() {
            let value = pcr["value"].as_str().unwrap_or("");
            let _ = write!(
                html,
                "<tr><td><b>{}</b>{ended}<td>{}<td><b>value</b><td><code>{}</code>",
                escape(name),
                pcr["id"],
                escape(value)
            );
            for event in pcr["events"].as_array().into_iter().flatten() {
                let text = |key: &str| escape(event[key].as_str().unwrap_or(""));
                let _ = write!(
                    html,
                    "<tr><td><td><td>{} <span class=\"small\">{}</span><td><code>{}</code>",
                    text("id"),
                    text("source"),
                    text("hash")
                );
            }
        }
    }
    html + "</table>"
}

fn scene_table(scene: &Scene) -> String {
    let mut html = format!("<h2>Scene {}: {}</h2><table>", scene.letter, escape(&scene.title));
    for step in &scene.steps {
        let (class, mark) = match &step.outcome {
            Outcome::Worked => ("ok", "ok".to_owned()),
            Outcome::Refused(code) => ("no", format!("refused {code}")),
        };
        let mut what = escape(first_line(&step.what));
        let rest: Vec<_> = step.what.lines().skip(1).chain(step.more.lines()).collect();
        if !rest.is_empty() {
            let _ = write!(what, "<pre>{}</pre>", escape(&rest.join("\n")));
        }
        let _ = write!(
            html,
            "<tr><td class=\"{class}\">{mark}<td>{what}<td class=\"num\">{} ms",
            step.took.as_millis()
        );
    }
    html += "</table>";
    html + scene.picture.as_deref().unwrap_or_default()
}
