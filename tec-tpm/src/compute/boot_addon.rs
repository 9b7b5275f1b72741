//! Signed add-ons of a unified kernel image, and all other files next to it.

use tec_core::pcr::PcrIndex;

use super::boot::{Boot, Role, Started};
use super::kernel;
use super::measurement::{Component, Measurement};
use super::predict_error::PredictError;
use super::stub::StubProfile;
use super::unpredictable::Unpredictable;
use crate::event_log::EventKind;

/// Folder of add-ons for all images on the partition.
const GLOBAL_ADDONS: &str = "loader/addons";
/// Maximum number of add-ons, and of files in an archive.
pub(super) const MAX_FILES: usize = 256;
/// Maximum length of a file name that the stub accepts, in UTF-16 units.
const MAX_NAME: usize = 255;

/// The effective add-ons of a unified kernel image, in order.
#[derive(Debug)]
pub(super) struct Addons {
    counted: Vec<Started>,
    line: Result<String, Unpredictable>,
}

impl Default for Addons {
    fn default() -> Self {
        Self { counted: Vec::new(), line: Ok(String::new()) }
    }
}

impl Addons {
    /// The add-ons that have a section.
    pub(super) fn with(&self, section: &str) -> impl DoubleEndedIterator<Item = &Started> {
        self.counted.iter().filter(move |addon| addon.has(section))
    }

    /// The command line, including what they add to it.
    pub(super) fn append_to(&self, own: &str) -> Result<String, Unpredictable> {
        let added = self.line.clone()?;
        let words = [own, added.trim()].into_iter();
        let words = words.filter(|line| !line.is_empty());
        Ok(words.collect::<Vec<_>>().join(" "))
    }

    /// Includes an add-on, unless it is for another kernel or has nothing to add.
    fn count(&mut self, profile: StubProfile, uki: &Started, addon: Started) {
        let text = |section: Option<&[u8]>| {
            let text = section?.split(|byte| *byte == 0).next()?;
            Some(text.to_vec())
        };
        let uname = text(addon.file.section(".uname"));
        let own = text(uki.file.section(".uname"));
        let foreign = uname.is_some() && own.is_some() && uname != own;
        if foreign || addon.is_uki() {
            return;
        }
        let line = std::mem::replace(&mut self.line, Ok(String::new()));
        self.line = line.and_then(|line| with_line(profile, &addon, line));
        self.counted.push(addon);
    }
}

/// Adds the command line of an add-on.
fn with_line(profile: StubProfile, addon: &Started, line: String) -> Result<String, Unpredictable> {
    let devicetrees = [".dtb", ".dtbauto"];
    if addon.file.sections().any(|name| devicetrees.contains(&name)) {
        return Err(Unpredictable::Sidecar(addon.path.clone()));
    }
    let Some(section) = addon.file.section(".cmdline") else {
        return Ok(line);
    };
    let added = profile.command_line(section)?;
    if line.is_empty() {
        return Ok(added);
    }
    Ok(format!("{line} {added}"))
}

impl Boot<'_> {
    /// Starts the add-ons, first those for all images, each folder in name order.
    pub(super) fn start_addons(
        &mut self,
        profile: StubProfile,
        uki: &Started,
    ) -> Result<Addons, PredictError> {
        let mut addons = Addons::default();
        let mut count = 0;
        for folder in [GLOBAL_ADDONS, &own_folder(profile, &uki.path)] {
            for path in self.files_beside(uki, folder, ".addon.efi")? {
                count += 1;
                if count > MAX_FILES {
                    let reason = Unpredictable::Sidecar(path);
                    let depending = [
                        PcrIndex::BOOT_MANAGER,
                        PcrIndex::SECURE_BOOT,
                        PcrIndex::KERNEL_CONFIG,
                        PcrIndex::BOOT_FILES,
                    ];
                    self.give_up_all(depending, &reason);
                    return Ok(addons);
                }
                let addon = self.read_loader(path, 0)?;
                self.allow(&addon, Role::Addon)?;
                self.push_image(Component::Pcr4Addon, &addon);
                addons.count(profile, uki, addon);
            }
        }
        Ok(addons)
    }

    /// Measures once what the add-ons append to the command line.
    pub(super) fn measure_addon_lines(&mut self, addons: &Addons) {
        let pcr = PcrIndex::KERNEL_CONFIG;
        match addons.line.as_deref().map(str::trim) {
            Ok("") => {}
            Ok(line) => {
                let component = Component::Pcr12AddonCmdline;
                self.push_data(component, pcr, EventKind::IPL, &kernel::wide(line), line);
            }
            Err(reason) => self.give_up(pcr, reason.clone()),
        }
    }

    /// Their microcode, in reverse order, then their initial file systems.
    pub(super) fn measure_addon_sections(&mut self, addons: &Addons) {
        let ucode = addons.with(".ucode").rev();
        let ucode = ucode.map(|addon| (addon, ".ucode", Component::Pcr12AddonUcode));
        let initrds = addons.with(".initrd");
        let initrds = initrds.map(|addon| (addon, ".initrd", Component::Pcr12AddonInitrd));
        for (addon, section, component) in ucode.chain(initrds) {
            let Some(digests) = addon.file.section_digests(section) else {
                continue;
            };
            let pcr = PcrIndex::KERNEL_CONFIG;
            let measured = Measurement::new(component, pcr, EventKind::EVENT_TAG, digests);
            self.push(measured.of_file(addon.path.clone()).about(section));
        }
    }

    /// The files in a folder on the image's partition that the stub accepts, in its order.
    pub(super) fn files_beside(
        &self,
        uki: &Started,
        folder: &str,
        ending: &str,
    ) -> Result<Vec<String>, PredictError> {
        let mut files = self.list_spelled(&uki.path, folder)?;
        files.retain(|path| {
            let name = base_name(path);
            let taken = !name.starts_with('.') && name.is_ascii() && name.len() <= MAX_NAME;
            taken && ends_with(name, ending)
        });
        files.sort_by(|a, b| base_name(a).cmp(base_name(b)));
        Ok(files)
    }

    /// Files directly in a folder, whose name may be spelled in any case.
    fn list_spelled(&self, uki: &str, folder: &str) -> Result<Vec<String>, PredictError> {
        let folder = format!("{}{folder}", partition(uki, folder));
        let top = folder.split('/').next().unwrap_or_default();
        let mut files = self.list(top)?;
        if files.is_empty() {
            files = self.list("")?;
        }
        files.retain(|path| {
            let within = path.rsplit_once('/').map(|(within, _)| within);
            within.is_some_and(|within| within.eq_ignore_ascii_case(&folder))
        });
        Ok(files)
    }
}

/// Location of a unified kernel image's partition in the boot image, with a trailing slash: the path before
/// its `EFI`. A folder of the image itself is complete.
fn partition<'p>(uki: &'p str, folder: &str) -> &'p str {
    if folder.starts_with("loader/") {
        let upper = uki.to_ascii_uppercase();
        let at = upper.rfind("/EFI/").map_or(0, |at| at + 1);
        uki.get(..at).unwrap_or_default()
    } else {
        ""
    }
}

/// The folder of an image's own files. Since systemd 257, the count of tries is not part of the name (UAPI
/// group, "Boot Loader Specification", "Boot counting").
pub(super) fn own_folder(profile: StubProfile, uki: &str) -> String {
    let (plain, _) = uncounted(uki);
    format!("{}.extra.d", if profile > StubProfile::V252 { &plain } else { uki })
}

pub(super) fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

pub(super) fn ends_with(name: &str, ending: &str) -> bool {
    name.to_ascii_lowercase().ends_with(ending)
}

/// The name without the count of tries (`name+3.efi`, `name+2-1.efi`), and the count.
pub(super) fn uncounted(name: &str) -> (String, Option<(u32, u32)>) {
    let counted = || {
        let (stem, ending) = name.rsplit_once('.')?;
        let (stem, count) = stem.rsplit_once('+')?;
        let (left, done) = count.split_once('-').unwrap_or((count, "0"));
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse().unwrap_or(u32::MAX))
        };
        Some((format!("{stem}.{ending}"), Some((number(left)?, number(done)?))))
    };
    counted().unwrap_or_else(|| (name.to_owned(), None))
}
