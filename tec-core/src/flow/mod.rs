//! The use cases over the ports. Each is idempotent, may be killed at any `.await` and run again,
//! and brings no runtime.

mod admit;
mod approve;
mod escrow;
mod provision;
mod publish;
mod register;
mod release;

pub use self::admit::Admission;
pub use self::admit::AdmitPorts;
pub use self::admit::Boots;
pub use self::admit::admit;
pub use self::admit::look;
pub use self::admit::record;
pub use self::admit::taken_back;
pub use self::approve::AkOutcome;
pub use self::approve::AkPorts;
pub use self::approve::AkSubmission;
pub use self::approve::ApproveError;
pub use self::approve::ClaimLimits;
pub use self::approve::approve;
pub use self::approve::revoke_ak;
pub use self::escrow::MAX_ESCROW;
pub use self::escrow::MAX_ESCROWS;
pub use self::escrow::escrow;
pub use self::escrow::escrowed;
pub use self::provision::ProvisionPorts;
pub use self::provision::provision;
pub use self::publish::PublishError;
pub use self::publish::publish_image;
pub use self::publish::revoke_image;
pub use self::register::RegisterError;
pub use self::register::RegisterPorts;
pub use self::register::Registration;
pub use self::register::readmit_tpm;
pub use self::register::register;
pub use self::register::register_by_admin;
pub use self::register::remove_machine;
pub use self::register::revoke_machine;
pub use self::release::ReleaseError;
pub use self::release::ReleasePorts;
pub use self::release::release;
