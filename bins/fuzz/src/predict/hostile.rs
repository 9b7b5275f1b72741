//! Boots with changes, most of which must not start.

use super::edit::written;
use crate::signer::firmware;
use crate::{Seed, signature_list};

/// Boots with changes. With GRUB, files are 0 to 4 and variables start at 5.
pub(super) fn seeds(read: fn(&[u8]) -> Result<(), String>) -> Vec<Seed> {
    let changed = |name, choice: u8, edit: Vec<u8>| Seed::new(name, [vec![choice], edit].concat());
    let refused = |name, choice, edit| changed(name, choice, edit).refused(read);
    let (shim, grub, script, kernel) = (0, 1, 2, 3);
    let (state, db, dbx, mok_list, mirror) = (5, 7, 8, 9, 14);
    let no_list = b"\0\0\0\0\0";
    let sha1 = signature_list::one("826ca512-cf10-4ac9-b187-be01496631bd", &[1; 20]);
    let ca = signature_list::one(signature_list::X509, &firmware().ca);
    vec![
        changed("script_in_capitals", 1, written(script, 5, 0, &[])),
        changed("other_script", 1, written(script, 3, 0, b"echo x\nlinux /vmlinuz a=b\nboot")),
        changed("kernel_signed_again", 1, written(kernel, 0x80, 0x210, b"other")),
        refused("kernel_changed", 1, written(kernel, 0, 0x210, b"other")),
        refused("kernel_is_cut_off", 1, written(kernel, 2, 100, &[])),
        refused("kernel_is_a_text", 1, written(kernel, 3, 0, b"text")),
        refused("no_grub", 1, written(grub, 4, 0, &[])),
        refused("no_shim", 1, written(shim, 4, 0, &[])),
        refused("state_of_two_bytes", 1, written(state, 1, 0, &[1])),
        refused("db_that_is_no_list", 1, written(db, 3, 0, no_list)),
        refused("no_db", 1, written(db, 4, 0, &[])),
        refused("dbx_of_sha1_digests", 1, written(dbx, 3, 0, &sha1)),
        refused("revoked_ca", 1, written(dbx, 3, 0, &ca)),
        refused("owner_keys_that_are_no_list", 1, written(mok_list, 3, 0, no_list)),
        refused(
            "mirror_of_another_shim",
            1,
            [written(mok_list, 4, 0, &[]), written(mirror - 1, 3, 0, no_list)].concat(),
        ),
    ]
}
