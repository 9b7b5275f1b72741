//! What shim derives from its own sections and from the variables that it keeps.

use super::pe::PeFile;
use super::platform::{PlatformState, SecureBoot};
use super::running_shim::RunningShim;
use super::sbat::{Sbat, SbatLevel};
use super::shim_error::ShimError;
use super::shim_variable::{
    LEVELS_15_6, kept_or_mirrored, or_placeholder, sbat_level, trusts_list, user_list,
};
use super::vendor::VendorLists;
use crate::guid::Guid;

/// A generation of shim whose measurements are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ShimProfile {
    /// shim 15.6.
    V15_6,
    /// shim 15.7.
    V15_7,
    /// shim 15.8.
    V15_8,
    /// shim 16.1.
    V16_1,
}

/// One shim on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shim {
    vendor_db: Vec<u8>,
    vendor_revoked: Vec<u8>,
    mok_list: Vec<u8>,
    user_revoked: Vec<u8>,
    sbat_level: Vec<u8>,
    sb_state: Option<Vec<u8>>,
    db_state: Option<Vec<u8>>,
    trusted: bool,
    policy: Option<Vec<u8>>,
    secure_boot: SecureBoot,
}

/// Variables that make shim start MokManager (shim, mok.c, `check_mok_request`).
const REQUESTS: [&str; 10] = [
    "MokNew",
    "MokSB",
    "MokPW",
    "MokAuth",
    "MokDel",
    "MokDB",
    "MokXNew",
    "MokXDel",
    "MokXAuth",
    "MokListTrustedNew",
];
/// shim, pe.c: the bit of `MokPolicy` that asks for NX.
const NX_REQUIRED: u8 = 1;
impl ShimProfile {
    /// Selects the profile by the section `.data.ident`.
    pub fn from_ident(section: Option<&[u8]>) -> Result<Self, ShimError> {
        let text = section.and_then(|section| {
            let text = section.split(|byte| *byte == 0).next()?;
            std::str::from_utf8(text).ok()
        });
        let line = text.and_then(|text| text.lines().find_map(|l| l.strip_prefix("$Version: ")));
        let version = line.ok_or(ShimError::NoVersion)?;
        match version.trim_end_matches('$').trim() {
            "15.6" => Ok(Self::V15_6),
            "15.7" => Ok(Self::V15_7),
            "15.8" => Ok(Self::V15_8),
            "16.1" => Ok(Self::V16_1),
            other => Err(ShimError::UnknownVersion(other.chars().take(32).collect())),
        }
    }

    /// Whether `MokListTrusted` is measured into PCR 7 as well (shim, mok.c, `mok_state_variable_data`).
    pub(super) fn has_trust_in_pcr_7(self) -> bool {
        self == Self::V15_6
    }

    /// Whether the first level is restored whenever Secure Boot is off.
    fn resets_level(self) -> bool {
        !matches!(self, Self::V15_6 | Self::V15_7)
    }
}

impl Shim {
    pub(super) fn new(
        file: &PeFile,
        platform: &PlatformState,
        secure_boot: SecureBoot,
        profile: ShimProfile,
    ) -> Result<Self, ShimError> {
        let VendorLists { db: vendor_db, allowed, revoked } = VendorLists::of(file)?;
        // The mirrors begin with the lists of the shim that wrote them.
        let writer = platform.running_shim().map(RunningShim::lists);
        let before = writer.map_or(&allowed, |writer| &writer.allowed);
        let user = user_list(platform, "MokList", "MokListRT", before)?;
        let mok_list = [allowed.as_slice(), &user].concat();
        let before = writer.map_or(&revoked, |writer| &writer.revoked);
        let user_revoked = user_list(platform, "MokListX", "MokListXRT", before)?;
        let requested = |name: &&&str| platform.get(name, Guid::SHIM).is_some();
        if let Some(variable) = REQUESTS.iter().find(requested) {
            return Err(ShimError::PendingRequest { variable });
        }
        let levels = match profile {
            ShimProfile::V15_6 => Some(LEVELS_15_6),
            _ => file.section(".sbatlevel"),
        };
        let shim = Self {
            vendor_db,
            vendor_revoked: revoked,
            mok_list,
            user_revoked,
            sbat_level: sbat_level(levels, profile.resets_level(), platform, secure_boot)?,
            sb_state: kept_or_mirrored(platform, "MokSBState", "MokSBStateRT"),
            db_state: kept_or_mirrored(platform, "MokDBState", "MokIgnoreDB"),
            trusted: trusts_list(platform),
            policy: kept_or_mirrored(platform, "MokPolicy", "MokPolicyRT"),
            secure_boot,
        };
        shim.check(file)?;
        Ok(shim)
    }

    /// Checks that shim continues: its own level, and what it requires of images.
    fn check(&self, file: &PeFile) -> Result<(), ShimError> {
        if let Some([policy]) = self.policy.as_deref()
            && policy & NX_REQUIRED != 0
        {
            return Err(ShimError::NxPolicy);
        }
        let Some(sbat) = file.section(".sbat") else {
            return Ok(());
        };
        if self.secure_boot == SecureBoot::Off {
            return Ok(());
        }
        let sbat = Sbat::parse(sbat).map_err(ShimError::Sbat)?;
        self.level().check(&sbat).map_err(ShimError::Revoked)
    }

    /// What the level in force revokes.
    pub(super) fn level(&self) -> SbatLevel<'_> {
        SbatLevel::new(&self.sbat_level)
    }

    /// The vendor's database of signature lists; empty if the vendor has a single certificate.
    pub(super) fn vendor_db(&self) -> &[u8] {
        &self.vendor_db
    }

    /// The vendor's revocations.
    pub(super) fn vendor_revoked(&self) -> &[u8] {
        &self.vendor_revoked
    }

    /// The user's revocations.
    pub(super) fn user_revoked(&self) -> &[u8] {
        &self.user_revoked
    }

    /// The vendor's and the user's keys, as shim mirrors them.
    pub(super) fn mok_list(&self) -> &[u8] {
        &self.mok_list
    }

    /// Whether the user has configured shim not to use the firmware's keys.
    pub(super) fn ignores_db(&self) -> bool {
        is_set(self.db_state.as_deref())
    }

    /// Whether shim verifies what it starts.
    pub(super) fn verifies(&self) -> bool {
        self.secure_boot == SecureBoot::On && !is_set(self.sb_state.as_deref())
    }

    /// The switch that turns verification off, if the user has set it either way.
    pub(super) fn sb_state(&self) -> Option<&[u8]> {
        self.sb_state.as_deref()
    }

    /// The revocation level that is in force.
    pub(super) fn sbat_level(&self) -> &[u8] {
        &self.sbat_level
    }

    /// What is measured as `MokList`; an empty list is one entry of zeros.
    pub(super) fn measured_list(&self) -> Vec<u8> {
        or_placeholder(self.mok_list.clone())
    }

    /// What is measured as `MokListX`.
    pub(super) fn measured_revocations(&self) -> Vec<u8> {
        or_placeholder([self.vendor_revoked.as_slice(), &self.user_revoked].concat())
    }

    /// What is measured as `MokListTrusted`: one byte, unless the user has set the variable.
    pub(super) fn measured_trust(&self) -> Option<&[u8]> {
        self.trusted.then_some(&[1])
    }

    /// What is measured as `MokPolicy`.
    pub(super) fn measured_policy(&self) -> Option<&[u8]> {
        self.policy.as_deref()
    }
}

/// A switch of one byte.
fn is_set(state: Option<&[u8]>) -> bool {
    matches!(state, Some([state]) if *state != 0)
}
