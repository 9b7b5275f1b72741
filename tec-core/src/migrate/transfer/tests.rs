use super::*;
use crate::code::Code;
use crate::migrate::{AnchorId, Authority, MachineUnit, TrustUnit, prove};
use crate::secret::SecretBytes;
use crate::testing::{SeededEntropy, sample};

fn identity() -> Identity {
    Identity::generate(&SeededEntropy::new(1))
}

fn signer() -> Signer {
    Signer::generate(&SeededEntropy::new(2))
}

fn source() -> Authority {
    Authority::founded(AnchorId::from(uuid::Uuid::from_u128(1)))
}

fn units() -> Vec<TrustUnit> {
    let machine = |number| {
        let keys = vec![sample::ak(number, number)];
        let secret = Some(sample::secret(number));
        let escrows = [(1, sample::secret(61)), (2, sample::secret(62))];
        MachineUnit::new(sample::machine(number), keys, secret).with_escrows(escrows.into())
    };
    vec![
        TrustUnit::Image(sample::image(1)),
        TrustUnit::Machine(machine(1)),
        TrustUnit::Machine(MachineUnit::new(sample::machine(2), Vec::new(), None)),
    ]
}

fn made_by(signer: &Signer, recipient: Recipient) -> Vec<u8> {
    let (record, at, entropy) = (source(), sample::time(4), SeededEntropy::new(3));
    let (made, ends) = ((&record, at, Some("7:d914")), (signer, recipient));
    let mut writer = TransferWriter::begin(Vec::new(), made, ends, &entropy).unwrap();
    for unit in units() {
        writer.part(&[unit], &[]).unwrap();
    }
    let content = SecretBytes::new(b"a key".to_vec());
    let document = Document { name: "ca.key".to_owned(), content };
    writer.part(&[], &[document]).unwrap();
    writer.finish().unwrap()
}

fn made() -> Vec<u8> {
    made_by(&signer(), identity().recipient())
}

fn read(file: &[u8]) -> Result<(Vec<TrustUnit>, Vec<Document>), TransferError> {
    let mut reader = TransferReader::open(file, &identity(), signer().public())?;
    let (mut units, mut documents) = (Vec::new(), Vec::new());
    while let Some(part) = reader.part()? {
        units.extend(part.units);
        documents.extend(part.documents);
    }
    Ok((units, documents))
}

#[test]
fn what_was_written_is_read() {
    let (read, documents) = read(&made()).unwrap();
    let proofs = |units: &[TrustUnit]| -> Vec<_> {
        units.iter().map(|unit| prove(&[1; 32], unit).unwrap()).collect()
    };
    assert_eq!(proofs(&read), proofs(&units()));
    assert_eq!(documents[0].name, "ca.key");
    assert!(documents[0].content.ct_eq(&SecretBytes::new(b"a key".to_vec())));
}

#[test]
fn a_quarantined_machine_stays_so_in_a_backup() {
    use crate::machine::MachineState::{Quarantined, Retired, Revoked};
    let (record, at, entropy) = (source(), sample::time(4), SeededEntropy::new(3));
    let (signer, recipient) = (signer(), identity().recipient());
    let (made, ends) = ((&record, at, None), (&signer, recipient));
    let mut writer = TransferWriter::begin(Vec::new(), made, ends, &entropy).unwrap();
    for (number, state) in [(1, Quarantined), (2, Retired), (3, Revoked)] {
        let machine = crate::machine::Machine { state, ..sample::machine(number) };
        let unit = MachineUnit::new(machine, Vec::new(), Some(sample::secret(number)));
        writer.part(&[TrustUnit::Machine(unit)], &[]).unwrap();
    }
    let (units, _) = read(&writer.finish().unwrap()).unwrap();
    let states = units.iter().filter_map(|unit| match unit {
        TrustUnit::Machine(unit) => Some(unit.machine.state),
        TrustUnit::Image(_) => None,
    });
    assert_eq!(states.collect::<Vec<_>>(), [Quarantined, Retired, Revoked]);
}

#[test]
fn equal_input_gives_equal_bytes_and_no_secret_in_plain_text() {
    let file = made();
    assert_eq!(file, made());
    let hidden = sample::secret(1);
    let needle = hidden.expose("search for it");
    assert!(!file.windows(needle.len()).any(|window| window == needle));
}

#[test]
fn the_manifest_is_one_line_that_people_can_read() {
    let file = made();
    let line = file.split(|byte| *byte == b'\n').next().unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(line).unwrap();
    assert_eq!(manifest["kind"], "tec-transfer");
    assert_eq!(manifest["recipient"], identity().recipient().to_string());
    assert_eq!(manifest["source"]["role"], "active");
    assert_eq!(manifest["audit_head"], "7:d914");
}

#[test]
fn keys_are_read_as_they_are_printed() {
    let again = Identity::from_text(&identity().to_text()).unwrap();
    assert_eq!(again.recipient(), identity().recipient());
    let again = Signer::from_text(&signer().to_text()).unwrap();
    assert_eq!(again.public(), signer().public());
    let text = identity().recipient().to_string();
    assert_eq!(text.parse::<Recipient>().unwrap(), identity().recipient());
    assert!(text.parse::<SignerKey>().is_err(), "not one for the other");
    assert!(Identity::from_text(&signer().to_text()).is_err());
}

fn replaced(file: &[u8], from: &str, to: &str) -> Vec<u8> {
    let end = file.iter().position(|byte| *byte == b'\n').unwrap();
    let line = std::str::from_utf8(&file[..end]).unwrap();
    assert!(line.contains(from), "{line}");
    [line.replacen(from, to, 1).as_bytes(), &file[end..]].concat()
}

/// Start of the first part: after two lines.
fn parts_at(file: &[u8]) -> usize {
    let mut ends = (0..file.len()).filter(|at| file[*at] == b'\n');
    ends.nth(1).unwrap() + 1
}

fn part_length(file: &[u8], at: usize) -> usize {
    let length: [u8; 4] = file[at..at + 4].try_into().unwrap();
    4 + usize::try_from(u32::from_be_bytes(length)).unwrap()
}

/// The parts, including the last one.
fn parts(file: &[u8]) -> Vec<&[u8]> {
    let mut at = parts_at(file);
    let mut parts = Vec::new();
    while at < file.len() {
        let length = part_length(file, at);
        parts.push(&file[at..at + length]);
        at += length;
    }
    parts
}

/// Each transfer that must be refused, with the expected code.
fn refused() -> Vec<(&'static str, Vec<u8>, Code)> {
    use Code::{
        TransferAltered as Altered, TransferForeign as Foreign, TransferMalformed as Malformed,
        TransferTruncated as Truncated,
    };
    let good = made();
    let head = &good[..parts_at(&good)];
    let parts = parts(&good);
    let joined = |parts: &[&[u8]]| [&[head], parts].concat().concat();
    let mut flipped = good.clone();
    let middle = parts_at(&good) + 10;
    flipped[middle] ^= 1;
    let stranger = Signer::generate(&SeededEntropy::new(8));
    let other = Identity::generate(&SeededEntropy::new(9)).recipient();
    let signed_by_stranger = made_by(&stranger, identity().recipient());
    let mut grafted = made_by(&signer(), other);
    grafted.truncate(parts_at(&grafted));
    let grafted = [grafted.as_slice(), &good[parts_at(&good)..]].concat();
    let stranger_line = String::from(stranger.public());
    let own_line = String::from(signer().public());
    vec![
        ("nothing", Vec::new(), Truncated),
        ("another file", b"PK\x03\x04\n".to_vec(), Malformed),
        ("another kind", replaced(&good, "tec-transfer", "tec-other"), Malformed),
        ("no line", vec![b'{'; 20 << 10], Malformed),
        (
            "a newer version",
            replaced(&good, "\"version\":1", "\"version\":2"),
            Code::TransferVersion,
        ),
        ("an unknown member", replaced(&good, "{", "{\"x\":1,"), Malformed),
        ("the manifest alone", head.to_vec(), Truncated),
        ("a line cut off", head[..50].to_vec(), Truncated),
        ("a later time", replaced(&good, "2026-01-01", "2027-01-01"), Altered),
        ("another role", replaced(&good, "active", "retired"), Altered),
        (
            "another signature",
            [&head[..head.len() - 2], b"0\n", &good[head.len()..]].concat(),
            Altered,
        ),
        ("signed by a stranger", signed_by_stranger.clone(), Foreign),
        (
            "a stranger who claims to be the source",
            replaced(&signed_by_stranger, &stranger_line, &own_line),
            Altered,
        ),
        ("for another identity", made_by(&signer(), other), Foreign),
        ("parts under another manifest", grafted, Foreign),
        ("a flipped bit", flipped, Altered),
        ("without the last part", joined(&parts[..parts.len() - 1]), Truncated),
        ("within a part", good[..good.len() - 3].to_vec(), Truncated),
        ("without the first part", joined(&parts[1..]), Altered),
        ("a part twice", joined(&[parts[0], parts[0]]), Altered),
        ("parts in another order", joined(&[parts[1], parts[0]]), Altered),
        ("a part too long", joined(&[&[0xff; 8]]), Altered),
        ("something behind the end", [good.as_slice(), b"x"].concat(), Altered),
    ]
}

#[test]
fn each_bad_transfer_is_refused_by_its_own_code() {
    for (what, file, code) in refused() {
        let error = read(&file).expect_err(what);
        assert_eq!(error.code(), code, "{what}: {error}");
    }
}

#[test]
fn a_transfer_that_is_cut_off_anywhere_is_refused() {
    let good = made();
    for length in 0..good.len() {
        let error = read(&good[..length]).expect_err("cut off");
        let code = error.code();
        let expected = [Code::TransferTruncated, Code::TransferAltered, Code::TransferMalformed];
        assert!(expected.contains(&code), "{length}: {error}");
    }
}
