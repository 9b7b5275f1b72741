//! Reading a report, field by field.

use super::{FirmwareVersion, Processor, REPORT_SIZE, Report, SIGNED_SIZE, Signature};
use crate::snp::{GuestPolicy, KeyInfo, PlatformInfo, Product, Tcb};
use crate::wire::{WireError, WireReader};

/// From this version on a report says which processor made it.
const WITH_PROCESSOR: u32 = 3;
/// From this version on a report has mitigation vectors.
const WITH_MITIGATIONS: u32 = 5;

/// Reads fields one after the other, and notes reserved ones that are not as they must be.
pub(super) struct Fields<'a> {
    reader: WireReader<'a>,
    reserved: Vec<usize>,
}

/// A TCB before the product is known, and where it stood.
#[derive(Clone, Copy)]
struct RawTcb {
    offset: usize,
    bytes: [u8; 8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { reader: WireReader::new(bytes), reserved: Vec::new() }
    }

    pub(super) fn version(&mut self) -> Result<u32, WireError> {
        self.reader.le_u32()
    }

    /// All after the version, in the order of the specification.
    pub(super) fn read(mut self, version: u32) -> Result<Report, WireError> {
        let guest_svn = self.reader.le_u32()?;
        let policy = self.policy()?;
        let (family_id, image_id) = (self.reader.array()?, self.reader.array()?);
        let (vmpl, signature_algorithm) = (self.reader.le_u32()?, self.reader.le_u32()?);
        let current = self.raw_tcb()?;
        let platform = PlatformInfo::from_bits(self.reader.le_u64()?);
        let key_info = self.key_info()?;
        self.zeros::<4>()?;
        let (report_data, measurement) = (self.reader.array()?, self.reader.array()?);
        let host_data = self.reader.array()?;
        let (id_key_digest, author_key_digest) = (self.reader.array()?, self.reader.array()?);
        let (report_id, report_id_ma) = (self.reader.array()?, self.reader.array()?);
        let reported = self.raw_tcb()?;
        let processor = self.processor(version)?;
        let chip_id = self.reader.array()?;
        let committed = self.raw_tcb()?;
        let (current_firmware, committed_firmware) = (self.firmware()?, self.firmware()?);
        let launch = self.raw_tcb()?;
        let (launch_mitigations, current_mitigations) = self.mitigations(version)?;
        self.zeros::<{ SIGNED_SIZE - 0x208 }>()?;
        let signature = self.signature()?;
        let product = processor.and_then(|p| Product::of_processor(p.family, p.model));
        Ok(Report {
            version,
            guest_svn,
            policy,
            family_id,
            image_id,
            vmpl,
            signature_algorithm,
            platform,
            key_info,
            report_data,
            measurement,
            host_data,
            id_key_digest,
            author_key_digest,
            report_id,
            report_id_ma,
            processor,
            chip_id,
            current_tcb: self.tcb(current, product),
            reported_tcb: self.tcb(reported, product),
            committed_tcb: self.tcb(committed, product),
            launch_tcb: self.tcb(launch, product),
            current_firmware,
            committed_firmware,
            launch_mitigations,
            current_mitigations,
            reserved: self.sorted(),
            signature,
            digest: [0; 48],
        })
    }

    fn sorted(mut self) -> Vec<usize> {
        self.reserved.sort_unstable();
        self.reserved
    }

    fn note(&mut self, offset: usize, place: Option<usize>) {
        self.reserved.extend(place.map(|place| offset + place));
    }

    fn zeros<const N: usize>(&mut self) -> Result<(), WireError> {
        let offset = self.reader.offset();
        let bytes = self.reader.array::<N>()?;
        self.note(offset, bytes.iter().position(|byte| *byte != 0));
        Ok(())
    }

    fn policy(&mut self) -> Result<GuestPolicy, WireError> {
        let offset = self.reader.offset();
        let policy = GuestPolicy::from_bits(self.reader.le_u64()?);
        self.note(offset, policy.reserved());
        Ok(policy)
    }

    fn key_info(&mut self) -> Result<KeyInfo, WireError> {
        let offset = self.reader.offset();
        let info = KeyInfo::from_bits(self.reader.le_u32()?);
        self.note(offset, info.reserved());
        Ok(info)
    }

    fn raw_tcb(&mut self) -> Result<RawTcb, WireError> {
        Ok(RawTcb { offset: self.reader.offset(), bytes: self.reader.array()? })
    }

    fn tcb(&mut self, raw: RawTcb, product: Option<Product>) -> Tcb {
        let (tcb, reserved) = Tcb::split(raw.bytes, product);
        self.note(raw.offset, reserved);
        tcb
    }

    /// 24 bytes, of which three are in use from version 3 on.
    fn processor(&mut self, version: u32) -> Result<Option<Processor>, WireError> {
        if version < WITH_PROCESSOR {
            self.zeros::<24>()?;
            return Ok(None);
        }
        let [family, model, stepping] = self.reader.array()?;
        self.zeros::<21>()?;
        Ok(Some(Processor { family, model, stepping }))
    }

    fn firmware(&mut self) -> Result<FirmwareVersion, WireError> {
        let [build, minor, major] = self.reader.array()?;
        self.zeros::<1>()?;
        Ok(FirmwareVersion { major, minor, build })
    }

    fn mitigations(&mut self, version: u32) -> Result<(Option<u64>, Option<u64>), WireError> {
        if version < WITH_MITIGATIONS {
            self.zeros::<16>()?;
            return Ok((None, None));
        }
        Ok((Some(self.reader.le_u64()?), Some(self.reader.le_u64()?)))
    }

    /// Fields of 72 bytes for numbers of 48, and padding to 512.
    fn signature(&mut self) -> Result<Signature, WireError> {
        let r = self.reader.array()?;
        self.zeros::<24>()?;
        let s = self.reader.array()?;
        self.zeros::<24>()?;
        self.zeros::<{ REPORT_SIZE - SIGNED_SIZE - 144 }>()?;
        Ok(Signature { r, s })
    }
}
