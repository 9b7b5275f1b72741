//! A server whose CA changes, and a disk that dies at every step.

use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tec_core::testing::SeededEntropy;

use super::*;
use crate::disk::tests::fake::{FakeHeader, KEY};
use crate::fetch::{FetchError, Verdict};
use crate::rebind::proven_passphrase;

const URL: &str = "https://kbs:1";

fn pem(authorities: &[u8]) -> String {
    let one = |number: &u8| {
        let der = STANDARD.encode([*number]);
        format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n")
    };
    authorities.iter().map(one).collect()
}

fn trusts(authorities: &[u8]) -> BTreeSet<Sha256Digest> {
    fingerprints(&pem(authorities)).unwrap()
}

/// A server with a certificate signed by one CA, which hands out a set of CAs.
#[derive(Debug)]
struct Server {
    signs: u8,
    hands_out: Option<String>,
    reports: Mutex<Vec<BTreeSet<Sha256Digest>>>,
    /// A second server releases the key, too.
    has_twin: bool,
}

impl Server {
    fn new(signs: u8, hands_out: &[u8]) -> Self {
        Self { signs, hands_out: Some(pem(hands_out)), reports: Mutex::default(), has_twin: false }
    }

    /// TLS: the signing CA must be trusted.
    fn reached_by(&self, server: &Endpoint) -> Result<(), Failure> {
        if server.cert.contains(&pem(&[self.signs])) {
            return Ok(());
        }
        let code = tec_core::code::Code::TlsFailed;
        let error = FetchError::new(code, Verdict::Unanswered, URL, "not trusted");
        Err(Failure::Fetch(error))
    }
}

#[async_trait]
impl Brokers for Server {
    async fn bundle(&self, server: &Endpoint) -> Result<Option<String>, Failure> {
        self.reached_by(server)?;
        Ok(self.hands_out.clone())
    }

    async fn key(&self, wanted: &HeaderConfig) -> Result<SecretArray<32>, Failure> {
        if !self.has_twin {
            self.reached_by(&wanted.servers[0])?;
        }
        Ok(SecretArray::new(KEY))
    }

    async fn report(
        &self,
        server: &Endpoint,
        trusts: &BTreeSet<Sha256Digest>,
    ) -> Result<(), Failure> {
        self.reached_by(server)?;
        self.reports.lock().unwrap().push(trusts.clone());
        Ok(())
    }
}

async fn run(header: &FakeHeader, server: &Server) -> Result<Refreshed, Failure> {
    run_all(&[header], server).await
}

async fn run_all(headers: &[&FakeHeader], server: &Server) -> Result<Refreshed, Failure> {
    let mut disks: Vec<(String, &dyn Header)> = Vec::new();
    for (number, header) in headers.iter().enumerate() {
        disks.push((format!("disk-{number}"), *header));
    }
    follow(&disks, server, &SeededEntropy::new(3)).await
}

/// The CAs that each token that opens the disk trusts.
fn opening(header: &FakeHeader) -> Vec<BTreeSet<Sha256Digest>> {
    header.life.set(None);
    let key = SecretArray::new(KEY);
    let tokens = header.tokens().unwrap();
    let opening = tokens.iter().filter(|token| proven_passphrase(header, token, &key).is_ok());
    let cert = |config: &HeaderConfig| config.servers[0].cert.clone();
    opening.map(|token| fingerprints(&cert(parsed(token).unwrap().config())).unwrap()).collect()
}

#[tokio::test]
async fn the_pin_follows_from_one_ca_over_both_to_the_next_one() {
    let header = FakeHeader::bound_to_ca(URL, &pem(&[1]));
    let both = Server::new(1, &[1, 2]);
    let refreshed = run(&header, &both).await.unwrap();
    assert_eq!(refreshed.changed, [URL]);
    assert_eq!(opening(&header), [trusts(&[1, 2])]);
    assert_eq!(*both.reports.lock().unwrap(), [trusts(&[1, 2])]);

    let next_signs = Server::new(2, &[2, 1]);
    let refreshed = run(&header, &next_signs).await.unwrap();
    assert!(refreshed.changed.is_empty(), "the order of CAs means nothing");
    assert_eq!(refreshed.reported, [URL]);

    let alone = Server::new(2, &[2]);
    assert_eq!(run(&header, &alone).await.unwrap().changed, [URL]);
    assert_eq!(opening(&header), [trusts(&[2])]);
    assert!(alone.reports.lock().unwrap().is_empty(), "nothing waits for this machine");
    assert_eq!(run(&header, &alone).await.unwrap(), nothing());
}

/// Nothing has changed for the only disk.
fn nothing() -> Refreshed {
    Refreshed { disks: vec!["disk-0".to_owned()], ..Refreshed::default() }
}

#[tokio::test]
async fn nothing_is_reported_before_every_disk_of_the_machine_was_refreshed() {
    for last in [false, true] {
        let disks = [(); 2].map(|()| FakeHeader::bound_to_ca(URL, &pem(&[1])));
        let server = Server::new(1, &[1, 2]);
        disks[usize::from(last)].life.set(Some(1));
        assert!(matches!(run_all(&disks.each_ref(), &server).await, Err(Failure::Disk(_))));
        assert_eq!(opening(&disks[usize::from(!last)]), [trusts(&[1, 2])], "the other one goes on");
        assert_eq!(opening(&disks[usize::from(last)]), [trusts(&[1])]);
        assert!(server.reports.lock().unwrap().is_empty());

        let refreshed = run_all(&disks.each_ref(), &server).await.unwrap();
        assert_eq!((refreshed.changed, refreshed.reported), (vec![URL.into()], vec![URL.into()]));
        assert_eq!(*server.reports.lock().unwrap(), [trusts(&[1, 2])], "one for both");
    }
}

/// What a pin trusts for [`URL`], confirmed by the server now or left over from before.
fn trust(authorities: &[u8], is_current: bool) -> Trust {
    let server = Endpoint::new(URL.parse().unwrap(), pem(authorities));
    Trust { server, authorities: trusts(authorities), is_current }
}

#[test]
fn only_what_all_pins_trust_is_reported() {
    let report = |pins: &[Trust]| {
        let common = common(pins);
        common.into_iter().map(|(_, authorities)| authorities).collect::<Vec<_>>()
    };
    let both = || trust(&[1, 2], true);
    assert_eq!(report(&[both(), both()]), [trusts(&[1, 2])]);
    assert_eq!(report(&[trust(&[3, 2, 1], true), both()]), [trusts(&[1, 2])]);
    assert!(report(&[both(), trust(&[1], false)]).is_empty(), "one did not follow");
    assert!(report(&[trust(&[1, 2], false)]).is_empty(), "nobody asks");
}

#[tokio::test]
async fn a_machine_without_a_bound_disk_has_nothing_to_refresh() {
    let refreshed = run_all(&[], &Server::new(1, &[1, 2])).await.unwrap();
    assert_eq!(refreshed, Refreshed::default());
}

#[tokio::test]
async fn a_power_cut_at_any_step_leaves_a_disk_that_opens_and_reports_nothing_too_early() {
    for life in 0..20 {
        let header = FakeHeader::bound_to_ca(URL, &pem(&[1]));
        let server = Server::new(1, &[1, 2]);
        header.life.set(Some(life));
        let first = run(&header, &server).await;
        let tokens = opening(&header);
        assert!(!tokens.is_empty(), "after {life} calls nothing opens");
        assert!(tokens.iter().all(|trusts| trusts.contains(&Sha256Digest::of([1]))));
        if !server.reports.lock().unwrap().is_empty() {
            assert_eq!(tokens, [trusts(&[1, 2])], "after {life} calls");
        }
        run(&header, &server).await.unwrap();
        assert_eq!(opening(&header), [trusts(&[1, 2])], "after {life} calls");
        assert_eq!(header.tokens().unwrap().len(), 1);
        assert_eq!(server.reports.lock().unwrap().last(), Some(&trusts(&[1, 2])));
        if first.is_ok() {
            return;
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn cas_that_do_not_vouch_for_the_server_are_not_pinned() {
    for handed_out in [&[2][..], &[2, 3]] {
        let header = FakeHeader::bound_to_ca(URL, &pem(&[1]));
        let server = Server { has_twin: true, ..Server::new(1, handed_out) };
        assert!(matches!(run(&header, &server).await, Err(Failure::Fetch(_))));
        assert_eq!(opening(&header), [trusts(&[1])]);
        assert!(server.reports.lock().unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_server_that_the_pin_does_not_trust_changes_nothing() {
    let header = FakeHeader::bound_to_ca(URL, &pem(&[1]));
    let stranger = Server::new(9, &[9]);
    assert!(matches!(run(&header, &stranger).await, Err(Failure::Fetch(_))));
    assert_eq!(opening(&header), [trusts(&[1])]);
}

#[tokio::test]
async fn garbage_and_a_server_without_the_path_change_nothing() {
    let header = FakeHeader::bound_to_ca(URL, &pem(&[1]));
    for garbage in ["", "PEM", &pem(&[1; 9])] {
        let hands_out = Some(garbage.to_owned());
        let server = Server { hands_out, ..Server::new(1, &[1]) };
        assert!(matches!(run(&header, &server).await, Err(Failure::Bundle { .. })), "{garbage}");
    }
    let plain = Server { hands_out: None, ..Server::new(1, &[1]) };
    assert_eq!(run(&header, &plain).await.unwrap(), nothing());
    assert_eq!(opening(&header), [trusts(&[1])]);
}
