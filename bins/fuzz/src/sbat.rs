//! The section `.sbat`, and what it says about GRUB.

use tec_tpm::compute::{GrubError, GrubProfile, Sbat, SbatEntry};

use crate::{Seed, outcome};

/// Maximum number of lines, as in the error.
const MAX_LINES: usize = 256;

/// A section written again has the same content; what follows a NUL has no effect; and a GRUB version is
/// known exactly if all entries agree on a known one.
pub(crate) fn sbat(data: &[u8]) {
    let profile = GrubProfile::from_sbat(Some(data));
    let text = data.split(|byte| *byte == 0).next().unwrap_or_default();
    let terminated = [text, b"\0\xff"].concat();
    assert_eq!(Sbat::parse(&terminated), Sbat::parse(data));
    assert_eq!(GrubProfile::from_sbat(Some(&terminated)), profile);
    let Ok(parsed) = Sbat::parse(data) else {
        assert!(matches!(profile, Err(GrubError::Sbat(_))));
        return;
    };
    let entries = parsed.entries();
    assert!(entries.len() <= MAX_LINES);
    for entry in entries {
        let first = parsed.component(&entry.component);
        assert_eq!(first.map(|e| &e.component), Some(&entry.component));
    }
    let line = |e: &SbatEntry| {
        let SbatEntry { component, generation, version, .. } = e;
        format!("{component},{generation},vendor,package,{version},url\n")
    };
    let written = entries.iter().map(line).collect::<Vec<_>>().concat();
    assert_eq!(Sbat::parse(written.as_bytes()), Ok(parsed.clone()));
    assert_eq!(GrubProfile::from_sbat(Some(written.as_bytes())), profile);
    check_profile(&parsed, &profile);
}

fn check_profile(sbat: &Sbat, profile: &Result<GrubProfile, GrubError>) {
    let entries = sbat.entries().iter();
    let mut versions: Vec<&str> = entries
        .filter(|entry| entry.component == "grub")
        .map(|entry| entry.version.as_str())
        .collect();
    versions.dedup();
    let is_of = |vendor| sbat.component(vendor).is_some();
    let is_debian = is_of("grub.debian");
    let is_red_hat = is_of("grub.fedora") || is_of("grub.rh");
    match versions.as_slice() {
        [] => assert_eq!(profile, &Err(GrubError::NotGrub)),
        ["2.06"] if is_debian => assert_eq!(profile, &Ok(GrubProfile::V2_06)),
        ["2.06"] if is_red_hat => assert_eq!(profile, &Ok(GrubProfile::RedHat2_06)),
        ["2.12"] if is_debian => assert_eq!(profile, &Ok(GrubProfile::V2_12)),
        ["2.12"] if is_red_hat => {
            let built = [GrubProfile::Fedora2_12, GrubProfile::Rhel2_12];
            assert!(profile.as_ref().is_ok_and(|profile| built.contains(profile)));
        }
        ["2.14"] if is_debian => assert_eq!(profile, &Ok(GrubProfile::V2_14)),
        [_] => assert!(matches!(profile, Err(GrubError::UnknownVersion { .. }))),
        _ => assert!(matches!(profile, Err(GrubError::Contradiction { .. }))),
    }
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(GrubProfile::from_sbat(Some(data)))
}

const SBAT: &str = "sbat,1,SBAT Version,sbat,1,https://example.org/sbat\n";
const GRUB: &str = "grub,5,Free Software Foundation,grub,2.12,https://example.org/grub\n";
const DEBIAN: &str = "grub.debian,5,Debian,grub2,2.12-9,https://example.org/debian\n";

pub(crate) fn seeds() -> Vec<Seed> {
    let old = GRUB.replace("2.12", "2.06");
    let seeds = vec![
        Seed::new("debian", [SBAT, GRUB, DEBIAN].concat()),
        Seed::new("debian_2_06", [SBAT, &old, DEBIAN].concat()),
        Seed::new("new", [SBAT, &GRUB.replace("2.12", "2.14"), DEBIAN].concat()),
        Seed::new("fedora", [SBAT, GRUB, &DEBIAN.replace("debian", "fedora")].concat()),
        Seed::new("dos_lines", [SBAT, GRUB, DEBIAN].concat().replace('\n', "\r\n")),
        Seed::new("padded", [SBAT, GRUB, DEBIAN, "\0\0\0garbage"].concat()),
    ];
    [seeds, hostile()].concat()
}

fn hostile() -> Vec<Seed> {
    let lying = |name, content: Vec<u8>| Seed::new(name, content).refused(read);
    let text = |name, lines: &[&str]| lying(name, lines.concat().into_bytes());
    let entry = |generation: &str| format!("grub,{generation},F,grub,2.12,u\n");
    let old = GRUB.replace("2.12", "2.06");
    vec![
        lying("no_text", b"sbat,\xff".to_vec()),
        text("too_few_fields", &[SBAT, "grub,5,F,grub,2.12\n"]),
        text("no_generation", &[SBAT, &entry("")]),
        text("negative_generation", &[SBAT, &entry("-1")]),
        text("generation_of_33_bits", &[SBAT, &entry("4294967296")]),
        text("too_many_lines", &["\n".repeat(257).as_str()]),
        text("nothing", &["\0"]),
        text("no_grub", &[SBAT, "systemd-stub,1,S,systemd,262,u\n"]),
        text("two_versions", &[SBAT, GRUB, &old]),
        text("unknown_version", &[SBAT, &GRUB.replace("2.12", "2.12~rc1"), DEBIAN]),
        text("build_of_nobody", &[SBAT, GRUB]),
        text("build_of_another_vendor", &[SBAT, &old, "grub.other,1,O,grub2,2.06,u\n"]),
    ]
}
