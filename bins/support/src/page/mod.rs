//! The page of machines, images and refusals: one HTML file without script or outside parts.
//!
//! It shows `tec status` and the report of the demo. Every text is escaped, since event logs come from
//! machines that may be hostile.

mod standing;

use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use self::standing::{Seen, refusal, standing};

/// The style sheet; a server allows it by its digest.
pub const STYLE: &str = include_str!("style.css");

/// A result, in color and in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "each has a color and a symbol")]
pub enum Mark {
    /// It got its key.
    Ok,
    /// It was refused.
    No,
    /// Nothing is known yet.
    #[default]
    Waiting,
}

impl Mark {
    fn class(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::No => "no",
            Self::Waiting => "wait",
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Self::Ok => "✓",
            Self::No => "✗",
            Self::Waiting => "…",
        }
    }
}

/// A machine and its last result.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "whoever has the data fills it in")]
pub struct Row {
    /// Name or id.
    pub machine: String,
    /// For example `active`.
    pub state: String,
    /// Time of the last result.
    pub at: String,
    /// The last result.
    pub mark: Mark,
    /// The result in words.
    pub result: String,
    /// Images that it booted, or that come closest.
    pub images: Vec<String>,
}

/// A component that is not as approved.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "whoever has the data fills it in")]
pub struct Change {
    /// Component and register.
    pub what: String,
    /// Its file.
    pub file: String,
    /// The approved digest.
    pub approved: String,
    /// The measured digest.
    pub measured: String,
}

/// One refused attempt.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "whoever has the data fills it in")]
pub struct Refusal {
    /// The machine, or the scene.
    pub who: String,
    /// Time.
    pub at: String,
    /// The code.
    pub code: String,
    /// Why.
    pub why: String,
    /// What differs.
    pub changes: Vec<Change>,
    /// The next command.
    pub next: String,
}

/// Something on the timeline, in thousandths of its length.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "whoever has the data fills it in")]
pub struct Span {
    /// Where it begins.
    pub from: u32,
    /// How long it is.
    pub length: u32,
    /// How it ended.
    pub mark: Mark,
    /// What it was.
    pub title: String,
}

/// A line of the timeline.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "whoever has the data fills it in")]
pub struct Track {
    /// Its label.
    pub name: String,
    /// What happened.
    pub spans: Vec<Span>,
}

/// The whole page.
#[derive(Clone, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "whoever has the data fills it in")]
pub struct Page {
    /// Title.
    pub title: String,
    /// The sentence below it.
    pub lead: String,
    /// Seconds after which a browser loads the page again.
    pub refresh: Option<u32>,
    /// What an admin should do.
    pub needs_you: Vec<String>,
    /// The trust flow: name, and what is there.
    pub flow: Vec<[String; 2]>,
    /// Columns of the matrix.
    pub images: Vec<String>,
    /// Rows of the matrix.
    pub machines: Vec<Row>,
    /// The refusals.
    pub refusals: Vec<Refusal>,
    /// The timeline.
    pub tracks: Vec<Track>,
    /// Labels of its axis, at equal distances.
    pub axis: Vec<String>,
    /// Further parts. Not escaped: only for what the caller escaped itself.
    pub dangerous_html: String,
}

impl Page {
    /// The HTML.
    pub fn render(&self) -> String {
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width,initial-scale=1";
                    @if let Some(seconds) = self.refresh { meta http-equiv="refresh" content=(seconds); }
                    title { (self.title) }
                    style { (PreEscaped(STYLE)) }
                }
                body {
                    h1 { (self.title) }
                    p.dim { (self.lead) }
                    (self.summary())
                    (self.flow())
                    (self.matrix())
                    (self.refused())
                    (self.timeline())
                    (PreEscaped(&self.dangerous_html))
                }
            }
        }
        .into_string()
    }

    fn summary(&self) -> Markup {
        let count = |mark| self.machines.iter().filter(|row| row.mark == mark).count();
        let [ok, no, waiting] = [Mark::Ok, Mark::No, Mark::Waiting].map(count);
        html! {
            @if !self.machines.is_empty() {
                ul.sum {
                    li.ok { "✓ " (ok) " fine" }
                    @if no > 0 { li.no { "✗ " (no) " refused" } }
                    @if waiting > 0 { li.wait { "… " (waiting) " without a result" } }
                }
            }
            @for line in &self.needs_you { p { b { "Needs you: " } (line) } }
        }
    }

    fn flow(&self) -> Markup {
        html! {
            @if !self.flow.is_empty() {
                ol.flow { @for [name, what] in &self.flow { li { b { (name) } br; (what) } } }
            }
        }
    }

    fn matrix(&self) -> Markup {
        let unlisted = |row: &Row| {
            row.mark != Mark::Waiting && !row.images.iter().any(|image| self.images.contains(image))
        };
        let has_unlisted = self.images.is_empty() || self.machines.iter().any(unlisted);
        html! {
            @if !self.machines.is_empty() {
                h2 { "Last result of each machine" }
                table.matrix {
                    thead { tr {
                        th { "Machine" }
                        @for image in &self.images { th { (image) } }
                        @if has_unlisted { th { "Image unknown" } }
                    } }
                    tbody { @for row in &self.machines { tr {
                        th { (row.machine) " " span.dim { (row.state) " " (row.at) } }
                        @if row.mark == Mark::Waiting {
                            td.wait colspan=(self.images.len() + usize::from(has_unlisted)) {
                                (row.mark.symbol()) " " (row.result)
                            }
                        } @else {
                            @for image in &self.images {
                                (cell(row, image, row.images.contains(image)))
                            }
                            @if has_unlisted { (cell(row, "Image unknown", unlisted(row))) }
                        }
                    } } }
                }
            }
        }
    }

    fn refused(&self) -> Markup {
        html! {
            @if !self.refusals.is_empty() { h2 { "What was refused, and what changed" } }
            @for refusal in &self.refusals {
                div.refusal {
                    h3 { span.no { "✗ " (refusal.code) } " " (refusal.who) }
                    p { (refusal.why) " " span.dim { (refusal.at) } }
                    @if !refusal.changes.is_empty() { table {
                        thead { tr { th { "Changed" } th { "Approved" } th { "Measured" } } }
                        tbody { @for change in &refusal.changes { tr {
                            td.no { "✗ " (change.what) br; code { (change.file) } }
                            td data-of="Approved" { code { (change.approved) } }
                            td.no data-of="Measured" { code { (change.measured) } }
                        } } }
                    } }
                    @if !refusal.next.is_empty() { p { "Next: " code { (refusal.next) } } }
                }
            }
        }
    }

    fn timeline(&self) -> Markup {
        html! {
            @if !self.tracks.is_empty() {
                h2 { "Timeline" }
                p.legend {
                    @for (mark, word) in [(Mark::Ok, "allowed"), (Mark::No, "refused")] {
                        span class=(mark.class()) { (mark.symbol()) " " (word) }
                    }
                }
                @for track in &self.tracks {
                    div.track {
                        div { (track.name) }
                        svg viewBox="0 0 1000 18" preserveAspectRatio="none" role="img" aria-label=(track.name) {
                            @for span in &track.spans {
                                rect class=(span.mark.class()) x=(span.from.min(992)) y="2" height="14"
                                    width=(span.length.max(8).min(1000 - span.from.min(992))) {
                                    title { (span.title) }
                                }
                            }
                        }
                    }
                }
                div.track { div.dim { "Time" } div.axis { @for label in &self.axis { span { (label) } } } }
            }
        }
    }
}

fn cell(row: &Row, image: &str, applies: bool) -> Markup {
    html! {
        @if applies {
            td class=(row.mark.class()) data-of=(image) { (row.mark.symbol()) " " (row.result) }
        } @else { td.none { "–" } }
    }
}
