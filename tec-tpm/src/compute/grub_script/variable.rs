//! Variables that GRUB itself sets or acts on (GRUB manual, "Special environment variables").

use std::collections::BTreeMap;

use super::{Host, Interpreter, Stop};

/// Folder of modules and lists below the prefix, on x86-64 with UEFI.
pub(super) const PLATFORM: &str = "x86_64-efi";
/// Lists that GRUB reads whenever the prefix changes, in this order. Observed: 2.06, 2.12, 2.14.
const LISTS: [&str; 4] = ["command", "fs", "crypto", "terminal"];
/// Features that 2.06, 2.12 and 2.14 of Debian have.
const FEATURES: [&str; 10] = [
    "200_final",
    "all_video_module",
    "chainloader_bpb",
    "default_font_path",
    "menuentry_id",
    "menuentry_options",
    "nativedisk_cmd",
    "ntldr",
    "platform_search_hint",
    "timeout_style",
];
/// Beginnings of the names of variables that GRUB or its user may set, to values that files do not show.
const UNKNOWN: [&str; 12] = [
    "check_signatures",
    "cmdpath",
    "config_",
    "feature_",
    "fw_path",
    "gfxmode",
    "lockdown",
    "net_",
    "pxe_",
    "secureboot",
    "shim_lock",
    "tpm_fail_fatal",
];
/// Languages of GRUB's own texts, which need no translation.
const UNTRANSLATED: [&str; 3] = ["", "C", "POSIX"];

impl<H: Host> Interpreter<'_, H> {
    /// The variables that are set before the first script, in GRUB's own folder `prefix` of `device`.
    pub(super) fn set_first(&mut self, device: &str, prefix: &str, program: Option<&str>) {
        let folder = |path: &str| format!("({device})/{path}");
        let mut set = |name: &str, value: String| self.variables.insert(name.to_owned(), value);
        for feature in FEATURES {
            set(&format!("feature_{feature}"), "y".to_owned());
        }
        set("grub_platform", "efi".to_owned());
        set("grub_cpu", "x86_64".to_owned());
        set("root", device.to_owned());
        set("prefix", folder(prefix));
        if let Some(program) = program {
            set("cmdpath", folder(program));
        }
        self.exported = self.variables.keys().cloned().collect();
    }

    /// Enters a script or menu of its own, which sees exported variables (GRUB manual, "export"). Which ones
    /// GRUB exports itself is known only of those that it sets first.
    pub(super) fn isolate(&mut self) {
        let variables = std::mem::take(&mut self.variables).into_iter();
        let (seen, hidden): (BTreeMap<_, _>, BTreeMap<_, _>) =
            variables.partition(|(name, _)| self.exported.contains(name));
        self.variables = seen;
        self.hidden.extend(hidden.into_keys());
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.variables.get(name).map_or("", String::as_str)
    }

    /// The value of a variable that a script uses.
    pub(super) fn used(&self, name: &str) -> Result<String, Stop> {
        if let Some(value) = self.variables.get(name) {
            return Ok(value.clone());
        }
        if self.hidden.contains(name) || UNKNOWN.iter().any(|known| name.starts_with(known)) {
            return Err(Stop::Unknown("the value of a variable is not known"));
        }
        Ok(String::new())
    }

    /// Sets a variable, and follows what GRUB does because of it.
    pub(super) fn set(&mut self, name: &str, value: &str) -> Result<(), Stop> {
        self.hidden.remove(name);
        self.variables.insert(name.to_owned(), value.to_owned());
        match name {
            "prefix" => LISTS.iter().try_for_each(|list| {
                self.open(&format!("{value}/{PLATFORM}/{list}.lst")).map(drop)
            }),
            "lang" => self.refuse_translation(value),
            _ => Ok(()),
        }
    }

    /// When GRUB reads a translation was not observed; English needs none, but there may be files.
    fn refuse_translation(&mut self, language: &str) -> Result<(), Stop> {
        let plain = language.split(['.', '@']).next().unwrap_or_default();
        if UNTRANSLATED.contains(&plain) {
            return Ok(());
        }
        let folder = match self.used("locale_dir")? {
            unset if unset.is_empty() => format!("{}/locale", self.value("prefix")),
            folder => folder,
        };
        let short = plain.split('_').next().unwrap_or_default();
        for name in [language, plain, short] {
            for ending in ["mo", "mo.gz", "gmo"] {
                if self.file(&format!("{folder}/{name}.{ending}"))?.is_some() {
                    return Err(Stop::Unknown("there is a translation for this language"));
                }
            }
        }
        Ok(())
    }
}
