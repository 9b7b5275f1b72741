//! Which part of a state comes from which image.

use std::fmt;

use serde::Serialize;

use super::group::Group;
use super::group::GroupSet;
use super::source::Family;
use super::walk::Choice;

/// Parts of a state that the same images have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[non_exhaustive]
pub struct Origin {
    /// The parts.
    pub groups: Vec<Group>,
    /// Images that have exactly these parts. Empty for a stored revocation level of no image.
    pub images: Vec<String>,
}

/// What a state is made of: one origin when it is that of a whole image, more for a mix. Parts that
/// are the same in all images are left out of a mix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Provenance(Vec<Origin>);

impl Provenance {
    /// The origins, in the order of the boot.
    pub fn origins(&self) -> &[Origin] {
        &self.0
    }

    /// The images that are in this state when they are installed as they come; empty for a mix.
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

/// Names the images of a choice: those that have all of it, or else the fewest images that cover
/// it, found greedily.
pub(super) fn of(names: &[String], family: &Family, choice: &Choice) -> Provenance {
    let has = |g: Group| {
        let class = choice.get(g);
        class.is_some_and(|class| family.of_class(g, class).next().is_some())
    };
    let chosen = choice.groups();
    let mut left: Vec<Group> = chosen
        .iter()
        .filter(|g| family.alternatives(*g) > 1 || !has(*g))
        .collect();
    if !left.iter().any(|g| has(*g)) {
        // All images are alike in what matters; name them by what they start.
        let started = [Group::Bootloader, Group::Shim, Group::Uki].into_iter();
        let named: Vec<_> = started.filter(|g| chosen.contains(*g)).collect();
        left.extend(if named.is_empty() {
            chosen.iter().collect()
        } else {
            named
        });
    }
    let mut origins = Vec::new();
    while !left.is_empty() {
        let covers = |index: &usize| {
            let source = family.sources.get(*index);
            let has = |g: &&Group| source.is_some_and(|s| choice.get(**g) == Some(s.class(**g)));
            left.iter().filter(has).copied().collect::<Vec<_>>()
        };
        let all = 0..family.sources.len();
        // The first of those that cover most, so that equal input gives equal text.
        let best = all
            .clone()
            .map(|i| covers(&i))
            .max_by_key(Vec::len)
            .unwrap_or_default();
        if best.is_empty() {
            origins.push(Origin {
                groups: std::mem::take(&mut left),
                images: Vec::new(),
            });
            break;
        }
        let same = all.filter(|i| {
            let covered = covers(i);
            best.iter().all(|g| covered.contains(g))
        });
        let images = same
            .filter_map(|i| names.get(usize::from(*family.numbers.get(i)?)).cloned())
            .collect();
        left.retain(|group| !best.contains(group));
        origins.push(Origin {
            groups: best,
            images,
        });
    }
    origins.sort_by(|a, b| a.groups.cmp(&b.groups));
    Provenance(origins)
}

/// Sorted, each once; whole images first.
pub(super) fn tidied(mut found: Vec<Provenance>) -> Vec<Provenance> {
    found.sort_by(|a, b| (a.0.len(), a).cmp(&(b.0.len(), b)));
    found.dedup();
    found
}

/// The groups that both choices decide.
pub(super) fn common(choices: impl Iterator<Item = GroupSet>) -> GroupSet {
    choices.reduce(GroupSet::shared).unwrap_or_default()
}
