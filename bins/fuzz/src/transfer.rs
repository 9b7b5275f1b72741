//! Trust in a single file.

use std::sync::OnceLock;

use tec_core::migrate::transfer::{
    Document, Identity, Recipient, Signer, TransferError, TransferReader, TransferWriter,
};
use tec_core::migrate::{AnchorId, Authority, MachineUnit, TrustUnit};
use tec_core::secret::SecretBytes;
use tec_core::testing::{SeededEntropy, sample};

use crate::{Seed, outcome};

/// Only what the source wrote is read: an input that opens completely contains the units and documents of a
/// file that the source created, as listed in its manifest. Nothing else opens, and only the recipient can
/// read a file.
pub(crate) fn transfer(data: &[u8]) {
    if let Ok(content) = read(data, ends()) {
        assert!(genuine().contains(&content));
    }
    let other = Ends {
        identity: Identity::generate(&SeededEntropy::new(63)),
        signer: Signer::generate(&SeededEntropy::new(52)),
    };
    assert!(read(data, &other).is_err());
}

/// Recipients and creators of files.
struct Ends {
    identity: Identity,
    signer: Signer,
}

fn ends() -> &'static Ends {
    static ENDS: OnceLock<Ends> = OnceLock::new();
    ENDS.get_or_init(|| Ends {
        identity: Identity::generate(&SeededEntropy::new(51)),
        signer: Signer::generate(&SeededEntropy::new(52)),
    })
}

/// Content of a file: its number, names of units, and names of documents.
type Content = (u64, Vec<String>, Vec<String>);

fn read(data: &[u8], ends: &Ends) -> Result<Content, TransferError> {
    let mut reader = TransferReader::open(data, &ends.identity, ends.signer.public())?;
    let (mut units, mut documents) = (Vec::new(), Vec::new());
    while let Some(part) = reader.part()? {
        units.extend(part.units.iter().map(|unit| unit.name().to_string()));
        documents.extend(part.documents.into_iter().map(|document| document.name));
    }
    Ok((reader.manifest().source.transfers(), units, documents))
}

fn units() -> Vec<TrustUnit> {
    let keys = vec![sample::ak(1, 1)];
    let unit = MachineUnit::new(sample::machine(1), keys, Some(sample::secret(1)));
    vec![TrustUnit::Image(sample::image(1)), TrustUnit::Machine(unit)]
}

/// A file with this many [`units`] and a document, or an empty one.
fn made(transfers: u64, count: usize, recipient: Recipient) -> Vec<u8> {
    let mut source = Authority::founded(AnchorId::random(&mut crate::sample::rng(53)));
    for _ in 0..transfers {
        source = *source.count_transfer().to();
    }
    let (made, to) = ((&source, sample::time(4), None), (&ends().signer, recipient));
    let entropy = SeededEntropy::new(54 + transfers);
    let written = TransferWriter::begin(Vec::new(), made, to, &entropy);
    let mut writer = written.expect("a vector takes everything");
    for unit in units().into_iter().take(count) {
        let document = Document {
            name: "ca.pem".to_owned(),
            content: SecretBytes::new(b"a certificate".to_vec()),
        };
        let part = writer.part(&[unit], &[document]);
        part.expect("a vector takes everything");
    }
    writer.finish().expect("a vector takes everything")
}

fn full() -> Vec<u8> {
    made(1, 2, ends().identity.recipient())
}

fn empty() -> Vec<u8> {
    made(2, 0, ends().identity.recipient())
}

fn genuine() -> &'static [Content] {
    static GENUINE: OnceLock<Vec<Content>> = OnceLock::new();
    GENUINE.get_or_init(|| {
        let read = |file: Vec<u8>| read(&file, ends()).expect("a file that was made");
        let small = made(3, 1, ends().identity.recipient());
        vec![read(full()), read(empty()), read(small)]
    })
}

fn refused(data: &[u8]) -> Result<(), String> {
    outcome(read(data, ends()))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let hostile = |name: &str, content: Vec<u8>| Seed::new(name, content).refused(refused);
    // Small, since there are many.
    let file = made(3, 1, ends().identity.recipient());
    let line = file.iter().position(|byte| *byte == b'\n').unwrap_or_default();
    let parts = line + 130; // The line's end, 128 digits, and theirs.
    let cut = |at: usize| file.get(..at).unwrap_or_default().to_vec();
    let with = |from: &str, to: &str| replaced(&file, from, to);
    let changed = |at: usize| {
        let mut file = file.clone();
        if let Some(byte) = file.get_mut(at) {
            *byte ^= 1;
        }
        file
    };
    let first = part_length(&file, parts);
    let swapped = {
        let second = part_length(&file, parts + first);
        let mut file = file.clone();
        if let Some(both) = file.get_mut(parts..parts + first + second) {
            both.rotate_left(first);
        }
        file
    };
    let other = Identity::generate(&SeededEntropy::new(61)).recipient();
    let stranger = Signer::generate(&SeededEntropy::new(62)).public();
    let own = ends().signer.public().to_string();
    let foreign = with(&own, &stranger.to_string());
    vec![
        Seed::new("full", full()),
        Seed::new("empty", empty()),
        hostile("nothing", Vec::new()),
        hostile("other_json", b"{\"kind\":\"age\",\"version\":1}\n".to_vec()),
        hostile("newer", with("\"version\":1", "\"version\":2")),
        hostile("cut_in_manifest", cut(line / 2)),
        hostile("cut_in_part", cut(parts + 40)),
        hostile("cut_before_end", cut(parts + first)),
        hostile("role_altered", with("\"role\":\"active\"", "\"role\":\"standby\"")),
        hostile("part_altered", changed(parts + 9)),
        hostile("parts_swapped", swapped),
        hostile("more_behind", [file.as_slice(), b"\n"].concat()),
        hostile("of_a_stranger", foreign),
        hostile("for_another", made(1, 1, other)),
    ]
}

fn replaced(file: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8_lossy(file);
    let at = text.find(from).unwrap_or_default();
    let (head, rest) = file.split_at(at);
    [head, to.as_bytes(), rest.get(from.len()..).unwrap_or_default()].concat()
}

/// Length of the part at this offset, including the four bytes that state it.
fn part_length(file: &[u8], at: usize) -> usize {
    let bytes = file.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    let length = u32::from_be_bytes(bytes.unwrap_or_default());
    4 + usize::try_from(length).unwrap_or_default()
}
