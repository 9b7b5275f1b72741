//! The file that a device path names.

use std::fmt::Write as _;

use super::text::utf16;
use crate::guid::Guid;

/// Maximum number of device path nodes that are examined; real paths have fewer than ten.
const MAX_NODES: usize = 64;

/// The file path nodes of a device path, joined; empty where there are none.
pub(super) fn file_of(mut path: &[u8]) -> String {
    let mut found = String::new();
    for _ in 0..MAX_NODES {
        let Some((&[kind, subkind, low, high], _)) = path.split_first_chunk::<4>() else {
            break;
        };
        let size = usize::from(u16::from_le_bytes([low, high]));
        let Some((node, next)) = path.split_at_checked(size.max(4)) else {
            break;
        };
        let body = node.get(4..).unwrap_or_default();
        match (kind, subkind) {
            // UEFI 2.10, 10.3.5.4: media device path, file path. Several are joined by a
            // backslash.
            (0x04, 0x04) => {
                let name = utf16(body);
                if !found.is_empty() && !found.ends_with('\\') && !name.starts_with('\\') {
                    found.push('\\');
                }
                found.push_str(&name);
            }
            // UEFI 2.10, 10.3.5.6 and .7: a file in a firmware volume has a GUID only.
            (0x04, 0x06) => {
                if let Some(guid) = body.first_chunk() {
                    let _ = write!(found, "FvFile({})", Guid::from_bytes(*guid));
                }
            }
            // UEFI 2.10, 10.3.1: end of the whole path.
            (0x7f, 0xff) => break,
            _ => {}
        }
        path = next;
    }
    found
}
