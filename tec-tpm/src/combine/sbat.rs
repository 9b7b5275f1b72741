//! The order of revocation levels: which of two stored levels is newer.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;

use crate::event_log::variable_data;
use crate::guid::Guid;

/// Levels published by the authors of shim (shim, `SbatLevel_Variable.txt`).
const PUBLISHED: [&str; 9] = [
    "sbat,1,2021030218\n",
    "sbat,1,2022052400\ngrub,2\n",
    "sbat,1,2022111500\ngrub,3\n",
    "sbat,1,2022111500\nshim,2\ngrub,3\n",
    "sbat,1,2023012900\nshim,2\ngrub,3\ngrub.debian,4\n",
    "sbat,1,2024010900\nshim,4\ngrub,3\ngrub.debian,4\n",
    "sbat,1,2024040900\nshim,4\ngrub,4\ngrub.peimage,2\n",
    "sbat,1,2025021800\nshim,4\ngrub,5\n",
    "sbat,1,2025051000\nshim,4\ngrub,5\ngrub.proxmox,2\n",
];

/// A text is not an SbatLevel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} does not begin with sbat,1 and a date")]
#[non_exhaustive]
pub struct SbatLevelError {
    /// The given text, cut to 64 characters.
    pub text: String,
}

/// Revocation levels, identified by the digest of their measurement, with their dates.
///
/// The firmware keeps the newest level that any shim has contained, and from then on that level is measured,
/// even by older shims. An event contains only a digest, so the texts must be known to determine which level
/// is newer: those published by the authors of shim are built in, others are added as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SbatLevels {
    dates: BTreeMap<Sha256Digest, u64>,
    stored: Vec<Sha256Digest>,
}

impl Default for SbatLevels {
    fn default() -> Self {
        let known = PUBLISHED.iter().filter_map(|text| Some((digest(text), date(text)?)));
        Self { dates: known.collect(), stored: Vec::new() }
    }
}

impl SbatLevels {
    /// Adds a level that an image of the fleet may contain.
    ///
    /// # Errors
    /// [`SbatLevelError`] if the text does not begin with `sbat,1,` and a date.
    pub fn with_known(mut self, text: &str) -> Result<Self, SbatLevelError> {
        let date =
            date(text).ok_or_else(|| SbatLevelError { text: text.chars().take(64).collect() })?;
        self.dates.insert(digest(text), date);
        Ok(self)
    }

    /// Adds a level that machines of the fleet have already stored, whichever image it came from.
    ///
    /// # Errors
    /// [`SbatLevelError`] if the text does not begin with `sbat,1,` and a date.
    pub fn with_stored(mut self, text: &str) -> Result<Self, SbatLevelError> {
        self = self.with_known(text)?;
        self.stored.push(digest(text));
        Ok(self)
    }

    /// Levels by digest and date, for tests that measure something else.
    #[cfg(test)]
    pub(super) fn of_digests(levels: impl IntoIterator<Item = (Sha256Digest, u64)>) -> Self {
        Self { dates: levels.into_iter().collect(), stored: Vec::new() }
    }

    #[cfg(test)]
    pub(super) fn with_stored_digest(mut self, digest: Sha256Digest) -> Self {
        self.stored.push(digest);
        self
    }

    /// Levels that machines have already stored.
    pub(super) fn stored(&self) -> &[Sha256Digest] {
        &self.stored
    }

    /// Whether `level` replaces `own`; `None` if one of them is unknown.
    pub(super) fn replaces(&self, level: &Sha256Digest, own: &Sha256Digest) -> Option<bool> {
        Some(self.dates.get(level)? > self.dates.get(own)?)
    }
}

/// What a shim measures for a level.
fn digest(text: &str) -> Sha256Digest {
    Sha256Digest::of(variable_data(Guid::SHIM, "SbatLevel", text.as_bytes()))
}

fn date(text: &str) -> Option<u64> {
    let first = text.lines().next()?;
    let mut fields = first.split(',');
    let head = (fields.next()?, fields.next()?);
    let date = fields.next()?.parse().ok()?;
    (head == ("sbat", "1")).then_some(date)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first four bytes that real boots of Debian measured for the level of 2021 (Secure Boot
    /// off) and for that of shim 16.1.
    #[test]
    fn the_digest_is_what_firmware_measures() {
        let measured = |text| digest(text).to_string();
        assert!(measured("sbat,1,2021030218\n").starts_with("922e939a"));
        assert!(measured("sbat,1,2025021800\nshim,4\ngrub,5\n").starts_with("ef611239"));
    }

    #[test]
    fn a_later_date_replaces_an_earlier_one() {
        let levels = SbatLevels::default();
        let (old, new) = (digest(PUBLISHED[4]), digest(PUBLISHED[7]));
        assert_eq!(levels.replaces(&new, &old), Some(true));
        assert_eq!(levels.replaces(&old, &new), Some(false));
        assert_eq!(levels.replaces(&old, &old), Some(false));
    }

    #[test]
    fn a_level_that_nobody_published_is_unknown_until_it_is_added() {
        let text = "sbat,1,2099010100\nshim,9\n";
        let levels = SbatLevels::default();
        assert_eq!(levels.replaces(&digest(text), &digest(PUBLISHED[0])), None);
        let levels = levels.with_known(text).unwrap();
        assert_eq!(levels.replaces(&digest(text), &digest(PUBLISHED[0])), Some(true));
    }

    #[test]
    fn a_text_without_a_date_is_refused() {
        let refused = SbatLevels::default().with_known("grub,3\n");
        assert_eq!(refused.unwrap_err().text, "grub,3\n");
    }
}
