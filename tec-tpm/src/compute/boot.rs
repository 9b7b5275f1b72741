//! The boot, step by step: what firmware and shim measure, and who comes next.

use std::collections::BTreeMap;
use std::io::Read as _;

use tec_core::pcr::PcrIndex;
use tec_core::reference::BootImage;

use super::authority;
use super::authority::Authority;
use super::chain::SecureBoot;
use super::find;
use super::guid::Guid;
use super::hash::BankDigests;
use super::measurement::Component;
use super::measurement::Measurement;
use super::pe::PeFile;
use super::pe::PeRequest;
use super::platform::PlatformState;
use super::predict::BootPredictor;
use super::predict::PredictError;
use super::predict::Unpredictable;
use super::shim::Shim;
use super::shim::ShimProfile;
use super::signature::SignaturePresence;
use super::stub;
use crate::event_log::EventKind;

/// A boot in progress.
pub(super) struct Boot<'b> {
    pub(super) options: &'b BootPredictor,
    pub(super) image: &'b dyn BootImage,
    pub(super) platform: &'b PlatformState,
    pub(super) verification: SecureBoot,
    measurements: Vec<Measurement>,
    unpredictable: BTreeMap<PcrIndex, Unpredictable>,
    /// Firmware and shim each measure an authority only once.
    firmware_authorities: Vec<Authority>,
    shim_authorities: Vec<Authority>,
}

/// A file that is started, with its path.
pub(super) struct Started {
    pub(super) path: String,
    pub(super) file: PeFile,
}

/// Largest script of GRUB that is read.
const MAX_SCRIPT: u64 = 1 << 20;
/// Sections that are read whole.
const KEPT: [&str; 10] = [
    ".vendor_cert",
    ".sbatlevel",
    ".data.ident",
    ".sdmagic",
    ".sbat",
    ".cmdline",
    ".osrel",
    ".uname",
    ".pcrpkey",
    ".pcrsig",
];

impl<'b> Boot<'b> {
    pub(super) fn new(
        options: &'b BootPredictor,
        image: &'b dyn BootImage,
        platform: &'b PlatformState,
    ) -> Result<Self, PredictError> {
        let mut boot = Self {
            options,
            image,
            platform,
            verification: platform.secure_boot().map_err(PredictError::Platform)?,
            measurements: Vec::new(),
            unpredictable: BTreeMap::new(),
            firmware_authorities: Vec::new(),
            shim_authorities: Vec::new(),
        };
        for pcr in PcrIndex::all() {
            match u8::from(pcr) {
                0..=3 | 5 | 6 => boot.give_up(pcr, Unpredictable::Firmware),
                4 | 7 | 8 | 9 | 11 | 12 | 14 => {}
                _ => boot.give_up(pcr, Unpredictable::OperatingSystem),
            }
        }
        if !platform.knows_keys() {
            boot.give_up(PcrIndex::SECURE_BOOT, Unpredictable::Keys);
        }
        Ok(boot)
    }

    pub(super) fn finish(self) -> (Vec<Measurement>, BTreeMap<PcrIndex, Unpredictable>) {
        (self.measurements, self.unpredictable)
    }

    pub(super) fn run(&mut self) -> Result<(), PredictError> {
        self.measure_variables();
        let banks = self.options.banks;
        self.push(Measurement::efi_call_in(banks));
        self.push(Measurement::separator_in(
            Component::Pcr4Separator,
            PcrIndex::BOOT_MANAGER,
            banks,
        ));
        let (first, second) = match &self.options.stages {
            Some(stages) => stages.clone(),
            None => find::stages(self.image).map_err(PredictError::Find)?,
        };
        let first = self.read_loader(first)?;
        self.allow_by_firmware(&first)?;
        if first.is_uki() {
            self.push_image(Component::Pcr4Uki, &first);
            return self.start_uki(&first, None);
        }
        if first.file.section(".vendor_cert").is_none() {
            return Err(PredictError::UnknownLoader { file: first.path });
        }
        self.push_image(Component::Pcr4Shim, &first);
        let Some(second) = second else {
            return Err(PredictError::NoSecondStage { file: first.path });
        };
        let shim = self.start_shim(&first)?;
        let second = self.read_loader(second)?;
        self.allow_by_shim(&shim, &second)?;
        if second.is_uki() {
            self.push_image(Component::Pcr4Uki, &second);
            return self.start_uki(&second, Some(&shim));
        }
        self.push_image(Component::Pcr4Grub, &second);
        self.start_grub(&second, &shim)
    }

    pub(super) fn push(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    pub(super) fn push_image(&mut self, component: Component, started: &Started) {
        let digests = started.file.authenticode_digests();
        self.push(Measurement::application_in(
            component,
            digests,
            started.path.clone(),
        ));
    }

    /// Measures bytes as they are.
    pub(super) fn push_data(
        &mut self,
        component: Component,
        pcr: PcrIndex,
        kind: EventKind,
        data: &[u8],
        subject: &str,
    ) {
        let digests = BankDigests::of(self.options.banks, data);
        self.push(Measurement::new(component, pcr, kind, digests).about(subject));
    }

    /// Says that a register cannot be told; the first reason counts.
    pub(super) fn give_up(&mut self, pcr: PcrIndex, reason: Unpredictable) {
        self.unpredictable.entry(pcr).or_insert(reason);
    }

    /// EDK II, `MeasureAllSecureVariables`: five variables, empty where they are not set; then
    /// `dbt` if it is set; then the separator.
    fn measure_variables(&mut self) {
        let kind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
        let state = [u8::from(self.verification == SecureBoot::On)];
        let name = "SecureBoot";
        self.push_variable(Component::Pcr7SecureBoot, kind, name, Guid::GLOBAL, &state);
        let platform = self.platform;
        for (component, name, vendor) in [
            (Component::Pcr7Pk, "PK", Guid::GLOBAL),
            (Component::Pcr7Kek, "KEK", Guid::GLOBAL),
            (Component::Pcr7Db, "db", Guid::SECURITY_DATABASE),
            (Component::Pcr7Dbx, "dbx", Guid::SECURITY_DATABASE),
            (Component::Pcr7Dbt, "dbt", Guid::SECURITY_DATABASE),
        ] {
            let data = platform.variable(name, vendor).unwrap_or_default();
            if component != Component::Pcr7Dbt || !data.is_empty() {
                self.push_variable(component, kind, name, vendor, data);
            }
        }
        self.push(Measurement::separator_in(
            Component::Pcr7Separator,
            PcrIndex::SECURE_BOOT,
            self.options.banks,
        ));
    }

    /// `UEFI_VARIABLE_DATA` (PC Client Platform Firmware Profile 1.06, 10.2.6): vendor 16, number
    /// of characters 8, size of the data 8, name in UTF-16 without terminator, data.
    fn push_variable(
        &mut self,
        component: Component,
        kind: EventKind,
        name: &str,
        vendor: Guid,
        data: &[u8],
    ) {
        let units: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let mut event = vendor.as_bytes().to_vec();
        event.extend((units.len() as u64 / 2).to_le_bytes());
        event.extend((data.len() as u64).to_le_bytes());
        event.extend(units);
        event.extend(data);
        self.push_data(component, PcrIndex::SECURE_BOOT, kind, &event, name);
    }

    fn push_authority(&mut self, component: Component, authority: &Authority) {
        let kind = EventKind::EFI_VARIABLE_AUTHORITY;
        let (name, vendor) = (authority.variable, authority.vendor);
        self.push_variable(component, kind, name, vendor, &authority.data);
    }

    /// Lets firmware verify an image.
    pub(super) fn allow_by_firmware(&mut self, started: &Started) -> Result<(), PredictError> {
        if self.verification == SecureBoot::Off {
            return Ok(());
        }
        if !self.platform.knows_keys() {
            return require_signature(started);
        }
        let authority = authority::by_firmware(self.platform, &started.file);
        let authority = authority.map_err(|source| PredictError::Authority {
            file: started.path.clone(),
            source,
        })?;
        if !self.firmware_authorities.contains(&authority) {
            self.push_authority(Component::Pcr7ShimCert, &authority);
            self.firmware_authorities.push(authority);
        }
        Ok(())
    }

    /// Lets shim verify an image.
    pub(super) fn allow_by_shim(
        &mut self,
        shim: &Shim,
        started: &Started,
    ) -> Result<(), PredictError> {
        if !shim.verifies() {
            return Ok(());
        }
        if !self.platform.knows_keys() {
            return require_signature(started);
        }
        let authorities = authority::by_shim(self.platform, shim, &started.file);
        let authorities = authorities.map_err(|source| PredictError::Authority {
            file: started.path.clone(),
            source,
        })?;
        for authority in authorities {
            self.push_shim_authority(authority);
        }
        Ok(())
    }

    fn push_shim_authority(&mut self, authority: Authority) {
        if self.shim_authorities.contains(&authority) {
            return;
        }
        let component = match authority.variable {
            "SbatLevel" => Component::Pcr7SbatLevel,
            "MokSBState" => Component::Pcr7MokSbState,
            "db" => Component::Pcr7GrubDbCert,
            "vendor_db" => Component::Pcr7GrubVendorDbCert,
            _ => Component::Pcr7GrubMokListCert,
        };
        self.push_authority(component, &authority);
        self.shim_authorities.push(authority);
    }

    /// What shim measures before it starts anything (shim, mok.c, `import_mok_state`): its lists in
    /// the order of its table.
    fn start_shim(&mut self, started: &Started) -> Result<Shim, PredictError> {
        let refuse = |source| PredictError::Shim {
            file: started.path.clone(),
            source,
        };
        if self.options.shim.is_none() {
            ShimProfile::from_ident(started.file.section(".data.ident")).map_err(refuse)?;
        }
        let shim = Shim::new(&started.file, self.platform, self.verification).map_err(refuse)?;
        self.notice_unbundled(started)?;
        if !self.platform.knows_mok_lists() {
            self.give_up(PcrIndex::MOK, Unpredictable::MokLists);
        }
        let log = |boot: &mut Self, component, name: &str, data: &[u8]| {
            boot.push_data(component, PcrIndex::MOK, EventKind::IPL, data, name);
        };
        let authority = |variable, data: &[u8]| Authority {
            variable,
            vendor: Guid::SHIM,
            data: data.to_vec(),
        };
        log(
            self,
            Component::Pcr14MokList,
            "MokList",
            &shim.measured_list(),
        );
        let revocations = shim.measured_revocations();
        log(self, Component::Pcr14MokListX, "MokListX", &revocations);
        if let Some(state) = shim.sb_state() {
            self.push_shim_authority(authority("MokSBState", state));
            log(self, Component::Pcr14MokSbState, "MokSBState", state);
        }
        self.push_shim_authority(authority("SbatLevel", shim.sbat_level()));
        if let Some(trust) = shim.measured_trust() {
            log(
                self,
                Component::Pcr14MokListTrusted,
                "MokListTrusted",
                trust,
            );
        }
        if let Some(policy) = shim.measured_policy() {
            log(self, Component::Pcr14MokPolicy, "MokPolicy", policy);
        }
        Ok(shim)
    }

    /// Files beside shim that add to its keys or raise its level (shim, shim.c,
    /// `load_unbundled_trust`).
    fn notice_unbundled(&mut self, started: &Started) -> Result<(), PredictError> {
        let folder = started
            .path
            .rsplit_once('/')
            .map_or("", |(folder, _)| folder);
        let unbundled = self.list(folder)?.into_iter().find(|path| {
            let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
            name.starts_with("shim_certificate") || name.starts_with("revocations")
        });
        if let Some(file) = unbundled.filter(|_| self.verification == SecureBoot::On) {
            let reason = Unpredictable::Sidecar { file };
            self.give_up(PcrIndex::SECURE_BOOT, reason.clone());
            self.give_up(PcrIndex::MOK, reason);
        }
        Ok(())
    }

    pub(super) fn list(&self, folder: &str) -> Result<Vec<String>, PredictError> {
        self.image.files(folder).map_err(|source| {
            PredictError::Find(find::FindError::List {
                prefix: folder.to_owned(),
                source,
            })
        })
    }

    /// Reads what may be shim, GRUB, a unified kernel image or an add-on.
    pub(super) fn read_loader(&self, path: String) -> Result<Started, PredictError> {
        let mut request = PeRequest::new(self.options.banks).keep(KEPT);
        let sections = [PcrIndex::KERNEL_BOOT, PcrIndex::BOOT_FILES];
        if sections.into_iter().any(|pcr| self.options.wants(pcr)) {
            request = request.hash(stub::hashed_sections());
        }
        let request = match self.verification {
            SecureBoot::On => request,
            SecureBoot::Off => request.nested(".linux"),
        };
        self.read(path, &request)
    }

    pub(super) fn read(&self, path: String, request: &PeRequest) -> Result<Started, PredictError> {
        let reader = match self.image.open(&path) {
            Ok(reader) => reader,
            Err(source) => return Err(PredictError::Open { file: path, source }),
        };
        let file = match PeFile::read_as(reader, request) {
            Ok(file) => file,
            Err(source) => return Err(PredictError::Pe { file: path, source }),
        };
        match file.check_signatures(SignaturePresence::Optional) {
            Ok(()) => Ok(Started { path, file }),
            Err(source) => Err(PredictError::Signature { file: path, source }),
        }
    }

    /// Reads a small file whole.
    pub(super) fn read_script(&self, path: &str) -> Result<Vec<u8>, PredictError> {
        let refuse = |source| PredictError::Open {
            file: path.to_owned(),
            source,
        };
        let reader = self.image.open(path).map_err(refuse)?;
        let mut script = Vec::new();
        let mut reader = reader.take(MAX_SCRIPT + 1);
        reader.read_to_end(&mut script).map_err(refuse)?;
        if script.len() as u64 > MAX_SCRIPT {
            return Err(refuse(std::io::ErrorKind::FileTooLarge.into()));
        }
        Ok(script)
    }
}

/// What can be asked of a file where it is not known who may allow it: a signature of somebody.
fn require_signature(started: &Started) -> Result<(), PredictError> {
    let checked = started.file.check_signatures(SignaturePresence::Required);
    checked.map_err(|source| PredictError::Signature {
        file: started.path.clone(),
        source,
    })
}

impl Started {
    fn is_uki(&self) -> bool {
        self.file.sections().any(|name| name == ".linux")
    }
}
