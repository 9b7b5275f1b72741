//! The report: one self-contained HTML file.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;
use tec_core::attest::Attempt;
use tec_core::id::ImageName;
use tec_support::page::{Mark, Page, Seen, Span, Track, standing};

use crate::anchor::Anchor;
use crate::story::{Outcome, Scene, Step, Story};

/// Writes the report.
///
/// # Errors
/// The server's state cannot be read, or the file cannot be written.
pub fn write(path: &Path, story: &Story, anchor: &Anchor) -> anyhow::Result<()> {
    let images = anchor.tec(&["image", "list"])?;
    let released = ["audit", "list", "--action", "key-released", "--limit", "1000"];
    let mut html = releases(&anchor.tec(&released)?);
    html += &pcr_table(&images);
    for scene in &story.scenes {
        html += &scene_table(scene);
    }
    let mut page = found(anchor, &images)?;
    "The main job, end to end".clone_into(&mut page.title);
    page.lead = format!(
        "From power-on to an unlocked disk, and everything that must be refused on the way. {} scenes in \
         {:.1} s; the server was ready in {} ms and used {:.1} MiB.",
        story.scenes.len(),
        story.elapsed().as_secs_f64(),
        anchor.time_to_ready.as_millis(),
        mib(anchor.memory()?),
    );
    timeline(&mut page, story);
    page.dangerous_html = html;
    std::fs::write(path, page.render()).with_context(|| format!("cannot write {}", path.display()))
}

/// The machines at the end, as `tec status --html` shows them.
fn found(anchor: &Anchor, images: &Value) -> anyhow::Result<Page> {
    let machines = anchor.tec(&["machine", "list"])?;
    let machines = machines.as_array().into_iter().flatten().map(|one| {
        let name = one["name"].as_str().map(ToOwned::to_owned);
        Ok((serde_json::from_value(one.clone())?, name))
    });
    let machines: Vec<Seen> = machines.collect::<anyhow::Result<_>>()?;
    let live = images.as_array().into_iter().flatten().filter(|one| one["revoked_at"].is_null());
    let live: Vec<ImageName> =
        live.map(|one| serde_json::from_value(one["name"].clone())).collect::<Result<_, _>>()?;
    let attempts: Vec<Attempt> =
        serde_json::from_value(anchor.tec(&["audit", "attempts", "--limit", "1000"])?)?;
    Ok(standing(&machines, &live, &attempts))
}

/// A page with one picture.
pub(crate) fn page(title: &str, picture: &str) -> String {
    let (title, dangerous_html) = (title.to_owned(), picture.to_owned());
    Page { title, dangerous_html, ..Page::default() }.render()
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
fn timeline(page: &mut Page, story: &Story) {
    let total = story.elapsed().as_millis().max(1);
    let place = |at: Duration| u32::try_from(at.as_millis() * 1000 / total).unwrap_or(1000);
    let span = |step: &Step| Span {
        from: place(step.begin),
        length: place(step.took),
        mark: if step.outcome == Outcome::Worked { Mark::Ok } else { Mark::No },
        title: format!("{} ({} ms)", first_line(&step.what), step.took.as_millis()),
    };
    let track = |scene: &Scene| Track {
        name: format!("{} {}", scene.letter, scene.title),
        spans: scene.steps.iter().map(span).collect(),
    };
    page.tracks = story.scenes.iter().map(track).collect();
    let seconds = story.elapsed().as_secs_f64();
    page.axis = [0.0, 0.5, 1.0].map(|part| format!("{:.1} s", part * seconds)).into();
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
                    "<tr><td><td><td>{} <span class=\"dim\">{}</span><td><code>{}</code>",
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
    html + "</table>"
}
