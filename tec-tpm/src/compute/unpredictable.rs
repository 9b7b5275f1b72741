//! Why a register does not follow from image and machine.

/// Why a register does not follow from image and machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unpredictable {
    /// The register holds code, settings and devices of the machine.
    #[error(
        "the firmware measures its own code, settings and devices; take the value from an event log"
    )]
    Firmware,
    /// The register was not requested.
    #[error("it was not requested")]
    NotAsked,
    /// The register is extended after the boot chain.
    #[error("the running system measures it")]
    OperatingSystem,
    /// The keys of the machine were not given.
    #[error("it holds the keys of the machine, which were not given")]
    Keys,
    /// The lists of machine owner keys were not given.
    #[error("it holds the machine owner keys, which were not given")]
    MokLists,
    /// What this version measures was not observed, and the versions before and after it differ.
    #[error("it is not known what {0} measures")]
    Version(String),
    /// systemd-stub from version 258 on adds a secret of the machine to the initial file system.
    #[error("the stub adds a secret of the machine to the initial file system")]
    BootSecret,
    /// GRUB's script does more than is supported here.
    #[error("line {line} of {file} is not supported: {reason}")]
    Script {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is not supported.
        reason: &'static str,
    },
    /// There is no script where this GRUB looks for it.
    #[error("GRUB's configuration file {0} is missing")]
    NoScript(String),
    /// GRUB searches for a file system, and its partition is neither named by the script nor the one that
    /// installers make for the first.
    #[error("GRUB searches for {0}, and its script does not name that partition")]
    GrubRoot(String),
    /// What this vendor's GRUB measures was not observed; vendors change it.
    #[error("what GRUB of {0} measures there is not known")]
    GrubVendor(&'static str),
    /// GRUB reads several files in the order of their folder on the disk.
    #[error("GRUB reads {0} boot entries in the order on the disk, which files do not show")]
    EntryOrder(usize),
    /// The kernel has not been observed.
    #[error("it is not known whether kernel {0} measures its command line and initrd")]
    KernelVersion(String),
    /// A kernel option changes what the kernel loads.
    #[error("the kernel's option {0} changes what it loads")]
    KernelOption(String),
    /// The kernel's command line cannot be determined.
    #[error("the command line {0}")]
    CommandLine(&'static str),
    /// A section whose use depends on the machine, or that is not supported.
    #[error("the image alone does not determine how section {0} is used")]
    Section(String),
    /// A file next to the boot files adds measurements, which is not supported.
    #[error("{0} adds measurements, which is not supported")]
    Sidecar(String),
}
