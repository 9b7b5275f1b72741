//! Human-readable names of components.

use std::borrow::Cow;

/// Human-readable name for the part of the boot chain that image labels call `id`, for example
/// `kernel` for `Pcr4Vmlinuz`. Unknown IDs are returned unchanged.
pub fn component_name(id: &str) -> Cow<'_, str> {
    let known = NAMES.iter().find(|(known, _)| *known == id).map(|(_, name)| *name);
    if let Some(name) = known {
        return Cow::Borrowed(name);
    }
    if id.starts_with("Pcr") && id.ends_with("Booted") {
        return Cow::Borrowed("as logged");
    }
    // Sections of a unified kernel image, each measured by name and by content.
    if let Some(section) = id.strip_prefix("Pcr11") {
        let section = section.strip_suffix("Content").unwrap_or(section);
        return Cow::Owned(format!("section .{}", section.to_ascii_lowercase()));
    }
    if id.starts_with("Pcr") && id.ends_with("Recorded") {
        return Cow::Borrowed("firmware event");
    }
    Cow::Borrowed(id)
}

const NAMES: [(&str, &str); 45] = [
    ("Pcr4EfiCall", "start of a boot option"),
    ("Pcr4Separator", "separator"),
    ("Pcr4Shim", "shim"),
    ("Pcr4Grub", "GRUB"),
    ("Pcr4Vmlinuz", "kernel"),
    ("Pcr4Manager", "systemd-boot"),
    ("Pcr4Uki", "unified kernel image"),
    ("Pcr4Addon", "add-on of the unified kernel image"),
    ("Pcr4UkiLinux", "kernel of the unified kernel image"),
    ("Pcr7SecureBoot", "variable SecureBoot"),
    ("Pcr7Pk", "variable PK"),
    ("Pcr7Kek", "variable KEK"),
    ("Pcr7Db", "variable db"),
    ("Pcr7Dbx", "variable dbx"),
    ("Pcr7Dbt", "variable dbt"),
    ("Pcr7Separator", "separator"),
    ("Pcr7ShimCert", "signer of shim"),
    ("Pcr7SbatLevel", "SbatLevel"),
    ("Pcr7MokListTrusted", "variable MokListTrusted"),
    ("Pcr7MokSbState", "variable MokSBState"),
    ("Pcr7GrubDbCert", "signer of GRUB in db"),
    ("Pcr7GrubVendorDbCert", "signer of GRUB in shim's list"),
    ("Pcr7GrubMokListCert", "signer of GRUB among the machine owner keys"),
    ("Pcr7UkiDbCert", "signer of the unified kernel image in db"),
    ("Pcr7UkiVendorDbCert", "signer of the unified kernel image in shim's list"),
    ("Pcr7UkiMokListCert", "signer of the unified kernel image among the machine owner keys"),
    ("Pcr7KernelDbCert", "signer of the kernel in db"),
    ("Pcr7KernelVendorDbCert", "signer of the kernel in shim's list"),
    ("Pcr7KernelMokListCert", "signer of the kernel among the machine owner keys"),
    ("Pcr8Command", "GRUB command"),
    ("Pcr8KernelCmdline", "kernel command line in GRUB"),
    ("Pcr9File", "file read by GRUB"),
    ("Pcr9LoadOptions", "kernel command line"),
    ("Pcr9Initrd", "initramfs"),
    ("Pcr12Profile", "profile of the unified kernel image"),
    ("Pcr12LoadOptions", "kernel command line of the boot entry"),
    ("Pcr12AddonCmdline", "kernel command line of an add-on"),
    ("Pcr12AddonInitrd", "initramfs of an add-on"),
    ("Pcr12AddonUcode", "microcode of an add-on"),
    ("Pcr12Credentials", "credentials of the unified kernel image"),
    ("Pcr12Confext", "configuration extensions"),
    ("Pcr14MokList", "machine owner keys"),
    ("Pcr14MokListX", "revoked machine owner keys"),
    ("Pcr14MokListTrusted", "variable MokListTrusted"),
    ("Pcr14MokPolicy", "variable MokPolicy"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_words_and_unknown_ids_stay() {
        for (id, name) in [
            ("Pcr4Vmlinuz", "kernel"),
            ("Pcr11LinuxContent", "section .linux"),
            ("Pcr11Uname", "section .uname"),
            ("Pcr0Recorded", "firmware event"),
            ("Pcr4Custom", "Pcr4Custom"),
        ] {
            assert_eq!(component_name(id), name);
        }
    }
}
