//! Flags that select what boots, and on which machine.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use tec_core::pcr::PcrIndex;
use tec_tpm::compute::{GrubProfile, SecureBoot, ShimProfile, StubProfile};

use crate::image::ImageChoice;
use crate::pins::parse_pcr;

/// Which parts of the image boot.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "What boots")]
#[non_exhaustive]
pub struct ChainArgs {
    /// Kernel that GRUB starts, or unified kernel image, entry or kernel that systemd-boot starts, if there are several
    #[arg(long, value_name = "PATH")]
    pub kernel: Option<String>,
    /// File that the firmware starts, if it is not found automatically: shim, or a unified kernel image
    #[arg(long, value_name = "PATH")]
    pub firmware_starts: Option<String>,
    /// File that shim starts: GRUB, or a unified kernel image
    #[arg(long, value_name = "PATH", requires = "firmware_starts")]
    pub shim_starts: Option<String>,
    /// Measuring behavior of shim (default: that of its version)
    #[arg(long, value_enum)]
    pub shim_profile: Option<ShimName>,
    /// Measuring behavior of GRUB (default: that of its version)
    #[arg(long, value_enum)]
    pub grub_profile: Option<GrubName>,
    /// Measuring behavior of systemd-stub (default: that of its version)
    #[arg(long, value_enum)]
    pub stub_profile: Option<StubName>,
    /// Register to predict; repeatable (default: all that can be predicted)
    #[arg(
        long = "pcr",
        value_name = "INDEX",
        value_parser = parse_pcr
    )]
    pub registers: Vec<PcrIndex>,
    /// Selects one of several images.
    #[command(flatten)]
    pub choice: ImageChoice,
}

/// The machine that it boots on.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The machine")]
#[non_exhaustive]
pub struct MachineArgs {
    /// Whether Secure Boot is on (default: as in the variables; on if none are given)
    #[arg(long, value_enum)]
    pub secure_boot: Option<SecureBootState>,
    /// Directory with the machine's variables, as in /sys/firmware/efi/efivars
    #[arg(long, value_name = "DIR")]
    pub efivars: Option<PathBuf>,
    /// The machine's variables as EDK II stores them, such as OVMF_VARS.fd
    #[arg(long, value_name = "FILE", conflicts_with = "efivars")]
    pub variable_store: Option<PathBuf>,
    /// Directory with shim's lists, as in /sys/firmware/efi/mok-variables
    #[arg(long, value_name = "DIR", conflicts_with = "variable_store")]
    pub mok_variables: Option<PathBuf>,
    /// Machines have no machine owner keys except those of shim's vendor
    #[arg(
        long,
        conflicts_with_all = ["mok_variables", "efivars", "variable_store"]
    )]
    pub no_mok: bool,
    /// File with the SbatLevel stored on the machine
    #[arg(long, value_name = "FILE")]
    pub sbat_level: Option<PathBuf>,
    /// GRUB's name for the partition it starts from (default: hd0,gpt1)
    #[arg(long, value_name = "NAME")]
    pub grub_device: Option<String>,
    /// GRUB's name for the partition with its configuration (default: the hint in GRUB's script, else hd0,gpt2)
    #[arg(long, value_name = "NAME")]
    pub grub_root: Option<String>,
}

/// Whether Secure Boot is on when an image boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum SecureBootState {
    /// Secure Boot is on
    On,
    /// Secure Boot is off
    Off,
}

impl From<SecureBootState> for SecureBoot {
    fn from(state: SecureBootState) -> Self {
        match state {
            SecureBootState::On => Self::On,
            SecureBootState::Off => Self::Off,
        }
    }
}

/// Versions of programs that measure differently, as flags name them.
macro_rules! versions {
    ($($program:literal $name:ident $profile:ident { $($version:ident $text:literal)* })*) => {$(
        #[doc = concat!("Versions of ", $program, " that measure differently.")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
        #[non_exhaustive]
        pub enum $name {
            $(
                #[doc = concat!("Version ", $text)]
                #[value(name = $text, help = concat!("Version ", $text))]
                $version,
            )*
        }

        impl From<$name> for $profile {
            fn from(name: $name) -> Self {
                match name {
                    $($name::$version => Self::$version,)*
                }
            }
        }
    )*};
}

versions! {
    "shim" ShimName ShimProfile { V15_6 "15.6" V15_7 "15.7" V15_8 "15.8" V16_1 "16.1" }
    "GRUB" GrubName GrubProfile {
        V2_06 "2.06" RedHat2_06 "2.06-rh" V2_12 "2.12" Fedora2_12 "2.12-fedora" V2_14 "2.14"
    }
    "systemd-stub" StubName StubProfile { V252 "252" V257 "257" V262 "262" }
}
