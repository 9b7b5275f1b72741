//! The output of `tpm2_pcrread`.

use std::collections::BTreeMap;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::output;

use crate::Seed;
use crate::label::text;
use crate::outcome;

/// A bank written again has the same content; other banks next to it have no effect.
pub(crate) fn pcrread(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let Ok(values) = output::read_pcrread(text) else {
        return;
    };
    let written = output::pcrread(&values);
    assert_eq!(output::read_pcrread(&written).ok().as_ref(), Some(&values));
    let beside = format!("  sha1:\n    0 : 0x00\n{written}  sm3_256:\n    x: y\n");
    assert_eq!(output::read_pcrread(&beside).ok(), Some(values));
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(output::read_pcrread(text(data).ok_or("no text")?))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let values: BTreeMap<PcrIndex, Sha256Digest> =
        PcrIndex::all().map(|pcr| (pcr, Sha256Digest::of([u8::from(pcr)]))).collect();
    let written = output::pcrread(&values);
    let seeds = vec![
        Seed::new("all", written.clone()),
        Seed::new("two_banks", format!("sha1:\n  0 : 0x00\n{written}")),
        Seed::new("small", written.to_lowercase().lines().take(3).collect::<Vec<_>>().join("\r\n")),
    ];
    [seeds, hostile(&written)].concat()
}

fn hostile(good: &str) -> Vec<Seed> {
    let lying = |name, text: String| Seed::new(name, text).refused(read);
    let replaced = |from: &str, to: &str| good.replacen(from, to, 1);
    vec![
        lying("no_colon", replaced("0 :", "0 ")),
        lying("register_24", replaced("0 :", "24:")),
        lying("register_with_a_sign", replaced("0 :", "+0:")),
        lying("register_with_a_zero_before", replaced("0 :", "00:")),
        lying("value_of_62_digits", replaced("0x6E", "0x")),
        lying("no_bank", replaced("  sha256:\n", "")),
        lying("register_twice", replaced("1 :", "0 :")),
    ]
}
