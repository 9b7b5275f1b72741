//! The use cases over the ports. Each is idempotent, may be killed at any `.await` and run again,
//! and depends on no runtime.

mod admit;
mod approve;
mod escrow;
mod next_boot;
mod platform;
mod provision;
mod publish;
mod register;
mod release;
mod rotation;

pub use self::admit::{Admission, AdmitPorts, Boots, Closed, admit, look, record, taken_back};
pub use self::approve::{AkOutcome, AkPorts, ClaimLimits, approve, revoke_ak};
pub use self::escrow::{MAX_ESCROW, MAX_ESCROWS, escrow, escrowed};
pub use self::next_boot::{NextBoot, next_boot};
pub use self::platform::approve_platform;
pub use self::provision::{ProvisionPorts, provision};
pub use self::publish::{PublishError, UnpinnedInputs, check_image, publish_image, revoke_image};
pub use self::register::{
    RegisterError, RegisterPorts, Registration, change_machine, readmit_tpm, register,
    register_by_admin, remove_machine, revoke_machine,
};
pub use self::release::{ReleaseError, ReleasePorts, release};
pub use self::rotation::{begin_rotation, cancel_rotation, confirm_rotation, rotation};
