//! What event data says, for people. Everything here is unproven input of unknown quality, so
//! nothing fails: what cannot be read has no detail.

use super::kind::EventKind;

/// Characters that are kept.
const MAX_CHARS: usize = 128;
/// Bytes that are looked at for a text; more cannot show, apart from what is filtered out.
const MAX_TEXT: usize = 1024;
/// Device path nodes that are looked at; real paths have fewer than ten.
const MAX_NODES: usize = 64;

pub(super) fn describe(kind: EventKind, data: &[u8]) -> Option<String> {
    match kind {
        EventKind::EFI_BOOT_SERVICES_APPLICATION
        | EventKind::EFI_BOOT_SERVICES_DRIVER
        | EventKind::EFI_RUNTIME_SERVICES_DRIVER => image_path(data),
        EventKind::EFI_VARIABLE_DRIVER_CONFIG
        | EventKind::EFI_VARIABLE_BOOT
        | EventKind::EFI_VARIABLE_BOOT2
        | EventKind::EFI_VARIABLE_AUTHORITY => variable_name(data),
        EventKind::EFI_PLATFORM_FIRMWARE_BLOB2 | EventKind::EFI_HANDOFF_TABLES2 => {
            let (length, rest) = data.split_first()?;
            printable(&text(rest.get(..usize::from(*length))?))
        }
        // TCG_PCClientTaggedEvent: tag 4, length 4; Linux puts a text there, others binary data.
        EventKind::EVENT_TAG => printable(&text(data.get(8..)?)).filter(|text| text.is_ascii()),
        EventKind::IPL
        | EventKind::ACTION
        | EventKind::EFI_ACTION
        | EventKind::EFI_HCRTM_EVENT
        | EventKind::OMIT_BOOT_DEVICE_EVENTS
        | EventKind::POST_CODE
        | EventKind::POST_CODE2
        | EventKind::COMPACT_HASH
        | EventKind::S_CRTM_VERSION => printable(&text(data)),
        _ => None,
    }
}

/// `UEFI_IMAGE_LOAD_EVENT` (PC Client Platform Firmware Profile 10.2.3): location, length, link
/// address, length of the device path, each 8 bytes; then the device path.
fn image_path(data: &[u8]) -> Option<String> {
    let (header, rest) = data.split_first_chunk::<32>()?;
    let length = u64::from_le_bytes(*header.last_chunk()?);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let mut path = rest.get(..length.min(rest.len()))?;
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
                let name: String = utf16(body).collect();
                if !found.is_empty() && !found.ends_with('\\') && !name.starts_with('\\') {
                    found.push('\\');
                }
                found.push_str(&name);
            }
            // UEFI 2.10, 10.3.5.6 and .7: a file in a firmware volume has a GUID only.
            (0x04, 0x06) => found.extend(guid(body).map(|guid| format!("FvFile({guid})"))),
            // UEFI 2.10, 10.3.1: end of the whole path.
            (0x7f, 0xff) => break,
            _ => {}
        }
        path = next;
    }
    printable(&found)
}

/// `UEFI_VARIABLE_DATA` (PC Client Platform Firmware Profile 10.2.6): GUID 16, number of
/// characters 8, size of the data 8; then the name in UTF-16 without terminator.
fn variable_name(data: &[u8]) -> Option<String> {
    let characters = u64::from_le_bytes(*data.get(16..24)?.first_chunk()?);
    let size = usize::try_from(characters).ok()?.checked_mul(2)?;
    printable(&utf16(data.get(32..)?.get(..size)?).collect::<String>())
}

/// UTF-16 if every second byte of the beginning is zero, else UTF-8 as far as it goes.
fn text(data: &[u8]) -> String {
    let data = data.get(..data.len().min(MAX_TEXT)).unwrap_or_default();
    let wide = |pair: &[u8]| matches!(pair, [low, 0] if *low != 0);
    if data.len() >= 4 && data.chunks_exact(2).take(4).filter(|p| wide(p)).count() >= 2 {
        return utf16(data).collect();
    }
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let data = data.get(..end).unwrap_or_default();
    let is_text = |c: &char| *c != char::REPLACEMENT_CHARACTER;
    let decoded = String::from_utf8_lossy(data);
    // Binary data that is no text at all would only confuse.
    if decoded.chars().all(|c| is_text(&c)) {
        decoded.into_owned()
    } else {
        String::new()
    }
}

fn utf16(data: &[u8]) -> impl Iterator<Item = char> + '_ {
    let units = data
        .chunks_exact(2)
        .filter_map(|pair| pair.first_chunk().map(|pair| u16::from_le_bytes(*pair)))
        .take(MAX_TEXT)
        .take_while(|unit| *unit != 0);
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
}

/// UEFI 2.10, appendix A: the first three fields are little-endian.
fn guid(data: &[u8]) -> Option<String> {
    let (first, rest) = data.split_first_chunk()?;
    let (second, rest) = rest.split_first_chunk()?;
    let (third, rest) = rest.split_first_chunk()?;
    let (fourth, rest) = rest.split_first_chunk::<2>()?;
    Some(format!(
        "{:08x}-{:04x}-{:04x}-{}-{}",
        u32::from_le_bytes(*first),
        u16::from_le_bytes(*second),
        u16::from_le_bytes(*third),
        hex::encode(fourth),
        hex::encode(rest.first_chunk::<6>()?),
    ))
}

/// Drops what could deceive a reader or a terminal: control characters, and the invisible ones
/// that reorder or hide text (Unicode categories Cc, and Cf as far as they act on layout).
fn printable(text: &str) -> Option<String> {
    let invisible = |c: char| {
        c.is_control()
            || matches!(
                c,
                '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
            )
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
            || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
    };
    let kept = text.chars().filter(|c| !invisible(*c));
    let kept: String = kept.take(MAX_CHARS).collect();
    (!kept.trim().is_empty()).then(|| kept.trim().to_owned())
}
