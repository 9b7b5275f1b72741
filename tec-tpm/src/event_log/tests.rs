use tec_core::attest::LogEvidence;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet};

use super::parse::{MAX_BYTES, MAX_EVENTS};
use super::*;

fn pcr(index: u8) -> PcrIndex {
    PcrIndex::new(index).unwrap()
}

fn set(indices: &[u8]) -> PcrSet {
    indices.iter().map(|index| pcr(*index)).collect()
}

/// A log with everything that firmware, shim and GRUB write.
fn small_log() -> Vec<u8> {
    EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256])
        .startup_locality(3)
        .measure(pcr(0), EventKind::S_CRTM_VERSION, b"1\0.\x002\0\0\0")
        .variable(pcr(7), EventKind::EFI_VARIABLE_DRIVER_CONFIG, [7; 16], "SecureBoot", &[1])
        .measure(pcr(4), EventKind::EFI_ACTION, b"Calling EFI Application from Boot Option")
        .separator(pcr(4))
        .image(Sha256Digest::of("shim"), "\\EFI\\debian\\shimx64.efi")
        .measure_other(pcr(8), EventKind::IPL, b"linux /vmlinuz", b"grub_cmd: linux /vmlinuz\0")
        .build()
}

fn sha1_log(events: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut log = Vec::new();
    for (pcr, kind, data) in events {
        log.extend(pcr.to_le_bytes());
        log.extend(kind.to_le_bytes());
        log.extend([0x11; 20]);
        log.extend(u32::try_from(data.len()).unwrap().to_le_bytes());
        log.extend(*data);
    }
    log
}

#[test]
fn what_the_builder_writes_is_what_the_parser_reads() {
    let bytes = small_log();
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!(log.format(), Format::CryptoAgile);
    assert_eq!(log.banks().collect::<Vec<_>>(), [Bank::Sha1, Bank::Sha256]);
    assert_eq!(log.startup_locality(), 3);
    let details: Vec<_> = log.events().iter().filter_map(Event::detail).collect();
    assert_eq!(
        details,
        [
            "Spec ID Event03",
            "StartupLocality 3",
            "1.2",
            "SecureBoot",
            "Calling EFI Application from Boot Option",
            "\\EFI\\debian\\shimx64.efi",
            "grub_cmd: linux /vmlinuz"
        ]
    );
}

#[test]
fn the_fold_is_that_of_the_tpm() {
    let bytes = small_log();
    let log = EventLog::parse(&bytes).unwrap();
    let values = log.replay_sha256().unwrap();
    let expected = Sha256Digest::ZERO
        .extended(&Sha256Digest::of("Calling EFI Application from Boot Option"))
        .extended(&Sha256Digest::of([0; 4]))
        .extended(&Sha256Digest::of("shim"));
    assert_eq!(values.value(pcr(4)), &expected);

    let mut locality_3 = [0; 32];
    locality_3[31] = 3;
    let expected = Sha256Digest::new(locality_3).extended(&Sha256Digest::of(b"1\0.\x002\0\0\0"));
    assert_eq!(values.value(pcr(0)), &expected);
    assert_eq!(values.value(pcr(1)), &Sha256Digest::ZERO);
    assert_eq!(values.value(pcr(17)), &Sha256Digest::new([0xff; 32]));

    let replayed = log.replay(Bank::Sha256).unwrap();
    assert_eq!(replayed.extended(), set(&[0, 4, 7, 8]));
    for (pcr, value) in values.iter() {
        assert_eq!(replayed.value(pcr), value.as_bytes());
    }
    assert_eq!(log.replay(Bank::Sha1).unwrap().value(pcr(4)).len(), 20);
    assert_eq!(log.replay(Bank::Sha384), Err(EventLogError::NoBank(Bank::Sha384)));
}

#[test]
fn a_log_is_verified_only_for_registers_that_fold_to_the_quoted_values() {
    let bytes = small_log();
    let log = EventLog::parse(&bytes).unwrap();
    let quoted = log.replay_sha256().unwrap();
    let verified = log.clone().verify(&quoted, set(&[4, 7])).unwrap();
    assert_eq!(verified.events().count(), 4);
    assert_eq!(verified.registers(), set(&[4, 7]));

    assert_eq!(
        log.clone().verify(&quoted, PcrSet::default()).unwrap_err(),
        VerifyLogError::NothingChosen
    );

    let mut other = EventLogBuilder::new();
    other.separator(pcr(4)).separator(pcr(7));
    let other = other.build();
    let other = EventLog::parse(&other).unwrap();
    let error = other.verify(&quoted, set(&[4, 7])).unwrap_err();
    assert!(matches!(error, VerifyLogError::Mismatch { pcr, .. } if u8::from(pcr) == 4));
}

#[test]
fn a_verified_log_gives_the_bytes_that_were_measured() {
    let bytes = small_log();
    let log = EventLog::parse(&bytes).unwrap();
    let quoted = log.replay_sha256().unwrap();
    let verified = log.verify(&quoted, set(&[4, 7, 8])).unwrap();
    let secure_boot = verified.measured().find_map(|(event, _)| match event.content() {
        Content::Variable { name, data, .. } if name == "SecureBoot" => Some(data),
        _ => None,
    });
    assert_eq!(secure_boot, Some(&[1][..]));
    // shim's digest is that of a file, which the log does not hold.
    let kinds: Vec<_> = verified.measured().map(|(event, _)| event.kind).collect();
    assert!(!kinds.contains(&EventKind::EFI_BOOT_SERVICES_APPLICATION));
    let command = verified.measured().last().unwrap().1;
    assert_eq!(&*command, b"linux /vmlinuz");
}

#[test]
fn the_older_form_is_written_and_read_too() {
    let bytes = EventLogBuilder::sha1_form()
        .startup_locality(3)
        .measure(pcr(0), EventKind::S_CRTM_VERSION, b"1.2")
        .separator(pcr(4))
        .build();
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!((log.format(), log.startup_locality()), (Format::Sha1, 3));
    assert_eq!(log.banks().collect::<Vec<_>>(), [Bank::Sha1]);
    assert_eq!(log.events()[1].proof(Bank::Sha1), DataProof::Hashed);
    let replayed = log.replay(Bank::Sha1).unwrap();
    assert_eq!(replayed.extended(), set(&[0, 4]));
}

#[test]
fn evidence_names_events_and_the_registers_that_replay() {
    let bytes = small_log();
    let log = EventLog::parse(&bytes).unwrap();
    let quoted = log.replay_sha256().unwrap();
    let LogEvidence::Parsed { events, replayed, .. } = evidence(&bytes, &quoted) else {
        panic!("the log parses");
    };
    assert_eq!(replayed.iter().count(), 24);
    let shim = events.iter().find(|e| e.digest == Sha256Digest::of("shim"));
    let shim = shim.unwrap();
    assert_eq!(shim.kind, "EV_EFI_BOOT_SERVICES_APPLICATION");
    assert_eq!(shim.detail.as_deref(), Some("\\EFI\\debian\\shimx64.efi"));
    assert_eq!((shim.number, u8::from(shim.pcr)), (6, 4));
    assert!(events.iter().all(|event| event.kind != "EV_NO_ACTION"));

    // One more extend of PCR 4 that the log does not tell.
    let mut values = [Sha256Digest::ZERO; 24];
    for (pcr, value) in quoted.iter() {
        values[pcr.as_usize()] = *value;
    }
    values[4] = values[4].extended(&Sha256Digest::of("hidden"));
    let LogEvidence::Parsed { replayed, .. } =
        log.evidence_against(&tec_core::pcr::PcrValues::new(values))
    else {
        panic!("the log parses");
    };
    assert!(!replayed.contains(pcr(4)) && replayed.contains(pcr(7)));
}

#[test]
fn a_log_without_sha256_is_broken_evidence() {
    let bytes = sha1_log(&[(0, 4, &[0; 4])]);
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!(log.format(), Format::Sha1);
    assert!(log.replay(Bank::Sha1).is_ok());
    let quoted = tec_core::pcr::PcrValues::new([Sha256Digest::ZERO; 24]);
    assert!(matches!(evidence(&bytes, &quoted), LogEvidence::Broken { .. }));
    let LogEvidence::Broken { reason } = evidence(&bytes[..30], &quoted) else {
        panic!("cut off");
    };
    assert!(reason.contains("offset 28"), "{reason}");
}

/// What logs of real machines end in: half an event, and bytes that are no event.
#[test]
fn what_comes_before_a_cut_still_proves_registers() {
    let bytes = small_log();
    let quoted = EventLog::parse(&bytes).unwrap().replay_sha256().unwrap();
    let bad_ends = [[&bytes[..], &[1, 2, 3]].concat(), bytes[..bytes.len() - 7].to_vec()];
    for (bad, missing) in bad_ends.iter().zip([None, Some(pcr(8))]) {
        assert!(EventLog::parse(bad).is_err());
        let LogEvidence::Parsed { replayed, cut, .. } = evidence(bad, &quoted) else {
            panic!("it can be read in part");
        };
        assert!(cut.is_some_and(|cut| cut.contains("offset")));
        for index in PcrIndex::all() {
            assert_eq!(replayed.contains(index), Some(index) != missing, "PCR {index}");
        }
    }
}

/// More events than are read: what comes after is not explained, and what comes before is.
#[test]
fn a_log_of_100_000_events_explains_the_registers_that_it_ends_with_in_time() {
    let mut log = EventLogBuilder::new();
    log.separator(pcr(4));
    for number in 0..100_000_u32 {
        log.measure(pcr(8), EventKind::IPL, &number.to_le_bytes());
    }
    let bytes = log.separator(pcr(7)).build();
    let (read, _) = EventLog::read(&bytes).unwrap();
    let digests = (0..100_000_u32).map(|number| Sha256Digest::of(number.to_le_bytes()));
    let pcr8 = digests.fold(Sha256Digest::ZERO, |value, digest| value.extended(&digest));
    let pcr7 = Sha256Digest::ZERO.extended(&Sha256Digest::of([0; 4]));
    let quoted = read.replay_sha256().unwrap().with(pcr(8), pcr8).with(pcr(7), pcr7);
    let LogEvidence::Parsed { events, replayed, cut } = evidence(&bytes, &quoted) else {
        panic!("it can be read in part");
    };
    assert!(cut.is_some() && events.len() < 1 << 16, "{cut:?}, {} events", events.len());
    let left: Vec<_> = PcrIndex::all().filter(|pcr| !replayed.contains(*pcr)).collect();
    assert_eq!(left, [pcr(7), pcr(8)]);
}

#[test]
fn words_of_systemd_follow_the_log() {
    let mut log = EventLogBuilder::new();
    log.measure(pcr(11), EventKind::IPL, b".linux").separator(pcr(7));
    let bytes = log.build();
    let before = EventLog::parse(&bytes).unwrap().replay_sha256().unwrap();
    let extended = |pcr, word: &str| before.value(pcr).extended(&Sha256Digest::of(word));
    let quoted = before
        .clone()
        .with(pcr(11), extended(pcr(11), "enter-initrd"))
        .with(pcr(7), extended(pcr(7), "os-separator"))
        .with(pcr(8), extended(pcr(8), "os-separator"));
    let LogEvidence::Parsed { events, replayed, .. } = evidence(&bytes, &quoted) else {
        panic!("the log parses");
    };
    assert_eq!(
        PcrIndex::all().filter(|pcr| !replayed.contains(*pcr)).collect::<Vec<_>>(),
        [pcr(8)]
    );
    let told: Vec<_> = events.iter().filter_map(|e| Some((e.number, e.detail.clone()?))).collect();
    let words = [(3, "os-separator"), (4, "enter-initrd")];
    let words = words.map(|(number, word)| (number, word.to_owned()));
    assert_eq!(told[told.len() - 2..], words);
}

#[test]
fn a_log_cut_off_anywhere_is_refused_or_has_fewer_events() {
    let bytes = small_log();
    let whole = EventLog::parse(&bytes).unwrap().events().len();
    let mut boundaries = 0;
    for end in 0..bytes.len() {
        match EventLog::parse(&bytes[..end]) {
            Ok(log) => {
                assert!(log.events().len() < whole);
                let _ = log.replay(Bank::Sha256);
                boundaries += 1;
            }
            Err(EventLogError::Truncated { offset, .. }) => assert!(offset <= end),
            Err(EventLogError::Empty) => assert!(end < 5),
            Err(error) => panic!("{end}: {error}"),
        }
    }
    // Once per event, and where a field's leading zeros could be padding.
    assert!(boundaries >= whole - 1);
}

#[test]
fn a_length_that_lies_is_refused_with_its_offset() {
    let mut bytes = small_log();
    let header = 32 + 16 + 8 + 4 + 2 * 4 + 1;
    // The first event after the header: index, type, count, SHA-1, SHA-256, then its size.
    let size_at = header + 12 + 22 + 34;
    bytes[size_at..size_at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = EventLog::parse(&bytes).unwrap_err();
    assert_eq!(
        error,
        EventLogError::Truncated {
            offset: size_at + 4,
            field: "event data",
            needed: u32::MAX as usize,
            left: bytes.len() - size_at - 4
        }
    );
}

#[test]
fn digests_that_the_header_does_not_announce_are_refused() {
    let mut log = EventLogBuilder::new();
    let start = log.build().len();
    let event = |count: u32, algorithms: &[(u16, usize)]| {
        let mut event = [4_u32, 4, count].map(u32::to_le_bytes).concat();
        for (algorithm, size) in algorithms {
            event.extend(algorithm.to_le_bytes());
            event.extend(vec![1; *size]);
        }
        event.extend(0_u32.to_le_bytes());
        event
    };
    let parse = |event: &[u8]| {
        let bytes = log.clone().raw(event).build();
        EventLog::parse(&bytes).map(|_| ()).unwrap_err()
    };
    let offset = start + 12;
    assert_eq!(parse(&event(1, &[(0x0c, 48)])), EventLogError::Digest { offset, algorithm: 0x0c });
    assert_eq!(
        parse(&event(u32::MAX, &[])),
        EventLogError::DigestCount { offset: start + 8, count: u32::MAX, announced: 1 }
    );
    let twice = event(2, &[(0x0b, 32), (0x0b, 32)]);
    let bytes = EventLogBuilder::with_banks(&[Bank::Sha1, Bank::Sha256]).raw(&twice).build();
    assert!(matches!(EventLog::parse(&bytes), Err(EventLogError::Digest { algorithm: 0x0b, .. })));
    // None at all is legal to read, but such a log cannot be replayed.
    let bytes = log.raw(&event(0, &[])).raw(&[1]).build();
    assert!(EventLog::parse(&bytes[..bytes.len() - 1]).is_ok());
    let log = EventLog::parse(&bytes[..bytes.len() - 1]).unwrap();
    assert_eq!(
        log.replay_sha256(),
        Err(EventLogError::MissingDigest { offset: start, number: 1, bank: Bank::Sha256 })
    );
}

#[test]
fn headers_with_wrong_algorithms_are_refused() {
    let header = |algorithms: &[(u16, u16)], count: u32, tail: &[u8]| {
        let mut data = b"Spec ID Event03\0".to_vec();
        data.extend([0; 8]);
        data.extend(count.to_le_bytes());
        for (id, size) in algorithms {
            data.extend(id.to_le_bytes());
            data.extend(size.to_le_bytes());
        }
        data.extend(tail);
        sha1_log(&[(0, 3, &data)])
    };
    let error = |bytes: Vec<u8>| EventLog::parse(&bytes).map(|_| ()).unwrap_err();
    assert!(EventLog::parse(&header(&[(0x0b, 32), (0x12, 32)], 2, &[1, 9])).is_ok());
    assert_eq!(
        error(header(&[(0x0b, 31)], 1, &[0])),
        EventLogError::Algorithm { offset: 60, algorithm: 0x0b, size: 31 }
    );
    assert!(matches!(
        error(header(&[(0x12, 32), (0x12, 32)], 2, &[0, 7])),
        EventLogError::Algorithm { offset: 64, .. }
    ));
    for count in [0, 17, u32::MAX] {
        assert!(matches!(
            error(header(&[(0x0b, 32)], count, &[0, 1])),
            EventLogError::AlgorithmCount { offset: 56, .. }
        ));
    }
    assert_eq!(
        error(header(&[(0x0b, 32)], 1, &[0, 1])),
        EventLogError::HeaderLength { offset: 65, extra: 1 }
    );
}

#[test]
fn unknown_algorithms_are_skipped_by_their_announced_size() {
    let mut data = b"Spec ID Event03\0".to_vec();
    data.extend([0, 0, 0, 0, 0, 2, 0, 2, 2, 0, 0, 0]);
    data.extend([0x12, 0, 32, 0, 0x0b, 0, 32, 0, 0]); // SM3-256 and SHA-256
    let mut bytes = sha1_log(&[(0, 3, &data)]);
    bytes.extend([4_u32, 4, 2].map(u32::to_le_bytes).concat());
    bytes.extend([0x12, 0]);
    bytes.extend([5; 32]);
    bytes.extend([0x0b, 0]);
    bytes.extend([6; 32]);
    bytes.extend([1, 0, 0, 0, 9]);
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!(log.banks().collect::<Vec<_>>(), [Bank::Sha256]);
    assert_eq!(log.events()[1].digests.sha256, Some(&[6; 32]));
}

#[test]
fn events_of_registers_that_no_quote_covers_change_nothing() {
    let bytes = sha1_log(&[(24, 4, &[1]), (4, 4, &[0; 4]), (9, 4, &[1])]);
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!((log.events()[0].pcr, log.events()[0].extends()), (None, None));
    assert_eq!(log.replay(Bank::Sha1).unwrap().extended(), set(&[4, 9]));
    let bytes = sha1_log(&[(u32::MAX, 3, b"SP800-155 Event\0")]);
    let log = EventLog::parse(&bytes).unwrap();
    assert_eq!(log.events()[0].pcr, None);
    assert_eq!(log.events()[0].extends(), None);
}

#[test]
fn startup_locality_comes_once_and_first_and_is_one_that_exists() {
    let refused = |log: &EventLogBuilder| {
        let error = EventLog::parse(&log.build()).map(|_| ()).unwrap_err();
        assert!(matches!(error, EventLogError::StartupLocality { .. }));
    };
    refused(EventLogBuilder::new().startup_locality(3).startup_locality(3));
    refused(EventLogBuilder::new().separator(pcr(0)).startup_locality(3));
    refused(EventLogBuilder::new().startup_locality(1));
    refused(EventLogBuilder::new().no_action(b"StartupLocality\0"));
    let late = EventLogBuilder::new().separator(pcr(1)).startup_locality(4).build();
    assert_eq!(EventLog::parse(&late).unwrap().startup_locality(), 4);
}

#[test]
fn padding_is_tolerated_only_if_it_is_uniform() {
    let bytes = small_log();
    let events = EventLog::parse(&bytes).unwrap().events().len();
    for byte in [0, 0xff] {
        let mut padded = bytes.clone();
        padded.resize(bytes.len() + 4096, byte);
        assert_eq!(EventLog::parse(&padded).unwrap().events().len(), events);
        padded.push(1);
        assert!(EventLog::parse(&padded).is_err());
    }
    assert!(matches!(EventLog::parse(&[0; 64]), Err(EventLogError::Empty)));
    assert!(matches!(EventLog::parse(&[]), Err(EventLogError::Empty)));
}

#[test]
fn size_and_number_of_events_are_bounded() {
    let mut bytes = small_log();
    bytes.resize(MAX_BYTES, 0);
    assert!(EventLog::parse(&bytes).is_ok());
    bytes.push(0);
    assert_eq!(
        EventLog::parse(&bytes).map(|_| ()),
        Err(EventLogError::TooLarge { size: MAX_BYTES + 1, limit: MAX_BYTES })
    );
    let mut log = EventLogBuilder::new();
    // The header is an event, too.
    for _ in 1..MAX_EVENTS {
        log.separator(pcr(8));
    }
    assert_eq!(EventLog::parse(&log.build()).unwrap().events().len(), MAX_EVENTS);
    assert!(matches!(
        EventLog::parse(&log.separator(pcr(8)).build()),
        Err(EventLogError::TooManyEvents { limit: MAX_EVENTS, .. })
    ));
}

#[test]
fn details_are_short_and_cannot_deceive_a_terminal() {
    let long = "x".repeat(2000);
    let bytes = EventLogBuilder::new()
        .measure(pcr(8), EventKind::IPL, b"a\x1b[31mb\r\nc\x7f")
        .measure(pcr(8), EventKind::IPL, "a\u{202e}b\u{200b}c\u{9b}".as_bytes())
        .measure(pcr(8), EventKind::IPL, long.as_bytes())
        .measure(pcr(8), EventKind::IPL, &[0xff, 0xfe, 0xfd])
        .measure(pcr(8), EventKind::IPL, b"")
        .image(Sha256Digest::ZERO, &long)
        .build();
    let log = EventLog::parse(&bytes).unwrap();
    let details: Vec<_> = log.events().iter().skip(1).map(Event::detail).collect();
    let long = Some("x".repeat(1024) + "…");
    let expected =
        [Some("a[31mbc".to_owned()), Some("abc".to_owned()), long.clone(), None, None, long];
    assert_eq!(details, expected);
}

#[test]
fn unknown_types_are_named_by_number() {
    assert_eq!(EventKind::new(0x8000_00e0).name(), "EV_EFI_VARIABLE_AUTHORITY");
    assert_eq!(EventKind::new(0x1234).to_string(), "EV_0x00001234");
}
