//! The data model: an ordered list of measurements. Register values are a fold over it.

use std::fmt;

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PcrIndex, PcrSet};

use super::hash::{BankDigests, Banks};
use crate::event_log::EventKind;

macro_rules! components {
    ($($name:ident: $doc:literal,)*) => {
        /// The part of the boot that makes a measurement; the names are those of image labels.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Component {
            $(#[doc = $doc] $name,)*
        }

        impl Component {
            /// Name in labels and ConfigMaps.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

components! {
    Pcr4EfiCall: "The firmware says that it starts a boot option.",
    Pcr4Separator: "The firmware separates its own measurements from the rest.",
    Pcr4Shim: "shim.",
    Pcr4Grub: "GRUB.",
    Pcr4Vmlinuz: "The kernel.",
    Pcr4Manager: "systemd-boot.",
    Pcr4Uki: "A unified kernel image.",
    Pcr4Addon: "An add-on of a unified kernel image.",
    Pcr4UkiLinux: "The kernel within a unified kernel image.",
    Pcr7SecureBoot: "Variable `SecureBoot`.",
    Pcr7Pk: "Variable `PK`.",
    Pcr7Kek: "Variable `KEK`.",
    Pcr7Db: "Variable `db`.",
    Pcr7Dbx: "Variable `dbx`.",
    Pcr7Dbt: "Variable `dbt`.",
    Pcr7Separator: "The end of the variables.",
    Pcr7ShimCert: "The entry of `db` that allows what the firmware starts first: shim or a unified image.",
    Pcr7SbatLevel: "The revocation level of shim.",
    Pcr7MokListTrusted: "Whether the kernel may trust machine owner keys.",
    Pcr7MokSbState: "Verification by shim is switched off.",
    Pcr7GrubDbCert: "An entry of `db` that allows GRUB.",
    Pcr7GrubVendorDbCert: "An entry of shim's own list that allows GRUB.",
    Pcr7GrubMokListCert: "A machine owner key, or shim's certificate, that allows GRUB.",
    Pcr7UkiDbCert: "An entry of `db` that allows a unified kernel image started by shim, or its add-on.",
    Pcr7UkiVendorDbCert: "An entry of shim's own list that allows a unified kernel image or its add-on.",
    Pcr7UkiMokListCert: "A machine owner key, or shim's certificate, that allows a unified kernel image or its add-on.",
    Pcr7KernelDbCert: "An entry of `db` that allows the kernel.",
    Pcr7KernelVendorDbCert: "An entry of shim's own list that allows the kernel.",
    Pcr7KernelMokListCert: "A machine owner key, or shim's certificate, that allows the kernel.",
    Pcr8Command: "A command of GRUB.",
    Pcr8KernelCmdline: "The command line that GRUB hands to the kernel.",
    Pcr9File: "A file that GRUB reads.",
    Pcr9LoadOptions: "The command line as the kernel's EFI stub finds it.",
    Pcr9Initrd: "The initial file system as the kernel's EFI stub finds it.",
    Pcr11Linux: "Name of section `.linux` of a unified kernel image.",
    Pcr11LinuxContent: "Content of section `.linux` of a unified kernel image.",
    Pcr11Osrel: "Name of section `.osrel` of a unified kernel image.",
    Pcr11OsrelContent: "Content of section `.osrel` of a unified kernel image.",
    Pcr11Cmdline: "Name of section `.cmdline` of a unified kernel image.",
    Pcr11CmdlineContent: "Content of section `.cmdline` of a unified kernel image.",
    Pcr11Initrd: "Name of section `.initrd` of a unified kernel image.",
    Pcr11InitrdContent: "Content of section `.initrd` of a unified kernel image.",
    Pcr11Ucode: "Name of section `.ucode` of a unified kernel image.",
    Pcr11UcodeContent: "Content of section `.ucode` of a unified kernel image.",
    Pcr11Splash: "Name of section `.splash` of a unified kernel image.",
    Pcr11SplashContent: "Content of section `.splash` of a unified kernel image.",
    Pcr11Dtb: "Name of section `.dtb` of a unified kernel image.",
    Pcr11DtbContent: "Content of section `.dtb` of a unified kernel image.",
    Pcr11Uname: "Name of section `.uname` of a unified kernel image.",
    Pcr11UnameContent: "Content of section `.uname` of a unified kernel image.",
    Pcr11Sbat: "Name of section `.sbat` of a unified kernel image.",
    Pcr11SbatContent: "Content of section `.sbat` of a unified kernel image.",
    Pcr11Pcrpkey: "Name of section `.pcrpkey` of a unified kernel image.",
    Pcr11PcrpkeyContent: "Content of section `.pcrpkey` of a unified kernel image.",
    Pcr11Profile: "Name of section `.profile` of a unified kernel image.",
    Pcr11ProfileContent: "Content of section `.profile` of a unified kernel image.",
    Pcr11Hwids: "Name of section `.hwids` of a unified kernel image.",
    Pcr11HwidsContent: "Content of section `.hwids` of a unified kernel image.",
    Pcr12Profile: "Number of the profile of a unified kernel image, if it is not the first.",
    Pcr12LoadOptions: "The command line that a boot entry hands to a unified kernel image.",
    Pcr12AddonCmdline: "Command lines of add-ons.",
    Pcr12AddonInitrd: "Initial file system of an add-on.",
    Pcr12AddonUcode: "Microcode of an add-on.",
    Pcr12Credentials: "Credentials beside a unified kernel image.",
    Pcr12Confext: "Configuration extensions beside a unified kernel image.",
    Pcr14MokList: "The machine owner keys, shim's own first.",
    Pcr14MokListX: "The revoked machine owner keys.",
    Pcr14MokSbState: "Verification by shim is switched off.",
    Pcr14MokListTrusted: "Whether the kernel may trust machine owner keys.",
    Pcr14MokPolicy: "Policy of shim.",
    Pcr0Recorded: "Taken from the log of an earlier boot.",
    Pcr1Recorded: "Taken from the log of an earlier boot.",
    Pcr2Recorded: "Taken from the log of an earlier boot.",
    Pcr3Recorded: "Taken from the log of an earlier boot.",
    Pcr4Recorded: "Taken from the log of an earlier boot.",
    Pcr5Recorded: "Taken from the log of an earlier boot.",
    Pcr6Recorded: "Taken from the log of an earlier boot.",
    Pcr7Recorded: "Taken from the log of an earlier boot.",
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One measurement during a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measurement {
    /// The component that makes the measurement.
    pub component: Component,
    /// Register that it extends.
    pub pcr: PcrIndex,
    /// Event type in the log.
    pub kind: EventKind,
    /// Digest with which it extends the SHA-256 bank.
    pub digest: Sha256Digest,
    /// Digests with which it extends the computed banks, including SHA-256.
    pub digests: BankDigests,
    /// File that the digest was computed from.
    pub file: Option<String>,
    /// What was measured, in readable form: a variable, a command or the name of a section.
    pub subject: Option<String>,
}

impl Measurement {
    /// A measurement of `component` that does not come from a file.
    pub fn new(component: Component, pcr: PcrIndex, kind: EventKind, digests: BankDigests) -> Self {
        Self { component, pcr, kind, digest: digests.sha256(), digests, file: None, subject: None }
    }

    /// Sets the file that the digest comes from.
    pub fn of_file(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Sets what was measured.
    pub fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// The firmware's announcement of a boot option (PC Client Platform Firmware Profile 1.06,
    /// 3.3.4.5: the text without terminator).
    pub fn efi_call(banks: Banks) -> Self {
        Self::new(
            Component::Pcr4EfiCall,
            PcrIndex::BOOT_MANAGER,
            EventKind::EFI_ACTION,
            BankDigests::of(banks, b"Calling EFI Application from Boot Option"),
        )
    }

    /// A separator (PC Client Platform Firmware Profile 1.06, 10.4.1: four zero bytes).
    pub fn separator(component: Component, pcr: PcrIndex, banks: Banks) -> Self {
        Self::new(component, pcr, EventKind::SEPARATOR, BankDigests::of(banks, [0; 4]))
    }

    /// An application that firmware or shim starts, by its Authenticode digests.
    pub fn application(
        component: Component,
        digests: BankDigests,
        file: impl Into<String>,
    ) -> Self {
        Self::new(
            component,
            PcrIndex::BOOT_MANAGER,
            EventKind::EFI_BOOT_SERVICES_APPLICATION,
            digests,
        )
        .of_file(file)
    }

    /// Folds measurements into the values of all registers that they extend.
    pub fn fold(measurements: impl IntoIterator<Item = Self>) -> ExpectedPcrs {
        let events: Vec<ImageEvent> = measurements.into_iter().map(ImageEvent::from).collect();
        let registers: PcrSet = events.iter().map(|event| event.pcr).collect();
        let values =
            registers.iter().map(|pcr| ExpectedPcr::from_events(pcr, events.iter().cloned()));
        ExpectedPcrs::new(values.collect())
    }
}

impl From<Measurement> for ImageEvent {
    fn from(measurement: Measurement) -> Self {
        let event = Self::new(
            measurement.kind.name(),
            measurement.pcr,
            measurement.digest,
            measurement.component.as_str(),
        );
        match measurement.file {
            Some(file) => event.from_file(file),
            None => event,
        }
    }
}
