//! The page of machines, images and refusals: one HTML file without scripts or external resources.
//!
//! It shows `tec status` and the report of the demo. Every string is escaped, since event logs come from
//! machines that may be hostile.

mod standing;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use tec_core::boot::{Coverage, CoveredBy};
use tec_core::machine::MachineState;
use tec_core::time::Timestamp;

pub use self::standing::{Seen, refusal, standing};
use crate::age::age;

/// The style sheet; a server allows it by its digest.
pub const STYLE: &str = include_str!("style.css");

/// How many machines are shown; refused ones come first.
const MACHINES: usize = 200;
/// How many refusals are shown.
const REFUSALS: usize = 20;
/// How many images are shown with what they cover.
const COVERAGES: usize = 20;

/// A result, in color and in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// The machine was refused.
    No,
    /// An admin quarantined, revoked or retired the machine: whatever it booted, it gets no key.
    Out,
    /// Nothing is known yet.
    #[default]
    Waiting,
    /// The machine got its key.
    Ok,
}

impl Mark {
    fn class(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::No => "no",
            Self::Out => "out",
            Self::Waiting => "wait",
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Self::Ok => "✓",
            Self::No => "✗",
            Self::Out => "⊘",
            Self::Waiting => "…",
        }
    }
}

/// A machine and its last result.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Name or ID.
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

impl Row {
    /// The row of a machine in this state: one that gets no key is never fine.
    pub fn of(mut self, state: MachineState) -> Self {
        self.state = format!("{state:?}").to_lowercase();
        if !matches!(state, MachineState::Unclaimed | MachineState::Active) {
            self.mark = Mark::Out;
            self.result = format!("{}, gets no key; last result: {}", self.state, self.result);
        }
        self
    }

    fn is_untried(&self) -> bool {
        self.mark == Mark::Waiting || self.at.is_empty()
    }
}

/// A component that is not as approved.
#[derive(Clone, Debug, Default)]
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

/// A bar on the timeline; positions are in thousandths of the timeline's length.
#[derive(Clone, Debug)]
pub struct Span {
    /// Where it begins.
    pub from: u32,
    /// How long it is.
    pub length: u32,
    /// How the event ended.
    pub mark: Mark,
    /// Description of the event.
    pub title: String,
}

/// A line of the timeline.
#[derive(Clone, Debug)]
pub struct Track {
    /// Its label.
    pub name: String,
    /// What happened.
    pub spans: Vec<Span>,
}

/// The whole page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Title.
    pub title: String,
    /// The sentence below it.
    pub lead: String,
    /// Time of the page; ages of results are shown if it is set.
    pub as_of: Option<Timestamp>,
    /// Seconds after which a browser loads the page again.
    pub refresh: Option<u32>,
    /// What an admin accepted and should not forget.
    pub warnings: Vec<String>,
    /// What an admin should do.
    pub needs_you: Vec<String>,
    /// The trust flow: name and lines of each station.
    pub flow: Vec<[String; 2]>,
    /// Columns of the matrix.
    pub images: Vec<String>,
    /// Rows of the matrix.
    pub machines: Vec<Row>,
    /// What each approved image covers.
    pub coverage: Vec<(String, Coverage)>,
    /// The refusals.
    pub refusals: Vec<Refusal>,
    /// The timeline.
    pub tracks: Vec<Track>,
    /// Labels of its axis, at equal distances.
    pub axis: Vec<String>,
    /// Further parts. Not escaped: the caller must escape their content.
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
                    (self.coverage())
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
        let [ok, no, out, waiting] = [Mark::Ok, Mark::No, Mark::Out, Mark::Waiting].map(count);
        html! {
            @if !self.machines.is_empty() {
                ul.sum {
                    li.ok { "✓ " (ok) " fine" }
                    @if no > 0 { li.no { "✗ " (no) " refused" } }
                    @if out > 0 { li.out { "⊘ " (out) " shut out" } }
                    @if waiting > 0 { li.wait { "… " (waiting) " without a result" } }
                }
            }
            @for line in &self.warnings { p.no { b { (line) } } }
            @for line in &self.needs_you { p { b { "Needs you: " } (line) } }
        }
    }

    fn flow(&self) -> Markup {
        html! {
            @if !self.flow.is_empty() {
                ol.flow { @for [name, what] in &self.flow { li {
                    b { (name) }
                    @for line in what.lines() { br; (line) }
                } } }
            }
        }
    }

    fn matrix(&self) -> Markup {
        let mut rows: Vec<&Row> = self.machines.iter().collect();
        rows.sort_by_key(|row| row.mark);
        let more = rows.len().saturating_sub(MACHINES);
        rows.truncate(MACHINES);
        // An image that a boot was explained by was approved then.
        let ended = |row: &Row| row.images.iter().any(|image| !self.images.contains(image));
        let unknown = |row: &Row| !row.is_untried() && row.images.is_empty();
        let has_ended = rows.iter().any(|row| ended(row));
        let has_unknown = rows.iter().any(|row| unknown(row));
        let width = self.images.len() + usize::from(has_ended) + usize::from(has_unknown);
        let has_none = width == 0;
        html! {
            @if !self.machines.is_empty() {
                h2 { "Last result of each machine" }
                table.matrix {
                    thead { tr {
                        th { "Machine" }
                        @for image in &self.images { th { (image) } }
                        @if has_ended { th { "No longer approved" } }
                        @if has_unknown { th { "Image unknown" } }
                        @if has_none { th { "Result" } }
                    } }
                    tbody { @for row in rows { tr {
                        th { (row.machine) " " span.dim { (row.state) " " (self.last_seen(row)) } }
                        @if row.is_untried() {
                            td class=(row.mark.class()) colspan=(width.max(1)) {
                                (row.mark.symbol()) " " (row.result)
                            }
                        } @else {
                            @for image in &self.images {
                                (cell(row, image, row.images.contains(image)))
                            }
                            @if has_ended { (cell(row, "No longer approved", ended(row))) }
                            @if has_unknown { (cell(row, "Image unknown", unknown(row))) }
                        }
                    } } }
                }
                @if more > 0 { p.dim { (more) " more machines are not shown" } }
            }
        }
    }

    fn coverage(&self) -> Markup {
        html! {
            @if !self.coverage.is_empty() { h2 { "What each image covers" } }
            @for (image, coverage) in self.coverage.iter().take(COVERAGES) {
                table {
                    thead { tr { th { (image) } th { "Register" } th { "Covered by" } } }
                    tbody { @for row in coverage.rows() { tr {
                        th { (row.part.to_string()) }
                        td { (row.registers()) }
                        td class=[(row.by == CoveredBy::Nothing).then_some("no")] { (row.sentence()) }
                    } } }
                }
            }
            @if self.coverage.len() > COVERAGES {
                p.dim { (self.coverage.len() - COVERAGES) " more images: tec image show" }
            }
        }
    }

    fn last_seen(&self, row: &Row) -> String {
        let at = row.at.parse().ok();
        let age = self.as_of.zip(at).map(|(now, at)| age(now, at));
        age.map_or_else(|| row.at.clone(), |age| format!("last seen {age} ago, {}", row.at))
    }

    fn refused(&self) -> Markup {
        html! {
            @if !self.refusals.is_empty() { h2 { "What was refused, and what changed" } }
            @for refusal in self.refusals.iter().take(REFUSALS) {
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
                        svg width="100%" height="28" role="img" aria-label=(track.name) {
                            @for span in &track.spans { (bar(span)) }
                        }
                    }
                }
                div.track { div.dim { "Time" } div.axis { @for label in &self.axis { span { (label) } } } }
            }
        }
    }
}

/// A bar below its symbol, because many readers cannot rely on color.
fn bar(span: &Span) -> Markup {
    let percent = |thousandths: u32| format!("{}.{}%", thousandths / 10, thousandths % 10);
    let from = span.from.min(992);
    let class = span.mark.class();
    html! {
        g {
            title { (span.title) }
            // A symbol at the very end would be cut.
            text class=(class) x=(percent(from.min(955))) y="12" { (span.mark.symbol()) }
            rect class=(class) x=(percent(from)) y="16" height="10"
                width=(percent(span.length.max(8).min(1000 - from))) {}
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
