//! What a node does next for one disk.

use super::{Confirmation, Keys};

/// Key slots of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slots<'k, K> {
    /// Those that open with this key.
    Of(&'k K),
    /// Those that the disk had *before* the server was asked for its keys, and that open with none of these.
    Dead,
}

/// The next step of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Remove these slots.
    RemoveSlots(Slots<'k, K>),
    /// The disk is as the confirmation about this key says.
    Confirm(Confirmation, &'k K),
}

/// The next step for a disk, given the keys that the server keeps, and whether the disk has slots.
///
/// # Security
/// Slots are removed only while another one opens with the server's current key, and only slots that open with
/// its *previous* key or are *dead*. A node that acts on an old answer can therefore not remove the slot of a
/// newer key: that one is neither.
///
/// A dead slot belongs to a key that is never released again. Its key was generated before the slot was added,
/// so before the server answered; the server did not keep it then, and keys are generated afresh, so no later
/// key is the same. This needs one server that releases the key of all slots; a node whose disks are bound to
/// several may not use it. A slot that was added after the question may be that of a newer key.
pub fn next_step<K>(keys: &Keys<K>, has: impl Fn(Slots<'_, K>) -> bool) -> NodeStep<'_, K> {
    match keys {
        Keys::Settled { current } if has(Slots::Of(current)) && has(Slots::Dead) => {
            NodeStep::RemoveSlots(Slots::Dead)
        }
        Keys::Settled { .. } => NodeStep::Rest,
        Keys::Pending { current, pending } if !has(Slots::Of(pending)) => {
            NodeStep::AddSlot { new: pending, by: current }
        }
        Keys::Pending { pending, .. } => NodeStep::Confirm(Confirmation::Staged, pending),
        // A disk that was not attached when the others were staged.
        Keys::Promoted { current, previous } if !has(Slots::Of(current)) => {
            NodeStep::AddSlot { new: current, by: previous }
        }
        Keys::Promoted { previous, .. } if has(Slots::Of(previous)) => {
            NodeStep::RemoveSlots(Slots::Of(previous))
        }
        Keys::Promoted { .. } if has(Slots::Dead) => NodeStep::RemoveSlots(Slots::Dead),
        Keys::Promoted { current, .. } => NodeStep::Confirm(Confirmation::Removed, current),
    }
}
