//! The state of a machine that its next boot depends on: firmware variables and disk names.

use std::collections::BTreeMap;
use std::io;

use tec_core::reference::BootImage;

use super::dbx::DbxUpdateError;
use super::running_shim::RunningShim;
use super::varstore::VariableStoreError;
use super::{dbx, resolve, varstore};
use crate::guid::Guid;

/// The partition that GRUB starts from in the layout of installers: the EFI system partition, first on the first
/// disk.
const GRUB_DEVICE: &str = "hd0,gpt1";

/// State of Secure Boot on the machines that boot the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SecureBoot {
    /// Images are verified before they start.
    On,
    /// Images start without verification.
    Off,
}

/// Firmware variables, and whatever else of a machine determines what its next boot measures.
///
/// *What it is not*: the image. The same image gives different values of PCR 7 and 14 on a machine with
/// different keys. What a host passes to a virtual machine through SMBIOS (a command line for systemd-stub)
/// is not part of it, and is assumed to be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformState {
    variables: BTreeMap<(Guid, String), Variable>,
    grub_device: Option<String>,
    grub_root: Option<String>,
    running_shim: Option<RunningShim>,
    unknown: Unknown,
}

/// What was not given. If variables were given, all of them were: an absent one is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unknown {
    keys: bool,
    mok_lists: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    pub(super) attributes: u32,
    pub(super) data: Vec<u8>,
}

/// The state of a machine cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlatformError {
    /// The variables cannot be listed.
    #[error("cannot list the variables below {folder:?}")]
    List {
        /// Folder.
        folder: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A variable's file cannot be read, or is larger than any variable.
    #[error("cannot read {file}")]
    Read {
        /// File.
        file: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is not named like a variable.
    #[error("{0} is not named NAME-GUID")]
    Name(String),
    /// A file is shorter than the attributes that it must begin with.
    #[error("{file} has {size} bytes, but must have at least the 4 bytes of attributes")]
    Attributes {
        /// File.
        file: String,
        /// Its size.
        size: usize,
    },
    /// A staged update of a key database cannot be read.
    #[error("cannot append the update to {variable}")]
    Update {
        /// Variable.
        variable: &'static str,
        /// The cause.
        #[source]
        source: DbxUpdateError,
    },
    /// An image of a variable store cannot be read.
    #[error("cannot read the variable store")]
    Store(#[source] VariableStoreError),
    /// A variable that must be one byte, 0 or 1, has another value.
    #[error("{variable} must be one byte, 0 or 1; it has {size} bytes")]
    Switch {
        /// Name of the variable.
        variable: &'static str,
        /// Its size.
        size: usize,
    },
}

/// UEFI 2.10, 3.3 and 8.2.1: attributes of `SecureBoot` and of shim's mirrors.
const BOOT_SERVICES_RUNTIME: u32 = 6;
/// UEFI 2.10, 32.5.3: attributes of the key databases: non-volatile, boot services, runtime,
/// authenticated by time.
const KEYS: u32 = 0x27;
/// Largest variable that is read; the largest real one, dbx, has some 25 KiB.
const MAX_VARIABLE: u64 = 1 << 20;
/// `-` and the text of a GUID.
const GUID_SUFFIX: usize = 37;
/// Mirrors of shim's lists and level (shim, MokVars.txt), as Linux shows them in
/// `/sys/firmware/efi/mok-variables`.
const MIRRORS: [&str; 4] = ["MokListRT", "MokListXRT", "MokListTrustedRT", "SbatLevelRT"];

impl PlatformState {
    /// A machine without any variables: no keys, Secure Boot off.
    pub fn new() -> Self {
        Self::default()
    }

    /// A machine whose variables are not known; it is known only whether it verifies what it starts. shim is
    /// assumed to do the same.
    ///
    /// Registers that hold keys and lists of the machine are unpredictable on it, and what is started must be
    /// signed if Secure Boot is on.
    pub fn with_unknown_variables(secure_boot: SecureBoot) -> Self {
        let unknown = Unknown { keys: true, mok_lists: true };
        Self { unknown, ..Self::new() }.with_secure_boot(secure_boot)
    }

    /// Declares that the lists of machine owner keys are those added as variables, and are empty if none were
    /// added.
    pub fn with_known_mok_lists(mut self) -> Self {
        self.unknown.mok_lists = false;
        self
    }

    /// Takes shim's lists from the files `MokListRT`, `MokListXRT`, `MokListTrustedRT` and `SbatLevelRT`
    /// below `folder`, without attributes, as Linux shows them in `/sys/firmware/efi/mok-variables`.
    /// `MokListRT`, which every shim creates, must exist.
    pub fn with_mok_variables(
        mut self,
        image: &dyn BootImage,
        folder: &str,
    ) -> Result<Self, PlatformError> {
        for (number, name) in MIRRORS.into_iter().enumerate() {
            let file = [folder, name].join("/");
            let file = file.trim_start_matches('/');
            match read(image, file) {
                Ok(data) => self.insert(name.to_owned(), Guid::SHIM, BOOT_SERVICES_RUNTIME, data),
                Err(PlatformError::Read { source, .. })
                    if number > 0 && source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.with_known_mok_lists())
    }

    /// Adds or replaces a variable.
    pub fn with_variable(
        mut self,
        name: impl Into<String>,
        vendor: Guid,
        attributes: u32,
        data: impl Into<Vec<u8>>,
    ) -> Self {
        self.insert(name.into(), vendor, attributes, data.into());
        self
    }

    /// Appends keys or revocations to a key database (`KEK`, `db`, `dbx`), as firmware does: a file of signature
    /// lists (`.esl`), or one with the signature that the firmware requires (`.auth`, `DBXUpdate.bin`).
    ///
    /// # Errors
    /// [`PlatformError::Update`]: the update, or the content of the database, cannot be read.
    pub fn with_update(
        self,
        variable: &'static str,
        vendor: Guid,
        update: &[u8],
    ) -> Result<Self, PlatformError> {
        let present = self.get(variable, vendor);
        let attributes = present.map_or(KEYS, |present| present.attributes);
        let present = present.map_or(&[][..], |present| &present.data);
        let after = dbx::appended(present, update)
            .map_err(|source| PlatformError::Update { variable, source })?;
        Ok(self.with_variable(variable, vendor, attributes, after))
    }

    /// Sets whether firmware verifies images, regardless of the other variables.
    pub fn with_secure_boot(self, state: SecureBoot) -> Self {
        let state = [u8::from(state == SecureBoot::On)];
        self.with_variable("SecureBoot", Guid::GLOBAL, BOOT_SERVICES_RUNTIME, state)
    }

    /// Sets how GRUB names the partition that it starts from; without it, `hd0,gpt1`. GRUB 2.06 measures that
    /// name.
    pub fn with_grub_device(mut self, device: impl Into<String>) -> Self {
        self.grub_device = Some(device.into());
        self
    }

    /// Sets how GRUB names the partition that its script searches for first. Without it, the search is assumed
    /// to find what the script gives as a hint, as `grub-install` writes it; without a hint, `hd0,gpt2`.
    pub fn with_grub_root(mut self, device: impl Into<String>) -> Self {
        self.grub_root = Some(device.into());
        self
    }

    /// Declares which shim wrote the mirrors. Without it, the one that boots next is assumed to have written
    /// them.
    pub fn with_running_shim(mut self, shim: RunningShim) -> Self {
        self.running_shim = Some(shim);
        self
    }

    /// The shim that wrote the mirrors, if it is known.
    pub(super) fn running_shim(&self) -> Option<&RunningShim> {
        self.running_shim.as_ref()
    }

    /// Reads the files below `folder` as Linux shows them in efivarfs: `NAME-GUID`, with 4 bytes
    /// of attributes before the data.
    ///
    /// A running system shows shim's lists only as mirrors (`MokListRT`, `SbatLevelRT`); they are treated as
    /// the variables that they mirror.
    pub fn from_efivars(image: &dyn BootImage, folder: &str) -> Result<Self, PlatformError> {
        let mut state = Self::new();
        let files = image
            .files(folder)
            .map_err(|source| PlatformError::List { folder: folder.to_owned(), source })?;
        for file in files {
            let content = read(image, &file)?;
            state.insert_efivarfs(&file, &content)?;
        }
        Ok(state)
    }

    /// Adds one file of efivarfs.
    pub fn insert_efivarfs(&mut self, file: &str, content: &[u8]) -> Result<(), PlatformError> {
        let base = file.rsplit('/').next().unwrap_or(file);
        let named = || {
            let (name, suffix) = base.split_at_checked(base.len().checked_sub(GUID_SUFFIX)?)?;
            let vendor: Guid = suffix.strip_prefix('-')?.parse().ok()?;
            (!name.is_empty()).then(|| (name.to_owned(), vendor))
        };
        let (name, vendor) = named().ok_or_else(|| PlatformError::Name(file.to_owned()))?;
        let (attributes, data) = content.split_first_chunk().ok_or_else(|| {
            PlatformError::Attributes { file: file.to_owned(), size: content.len() }
        })?;
        self.insert(name, vendor, u32::from_le_bytes(*attributes), data.to_vec());
        Ok(())
    }

    /// Reads a flash image with EDK II's variable store, such as `OVMF_VARS.fd`.
    pub fn from_variable_store(image: &[u8]) -> Result<Self, PlatformError> {
        let mut state = Self::new();
        for variable in varstore::parse(image).map_err(PlatformError::Store)? {
            let data = variable.data.to_vec();
            state.insert(variable.name, variable.vendor, variable.attributes, data);
        }
        Ok(state)
    }

    fn insert(&mut self, name: String, vendor: Guid, attributes: u32, data: Vec<u8>) {
        let variable = Variable { attributes, data };
        self.variables.insert((vendor, name), variable);
    }

    /// Data of a variable.
    pub fn variable(&self, name: &str, vendor: Guid) -> Option<&[u8]> {
        self.get(name, vendor).map(|variable| variable.data.as_slice())
    }

    pub(super) fn get(&self, name: &str, vendor: Guid) -> Option<&Variable> {
        self.variables.get(&(vendor, name.to_owned()))
    }

    pub(super) fn knows_keys(&self) -> bool {
        !self.unknown.keys
    }

    pub(super) fn knows_mok_lists(&self) -> bool {
        !self.unknown.mok_lists
    }

    /// How GRUB names the partition that it starts from.
    pub fn grub_device(&self) -> &str {
        self.grub_device.as_deref().unwrap_or(GRUB_DEVICE)
    }

    /// GRUB's name of the partition that its script searches for first.
    pub(super) fn grub_root(&self) -> Option<&str> {
        self.grub_root.as_deref()
    }

    /// Whether the firmware has a setup screen to enter at the next boot (UEFI 2.10, 8.5.4: first bit of
    /// `OsIndicationsSupported`). A variable store does not have this variable; OVMF has a screen.
    pub(super) fn has_setup_screen(&self) -> bool {
        let supported = self.variable("OsIndicationsSupported", Guid::GLOBAL);
        supported.and_then(<[u8]>::first).is_none_or(|first| first & 1 == 1)
    }

    /// Whether images will be verified.
    ///
    /// Without the variable `SecureBoot`, which no store holds, the answer follows from what determines it
    /// (UEFI 2.10, 32.3, and EDK II's `SecureBootEnable`): a platform key, and no switch that is off.
    ///
    /// # Errors
    /// [`PlatformError::Switch`] when a variable is neither 0 nor 1.
    pub fn secure_boot(&self) -> Result<SecureBoot, PlatformError> {
        if let Some(state) = self.switch("SecureBoot", Guid::GLOBAL)? {
            return Ok(state);
        }
        let has_key = self.variable("PK", Guid::GLOBAL).is_some_and(|key| !key.is_empty());
        if !has_key {
            return Ok(SecureBoot::Off);
        }
        let enabled = self.switch("SecureBootEnable", Guid::SECURE_BOOT_ENABLE)?;
        Ok(enabled.unwrap_or(SecureBoot::On))
    }

    fn switch(
        &self,
        variable: &'static str,
        vendor: Guid,
    ) -> Result<Option<SecureBoot>, PlatformError> {
        match self.variable(variable, vendor) {
            None => Ok(None),
            Some([0]) => Ok(Some(SecureBoot::Off)),
            Some([1]) => Ok(Some(SecureBoot::On)),
            Some(data) => Err(PlatformError::Switch { variable, size: data.len() }),
        }
    }
}

fn read(image: &dyn BootImage, file: &str) -> Result<Vec<u8>, PlatformError> {
    let refuse = |source| PlatformError::Read { file: file.to_owned(), source };
    image.open(file).and_then(|reader| resolve::all(reader, MAX_VARIABLE)).map_err(refuse)
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryImage;
    use super::*;

    const PK: &str = "efivars/PK-8be4df61-93ca-11d2-aa0d-00e098032b8c";

    #[test]
    fn efivarfs_files_are_variables_after_their_attributes() {
        let image = MemoryImage::new().with(PK, b"\x27\0\0\0key".to_vec());
        let state = PlatformState::from_efivars(&image, "efivars").unwrap();
        assert_eq!(state.variable("PK", Guid::GLOBAL), Some(&b"key"[..]));
        assert_eq!(state.get("PK", Guid::GLOBAL).unwrap().attributes, 0x27);
        assert_eq!(state.secure_boot().unwrap(), SecureBoot::On);
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let mut state = PlatformState::new();
        for name in ["PK", "8be4df61-93ca-11d2-aa0d-00e098032b8c", "é-x"] {
            assert!(matches!(
                state.insert_efivarfs(name, b"\0\0\0\0"),
                Err(PlatformError::Name(file)) if file == name
            ));
        }
        for size in 0..4 {
            assert!(matches!(
                state.insert_efivarfs(PK, &[0; 4][..size]),
                Err(PlatformError::Attributes { .. })
            ));
        }
    }

    #[test]
    fn secure_boot_follows_from_the_platform_key_and_its_switch() {
        let with = |switch: &[u8]| {
            PlatformState::new().with_variable("PK", Guid::GLOBAL, 0x27, *b"key").with_variable(
                "SecureBootEnable",
                Guid::SECURE_BOOT_ENABLE,
                3,
                switch,
            )
        };
        let off = PlatformState::new().secure_boot().unwrap();
        assert_eq!(off, SecureBoot::Off);
        assert_eq!(with(&[1]).secure_boot().unwrap(), SecureBoot::On);
        assert_eq!(with(&[0]).secure_boot().unwrap(), SecureBoot::Off);
        assert!(matches!(with(&[2]).secure_boot(), Err(PlatformError::Switch { size: 1, .. })));
        let says_off = with(&[1]).with_variable("SecureBoot", Guid::GLOBAL, 6, [0]);
        assert_eq!(says_off.secure_boot().unwrap(), SecureBoot::Off);
    }

    #[test]
    fn mok_variables_are_shims_mirrors_and_their_first_must_be_there() {
        let image = MemoryImage::new()
            .with("mok/MokListRT", b"list".to_vec())
            .with("mok/SbatLevelRT", b"sbat,1,2".to_vec())
            .with("mok/other", b"other".to_vec());
        let state = PlatformState::with_unknown_variables(SecureBoot::On);
        assert!(!state.knows_mok_lists());
        let state = state.with_mok_variables(&image, "mok").unwrap();
        assert!(state.knows_mok_lists() && !state.knows_keys());
        assert_eq!(state.variable("MokListRT", Guid::SHIM), Some(&b"list"[..]));
        assert_eq!(state.variable("MokListXRT", Guid::SHIM), None);
        let refused = PlatformState::new().with_mok_variables(&MemoryImage::new(), "");
        assert!(matches!(
            refused,
            Err(PlatformError::Read { file, .. }) if file == "MokListRT"
        ));
    }

    #[test]
    fn a_huge_variable_is_refused() {
        let image = MemoryImage::new().with(PK, vec![0; (1 << 20) + 1]);
        assert!(matches!(
            PlatformState::from_efivars(&image, "efivars"),
            Err(PlatformError::Read { source, .. })
                if source.kind() == io::ErrorKind::FileTooLarge
        ));
    }
}
