//! What a measured virtual machine tells its host, and how.
//!
//! The program of this package is process 1 of the machine: it reads what the boot has measured,
//! has the TPM quote it, sends everything over the second serial port and switches the machine
//! off. *What it is not*: a node; nothing is unlocked and nothing is changed.
//!
//! ```text
//!  guest                               host
//!  GREETING ─────────────────────────► (whatever firmware printed before it is skipped)
//!           ◄───────────────────────── nonce, NONCE_SIZE bytes
//!  frames: name, content … ──────────►
//!  frame without a name ─────────────► end
//! ```

pub mod frame;
pub mod report;
pub mod system;
pub mod tpm;
