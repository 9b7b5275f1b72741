//! Members of a cluster, as the join service keeps them (with feature `rpc`).
//!
//! ```text
//!  claim of an attested node ─► ConfigMap tec-members, one compare and swap over all claims
//!                            └► Machine of the disk's id, its AttestationKey bound by first use:
//!                               what the operator sees
//!  control plane ─────────────► Lease tec-control-plane-join
//!  ticket ────────────────────► Secret bootstrap-token-<id>, of kubeadm's form
//! ```

mod enroll;
mod token;
mod turn;

pub use self::enroll::KubeEnrollments;
pub use self::token::BootstrapTokens;
pub use self::turn::KubeTurns;
