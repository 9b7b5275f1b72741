//! Writing logs: for tests, for simulated firmware, and for fuzzing.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::{Bank, EventKind, Format};

/// Writes a log: events after a `Spec ID Event03` header, or events of the SHA-1 form.
#[derive(Clone, Debug)]
pub struct EventLogBuilder {
    format: Format,
    banks: Vec<Bank>,
    bytes: Vec<u8>,
}

impl Default for EventLogBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl EventLogBuilder {
    /// A log of the SHA-256 bank.
    pub fn new() -> Self {
        Self::with_banks(&[Bank::Sha256])
    }

    /// A log of several banks.
    pub fn with_banks(banks: &[Bank]) -> Self {
        let mut builder =
            Self { format: Format::CryptoAgile, banks: banks.to_vec(), bytes: Vec::new() };
        builder.header();
        builder
    }

    /// A log of the SHA-1 form, as firmware writes it for a TPM 1.2.
    pub fn sha1_form() -> Self {
        Self { format: Format::Sha1, banks: vec![Bank::Sha1], bytes: Vec::new() }
    }

    /// An event whose digest is that of its data.
    pub fn measure(&mut self, pcr: PcrIndex, kind: EventKind, data: &[u8]) -> &mut Self {
        self.measure_other(pcr, kind, data, data)
    }

    /// An event whose digest is that of `measured`, which the log does not hold.
    pub fn measure_other(
        &mut self,
        pcr: PcrIndex,
        kind: EventKind,
        measured: &[u8],
        data: &[u8],
    ) -> &mut Self {
        self.event(pcr, kind, data, |bank| bank.hash(measured))
    }

    /// An event with a digest that was computed elsewhere. Banks other than SHA-256 get their own
    /// hash of that digest, since the real one is not known.
    pub fn measure_digest(
        &mut self,
        pcr: PcrIndex,
        kind: EventKind,
        digest: Sha256Digest,
        data: &[u8],
    ) -> &mut Self {
        self.event(pcr, kind, data, |bank| match bank {
            Bank::Sha256 => digest.as_bytes().to_vec(),
            other => other.hash(digest.as_bytes()),
        })
    }

    /// An application that the firmware or shim started: `digest` is its Authenticode digest,
    /// `path` its file path within the boot partition.
    pub fn image(&mut self, digest: Sha256Digest, path: &str) -> &mut Self {
        self.measure_digest(
            PcrIndex::BOOT_MANAGER,
            EventKind::EFI_BOOT_SERVICES_APPLICATION,
            digest,
            &image_load_event(path),
        )
    }

    /// A measured EFI variable; `guid` in memory byte order.
    pub fn variable(
        &mut self,
        pcr: PcrIndex,
        kind: EventKind,
        guid: [u8; 16],
        name: &str,
        data: &[u8],
    ) -> &mut Self {
        let name: Vec<u16> = name.encode_utf16().collect();
        let mut event = guid.to_vec();
        event.extend((name.len() as u64).to_le_bytes());
        event.extend((data.len() as u64).to_le_bytes());
        event.extend(name.iter().flat_map(|unit| unit.to_le_bytes()));
        event.extend(data);
        self.measure(pcr, kind, &event)
    }

    /// A separator of four zero bytes (PC Client Platform Firmware Profile 10.4.1).
    pub fn separator(&mut self, pcr: PcrIndex) -> &mut Self {
        self.measure(pcr, EventKind::SEPARATOR, &[0; 4])
    }

    /// The event that says which locality started the TPM; it extends nothing.
    pub fn startup_locality(&mut self, locality: u8) -> &mut Self {
        let mut data = b"StartupLocality\0".to_vec();
        data.push(locality);
        self.no_action(&data)
    }

    /// An event that extends nothing.
    pub fn no_action(&mut self, data: &[u8]) -> &mut Self {
        self.raw_event(0, EventKind::NO_ACTION, data, |bank| vec![0; bank.digest_size()])
    }

    /// Appends bytes as they are, for malformed logs.
    pub fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend(bytes);
        self
    }

    /// The log.
    pub fn build(&self) -> Vec<u8> {
        self.bytes.clone()
    }

    fn event(
        &mut self,
        pcr: PcrIndex,
        kind: EventKind,
        data: &[u8],
        digest: impl Fn(Bank) -> Vec<u8>,
    ) -> &mut Self {
        self.raw_event(u8::from(pcr).into(), kind, data, digest)
    }

    fn raw_event(
        &mut self,
        pcr: u32,
        kind: EventKind,
        data: &[u8],
        digest: impl Fn(Bank) -> Vec<u8>,
    ) -> &mut Self {
        self.bytes.extend(pcr.to_le_bytes());
        self.bytes.extend(kind.number().to_le_bytes());
        match self.format {
            Format::Sha1 => self.bytes.extend(digest(Bank::Sha1)),
            Format::CryptoAgile => {
                self.bytes.extend(length(&self.banks));
                for bank in &self.banks {
                    self.bytes.extend(bank.algorithm_id().to_le_bytes());
                    self.bytes.extend(digest(*bank));
                }
            }
        }
        self.bytes.extend(length(data));
        self.bytes.extend(data);
        self
    }

    /// `TCG_PCR_EVENT` with `TCG_EfiSpecIDEvent` (PC Client Platform Firmware Profile 10.4.5.1):
    /// platform class 0 (client), version 2.0, errata 2, UINTN of 64 bits.
    fn header(&mut self) {
        let mut data = b"Spec ID Event03\0".to_vec();
        data.extend([0, 0, 0, 0, 0, 2, 2, 2]);
        data.extend(length(&self.banks));
        for bank in &self.banks {
            data.extend(bank.algorithm_id().to_le_bytes());
            data.extend(length_u16(bank.digest_size()));
        }
        data.push(0);
        self.bytes.extend(0_u32.to_le_bytes());
        self.bytes.extend(EventKind::NO_ACTION.number().to_le_bytes());
        self.bytes.extend([0; 20]);
        self.bytes.extend(length(&data));
        self.bytes.extend(data);
    }
}

/// Lengths beyond 4 GiB do not fit the format; such a log would be refused when it is read.
fn length<T>(items: &[T]) -> [u8; 4] {
    u32::try_from(items.len()).unwrap_or(u32::MAX).to_le_bytes()
}

fn length_u16(length: usize) -> [u8; 2] {
    u16::try_from(length).unwrap_or(u16::MAX).to_le_bytes()
}

/// `UEFI_IMAGE_LOAD_EVENT` whose device path is one file path node and the end node (UEFI 2.10,
/// 10.3.5.4 and 10.3.1). The address at which the image was loaded is left at zero.
fn image_load_event(path: &str) -> Vec<u8> {
    let name: Vec<u8> = path.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let mut node = vec![0x04, 0x04];
    node.extend(length_u16(name.len() + 4));
    node.extend(name);
    node.extend([0x7f, 0xff, 4, 0]);
    let mut event = vec![0; 24];
    event.extend((node.len() as u64).to_le_bytes());
    event.extend(node);
    event
}
