//! Which image each part of a state comes from.

use std::fmt;

use serde::Serialize;

use super::group::{Group, GroupSet};
use super::source::{Family, Source};
use super::walk::Choice;

/// Parts of a state that come from the same images.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub struct Origin {
    /// The parts.
    pub groups: Vec<Group>,
    /// Images that have exactly these parts. Empty for a stored revocation level that comes from no
    /// image.
    pub images: Vec<String>,
}

/// The origins of a state: one for a whole image, several for a mix. A mix omits parts that are the same in
/// all images.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Provenance(Vec<Origin>);

impl Provenance {
    /// The origins, in boot order.
    pub fn origins(&self) -> &[Origin] {
        &self.0
    }

    /// The images that are in this state when installed unmodified; empty for a mix.
    pub fn whole_images(&self) -> &[String] {
        match self.0.as_slice() {
            [only] => &only.images,
            _ => &[],
        }
    }
}

/// `44.1` for a whole image, `bootloader of 44.2 + kernel of 44.1` for a mix.
impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.len() == 1;
        for (number, origin) in self.0.iter().enumerate() {
            if number > 0 {
                f.write_str(" + ")?;
            }
            let images = if origin.images.is_empty() {
                "no image".to_owned()
            } else {
                origin.images.join(" or ")
            };
            if whole {
                f.write_str(&images)?;
            } else {
                let groups: Vec<_> = origin.groups.iter().map(|g| g.as_str()).collect();
                write!(f, "{} of {images}", groups.join(" and "))?;
            }
        }
        Ok(())
    }
}

/// Names the images of a choice: those that have all of it, or else a small set of images that cover it,
/// found greedily.
pub(super) fn of(names: &[String], family: &Family, choice: &Choice) -> Provenance {
    let has = |g: Group| {
        let class = choice.get(g);
        class.is_some_and(|class| family.of_class(g, class).next().is_some())
    };
    let chosen = choice.groups();
    let matters = chosen.iter().filter(|g| family.alternatives(*g) > 1 || !has(*g));
    let mut left: GroupSet = matters.collect();
    if !left.iter().any(has) {
        // All images agree in what matters; name them by what they start.
        let started = [Group::Bootloader, Group::Shim, Group::Uki].into_iter();
        let named: GroupSet = started.filter(|g| chosen.contains(*g)).collect();
        left = left.and(if named.is_empty() { chosen } else { named });
    }
    let mut origins = Vec::new();
    while !left.is_empty() {
        let covers = |source: &Source| -> GroupSet {
            let has = |g: &Group| choice.get(*g) == Some(source.class(*g));
            left.iter().filter(has).collect()
        };
        let covered: Vec<GroupSet> = family.sources.iter().map(covers).collect();
        // The last of those that cover the most, so that equal input gives equal text.
        let best = covered.iter().copied().max_by_key(|set| set.count());
        let best = best.unwrap_or_default();
        if best.is_empty() {
            origins.push(Origin { groups: left.iter().collect(), images: Vec::new() });
            break;
        }
        let images = covered.iter().zip(&family.numbers);
        let images = images.filter(|(covered, _)| covered.shared(best) == best);
        origins.push(Origin {
            groups: best.iter().collect(),
            images: images
                .filter_map(|(_, number)| names.get(usize::from(*number)).cloned())
                .collect(),
        });
        left = left.without(best);
    }
    origins.sort_by(|a, b| a.groups.cmp(&b.groups));
    Provenance(origins)
}

/// Sorted, without duplicates; whole images first.
pub(super) fn tidied(mut found: Vec<Provenance>) -> Vec<Provenance> {
    found.sort_by(|a, b| (a.0.len(), a).cmp(&(b.0.len(), b)));
    found.dedup();
    found
}

/// The groups that both choices decide.
pub(super) fn common(choices: impl Iterator<Item = GroupSet>) -> GroupSet {
    choices.reduce(GroupSet::shared).unwrap_or_default()
}
