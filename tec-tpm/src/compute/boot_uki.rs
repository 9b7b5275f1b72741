//! The boot from a unified kernel image on.

use tec_core::pcr::PcrIndex;

use super::boot::Boot;
use super::boot::Started;
use super::chain::SecureBoot;
use super::kernel;
use super::measurement::Component;
use super::measurement::Measurement;
use super::predict::PredictError;
use super::predict::Unpredictable;
use super::shim::Shim;
use super::stub::StubProfile;
use crate::event_log::EventKind;

/// Folder of add-ons for all images of the partition.
const GLOBAL_ADDONS: &str = "loader/addons";
/// Folder of credentials for all images of the partition.
const GLOBAL_CREDENTIALS: &str = "loader/credentials";
/// Most add-ons.
const MAX_ADDONS: usize = 256;

impl Boot<'_> {
    /// What the stub measures, and what the kernel within it finds.
    pub(super) fn start_uki(
        &mut self,
        uki: &Started,
        shim: Option<&Shim>,
    ) -> Result<(), PredictError> {
        let profile = match self.options.stub {
            Some(profile) => profile,
            None => StubProfile::from_magic(uki.file.section(".sdmagic")).map_err(|source| {
                PredictError::Stub {
                    file: uki.path.clone(),
                    source,
                }
            })?,
        };
        self.measure_sections(profile, uki);
        self.notice_sidecars(uki)?;
        let addons = if profile.has_addons() {
            self.start_addons(profile, uki, shim)?
        } else {
            Ok(String::new())
        };
        if profile.loads_inner_kernel() && self.verification == SecureBoot::Off {
            self.load_inner_kernel(uki)?;
        }
        if let Err(reason) = addons.and_then(|line| self.start_inner_kernel(profile, uki, &line)) {
            self.give_up(PcrIndex::BOOT_FILES, reason);
        }
        Ok(())
    }

    /// Name with terminator, then content, for each section.
    fn measure_sections(&mut self, profile: StubProfile, uki: &Started) {
        if let Err(reason) = profile.check_sections(&uki.file) {
            self.give_up(PcrIndex::KERNEL_BOOT, reason.clone());
            self.give_up(PcrIndex::KERNEL_CONFIG, reason.clone());
            self.give_up(PcrIndex::BOOT_FILES, reason);
        }
        for section in profile.measured() {
            let Some(digests) = uki.file.section_digests(section.name) else {
                continue;
            };
            let pcr = PcrIndex::KERNEL_BOOT;
            let title = [section.name.as_bytes(), &[0]].concat();
            self.push_data(section.title, pcr, EventKind::IPL, &title, section.name);
            let content = Measurement::new(section.content, pcr, EventKind::IPL, digests);
            self.push(content.of_file(uki.path.clone()).about(section.name));
        }
    }

    /// Credentials and extensions beside the image are measured and handed on; that is not
    /// followed.
    fn notice_sidecars(&mut self, uki: &Started) -> Result<(), PredictError> {
        let mut files = self.list_spelled(&format!("{}.extra.d", uki.path))?;
        files.extend(self.list_spelled(GLOBAL_CREDENTIALS)?);
        let adds = |path: &&String| {
            let path = path.to_ascii_lowercase();
            [".cred", ".raw"].iter().any(|end| path.ends_with(end))
        };
        if let Some(file) = files.iter().find(adds) {
            let reason = Unpredictable::Sidecar { file: file.clone() };
            self.give_up(PcrIndex::KERNEL_CONFIG, reason.clone());
            self.give_up(PcrIndex::BOOT_FILES, reason);
        }
        Ok(())
    }

    /// Files below a folder whose name is spelled in any case.
    fn list_spelled(&self, folder: &str) -> Result<Vec<String>, PredictError> {
        let top = folder.split('/').next().unwrap_or_default();
        let mut files = self.list(top)?;
        if files.is_empty() {
            files = self.list("")?;
        }
        files.retain(|path| {
            let beginning = path.get(..folder.len());
            beginning.is_some_and(|start| start.eq_ignore_ascii_case(folder))
                && path
                    .get(folder.len()..)
                    .is_some_and(|rest| rest.starts_with('/'))
        });
        Ok(files)
    }

    /// Starts the add-ons, those for all images first, each folder in the order of names. The
    /// answer is what they add to the command line, or why that cannot be told.
    fn start_addons(
        &mut self,
        profile: StubProfile,
        uki: &Started,
        shim: Option<&Shim>,
    ) -> Result<Result<String, Unpredictable>, PredictError> {
        let own = format!("{}.extra.d", uki.path);
        let mut line = Ok(String::new());
        let mut count = 0;
        for folder in [GLOBAL_ADDONS, &own] {
            let mut addons = self.list_spelled(folder)?;
            addons.retain(|path| {
                let name = path.get(folder.len() + 1..).unwrap_or_default();
                name.is_ascii()
                    && !name.contains('/')
                    && !name.starts_with('.')
                    && name.to_ascii_lowercase().ends_with(".addon.efi")
            });
            addons.sort();
            for path in addons {
                count += 1;
                if count > MAX_ADDONS {
                    self.give_up(
                        PcrIndex::BOOT_MANAGER,
                        Unpredictable::Sidecar { file: path },
                    );
                    return Ok(line);
                }
                let addon = self.start_addon(path, shim)?;
                line = line.and_then(|line| with_addon(profile, uki, &addon, line));
            }
        }
        match line.as_deref() {
            Ok("") => {}
            Ok(text) => {
                let (pcr, component) = (PcrIndex::KERNEL_CONFIG, Component::Pcr12AddonCmdline);
                self.push_data(component, pcr, EventKind::IPL, &kernel::wide(text), text);
            }
            Err(reason) => self.give_up(PcrIndex::KERNEL_CONFIG, reason.clone()),
        }
        Ok(line)
    }

    fn start_addon(&mut self, path: String, shim: Option<&Shim>) -> Result<Started, PredictError> {
        let addon = self.read_loader(path)?;
        match shim {
            Some(shim) => self.allow_by_shim(shim, &addon)?,
            None => self.allow_by_firmware(&addon)?,
        }
        self.push_image(Component::Pcr4Addon, &addon);
        Ok(addon)
    }

    fn load_inner_kernel(&mut self, uki: &Started) -> Result<(), PredictError> {
        match uki.file.nested() {
            Some(Ok(kernel)) => {
                let digests = kernel.authenticode_digests();
                let component = Component::Pcr4UkiLinux;
                let file = uki.path.clone();
                self.push(Measurement::application_in(component, digests, file).about(".linux"));
                Ok(())
            }
            _ => Err(PredictError::UnknownLoader {
                file: format!("{}, section .linux", uki.path),
            }),
        }
    }

    /// What the kernel finds: the command line, and the initial file system with the archives that
    /// the stub appends, each padded to 4 bytes.
    fn start_inner_kernel(
        &mut self,
        profile: StubProfile,
        uki: &Started,
        addons: &str,
    ) -> Result<(), Unpredictable> {
        let own = uki.file.section(".cmdline").unwrap_or_default();
        let own = profile.command_line(own)?;
        let words = [own.as_str(), addons].into_iter().filter(|l| !l.is_empty());
        let line = words.collect::<Vec<_>>().join(" ");
        let (pcr, kind) = (PcrIndex::BOOT_FILES, EventKind::EVENT_TAG);
        let options = kernel::wide(&line);
        self.push_data(Component::Pcr9LoadOptions, pcr, kind, &options, &line);
        profile.check_initrd(&uki.file, &line)?;

        let archives = profile.archives(&uki.file);
        let digests = match uki.file.part(".initrd") {
            Some(initrd) if archives.is_empty() => initrd.digests_with(0, &[]),
            Some(initrd) => {
                let padding = initrd.size.next_multiple_of(4) - initrd.size;
                initrd.digests_with(usize::try_from(padding).unwrap_or(0), &archives)
            }
            None if archives.is_empty() => None,
            None => Some(super::hash::BankDigests::of(self.options.banks, &archives)),
        };
        if let Some(digests) = digests {
            let initrd = Measurement::new(Component::Pcr9Initrd, pcr, kind, digests);
            self.push(initrd.of_file(uki.path.clone()).about(".initrd"));
        }
        Ok(())
    }
}

/// Adds the command line of an add-on, unless it is for another kernel.
fn with_addon(
    profile: StubProfile,
    uki: &Started,
    addon: &Started,
    line: String,
) -> Result<String, Unpredictable> {
    let other = [".initrd", ".ucode", ".dtb", ".dtbauto", ".linux"];
    if addon.file.sections().any(|name| other.contains(&name)) {
        return Err(Unpredictable::Sidecar {
            file: addon.path.clone(),
        });
    }
    let text = |section: Option<&[u8]>| {
        let text = section?.split(|byte| *byte == 0).next()?;
        Some(text.to_vec())
    };
    let uname = text(addon.file.section(".uname"));
    let own = text(uki.file.section(".uname"));
    if uname.is_some() && own.is_some() && uname != own {
        return Ok(line);
    }
    let Some(section) = addon.file.section(".cmdline") else {
        return Ok(line);
    };
    let added = profile.command_line(section)?;
    if line.is_empty() {
        return Ok(added);
    }
    Ok(format!("{line} {added}").trim().to_owned())
}
