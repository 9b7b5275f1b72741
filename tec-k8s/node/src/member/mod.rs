//! Members of a cluster, as kept by the join service (with feature `rpc`).
//!
//! ```text
//!  claim of an attested node ─► ConfigMap tec-members, one compare and swap over all claims, and the
//!                            │  disks of members that were removed
//!                            └► Machine of its own id, its AttestationKey bound according to spec.approval:
//!                               what the operator sees
//!  control plane ─────────────► Lease tec-control-plane-join
//! ```

mod enroll;
mod roll;
mod turn;

pub use self::enroll::KubeEnrollments;
pub use self::roll::{NameUse, Removed, Roll};
pub use self::turn::KubeTurns;
