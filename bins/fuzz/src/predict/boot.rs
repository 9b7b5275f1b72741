//! The tiny boots: files and variables, with the signer of each file.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use tec_core::digest::Sha256Digest;
use tec_tpm::compute::testing::PeBuilder;
use tec_tpm::compute::{Guid, MemoryImage, PeFile, PlatformState, SecureBoot};

use super::edit::{Change, Edit};
use crate::bytes::le16;
use crate::signer::{firmware, vendor};
use crate::{signature_list, uki, vendor_cert};

/// The signer of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Nobody,
    Firmware,
    Vendor,
    /// Unsigned, but its digest is in `db`: nothing is verified, which is faster.
    Listed,
}

#[derive(Clone, Debug)]
struct File {
    path: String,
    /// Without a signature.
    plain: Vec<u8>,
    content: Vec<u8>,
    by: By,
}

#[derive(Clone, Debug)]
struct Variable {
    name: &'static str,
    vendor: Guid,
    attributes: u32,
    data: Vec<u8>,
}

/// A boot that can be changed.
#[derive(Clone, Debug)]
pub(super) struct Boot {
    files: Vec<File>,
    variables: Vec<Variable>,
    /// The intended state of the machine.
    pub(super) state: SecureBoot,
    /// Digests of all signed files.
    pub(super) signed: BTreeSet<Sha256Digest>,
    /// Digests in `db`.
    listed: BTreeSet<Sha256Digest>,
    /// Whether keys may differ from those that sign here.
    pub(super) other_keys: bool,
}

const SHIM: &str = "EFI/BOOT/BOOTX64.EFI";
const GRUB: &str = "EFI/BOOT/grubx64.efi";
const SCRIPT: &str = "EFI/debian/grub.cfg";
const ADDON: &str = "EFI/BOOT/grubx64.efi.extra.d/a.addon.efi";

impl Boot {
    /// Number of boots.
    pub(super) const CHOICES: u8 = 8;
    /// Their names.
    pub(super) const NAMES: [&str; 8] = [
        "grub_2_06",
        "grub_2_12",
        "grub_2_14_insecure",
        "uki_from_shim",
        "uki_from_firmware",
        "uki_252_insecure",
        "grub_2_06_insecure",
        "uki_262",
    ];

    /// The boot with this number, modulo their count.
    pub(super) fn choose(choice: u8) -> Self {
        static BOOTS: OnceLock<Vec<Boot>> = OnceLock::new();
        let boots = BOOTS.get_or_init(|| (0..Self::CHOICES).map(Self::make).collect());
        let chosen = boots.get(usize::from(choice % Self::CHOICES));
        chosen.cloned().expect("a number below the count")
    }

    fn make(choice: u8) -> Self {
        use SecureBoot::{Off, On};
        match choice {
            0 => Self::new(On, listed(grub("2.06"))),
            1 => Self::new(On, grub("2.12")),
            2 => Self::new(Off, grub("2.14")),
            3 => Self::new(On, listed(vec![shim(), stub(GRUB, "257.3"), addon()])),
            4 => Self::new(On, vec![stub(SHIM, "257.3")]),
            5 => Self::new(Off, vec![stub(SHIM, "252")]),
            6 => Self::new(Off, grub("2.06")),
            _ => Self::new(On, listed(vec![shim(), stub(GRUB, "262"), addon()])),
        }
    }

    fn new(secure_boot: SecureBoot, files: Vec<File>) -> Self {
        let mut boot = Self {
            files: Vec::new(),
            variables: variables(secure_boot),
            state: secure_boot,
            signed: BTreeSet::new(),
            listed: BTreeSet::new(),
            other_keys: false,
        };
        for mut file in files {
            // Without Secure Boot, files need no signature, and changing them is cheaper.
            if secure_boot == SecureBoot::Off {
                file.by = By::Nobody;
            }
            boot.sign(&mut file);
            boot.files.push(file);
        }
        boot
    }

    fn sign(&mut self, file: &mut File) {
        file.content = match file.by {
            By::Nobody => return,
            By::Firmware => firmware().signed(file.plain.clone()),
            By::Vendor => vendor().signed(file.plain.clone()),
            By::Listed => file.plain.clone(),
        };
        if let Ok(read) = PeFile::read(file.content.as_slice(), &[]) {
            self.signed.insert(read.authenticode());
            if file.by == By::Listed {
                self.listed.insert(read.authenticode());
            }
        }
    }

    /// Changes a file or a variable; numbers count files first.
    pub(super) fn apply(&mut self, edit: &Edit<'_>) {
        let count = self.files.len() + self.variables.len();
        let Some(place) = usize::from(edit.subject).checked_rem(count) else {
            return;
        };
        if let Some(variable) = place.checked_sub(self.files.len()) {
            self.change_variable(variable, edit);
        } else {
            self.change_file(place, edit);
        }
    }

    fn change_file(&mut self, place: usize, edit: &Edit<'_>) {
        let mut file = self.files.remove(place);
        if let Change::Rename(_) = edit.change {
            file.path = file.path.to_uppercase();
            self.files.push(file);
            return;
        }
        let is_signed = edit.signed && file.by != By::Nobody;
        let before = if is_signed { &file.plain } else { &file.content };
        let Some(after) = edit.change.of(before.clone()) else {
            return;
        };
        file.plain.clone_from(&after);
        file.content = after;
        // Shim's own keys are in the file: with other keys, other signers are accepted.
        self.other_keys |= file.path.eq_ignore_ascii_case(SHIM);
        if is_signed {
            self.sign(&mut file);
        }
        self.files.push(file);
    }

    fn change_variable(&mut self, place: usize, edit: &Edit<'_>) {
        self.other_keys = true;
        let mut variable = self.variables.remove(place);
        if let Change::Rename(attributes) = edit.change {
            variable.attributes = attributes.into();
        } else {
            let Some(after) = edit.change.of(variable.data) else {
                return;
            };
            variable.data = after;
        }
        self.variables.push(variable);
    }

    pub(super) fn image(&self) -> MemoryImage {
        self.files.iter().fold(MemoryImage::new(), |image, file| {
            image.with(file.path.clone(), file.content.clone())
        })
    }

    pub(super) fn machine(&self) -> PlatformState {
        let machine = PlatformState::new().with_grub_device("hd0,gpt1");
        self.variables.iter().fold(machine, |machine, variable| {
            let Variable { name, vendor, attributes, data } = variable;
            let mut data = data.clone();
            if *name == "db" {
                let digests = self.listed.iter();
                data.extend(
                    digests.flat_map(|d| signature_list::one(signature_list::SHA256, d.as_bytes())),
                );
            }
            machine.with_variable(*name, *vendor, *attributes, data)
        })
    }
}

impl File {
    fn new(path: &str, plain: impl Into<Vec<u8>>, by: By) -> Self {
        let plain = plain.into();
        let content = plain.clone();
        Self { path: path.to_owned(), plain, content, by }
    }
}

/// shim, GRUB, its script, the kernel and its initial file system.
fn grub(version: &str) -> Vec<File> {
    let sbat = format!("sbat,1,S,sbat,1,u\ngrub,5,F,grub,{version},u\ngrub.debian,5,D,g,1,u\n");
    let grub = PeBuilder::new().section(".text", "GRUB").section(".sbat", sbat);
    let script = "set timeout=0\nlinux /vmlinuz quiet\ninitrd /initrd.img\nboot\n";
    vec![
        shim(),
        File::new(GRUB, grub.build(), By::Vendor),
        File::new(SCRIPT, script, By::Nobody),
        File::new("vmlinuz", uki::kernel("6.12"), By::Vendor),
        File::new("initrd.img", "initial file system", By::Nobody),
    ]
}

/// The same files, allowed by their digests.
fn listed(mut files: Vec<File>) -> Vec<File> {
    for file in &mut files {
        if file.by != By::Nobody {
            file.by = By::Listed;
        }
    }
    files
}

fn shim() -> File {
    let keys = vendor_cert::keys(&vendor().ca, &[]);
    let shim = PeBuilder::new()
        .section(".text", "shim")
        .section(".data.ident", "UEFI SHIM\n$Version: 16.1 $\n")
        .section(".sbatlevel", vendor_cert::LEVELS)
        .section(".vendor_cert", keys);
    File::new(SHIM, shim.build(), By::Firmware)
}

fn stub(path: &str, version: &str) -> File {
    let by = if path == SHIM { By::Firmware } else { By::Vendor };
    File::new(path, uki::image(version).build(), by)
}

fn addon() -> File {
    let addon = PeBuilder::new().section(".cmdline", "debug");
    File::new(ADDON, addon.build(), By::Vendor)
}

fn variables(secure_boot: SecureBoot) -> Vec<Variable> {
    let of = |name, vendor, attributes, data| Variable { name, vendor, attributes, data };
    let state = vec![u8::from(secure_boot == SecureBoot::On)];
    let db = signature_list::one(signature_list::X509, &firmware().ca);
    vec![
        of("SecureBoot", Guid::GLOBAL, 6, state),
        of("PK", Guid::GLOBAL, 0x27, b"key".to_vec()),
        of("db", Guid::SECURITY_DATABASE, 0x27, db),
        of("dbx", Guid::SECURITY_DATABASE, 0x27, Vec::new()),
        of("MokList", Guid::SHIM, 3, Vec::new()),
        of("MokListX", Guid::SHIM, 3, Vec::new()),
        of("SbatLevel", Guid::SHIM, 3, b"sbat,1,2023000000\n".to_vec()),
        of("SbatPolicy", Guid::SHIM, 3, Vec::new()),
        of("MokSBState", Guid::SHIM, 3, Vec::new()),
        of("MokListRT", Guid::SHIM, 6, Vec::new()),
        of("MokPolicy", Guid::SHIM, 3, Vec::new()),
        of("BootOrder", Guid::GLOBAL, 7, vec![1, 0]),
        of("Boot0001", Guid::GLOBAL, 7, boot_entry(SHIM)),
    ]
}

/// `EFI_LOAD_OPTION` (UEFI 2.10, 3.1.3): attributes 4, size of the path list 2, description, the path
/// of a file, the end of the list.
fn boot_entry(file: &str) -> Vec<u8> {
    let path = format!("/{file}\0").replace('/', "\\");
    let path: Vec<u8> = path.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let node = [&[4, 4][..], &le16(path.len() + 4), &path, &[0x7f, 0xff, 4, 0]].concat();
    [&[1, 0, 0, 0][..], &le16(node.len()), b"n\0\0\0", &node].concat()
}
