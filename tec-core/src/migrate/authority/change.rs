//! The only ways in which a record of authority changes.

use super::{Authority, Grant, Refused, Transition};
use crate::migrate::{Epoch, Intake, Role};

impl Authority {
    fn become_(&self, change: impl FnOnce(&mut Self)) -> Transition {
        let mut to = *self;
        change(&mut to);
        Transition { from: *self, to }
    }

    fn refuse_role<T>(&self) -> Result<T, Refused> {
        Err(Refused::Role(self.role))
    }

    /// Becomes the target of a migration from `source`.
    ///
    /// # Errors
    /// The anchor is already part of another migration.
    pub fn stand_by(&self, source: &Self) -> Result<Transition, Refused> {
        if !self.is_alone() {
            return self.refuse_role();
        }
        if self.anchor == source.anchor {
            return Err(Refused::Peer { paired: self.anchor, other: source.anchor });
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
    /// The epoch is not greater than the record's, or this anchor is paired with an anchor other
    /// than `other`.
    pub fn yield_to(&self, other: &Self, epoch: Epoch) -> Result<Transition, Refused> {
        self.same_domain(other)?;
        if epoch <= self.epoch {
            return Err(Refused::Epoch { known: self.epoch, given: epoch });
        }
        let role = match self.role {
            Role::Active | Role::ServeOnly => Role::ServeOnly,
            // These roles have only the right to take, and give that up as well.
            role @ (Role::Standby | Role::Forward | Role::Retired) => role,
        };
        // An active anchor may turn to another peer: nobody else has a valid grant from it. One
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

    /// Begins a pass: from now on adopts what is read from the other anchor at its current epoch,
    /// and nothing that was read earlier.
    ///
    /// # Errors
    /// The role accepts nothing, or this anchor had the authority after the other one.
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
            to.intake = Some(Intake { epoch: other.epoch, pass: to.passes });
        }))
    }

    /// Counts one more transfer to a file, so that an older one can be recognized by its number.
    pub fn count_transfer(&self) -> Transition {
        self.become_(|to| to.transfers = self.transfers.saturating_add(1))
    }

    /// Number of transfers to files.
    pub fn transfers(&self) -> u64 {
        self.transfers
    }

    /// Like [`listen`](Self::listen), for a transfer that the other anchor created with this
    /// record.
    ///
    /// # Errors
    /// A later transfer was accepted before, or as for `listen`.
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
    /// The grant is for another anchor, is older than the record, or the giver had the authority
    /// last and nothing was adopted from it at this epoch.
    pub fn take(&self, grant: &Grant) -> Result<Transition, Refused> {
        if grant.domain != self.domain {
            return Err(Refused::Domain { here: self.domain, there: grant.domain });
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

    /// Stops serving, now that the other anchor has taken over.
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
            return Err(Refused::Role(other.role));
        }
        if other.epoch < self.epoch {
            return Err(Refused::Epoch { known: self.epoch, given: other.epoch });
        }
        Ok(self.become_(|to| to.role = Role::Forward))
    }

    /// Records that the keys are shredded.
    ///
    /// # Errors
    /// The anchor still serves nodes.
    pub fn retire(&self) -> Result<Transition, Refused> {
        if self.role != Role::Forward {
            return self.refuse_role();
        }
        Ok(self.become_(|to| to.role = Role::Retired))
    }

    /// Takes the authority without a grant, after the other anchor was lost permanently.
    ///
    /// # Security
    /// If the other anchor still runs, there are two authorities.
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
        Err(Refused::Domain { here: self.domain, there: other.domain })
    }

    fn same_peer(&self, other: &Self) -> Result<(), Refused> {
        if self.peer == Some(other.anchor) {
            return Ok(());
        }
        Err(Refused::Peer { paired: self.peer.unwrap_or(self.anchor), other: other.anchor })
    }
}
