//! Text in event data, made safe to display.

/// Characters that are kept: command lines of real machines are shorter. A text that is cut ends in an ellipsis.
const MAX_CHARS: usize = 1024;
/// Bytes that are examined for a text; more cannot be shown, apart from characters that are
/// filtered out.
const MAX_TEXT: usize = 4096;

/// UTF-16 if every second byte of the beginning is zero, else UTF-8 up to a NUL; empty for binary
/// data.
pub(super) fn decoded(data: &[u8]) -> String {
    let data = data.get(..data.len().min(MAX_TEXT)).unwrap_or_default();
    let wide = |pair: &[u8]| matches!(pair, [low, 0] if *low != 0);
    if data.len() >= 4 && data.chunks_exact(2).take(4).filter(|p| wide(p)).count() >= 2 {
        return utf16(data);
    }
    let end = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let text = String::from_utf8_lossy(data.get(..end).unwrap_or_default());
    // Binary data that is no text at all would only confuse.
    if text.contains(char::REPLACEMENT_CHARACTER) { String::new() } else { text.into_owned() }
}

/// UTF-16 in little endian, up to a NUL.
pub(super) fn utf16(data: &[u8]) -> String {
    let units = data
        .chunks_exact(2)
        .filter_map(|pair| pair.first_chunk().map(|pair| u16::from_le_bytes(*pair)))
        .take(MAX_TEXT)
        .take_while(|unit| *unit != 0);
    char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
}

/// Drops what could deceive a reader or a terminal: control characters, and the invisible ones
/// that reorder or hide text (Unicode categories Cc, and Cf as far as they act on layout).
pub(super) fn printable(text: &str) -> Option<String> {
    let invisible = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}')
            || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
            || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}')
    };
    let kept = text.chars().filter(|c| !invisible(*c));
    let mut kept: String = kept.take(MAX_CHARS + 1).collect();
    if let Some((end, _)) = kept.char_indices().nth(MAX_CHARS) {
        kept.truncate(end);
        kept.push('…');
    }
    (!kept.trim().is_empty()).then(|| kept.trim().to_owned())
}
