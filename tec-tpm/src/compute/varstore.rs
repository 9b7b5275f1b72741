//! The variable store of EDK II's flash images, such as `OVMF_VARS.fd`.
//!
//! Layout (EDK II, MdeModulePkg, `Guid/VariableFormat.h`, and PI 1.8 volume 3, 3.2.1): a firmware
//! volume, then a store header of 28 bytes, then records aligned to 4 bytes: header of 60 bytes,
//! name in UTF-16, data.

use crate::guid::Guid;

/// `EFI_AUTHENTICATED_VARIABLE_GUID`.
const AUTHENTICATED: Guid = Guid::of(0xaaf3_2c78_947b_439a_a180_2e14_4ec3_7792);
/// `VARIABLE_DATA`: every record begins with it.
const START: u16 = 0x55aa;
/// `VAR_ADDED`: the record is live.
const ADDED: u8 = 0x3f;
/// `VAR_ADDED & VAR_IN_DELETED_TRANSITION`: live unless a newer record was completed.
const IN_TRANSITION: u8 = 0x3e;
const STORE_HEADER: usize = 28;
const RECORD_HEADER: usize = 60;
/// Largest image; those of OVMF have at most 528 KiB.
const MAX_IMAGE: usize = 16 << 20;
/// Maximum number of live variables.
const MAX_VARIABLES: usize = 1 << 14;

/// An image is not a variable store. Offsets count bytes from the start of the image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VariableStoreError {
    /// The image is larger than the limit.
    #[error("the image has {size} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the image.
        size: usize,
        /// Limit.
        limit: usize,
    },
    /// A part reaches past the end.
    #[error("offset {offset}: {part} reaches past the end")]
    Truncated {
        /// Where the part begins.
        offset: usize,
        /// The part.
        part: &'static str,
    },
    /// A magic number is missing.
    #[error("offset {offset}: not a valid {part}")]
    Magic {
        /// Where the part should begin.
        offset: usize,
        /// The part that should begin there.
        part: &'static str,
    },
    /// The name of a variable is not UTF-16.
    #[error("offset {0}: the name of the variable is not UTF-16")]
    Name(usize),
    /// More variables than the limit.
    #[error("there are more than {0} variables")]
    TooManyVariables(usize),
}

/// A live variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredVariable<'i> {
    pub(super) name: String,
    pub(super) vendor: Guid,
    pub(super) attributes: u32,
    pub(super) data: &'i [u8],
}

/// Reads the live variables of an image.
pub(super) fn parse(image: &[u8]) -> Result<Vec<StoredVariable<'_>>, VariableStoreError> {
    if image.len() > MAX_IMAGE {
        return Err(VariableStoreError::TooLarge { size: image.len(), limit: MAX_IMAGE });
    }
    let store = store(image)?;
    let mut variables = Vec::new();
    let mut offset = store.start;
    while let Some(next) = record(image, offset, store.end, &mut variables)? {
        offset = next;
    }
    Ok(settled(variables))
}

/// Where the records lie.
fn store(image: &[u8]) -> Result<std::ops::Range<usize>, VariableStoreError> {
    let volume = "firmware volume";
    let short = |offset, part| VariableStoreError::Truncated { offset, part };
    // PI 1.8 volume 3, EFI_FIRMWARE_VOLUME_HEADER: signature at 40, length of the header at 48.
    if image.get(40..44).ok_or_else(|| short(0, volume))? != b"_FVH" {
        return Err(VariableStoreError::Magic { offset: 40, part: volume });
    }
    let start = usize::from(u16::from_le_bytes(field(image, 48).ok_or_else(|| short(0, volume))?));
    let part = "authenticated variable store";
    let vendor: [u8; 16] = field(image, start).ok_or_else(|| short(start, part))?;
    if Guid::from_bytes(vendor) != AUTHENTICATED {
        return Err(VariableStoreError::Magic { offset: start, part });
    }
    let size = field(image, start + 16).map(u32::from_le_bytes);
    let end = size
        .and_then(|size| start.checked_add(usize::try_from(size).ok()?))
        .filter(|end| *end <= image.len() && *end >= start + STORE_HEADER)
        .ok_or_else(|| short(start, part))?;
    // Records are aligned in the image, the first one too (EDK II, `GetStartPointer`).
    let records = (start + STORE_HEADER).next_multiple_of(4);
    Ok(records.min(end)..end)
}

/// Reads one record; returns where the next one begins.
fn record<'i>(
    image: &'i [u8],
    offset: usize,
    end: usize,
    variables: &mut Vec<(u8, StoredVariable<'i>)>,
) -> Result<Option<usize>, VariableStoreError> {
    let part = "variable";
    let fits = |at: usize| at <= end;
    if !fits(offset + RECORD_HEADER) || field(image, offset).map(u16::from_le_bytes) != Some(START)
    {
        return Ok(None);
    }
    let truncated = || VariableStoreError::Truncated { offset, part };
    let word = |at: usize| field(image, offset + at).map(u32::from_le_bytes);
    let size = |at| word(at).and_then(|size| usize::try_from(size).ok());
    // Start 2, state 1, reserved 1, attributes 4, count 8, time 16, key 4, sizes 4 and 4, vendor 16.
    let header = || {
        let [state] = field(image, offset + 2)?;
        Some((state, word(4)?, size(36)?, size(40)?, field(image, offset + 44)?))
    };
    let (state, attributes, name_size, data_size, vendor) = header().ok_or_else(truncated)?;
    let name_at = offset + RECORD_HEADER;
    let data_at = name_at.checked_add(name_size).filter(|at| fits(*at));
    let data_at = data_at.ok_or_else(truncated)?;
    let data_end = data_at.checked_add(data_size).filter(|at| fits(*at));
    let data_end = data_end.ok_or_else(truncated)?;
    if state == ADDED || state == IN_TRANSITION {
        if variables.len() >= MAX_VARIABLES {
            return Err(VariableStoreError::TooManyVariables(MAX_VARIABLES));
        }
        let name = image.get(name_at..data_at).ok_or_else(truncated)?;
        let text = text(name).filter(|_| name.len().is_multiple_of(2));
        let name = text.ok_or(VariableStoreError::Name(offset))?;
        let data = image.get(data_at..data_end).ok_or_else(truncated)?;
        let vendor = Guid::from_bytes(vendor);
        variables.push((state, StoredVariable { name, vendor, attributes, data }));
    }
    Ok(Some(data_end.next_multiple_of(4)))
}

/// A variable in transition counts only if its successor was not completed.
fn settled(variables: Vec<(u8, StoredVariable<'_>)>) -> Vec<StoredVariable<'_>> {
    let added: std::collections::BTreeSet<(Guid, String)> = variables
        .iter()
        .filter(|(state, _)| *state == ADDED)
        .map(|(_, variable)| (variable.vendor, variable.name.clone()))
        .collect();
    let counts = |state: u8, variable: &StoredVariable<'_>| {
        state == ADDED || !added.contains(&(variable.vendor, variable.name.clone()))
    };
    let live = variables.into_iter();
    live.filter(|(state, variable)| counts(*state, variable))
        .map(|(_, variable)| variable)
        .collect()
}

fn field<const N: usize>(image: &[u8], at: usize) -> Option<[u8; N]> {
    image.get(at..)?.first_chunk().copied()
}

/// UTF-16 up to a terminator or the end.
pub(super) fn text(data: &[u8]) -> Option<String> {
    let (pairs, _) = data.as_chunks::<2>();
    let units = pairs.iter().map(|pair| u16::from_le_bytes(*pair));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    String::from_utf16(&units).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(records: &[(u8, &str, &[u8])]) -> Vec<u8> {
        let mut image = vec![0; 72];
        image[40..44].copy_from_slice(b"_FVH");
        image[48] = 72;
        image.extend(AUTHENTICATED.as_bytes());
        image.extend(4096_u32.to_le_bytes());
        image.extend([0x5a, 0xfe, 0, 0, 0, 0, 0, 0]);
        for (state, name, data) in records {
            image.resize(image.len().next_multiple_of(4), 0xff);
            let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
            image.extend([0xaa, 0x55, *state, 0]);
            image.extend(7_u32.to_le_bytes());
            image.extend([0; 28]);
            image.extend(u32::try_from(name.len()).unwrap().to_le_bytes());
            image.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
            image.extend(Guid::GLOBAL.as_bytes());
            image.extend(name);
            image.extend(*data);
        }
        image.resize(72 + 4096, 0xff);
        image
    }

    #[test]
    fn live_variables_are_read_and_deleted_ones_are_not() {
        let image = image(&[
            (ADDED, "PK", b"key"),
            (0x3d, "Old", b"deleted"),
            (IN_TRANSITION, "PK", b"older"),
            (IN_TRANSITION, "KEK", b"last"),
        ]);
        let variables = parse(&image).unwrap();
        let found: Vec<_> = variables.iter().map(|v| (v.name.as_str(), v.data)).collect();
        assert_eq!(found, [("PK", &b"key"[..]), ("KEK", b"last")]);
        assert_eq!(variables[0].attributes, 7);
        assert_eq!(variables[0].vendor, Guid::GLOBAL);
    }

    #[test]
    fn records_are_aligned_in_the_image_wherever_the_store_begins() {
        let mut image = image(&[(ADDED, "PK", b"key"), (ADDED, "KEK", b"other")]);
        image.splice(100..100, [0; 3]);
        image.splice(72..72, [0]);
        image[48] = 73;
        let variables = parse(&image).unwrap();
        let names: Vec<_> = variables.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["PK", "KEK"]);
    }

    #[test]
    fn an_image_that_is_cut_off_is_refused_at_every_length() {
        let image = image(&[(ADDED, "PK", b"key")]);
        for end in 0..image.len() {
            assert!(parse(&image[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn sizes_that_lie_are_refused() {
        let mut lying = image(&[(ADDED, "PK", b"key")]);
        lying[100 + 40..100 + 44].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(parse(&lying), Err(VariableStoreError::Truncated { offset: 100, .. })));
        let mut odd = image(&[(ADDED, "PK", b"key")]);
        odd[100 + 36] = 5;
        assert_eq!(parse(&odd), Err(VariableStoreError::Name(100)));
        assert!(matches!(parse(&vec![0; MAX_IMAGE + 1]), Err(VariableStoreError::TooLarge { .. })));
        assert!(matches!(parse(&[0; 200]), Err(VariableStoreError::Magic { offset: 40, .. })));
    }
}
