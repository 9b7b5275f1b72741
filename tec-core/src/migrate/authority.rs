//! Who may approve: a record in each anchor, and the only ways in which it changes.

use serde::Deserialize;
use serde::Serialize;

use super::AnchorId;
use super::Deed;
use super::Epoch;
use super::Intake;
use super::NoAuthority;
use super::Role;
use crate::code::Code;
use crate::port::PortError;
use crate::port::PortErrorKind;

/// An anchor's record of authority.
///
/// It changes by [`Transition`]s only, which [`TrustAnchor::swap`](super::TrustAnchor::swap) carries
/// out if the record is still what the transition begins with.
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

/// Proof that an anchor gave the authority up; made from its record only.
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
    /// The epoch at which it may be taken.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// A lawful change of a record of authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    from: Authority,
    to: Authority,
}

impl Transition {
    /// The record that must be there.
    pub fn from(&self) -> &Authority {
        &self.from
    }

    /// The record that takes its place.
    pub fn to(&self) -> &Authority {
        &self.to
    }
}

/// A change of authority that does not go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The role does not allow it.
    #[error("an anchor that is {role} cannot do this")]
    Role {
        /// What it is.
        role: Role,
    },
    /// The other anchor belongs to something else.
    #[error("the anchors belong to {here} and {there}, which are not the same trust")]
    Domain {
        /// The domain here.
        here: AnchorId,
        /// The domain there.
        there: AnchorId,
    },
    /// The record is paired with another anchor.
    #[error("the anchor is paired with {paired}, not with {other}")]
    Peer {
        /// Whom it is paired with.
        paired: AnchorId,
        /// Who came.
        other: AnchorId,
    },
    /// The epoch is not the one that fits.
    #[error("epoch {given} does not fit a record at epoch {known}")]
    Epoch {
        /// In the record.
        known: Epoch,
        /// What came.
        given: Epoch,
    },
    /// A transfer is older than one that was taken before.
    #[error("a later transfer was taken before this one")]
    Replayed,
    /// The page belongs to a pass that another one took the place of.
    #[error("another pass began since this one")]
    Late,
}

impl Refused {
    /// The code that tells people what to do.
    pub fn code(&self) -> Code {
        match self {
            Self::Domain { .. } | Self::Peer { .. } => Code::TrustForeign,
            Self::Replayed => Code::TransferReplayed,
            Self::Role { .. } | Self::Epoch { .. } | Self::Late => Code::AuthorityMoved,
        }
    }
}

impl Refused {
    /// The failure of a port that was asked to do it.
    pub fn during(self, operation: impl Into<String>) -> PortError {
        PortError::new(PortErrorKind::Conflict, operation)
            .with_code(self.code())
            .because(self)
    }
}

impl Authority {
    /// The record of an anchor that was just set up: the authority over itself.
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

    /// Who this is.
    pub fn anchor(&self) -> AnchorId {
        self.anchor
    }

    /// The anchor that the trust began with; the same at both anchors of a migration.
    pub fn domain(&self) -> AnchorId {
        self.domain
    }

    /// When it last gave up or took the authority.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What it is.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The other anchor of the migration.
    pub fn peer(&self) -> Option<AnchorId> {
        self.peer
    }

    /// The epoch at which it last took the authority. Of two anchors, what is true is at the one
    /// whose is greater.
    pub fn held(&self) -> Option<Epoch> {
        self.held
    }

    /// The pass whose pages are adopted.
    pub fn intake(&self) -> Option<Intake> {
        self.intake
    }

    /// Whether it was never part of a migration.
    pub fn is_alone(&self) -> bool {
        self.peer.is_none() && self.role == Role::Active
    }

    /// Whether the anchor may do this now.
    ///
    /// # Errors
    /// Its role does not allow it.
    ///
    /// # Security
    /// Shutting out is allowed wherever keys are released, so that a revocation always counts at
    /// the anchor that hears of it. An anchor that stands by has the revocations of the authority.
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
        Err(NoAuthority {
            role: self.role,
            epoch: self.epoch,
            deed,
            peer: self.peer,
        })
    }

    /// Whether pages of this pass may be adopted.
    ///
    /// # Errors
    /// The role takes nothing, or another pass began since: pages are adopted in the order in which
    /// they were read, and what is late is not adopted at all.
    pub fn admits(&self, intake: Intake) -> Result<(), Refused> {
        match self.role {
            Role::Standby | Role::ServeOnly if self.intake == Some(intake) => Ok(()),
            Role::Standby | Role::ServeOnly => Err(Refused::Late),
            role => Err(Refused::Role { role }),
        }
    }

    /// What this record proves to its peer: that it holds no authority up to its epoch.
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

    fn become_(&self, change: impl FnOnce(&mut Self)) -> Transition {
        let mut to = *self;
        change(&mut to);
        Transition { from: *self, to }
    }

    fn refuse_role<T>(&self) -> Result<T, Refused> {
        Err(Refused::Role { role: self.role })
    }

    /// Becomes the target of a migration from `source`.
    ///
    /// # Errors
    /// It is part of another migration already.
    pub fn stand_by(&self, source: &Self) -> Result<Transition, Refused> {
        if !self.is_alone() {
            return self.refuse_role();
        }
        if self.anchor == source.anchor {
            return Err(Refused::Peer {
                paired: self.anchor,
                other: source.anchor,
            });
        }
        Ok(self.become_(|to| {
            to.domain = source.domain;
            to.role = Role::Standby;
            to.peer = Some(source.anchor);
            to.held = None;
        }))
    }

    /// Gives up the authority, or the right to take it, at `epoch`.
    ///
    /// # Errors
    /// The epoch is not greater than the record's, or the other is not the one that this anchor is
    /// paired with.
    pub fn yield_to(&self, other: &Self, epoch: Epoch) -> Result<Transition, Refused> {
        self.same_domain(other)?;
        if epoch <= self.epoch {
            return Err(Refused::Epoch {
                known: self.epoch,
                given: epoch,
            });
        }
        let role = match self.role {
            Role::Active | Role::ServeOnly => Role::ServeOnly,
            // They have nothing but the right to take, which they give up, too.
            role @ (Role::Standby | Role::Forward | Role::Retired) => role,
        };
        // An active anchor may turn to another peer: nobody else has a grant of it that holds. One
        // that has given up may not, since its first peer may still take.
        if self.role != Role::Active {
            self.same_peer(other)?;
        }
        Ok(self.become_(|to| {
            to.role = role;
            to.epoch = epoch;
            to.peer = Some(other.anchor);
            to.intake = None;
        }))
    }

    /// Begins a pass: adopts from now on what is read from the other anchor at its present epoch,
    /// and nothing that was read earlier.
    ///
    /// # Errors
    /// The role takes nothing, or this anchor had the authority after the other one.
    pub fn listen(&self, other: &Self) -> Result<Transition, Refused> {
        self.same_domain(other)?;
        self.same_peer(other)?;
        if !matches!(self.role, Role::Standby | Role::ServeOnly) {
            return self.refuse_role();
        }
        if other.held <= self.held {
            return Err(Refused::Epoch {
                known: self.held.unwrap_or_default(),
                given: other.held.unwrap_or_default(),
            });
        }
        Ok(self.become_(|to| {
            to.passes = self.passes.saturating_add(1);
            to.intake = Some(Intake {
                epoch: other.epoch,
                pass: to.passes,
            });
        }))
    }

    /// Counts one more transfer to a file, so that an older one is known by its number.
    pub fn count_transfer(&self) -> Transition {
        self.become_(|to| to.transfers = self.transfers.saturating_add(1))
    }

    /// How many transfers to files there were.
    pub fn transfers(&self) -> u64 {
        self.transfers
    }

    /// As [`listen`](Self::listen), to a transfer that the other anchor made with this record.
    ///
    /// # Errors
    /// A later transfer was taken before, or as for `listen`.
    pub fn listen_to_transfer(&self, other: &Self) -> Result<Transition, Refused> {
        let made = (other.epoch, other.transfers);
        if self.domain == other.domain && self.heard.is_some_and(|heard| heard > made) {
            return Err(Refused::Replayed);
        }
        if self.domain == other.domain && self.role == Role::Active {
            return Err(Refused::Replayed);
        }
        let mut change = self.listen(other)?;
        change.to.heard = Some(made);
        Ok(change)
    }

    /// Takes the authority that the other anchor gave up.
    ///
    /// # Errors
    /// The grant is for somebody else, lies behind the record, or the giver had the authority last
    /// and nothing was adopted from it at this epoch.
    pub fn take(&self, grant: &Grant) -> Result<Transition, Refused> {
        if grant.domain != self.domain {
            return Err(Refused::Domain {
                here: self.domain,
                there: grant.domain,
            });
        }
        if grant.to != self.anchor || self.peer != Some(grant.from) {
            return Err(Refused::Peer {
                paired: self.peer.unwrap_or(self.anchor),
                other: grant.from,
            });
        }
        if !matches!(self.role, Role::Standby | Role::ServeOnly) {
            return self.refuse_role();
        }
        let listened = self.intake.map(|intake| intake.epoch);
        let has_all = grant.held < self.held || listened == Some(grant.epoch);
        if self.epoch >= grant.epoch || !has_all {
            return Err(Refused::Epoch {
                known: listened.unwrap_or(self.epoch),
                given: grant.epoch,
            });
        }
        Ok(self.activate(grant.epoch))
    }

    /// Serves nobody any more, now that the other anchor took over.
    ///
    /// # Errors
    /// The other anchor is not the authority.
    pub fn forward(&self, other: &Self) -> Result<Transition, Refused> {
        self.same_domain(other)?;
        self.same_peer(other)?;
        if self.role != Role::ServeOnly {
            return self.refuse_role();
        }
        if other.role != Role::Active {
            return Err(Refused::Role { role: other.role });
        }
        if other.epoch < self.epoch {
            return Err(Refused::Epoch {
                known: self.epoch,
                given: other.epoch,
            });
        }
        Ok(self.become_(|to| to.role = Role::Forward))
    }

    /// Notes that the keys are shredded.
    ///
    /// # Errors
    /// It still serves.
    pub fn retire(&self) -> Result<Transition, Refused> {
        if self.role != Role::Forward {
            return self.refuse_role();
        }
        Ok(self.become_(|to| to.role = Role::Retired))
    }

    /// Takes the authority without a grant, after the other anchor was lost for ever.
    ///
    /// # Errors
    /// The anchor is not one that stands by.
    ///
    /// # Security
    /// If the other anchor still runs there are two authorities.
    pub fn dangerous_seize(&self) -> Result<Transition, Refused> {
        if self.role != Role::Standby {
            return self.refuse_role();
        }
        let heard = self.intake.map_or(self.epoch, |intake| intake.epoch);
        Ok(self.activate(self.epoch.max(heard).next()))
    }

    fn activate(&self, epoch: Epoch) -> Transition {
        self.become_(|to| {
            to.role = Role::Active;
            to.epoch = epoch;
            to.held = Some(epoch);
            to.intake = None;
        })
    }

    fn same_domain(&self, other: &Self) -> Result<(), Refused> {
        if self.domain == other.domain {
            return Ok(());
        }
        Err(Refused::Domain {
            here: self.domain,
            there: other.domain,
        })
    }

    fn same_peer(&self, other: &Self) -> Result<(), Refused> {
        if self.peer == Some(other.anchor) {
            return Ok(());
        }
        Err(Refused::Peer {
            paired: self.peer.unwrap_or(self.anchor),
            other: other.anchor,
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn anchor(number: u128) -> Authority {
        Authority::founded(AnchorId::from(Uuid::from_u128(number)))
    }

    #[expect(
        clippy::large_types_passed_by_value,
        reason = "what a transition gives goes right in"
    )]
    fn moved(change: Result<Transition, Refused>) -> Authority {
        *change.unwrap().to()
    }

    /// Source active at 0, target standing by.
    fn pair() -> (Authority, Authority) {
        let source = anchor(1);
        (source, moved(anchor(2).stand_by(&source)))
    }

    /// Source gave up at 1, target took.
    fn cut_over() -> (Authority, Authority) {
        let (source, target) = pair();
        let source = moved(source.yield_to(&target, Epoch::new(1)));
        let target = moved(target.listen(&source));
        (source, moved(target.take(&source.grant().unwrap())))
    }

    #[test]
    fn authority_moves_from_one_to_the_other() {
        let (source, target) = cut_over();
        assert_eq!(
            (source.role(), target.role()),
            (Role::ServeOnly, Role::Active)
        );
        assert_eq!(target.domain(), source.anchor());
        assert!(source.permit(Deed::Release).is_ok() && target.permit(Deed::Admit).is_ok());
        let refused = source.permit(Deed::Admit).unwrap_err();
        assert_eq!(refused.code(), Code::AuthorityElsewhere);
        assert_eq!(refused.peer, Some(target.anchor()));
    }

    #[test]
    fn a_grant_is_void_once_its_taker_gave_up_too() {
        let (source, target) = pair();
        let source = moved(source.yield_to(&target, Epoch::new(1)));
        let grant = source.grant().unwrap();
        let listening = moved(target.listen(&source));
        let fenced = moved(listening.yield_to(&source, Epoch::new(2)));
        assert_eq!(fenced.role(), Role::Standby);
        assert!(matches!(fenced.take(&grant), Err(Refused::Epoch { .. })));
        assert!(
            source.listen(&fenced).is_err(),
            "it never had the authority"
        );
        let source = moved(source.take(&fenced.grant().unwrap()));
        assert_eq!(
            (source.role(), source.epoch()),
            (Role::Active, Epoch::new(2))
        );
    }

    #[test]
    fn nothing_is_taken_without_a_copy_of_that_epoch() {
        let (source, target) = pair();
        let source = moved(source.yield_to(&target, Epoch::new(1)));
        assert!(target.take(&source.grant().unwrap()).is_err());
        let early = moved(target.listen(&source));
        let target = moved(early.listen(&source));
        assert!(
            target.admits(early.intake().unwrap()).is_err(),
            "a late page"
        );
        assert!(target.admits(target.intake().unwrap()).is_ok());
    }

    #[test]
    fn an_anchor_that_gave_up_cannot_give_it_to_somebody_else() {
        let (source, target) = pair();
        let source = moved(source.yield_to(&target, Epoch::new(1)));
        let third = moved(anchor(3).stand_by(&source));
        let refused = source.yield_to(&third, Epoch::new(2)).unwrap_err();
        assert!(matches!(refused, Refused::Peer { .. }), "{refused}");
        assert_eq!(refused.code(), Code::TrustForeign);
    }

    #[test]
    fn the_grant_of_another_trust_is_refused() {
        let (_, target) = pair();
        let other = anchor(7);
        let stranger = moved(anchor(8).stand_by(&other));
        let other = moved(other.yield_to(&stranger, Epoch::new(1)));
        let refused = target.take(&other.grant().unwrap()).unwrap_err();
        assert_eq!(refused.code(), Code::TrustForeign);
    }

    #[test]
    fn who_serves_nobody_says_who_does_and_comes_back_for_nothing() {
        let (source, target) = cut_over();
        assert!(source.retire().is_err(), "it still serves");
        let source = moved(source.forward(&target));
        let refused = source.permit(Deed::Release).unwrap_err();
        assert_eq!(refused.code(), Code::AnchorReplaced);
        assert!(refused.to_string().contains(&target.anchor().to_string()));
        let source = moved(source.retire());
        assert!(source.listen(&target).is_err());
        let still = moved(source.yield_to(&target, Epoch::new(9)));
        assert_eq!(still.role(), Role::Retired);
    }

    #[test]
    fn an_anchor_that_stands_by_serves_nobody_and_makes_nothing() {
        let (_, target) = pair();
        for deed in [Deed::Admit, Deed::Release] {
            let refused = target.permit(deed).unwrap_err();
            assert_eq!(refused.code(), Code::AnchorStandsBy);
        }
        assert!(target.permit(Deed::ShutOut).is_err());
    }

    #[test]
    fn a_target_belongs_to_one_migration() {
        let (_, target) = pair();
        assert!(target.stand_by(&anchor(9)).is_err());
        let own = anchor(1);
        assert!(own.stand_by(&own).is_err());
    }

    #[test]
    fn an_older_transfer_is_not_taken_after_a_later_one() {
        let (source, target) = pair();
        let first = *source.count_transfer().to();
        let second = *first.count_transfer().to();
        let target = moved(target.listen_to_transfer(&second));
        let again = moved(target.listen_to_transfer(&second));
        let refused = again.listen_to_transfer(&first).unwrap_err();
        assert_eq!(refused.code(), Code::TransferReplayed);
        let taken = moved(again.dangerous_seize());
        assert_eq!(taken.listen_to_transfer(&second), Err(Refused::Replayed));
    }

    #[test]
    fn records_are_read_back_as_they_were_written() {
        let (source, target) = cut_over();
        for record in [source, target] {
            let text = serde_json::to_string(&record).unwrap();
            assert_eq!(serde_json::from_str::<Authority>(&text).unwrap(), record);
        }
    }
}
