//! Boots of synthetic files, signed by synthetic keys: who is asked in which order, and what is
//! refused or said not to follow.

use std::sync::OnceLock;

use p256::ecdsa::signature::hazmat::PrehashSigner as _;
use p256::pkcs8::DecodePrivateKey as _;
use proptest::prelude::*;
use sha2::Digest as _;
use sha2::Sha256;
use tec_core::digest::Sha256Digest;

use super::super::authenticode::Signature;
use super::super::chain::SecureBoot;
use super::super::guid::Guid;
use super::super::measurement::Component;
use super::super::memory::MemoryImage;
use super::super::shim::Shim;
use super::super::siglist;
use super::super::testing;
use super::super::testing::PeBuilder;
use super::super::testing::der;
use super::super::x509::Certificate;
use super::*;

const OWNER: Guid = Guid::of(0x1234);
const NV_BS: u32 = 3;

/// A key with its certificate, and the certificate of its issuer if that is somebody else.
struct Signer {
    key: p256::ecdsa::SigningKey,
    certificate: Vec<u8>,
    chain: Vec<Vec<u8>>,
}

impl Signer {
    /// A CA and a signer under it.
    fn under_ca(name: &str) -> (Vec<u8>, Self) {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        let ca = params.self_signed(&ca_key).unwrap();
        let ca_der = ca.der().to_vec();
        let issuer = rcgen::Issuer::new(params, ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let mut leaf = rcgen::CertificateParams::new(Vec::new()).unwrap();
        let subject = format!("{name} signer");
        leaf.distinguished_name
            .push(rcgen::DnType::CommonName, subject);
        let certificate = leaf.signed_by(&key, &issuer).unwrap().der().to_vec();
        let key = p256::ecdsa::SigningKey::from_pkcs8_der(&key.serialize_der()).unwrap();
        let signer = Self {
            key,
            chain: vec![certificate.clone()],
            certificate,
        };
        (ca_der, signer)
    }

    /// An Authenticode signature with a message digest among its attributes.
    fn sign(&self, image: &[u8; 32]) -> Vec<u8> {
        const SIGNED_DATA: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x07\x02";
        const INDIRECT: &[u8] = b"\x06\x0a\x2b\x06\x01\x04\x01\x82\x37\x02\x01\x04";
        const MESSAGE_DIGEST: &[u8] = b"\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x09\x04";
        const ECDSA: &[u8] = b"\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
        let content = testing::indirect_data(image);
        let algorithm = der(0x30, &[testing::SHA256]);
        let digest = der(0x04, &[Sha256::digest(&content).as_slice()]);
        let attribute = der(0x30, &[MESSAGE_DIGEST, &der(0x31, &[&digest])]);
        let signed = Sha256::digest(der(0x31, &[&attribute]));
        let value: p256::ecdsa::Signature = self.key.sign_prehash(&signed).unwrap();
        let own = Certificate::parse(&self.certificate).unwrap();
        let signer_info = der(
            0x30,
            &[
                b"\x02\x01\x01",
                &der(0x30, &[own.issuer, own.serial]),
                &algorithm,
                &der(0xa0, &[&attribute]),
                &der(0x30, &[ECDSA]),
                &der(0x04, &[value.to_der().as_bytes()]),
            ],
        );
        let chain: Vec<&[u8]> = self.chain.iter().map(Vec::as_slice).collect();
        let fields = [
            b"\x02\x01\x01".to_vec(),
            der(0x31, &[&algorithm]),
            der(0x30, &[INDIRECT, &der(0xa0, &[&der(0x30, &[&content])])]),
            der(0xa0, &chain),
            der(0x31, &[&signer_info]),
        ];
        der(
            0x30,
            &[SIGNED_DATA, &der(0xa0, &[&der(0x30, &[&fields.concat()])])],
        )
    }
}

/// The keys of all tests: of the firmware, of shim's vendor, and of the machine's owner.
struct Keys {
    firmware: (Vec<u8>, Signer),
    vendor: (Vec<u8>, Signer),
    owner: (Vec<u8>, Signer),
}

fn keys() -> &'static Keys {
    static KEYS: OnceLock<Keys> = OnceLock::new();
    KEYS.get_or_init(|| Keys {
        firmware: Signer::under_ca("firmware"),
        vendor: Signer::under_ca("vendor"),
        owner: Signer::under_ca("owner"),
    })
}

fn signed(builder: &PeBuilder, signers: &[&Signer]) -> Vec<u8> {
    let digest = builder.digest();
    let mut builder = builder.clone();
    for signer in signers {
        builder = builder.signature(signer.sign(&digest));
    }
    builder.build()
}

fn vendor_keys(allowed: &[u8], revoked: &[u8]) -> Vec<u8> {
    let size = |part: &[u8]| u32::try_from(part.len()).unwrap().to_le_bytes();
    let mut section = [size(allowed), size(revoked), 16_u32.to_le_bytes()].concat();
    section.extend(u32::try_from(16 + allowed.len()).unwrap().to_le_bytes());
    section.extend(allowed);
    section.extend(revoked);
    section
}

const LEVELS: &[u8] = b"\0\0\0\0\x08\0\0\0\x1c\0\0\0sbat,1,2024000000\nx\0sbat,1,2026000000\n\0";
const AUTOMATIC: &[u8] = b"sbat,1,2024000000\nx";

fn shim(vendor: &[u8], version: &str) -> PeBuilder {
    PeBuilder::new()
        .section(".text", b"shim".repeat(100))
        .section(".data.ident", format!("UEFI SHIM\n$Version: {version} $\n"))
        .section(".sbatlevel", LEVELS)
        .section(".vendor_cert", vendor)
}

fn grub(version: &str, vendor: &str) -> PeBuilder {
    PeBuilder::new()
        .section(".text", b"GRUB".repeat(100))
        .section(
            ".sbat",
            format!("sbat,1,S,sbat,1,u\ngrub,5,F,grub,{version},u\n{vendor},5,V,g,1,u\n"),
        )
}

/// A kernel with the header of a bzImage.
fn kernel(version: &str) -> PeBuilder {
    // The first section begins at 0x200 here, and the header of a bzImage at 0x1f1.
    let mut text = vec![0; 4096];
    text[2..6].copy_from_slice(b"HdrS");
    text[0xe..0x10].copy_from_slice(&0x100_u16.to_le_bytes());
    text[0x100..0x100 + version.len()].copy_from_slice(version.as_bytes());
    PeBuilder::new().section(".text", text)
}

const CFG: &str = "set timeout=0\nlinux /vmlinuz quiet\ninitrd /initrd.img\nboot\n";

/// A whole chain, each file signed as Debian does it.
fn chain(grub_version: &str) -> MemoryImage {
    let keys = keys();
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    MemoryImage::new()
        .with(
            "EFI/BOOT/BOOTX64.EFI",
            signed(&shim(&vendor, "16.1"), &[&keys.firmware.1]),
        )
        .with(
            "EFI/BOOT/grubx64.efi",
            signed(&grub(grub_version, "grub.debian"), &[&keys.vendor.1]),
        )
        .with("EFI/debian/grub.cfg", CFG.as_bytes().to_vec())
        .with("vmlinuz", signed(&kernel("6.12"), &[&keys.vendor.1]))
        .with("initrd.img", b"initrd".to_vec())
}

fn platform(secure_boot: SecureBoot) -> PlatformState {
    let db = siglist::one(siglist::X509, OWNER, &keys().firmware.0);
    PlatformState::new()
        .with_variable(
            "SecureBoot",
            Guid::GLOBAL,
            6,
            [u8::from(secure_boot == SecureBoot::On)],
        )
        .with_variable("PK", Guid::GLOBAL, 0x27, *b"pk")
        .with_variable("db", Guid::SECURITY_DATABASE, 0x27, db)
        .with_grub_device("hd0,gpt1")
}

fn predict(image: &MemoryImage, platform: &PlatformState) -> Result<Prediction, PredictError> {
    BootPredictor::new().predict(image, platform)
}

fn components(prediction: &Prediction, pcr: PcrIndex) -> Vec<Component> {
    prediction.of_register(pcr).map(|m| m.component).collect()
}

fn refusal(image: &MemoryImage, platform: &PlatformState) -> (String, AuthorityError) {
    match predict(image, platform) {
        Err(PredictError::Authority { file, source }) => (file, source),
        other => panic!("{other:?}"),
    }
}

/// `UEFI_VARIABLE_DATA`, written out once more.
fn variable(name: &str, vendor: Guid, data: &[u8]) -> Sha256Digest {
    let mut event = vendor.as_bytes().to_vec();
    event.extend(u64::try_from(name.len()).unwrap().to_le_bytes());
    event.extend(u64::try_from(data.len()).unwrap().to_le_bytes());
    event.extend(name.bytes().flat_map(|byte| [byte, 0]));
    event.extend(data);
    Sha256Digest::of(event)
}

#[test]
fn each_verifier_measures_the_key_that_it_found() {
    let prediction = predict(&chain("2.12"), &platform(SecureBoot::On)).unwrap();
    let authorities: Vec<_> = prediction
        .of_register(PcrIndex::SECURE_BOOT)
        .skip(6)
        .map(|m| (m.component, m.digest))
        .collect();
    let by = |owner: Guid, key: &[u8]| [owner.as_bytes().as_slice(), key].concat();
    let firmware = by(OWNER, &keys().firmware.0);
    let vendor = by(Guid::SHIM, &keys().vendor.0);
    assert_eq!(
        authorities,
        [
            (
                Component::Pcr7ShimCert,
                variable("db", Guid::SECURITY_DATABASE, &firmware)
            ),
            (
                Component::Pcr7SbatLevel,
                variable("SbatLevel", Guid::SHIM, AUTOMATIC)
            ),
            (
                Component::Pcr7GrubMokListCert,
                variable("MokListRT", Guid::SHIM, &vendor)
            ),
        ]
    );
}

#[test]
fn without_variables_only_what_holds_no_keys_is_predicted() {
    let image = chain("2.12");
    for secure_boot in [SecureBoot::On, SecureBoot::Off] {
        let known = predict(&image, &platform(secure_boot)).unwrap();
        let unknown = PlatformState::with_unknown_variables(secure_boot);
        let without = predict(&image, &unknown).unwrap();
        let left: Vec<_> = without.unpredictable().collect();
        assert!(left.contains(&(PcrIndex::SECURE_BOOT, &Unpredictable::Keys)));
        assert!(left.contains(&(PcrIndex::MOK, &Unpredictable::MokLists)));
        for pcr in without.predicted().iter() {
            assert_eq!(known.register(pcr), without.register(pcr), "PCR {pcr}");
        }
        assert!(without.predicted().contains(PcrIndex::BOOT_FILES));

        let with_lists = unknown.with_known_mok_lists();
        let with_lists = predict(&image, &with_lists).unwrap();
        let mok = |prediction: &Prediction| prediction.expected().pcr(PcrIndex::MOK).cloned();
        assert!(mok(&with_lists).is_some() && mok(&with_lists) == mok(&known));
    }
}

#[test]
fn without_variables_somebody_must_have_signed_what_is_started() {
    let unsigned = chain("2.12").with("vmlinuz", kernel("6.12").build());
    let on = PlatformState::with_unknown_variables(SecureBoot::On);
    assert!(matches!(
        predict(&unsigned, &on),
        Err(PredictError::Signature { file, source: SignatureError::Unsigned }) if file == "vmlinuz"
    ));
    let off = PlatformState::with_unknown_variables(SecureBoot::Off);
    assert!(predict(&unsigned, &off).is_ok());
}

#[test]
fn secure_boot_off_asks_nobody() {
    let prediction = predict(&chain("2.12"), &platform(SecureBoot::Off)).unwrap();
    let events = components(&prediction, PcrIndex::SECURE_BOOT);
    assert_eq!(events[6..], [Component::Pcr7SbatLevel]);
    let level = prediction
        .of_register(PcrIndex::SECURE_BOOT)
        .last()
        .unwrap();
    let original = variable("SbatLevel", Guid::SHIM, b"sbat,1,2021030218\n");
    assert_eq!(level.digest, original);
}

#[test]
fn the_generations_of_grub_differ_as_they_were_observed() {
    let count = |version, secure_boot| {
        let prediction = predict(&chain(version), &platform(secure_boot)).unwrap();
        let of = |pcr| prediction.of_register(pcr).count();
        (
            of(PcrIndex::BOOT_MANAGER),
            of(PcrIndex::BOOT_COMMANDS),
            of(PcrIndex::BOOT_FILES),
        )
    };
    assert_eq!(count("2.06", SecureBoot::On), (6, 9, 3));
    assert_eq!(count("2.06", SecureBoot::Off), (4, 9, 3));
    assert_eq!(count("2.12", SecureBoot::On), (5, 5, 6));
    assert_eq!(count("2.12", SecureBoot::Off), (4, 5, 6));
    assert_eq!(count("2.14", SecureBoot::On), (5, 5, 6));
    assert_eq!(count("2.14", SecureBoot::Off), (5, 5, 6));
}

#[test]
fn an_image_that_no_key_allows_is_refused_by_name() {
    let keys = keys();
    let image = chain("2.12");
    let unsigned = image.clone().with("vmlinuz", kernel("6.12").build());
    let (file, error) = refusal(&unsigned, &platform(SecureBoot::On));
    assert!(file == "vmlinuz" && matches!(error, AuthorityError::Refused));

    let foreign = signed(&grub("2.12", "grub.debian"), &[&keys.owner.1]);
    let foreign = image.clone().with("EFI/BOOT/grubx64.efi", foreign);
    let (file, error) = refusal(&foreign, &platform(SecureBoot::On));
    assert!(file == "EFI/BOOT/grubx64.efi" && matches!(error, AuthorityError::Refused));

    // A signature that names the right digest and signer, but was made by another key.
    let mut forger = Signer::under_ca("forger").1;
    forger.certificate.clone_from(&keys.vendor.1.certificate);
    forger.chain.clone_from(&keys.vendor.1.chain);
    let forged = image.with("vmlinuz", signed(&kernel("6.12"), &[&forger]));
    let (file, error) = refusal(&forged, &platform(SecureBoot::On));
    assert!(file == "vmlinuz" && matches!(error, AuthorityError::Refused));
}

#[test]
fn a_changed_file_is_an_error_with_secure_boot_on_and_off() {
    let mut changed = signed(&kernel("6.12"), &[&keys().vendor.1]);
    changed[900] ^= 1;
    let image = chain("2.12").with("vmlinuz", changed);
    for secure_boot in [SecureBoot::On, SecureBoot::Off] {
        assert!(matches!(
            predict(&image, &platform(secure_boot)),
            Err(PredictError::Signature { file, source: SignatureError::Mismatch { .. } })
                if file == "vmlinuz"
        ));
    }
}

#[test]
fn digests_of_images_allow_and_revoke_them() {
    let vendor = vendor_keys(&keys().vendor.0, &[]);
    let unsigned = shim(&vendor, "16.1");
    let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", unsigned.build());
    let entry = siglist::one(siglist::SHA256, OWNER, &unsigned.digest());
    let listed = |name: &str| {
        platform(SecureBoot::On).with_variable(name, Guid::SECURITY_DATABASE, 0x27, entry.clone())
    };
    let prediction = predict(&image, &listed("db")).unwrap();
    let authority = prediction
        .of_register(PcrIndex::SECURE_BOOT)
        .nth(6)
        .unwrap();
    assert_eq!(
        authority.digest,
        variable("db", Guid::SECURITY_DATABASE, &entry[28..])
    );

    let (file, error) = refusal(&image, &listed("dbx"));
    assert_eq!(file, "EFI/BOOT/BOOTX64.EFI");
    assert!(matches!(error, AuthorityError::Revoked { variable: "dbx" }));
    let ca = siglist::one(siglist::X509, OWNER, &keys().firmware.0);
    let revoked = platform(SecureBoot::On).with_variable("dbx", Guid::SECURITY_DATABASE, 0x27, ca);
    let (_, error) = refusal(&chain("2.12"), &revoked);
    assert!(matches!(error, AuthorityError::Revoked { variable: "dbx" }));
}

#[test]
fn the_first_signature_that_is_allowed_decides_whatever_the_order_of_db() {
    let keys = keys();
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    let twice = signed(&shim(&vendor, "16.1"), &[&keys.owner.1, &keys.firmware.1]);
    let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", twice);
    let one = |key: &[u8]| siglist::one(siglist::X509, OWNER, key);
    let first = |db: Vec<u8>| {
        let platform =
            platform(SecureBoot::On).with_variable("db", Guid::SECURITY_DATABASE, 0x27, db);
        let prediction = predict(&image, &platform).unwrap();
        prediction
            .of_register(PcrIndex::SECURE_BOOT)
            .nth(6)
            .unwrap()
            .digest
    };
    let measured = |key: &[u8]| variable("db", Guid::SECURITY_DATABASE, &one(key)[28..]);
    let (firmware, owner) = (&keys.firmware.0, &keys.owner.0);
    assert_eq!(first([one(firmware), one(owner)].concat()), measured(owner));
    assert_eq!(first([one(owner), one(firmware)].concat()), measured(owner));
    assert_eq!(first(one(firmware)), measured(firmware));
}

#[test]
fn owner_keys_are_asked_after_the_vendor_and_measured_with_it() {
    let keys = keys();
    let image = chain("2.12").with(
        "EFI/BOOT/grubx64.efi",
        signed(&grub("2.12", "grub.debian"), &[&keys.owner.1]),
    );
    let list = siglist::one(siglist::X509, OWNER, &keys.owner.0);
    let platform =
        platform(SecureBoot::On).with_variable("MokList", Guid::SHIM, NV_BS, list.clone());
    let prediction = predict(&image, &platform).unwrap();
    let events = components(&prediction, PcrIndex::SECURE_BOOT);
    assert_eq!(events[8..], [Component::Pcr7GrubMokListCert; 2]);
    let mut mok = siglist::one(siglist::X509, Guid::SHIM, &keys.vendor.0);
    mok.extend(&list);
    let measured = prediction.of_register(PcrIndex::MOK).next().unwrap();
    assert_eq!(measured.digest, Sha256Digest::of(&mok));

    // The same machine, seen from the running system.
    let running = platform_with_mirror(&mok);
    let again = predict(&image, &running).unwrap();
    assert_eq!(again.expected(), prediction.expected());
    let foreign = platform_with_mirror(&list);
    assert!(matches!(
        predict(&image, &foreign),
        Err(PredictError::Shim {
            source: ShimError::ForeignMirror,
            ..
        })
    ));
    // A list that the running system could have written is deleted by shim.
    let writable = platform.with_variable("MokList", Guid::SHIM, 7, list);
    let (_, error) = refusal(&image, &writable);
    assert!(matches!(error, AuthorityError::Refused));
}

fn platform_with_mirror(mok: &[u8]) -> PlatformState {
    platform(SecureBoot::On)
        .with_variable("MokListRT", Guid::SHIM, 6, mok)
        .with_variable("SbatLevelRT", Guid::SHIM, 6, AUTOMATIC)
}

#[test]
fn a_vendor_database_is_measured_by_its_own_name() {
    let keys = keys();
    let lists = siglist::one(siglist::X509, OWNER, &keys.vendor.0);
    let vendor = vendor_keys(&lists, b"revocations");
    let image = chain("2.12").with(
        "EFI/BOOT/BOOTX64.EFI",
        signed(&shim(&vendor, "15.8"), &[&keys.firmware.1]),
    );
    // Revocations that are no lists cannot be judged.
    let (_, error) = refusal(&image, &platform(SecureBoot::On));
    assert!(matches!(
        error,
        AuthorityError::List {
            variable: "dbx",
            ..
        }
    ));

    let revoked = siglist::one(siglist::SHA256, OWNER, &[1; 32]);
    let vendor = vendor_keys(&lists, &revoked);
    let image = image.with(
        "EFI/BOOT/BOOTX64.EFI",
        signed(&shim(&vendor, "15.8"), &[&keys.firmware.1]),
    );
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    let last = prediction
        .of_register(PcrIndex::SECURE_BOOT)
        .last()
        .unwrap();
    assert_eq!(last.component, Component::Pcr7GrubVendorDbCert);
    let expected = variable("vendor_db", Guid::SECURITY_DATABASE, &lists[28..]);
    assert_eq!(last.digest, expected);
    let mok: Vec<_> = prediction
        .of_register(PcrIndex::MOK)
        .map(|m| m.digest)
        .collect();
    assert_eq!(
        mok[..2],
        [Sha256Digest::of(&lists), Sha256Digest::of(&revoked)]
    );
}

#[test]
fn switching_shims_verification_off_is_measured_and_the_rest_is_not_claimed() {
    let platform = platform(SecureBoot::On)
        .with_variable("MokSBState", Guid::SHIM, NV_BS, [1])
        .with_variable("MokListTrusted", Guid::SHIM, NV_BS, [1]);
    let unsigned = chain("2.12").with("vmlinuz", kernel("6.12").build());
    let prediction = predict(&unsigned, &platform).unwrap();
    let mok = [
        Component::Pcr14MokList,
        Component::Pcr14MokListX,
        Component::Pcr14MokSbState,
    ];
    assert_eq!(components(&prediction, PcrIndex::MOK), mok);
    let events = components(&prediction, PcrIndex::SECURE_BOOT);
    assert_eq!(
        events[7..],
        [Component::Pcr7MokSbState, Component::Pcr7SbatLevel]
    );
    let insecure = Register::Unpredictable(&Unpredictable::Insecure);
    assert_eq!(prediction.register(PcrIndex::BOOT_MANAGER), insecure);
}

#[test]
fn the_revocation_level_only_rises_while_secure_boot_is_on() {
    let level = |secure_boot, stored: &[u8], policy: Option<u8>| {
        let mut platform =
            platform(secure_boot).with_variable("SbatLevel", Guid::SHIM, NV_BS, stored);
        if let Some(policy) = policy {
            platform = platform.with_variable("SbatPolicy", Guid::SHIM, NV_BS, [policy]);
        }
        let file = super::super::pe::PeFile::read(
            shim(&vendor_keys(&[], &[]), "16.1").build().as_slice(),
            &[".vendor_cert", ".sbatlevel"],
        )
        .unwrap();
        Shim::new(&file, &platform, secure_boot)
            .unwrap()
            .sbat_level()
            .to_vec()
    };
    let (newer, older) = (&b"sbat,1,2025000000\n"[..], &b"sbat,1,2023000000\n"[..]);
    let latest = b"sbat,1,2026000000\n";
    let original = b"sbat,1,2021030218\n";
    assert_eq!(level(SecureBoot::On, newer, None), newer);
    assert_eq!(level(SecureBoot::On, older, None), AUTOMATIC);
    assert_eq!(
        level(SecureBoot::On, b"sbat,10,2023000000\n", None),
        b"sbat,10,2023000000\n"
    );
    assert_eq!(
        level(SecureBoot::On, b"garbage of some length", None),
        AUTOMATIC
    );
    assert_eq!(level(SecureBoot::On, newer, Some(1)), latest);
    assert_eq!(level(SecureBoot::On, older, Some(3)), AUTOMATIC);
    assert_eq!(level(SecureBoot::Off, newer, None), original);
    assert_eq!(level(SecureBoot::Off, newer, Some(3)), original);
    assert_eq!(level(SecureBoot::Off, older, Some(2)), AUTOMATIC);
}

#[test]
fn unknown_builds_are_errors_and_can_be_overridden() {
    let keys = keys();
    let vendor = vendor_keys(&keys.vendor.0, &[]);
    let other_shim = chain("2.12").with(
        "EFI/BOOT/BOOTX64.EFI",
        signed(&shim(&vendor, "15.7"), &[&keys.firmware.1]),
    );
    let platform = platform(SecureBoot::On);
    assert!(matches!(
        predict(&other_shim, &platform),
        Err(PredictError::Shim { source: ShimError::UnknownVersion { version }, .. })
            if version == "15.7"
    ));
    let overridden = BootPredictor::new().with_shim_profile(ShimProfile::V15_8);
    assert!(overridden.predict(&other_shim, &platform).is_ok());

    assert!(matches!(
        predict(&chain("2.04"), &platform),
        Err(PredictError::Grub {
            source: GrubError::UnknownVersion { .. },
            ..
        })
    ));
    let overridden = BootPredictor::new().with_grub_profile(GrubProfile::V2_12);
    assert!(overridden.predict(&chain("2.04"), &platform).is_ok());
}

#[test]
fn what_is_not_followed_leaves_the_other_registers_predicted() {
    let keys = keys();
    let with = |path: &str, content: &[u8]| chain("2.12").with(path, content.to_vec());
    let other = signed(&grub("2.12", "grub.fedora"), &[&keys.vendor.1]);
    let old = signed(&kernel("5.10"), &[&keys.vendor.1]);
    for image in [
        with("EFI/BOOT/grubx64.efi", &other),
        with("EFI/debian/grub.cfg", b"if x; then\nboot\nfi\n"),
        with("EFI/debian/grub.cfg", b"linux /vmlinuz initrd=/x\nboot\n"),
        with("vmlinuz", &old),
    ] {
        let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
        assert!(!prediction.predicted().contains(PcrIndex::BOOT_FILES));
        assert!(prediction.expected().pcr(PcrIndex::BOOT_FILES).is_none());
        let loaded = components(&prediction, PcrIndex::BOOT_MANAGER);
        assert_eq!(loaded.last(), Some(&Component::Pcr4Vmlinuz));
        assert!(prediction.predicted().contains(PcrIndex::SECURE_BOOT));
    }
    let unnamed = PlatformState::new();
    let prediction = predict(&chain("2.06"), &unnamed).unwrap();
    let device = Register::Unpredictable(&Unpredictable::GrubDevice);
    assert_eq!(prediction.register(PcrIndex::BOOT_COMMANDS), device);
    let unbundled = with("EFI/BOOT/shim_certificate_1.efi", b"x");
    let prediction = predict(&unbundled, &platform(SecureBoot::On)).unwrap();
    assert!(!prediction.predicted().contains(PcrIndex::MOK));
}

#[test]
fn registers_that_were_not_asked_for_are_not_computed() {
    let asked: PcrSet = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK]
        .into_iter()
        .collect();
    let predictor = BootPredictor::new().with_registers(asked);
    for image in [chain("2.12"), alone("257")] {
        let machine = platform(SecureBoot::On);
        let all = predict(&image, &machine).unwrap();
        let prediction = predictor.predict(&image, &machine).unwrap();
        assert_eq!(prediction.predicted().iter().count(), 2);
        for pcr in asked.iter() {
            assert_eq!(prediction.register(pcr), all.register(pcr));
        }
        let not_asked = Register::Unpredictable(&Unpredictable::NotAsked);
        assert_eq!(prediction.register(PcrIndex::BOOT_FILES), not_asked);
    }
}

#[test]
fn a_predictor_bound_to_a_machine_computes_images() {
    let machine = BootPredictor::new().on(platform(SecureBoot::On));
    let expected = machine.compute(&chain("2.12")).unwrap();
    assert!(expected.pcr(PcrIndex::SECURE_BOOT).unwrap().is_consistent());
    let error = machine.compute(&chain("2.04")).unwrap_err();
    assert_eq!(error.file, "EFI/BOOT/grubx64.efi");
}

#[test]
fn registers_of_the_firmware_are_taken_from_a_verified_log() {
    use crate::event_log::EventKind;
    use crate::event_log::EventLog;
    use crate::event_log::EventLogBuilder;
    let pcr = |index| PcrIndex::new(index).unwrap();
    let bytes = EventLogBuilder::new()
        .measure(pcr(0), EventKind::POST_CODE, b"firmware")
        .measure(pcr(2), EventKind::SEPARATOR, &[0; 4])
        .measure(PcrIndex::SECURE_BOOT, EventKind::SEPARATOR, b"other")
        .build();
    let log = EventLog::parse(&bytes).unwrap();
    let quoted = log.replay_sha256().unwrap();
    let log = log.verify(&quoted, PcrIndex::all().collect()).unwrap();
    let prediction = predict(&chain("2.12"), &platform(SecureBoot::On)).unwrap();
    let own = prediction.expected();
    let recorded: PcrSet = [pcr(0), pcr(2), PcrIndex::SECURE_BOOT]
        .into_iter()
        .collect();
    let prediction = prediction.with_recorded(&log, recorded);
    let expected = prediction.expected();
    assert_eq!(expected.pcr(pcr(0)).unwrap().value, *quoted.value(pcr(0)));
    assert_eq!(expected.pcr(pcr(2)).unwrap().value, *quoted.value(pcr(2)));
    // What is predicted is not overwritten.
    let secure_boot = PcrIndex::SECURE_BOOT;
    assert_eq!(expected.pcr(secure_boot), own.pcr(secure_boot));
    assert!(!prediction.predicted().contains(pcr(1)));
}

/// A unified kernel image of this stub.
fn uki(stub: &str) -> PeBuilder {
    PeBuilder::new()
        .section(
            ".sdmagic",
            format!("#### LoaderInfo: systemd-stub {stub} ####"),
        )
        .section(".sbat", "sbat,1,S,sbat,1,u\nsystemd-stub,1,S,s,1,u\n")
        .section(".osrel", "ID=x\n")
        .section(".cmdline", "quiet ")
        .section(".uname", "6.12")
        .section(".splash", "BM")
        .section(".pcrpkey", "key")
        .section(".initrd", "12345")
        .section(".linux", kernel("6.12").build())
}

fn alone(stub: &str) -> MemoryImage {
    MemoryImage::new().with(
        "EFI/BOOT/BOOTX64.EFI",
        signed(&uki(stub), &[&keys().firmware.1]),
    )
}

#[test]
fn the_generations_of_the_stub_measure_their_own_sections_in_their_order() {
    let sections = |stub, secure_boot| {
        let prediction = predict(&alone(stub), &platform(secure_boot)).unwrap();
        let names = prediction.of_register(PcrIndex::KERNEL_BOOT);
        let names: Vec<_> = names.step_by(2).filter_map(|m| m.subject.clone()).collect();
        let started = prediction.of_register(PcrIndex::BOOT_MANAGER).count();
        (names.concat(), started)
    };
    let old = ".linux.osrel.cmdline.initrd.splash.pcrpkey".to_owned();
    let new = ".linux.osrel.cmdline.initrd.splash.uname.sbat.pcrpkey".to_owned();
    assert!(matches!(
        predict(&alone("256"), &platform(SecureBoot::On)),
        Err(PredictError::Stub {
            source: StubError::UnknownVersion { .. },
            ..
        })
    ));
    assert_eq!(sections("252.1-x", SecureBoot::On), (old.clone(), 3));
    assert_eq!(sections("252.1-x", SecureBoot::Off), (old, 4));
    assert_eq!(sections("257.13", SecureBoot::On), (new.clone(), 3));
    assert_eq!(sections("257.13", SecureBoot::Off), (new.clone(), 4));
    assert_eq!(sections("262~rc1", SecureBoot::On), (new.clone(), 3));
    assert_eq!(sections("262~rc1", SecureBoot::Off), (new, 3));
}

#[test]
fn names_and_contents_of_sections_are_hashed_as_they_lie_in_memory() {
    let prediction = predict(&alone("257"), &platform(SecureBoot::On)).unwrap();
    let events: Vec<_> = prediction
        .of_register(PcrIndex::KERNEL_BOOT)
        .map(|m| m.digest)
        .collect();
    assert_eq!(events[2], Sha256Digest::of(b".osrel\0"));
    assert_eq!(events[3], Sha256Digest::of(b"ID=x\n"));
}

#[test]
fn the_kernel_finds_the_archives_that_the_stub_appends() {
    use super::super::cpio::extra_file;
    let of = |stub| {
        let prediction = predict(&alone(stub), &platform(SecureBoot::On)).unwrap();
        let events = prediction.of_register(PcrIndex::BOOT_FILES);
        let events: Vec<_> = events.map(|m| m.digest).collect();
        (prediction, events)
    };
    let key = extra_file("tpm2-pcr-public-key.pem", b"key");
    let release = extra_file("os-release", b"ID=x\n");
    let initrd = [b"12345\0\0\0".as_slice(), &key, &release].concat();
    let options: Vec<u8> = "quiet\0".bytes().flat_map(|byte| [byte, 0]).collect();
    let (_, events) = of("257");
    assert_eq!(
        events,
        [Sha256Digest::of(options), Sha256Digest::of(initrd)]
    );
    let (prediction, _) = of("252");
    assert!(matches!(
        prediction.register(PcrIndex::BOOT_FILES),
        Register::Unpredictable(Unpredictable::CommandLine { .. })
    ));
    let (prediction, _) = of("262");
    let secret = Register::Unpredictable(&Unpredictable::BootSecret);
    assert_eq!(prediction.register(PcrIndex::BOOT_FILES), secret);
}

#[test]
fn add_ons_are_started_in_order_and_their_command_lines_measured_once() {
    let keys = keys();
    let addon = |line: &str, uname: &str| {
        let file = PeBuilder::new()
            .section(".cmdline", line)
            .section(".uname", uname);
        signed(&file, &[&keys.firmware.1])
    };
    let image = alone("257")
        .with(
            "EFI/BOOT/BOOTX64.EFI.extra.d/b.addon.efi",
            addon("b=1", "6.12"),
        )
        .with(
            "EFI/BOOT/BOOTX64.EFI.extra.d/a.addon.efi",
            addon(" a=1\n", "6.12"),
        )
        .with(
            "EFI/BOOT/BOOTX64.EFI.extra.d/c.addon.efi",
            addon("c=1", "other"),
        )
        .with("loader/addons/z.addon.efi", addon("z=1", "6.12"));
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    let started = prediction.of_register(PcrIndex::BOOT_MANAGER).skip(3);
    let started: Vec<_> = started.filter_map(|m| m.file.clone()).collect();
    let own = |name: &str| format!("EFI/BOOT/BOOTX64.EFI.extra.d/{name}.addon.efi");
    assert_eq!(
        started,
        [
            "loader/addons/z.addon.efi".to_owned(),
            own("a"),
            own("b"),
            own("c")
        ]
    );
    let measured: Vec<_> = prediction.of_register(PcrIndex::KERNEL_CONFIG).collect();
    assert_eq!(measured.len(), 1);
    assert_eq!(measured[0].subject.as_deref(), Some("z=1 a=1 b=1"));
    let found = prediction.of_register(PcrIndex::BOOT_FILES).next().unwrap();
    assert_eq!(found.subject.as_deref(), Some("quiet z=1 a=1 b=1"));
    // Stub 252 knows no add-ons, and credentials are not followed.
    let image = image.with("EFI/BOOT/BOOTX64.EFI.extra.d/x.cred", b"x".to_vec());
    let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
    assert!(!prediction.predicted().contains(PcrIndex::KERNEL_CONFIG));
}

#[test]
fn sections_that_depend_on_a_choice_are_not_claimed() {
    for section in [".profile", ".dtbauto", ".hwids", ".efifw"] {
        let file = signed(&uki("257").section(section, "x"), &[&keys().firmware.1]);
        let image = MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", file);
        let prediction = predict(&image, &platform(SecureBoot::On)).unwrap();
        assert!(!prediction.predicted().contains(PcrIndex::KERNEL_BOOT));
        assert!(prediction.predicted().contains(PcrIndex::BOOT_MANAGER));
    }
}

#[test]
fn vendor_keys_and_levels_that_are_cut_off_are_refused_at_every_length() {
    let whole = vendor_keys(&keys().vendor.0, b"list");
    for end in 1..whole.len() {
        let file = signed(&shim(&whole[..end], "16.1"), &[&keys().firmware.1]);
        let image = chain("2.12").with("EFI/BOOT/BOOTX64.EFI", file);
        assert!(matches!(
            predict(&image, &platform(SecureBoot::On)),
            Err(PredictError::Shim {
                source: ShimError::VendorKeys { .. },
                ..
            })
        ));
    }
}

#[test]
fn signatures_and_certificates_that_are_cut_off_are_refused_at_every_length() {
    let signer = &keys().firmware.1;
    let signature = signer.sign(&[1; 32]);
    assert!(Signature::parse(&signature).is_ok());
    for end in 0..signature.len() {
        assert!(Signature::parse(&signature[..end]).is_err());
    }
    for end in 0..signer.certificate.len() {
        assert!(Certificate::parse(&signer.certificate[..end]).is_err());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_change_of_a_signature_makes_the_verifier_panic_or_trust_it(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..4),
    ) {
        let (ca, signer) = &keys().firmware;
        let original = signer.sign(&[1; 32]);
        let trusted = Certificate::parse(ca).unwrap();
        let mut signature = original.clone();
        for (index, byte) in changes {
            let at = index.index(signature.len());
            signature[at] ^= byte;
        }
        if let Ok(parsed) = Signature::parse(&signature) {
            let _ = parsed.is_trusted_by(&trusted, &[1; 32]);
            prop_assert!(!parsed.is_trusted_by(&trusted, &[2; 32]).unwrap_or(false));
        }
    }

    #[test]
    fn no_change_of_a_file_makes_the_predictor_panic(
        file in 0..3_usize,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let path = ["EFI/BOOT/BOOTX64.EFI", "EFI/BOOT/grubx64.efi", "vmlinuz"][file];
        let image = chain("2.12");
        let mut content = image.content(path).unwrap().to_vec();
        for (index, byte) in changes {
            let at = index.index(content.len());
            content[at] = byte;
        }
        let image = image.with(path, content);
        let _ = predict(&image, &platform(SecureBoot::On));
        let _ = predict(&image, &platform(SecureBoot::Off));
    }
}
