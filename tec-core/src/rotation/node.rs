//! What a node does next for one disk.

use super::{Confirmation, Keys};

/// The next step of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "nodes must handle every step")]
pub enum NodeStep<'k, K> {
    /// Nothing to do.
    Rest,
    /// Add a slot for `new`, authorized by the slot of `by`, and try it.
    AddSlot {
        /// The key of the slot to add.
        new: &'k K,
        /// A key that opens the disk now.
        by: &'k K,
    },
    /// Remove the slots that open with this key.
    RemoveSlots(&'k K),
    /// The disk is as the confirmation about this key says.
    Confirm(Confirmation, &'k K),
}

/// The next step for a disk, given the keys that the server keeps and whether a key opens a slot.
///
/// # Security
/// Only slots that open with the server's *previous* key are ever removed, and only while another slot opens
/// with its current one. A node that acts on an old answer can therefore not remove the slot of a newer key.
pub fn next_step<K>(keys: &Keys<K>, opens: impl Fn(&K) -> bool) -> NodeStep<'_, K> {
    match keys {
        Keys::Settled { .. } => NodeStep::Rest,
        Keys::Pending { current, pending } if !opens(pending) => {
            NodeStep::AddSlot { new: pending, by: current }
        }
        Keys::Pending { pending, .. } => NodeStep::Confirm(Confirmation::Staged, pending),
        // A disk that was not attached when the others were staged.
        Keys::Promoted { current, previous } if !opens(current) => {
            NodeStep::AddSlot { new: current, by: previous }
        }
        Keys::Promoted { previous, .. } if opens(previous) => NodeStep::RemoveSlots(previous),
        Keys::Promoted { current, .. } => NodeStep::Confirm(Confirmation::Removed, current),
    }
}
