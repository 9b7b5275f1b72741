//! Who may approve: a record in each anchor, and the only ways in which that record changes.

mod change;
mod refused;

use serde::{Deserialize, Serialize};

pub use self::refused::Refused;
use super::{AnchorId, Deed, Epoch, Intake, NoAuthority, Role};

/// An anchor's record of authority.
///
/// It only changes by [`Transition`]s, which [`TrustAnchor::swap`](super::TrustAnchor::swap)
/// carries out if the record is still the one that the transition starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authority {
    anchor: AnchorId,
    domain: AnchorId,
    epoch: Epoch,
    role: Role,
    peer: Option<AnchorId>,
    held: Option<Epoch>,
    intake: Option<Intake>,
    passes: u64,
    transfers: u64,
    heard: Option<(Epoch, u64)>,
}

/// Proof that an anchor gave up the authority; created only from its own record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    domain: AnchorId,
    from: AnchorId,
    to: AnchorId,
    epoch: Epoch,
    held: Option<Epoch>,
}

impl Grant {
    /// The epoch at which the authority may be taken.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// A valid change of a record of authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    from: Authority,
    to: Authority,
}

impl Transition {
    /// The record that must be present.
    pub fn from(&self) -> &Authority {
        &self.from
    }

    /// The record that replaces it.
    pub fn to(&self) -> &Authority {
        &self.to
    }
}

impl Authority {
    /// The record of a newly set up anchor, which has the authority over itself.
    pub fn founded(anchor: AnchorId) -> Self {
        Self {
            anchor,
            domain: anchor,
            epoch: Epoch::default(),
            role: Role::Active,
            peer: None,
            held: Some(Epoch::default()),
            intake: None,
            passes: 0,
            transfers: 0,
            heard: None,
        }
    }

    /// The anchor that this record belongs to.
    pub fn anchor(&self) -> AnchorId {
        self.anchor
    }

    /// The anchor where the trust began; the same at both anchors of a migration.
    pub fn domain(&self) -> AnchorId {
        self.domain
    }

    /// When it last gave up or took the authority, as an epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The other anchor of the migration.
    pub fn peer(&self) -> Option<AnchorId> {
        self.peer
    }

    /// The epoch at which it last took the authority. Of two anchors, the one with the greater
    /// value has the authoritative data.
    pub fn held(&self) -> Option<Epoch> {
        self.held
    }

    /// The pass whose pages are adopted.
    pub fn intake(&self) -> Option<Intake> {
        self.intake
    }

    /// Number of passes it has listened to.
    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Whether it was never part of a migration.
    pub fn is_alone(&self) -> bool {
        self.peer.is_none() && self.role == Role::Active
    }

    /// Checks that the anchor may do this now.
    ///
    /// # Security
    /// Shutting out is allowed wherever keys are released, so that a revocation always takes effect
    /// at the anchor that receives it. An anchor on standby has the revocations of the authority.
    pub fn permit(&self, deed: Deed) -> Result<(), NoAuthority> {
        let may = match (self.role, deed) {
            (Role::Active, _)
            | (Role::ServeOnly, Deed::Release | Deed::ShutOut)
            | (Role::Standby, Deed::Remove) => true,
            (Role::ServeOnly | Role::Standby | Role::Forward | Role::Retired, _) => false,
        };
        if may {
            return Ok(());
        }
        Err(NoAuthority { role: self.role, epoch: self.epoch, deed, peer: self.peer })
    }

    /// Checks that pages of this pass may be adopted.
    ///
    /// # Errors
    /// The role accepts no pages, or another pass has begun since: pages are adopted in the order
    /// in which they were read, and late ones are not adopted at all.
    pub fn admits(&self, intake: Intake) -> Result<(), Refused> {
        match self.role {
            Role::Standby | Role::ServeOnly if self.intake == Some(intake) => Ok(()),
            Role::Standby | Role::ServeOnly => Err(Refused::Late),
            role => Err(Refused::Role(role)),
        }
    }

    /// Proves to the peer that this anchor holds no authority up to the epoch of the record.
    pub fn grant(&self) -> Option<Grant> {
        let to = self.peer.filter(|_| self.role != Role::Active)?;
        Some(Grant {
            domain: self.domain,
            from: self.anchor,
            to,
            epoch: self.epoch,
            held: self.held,
        })
    }
}

#[cfg(test)]
mod tests;
