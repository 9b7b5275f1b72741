//! The program of a measured virtual machine: what it reports to its host, and how.
//!
//! The program `tec-guest` is process 1 of the machine: it reads what the boot has measured, has the TPM
//! quote it, sends everything over the second serial port and switches the machine off. It unlocks and
//! changes nothing. The program `tec-node` is the distribution's part of a virtual node, see [`node`].
//!
//! ```text
//!  guest                               host
//!  GREETING ─────────────────────────► (whatever firmware printed before it is skipped)
//!           ◄───────────────────────── nonce, NONCE_SIZE bytes
//!  frames: name, content … ──────────►
//!  frame without a name ─────────────► end
//! ```

pub mod frame;
pub mod node;
pub mod report;
pub mod system;
pub mod tpm;
