//! An Azure virtual machine on SEV-SNP, from its TPM and its metadata to a client that appraises it: a real
//! TPM implementation with a fabricated paravisor report and fabricated AMD keys.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use bootstrapper::instance::node::{Attestation, endpoint};
use bootstrapper::instance::settings::TpmSettings;
use tec_core::testing::ManualClock;
use tec_node::atls::{
    AtlsError, AtlsStream, AzureSnpAk, LiveMeasurements, ValidateError, Variant, VtpmValidator,
};
use tec_tpm::ak::{AkAlgorithm, AkHandle};
use tec_tpm::direct::Tpm;
use tec_tpm::snp::{Policy, Product};
use tec_tpm::testing::{SoftAzure, SoftSnp, Swtpm};
use tec_tpm::tpm::AnyTpm as _;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::net::TcpListener;

/// Handle of Azure's attestation key, and index of the report (Azure, guest attestation for confidential VMs).
const AK: &str = "0x81000003";
const INDEX: &str = "0x01400001";

struct Azure {
    swtpm: Swtpm,
    directory: TempDir,
    chip: SoftSnp,
}

fn tool(swtpm: &Swtpm, name: &str, arguments: &[&str]) {
    let ran = Command::new(name).args(["-T", &swtpm.tcti()]).args(arguments).output();
    let ran = ran.unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{name}: {said}");
}

impl Azure {
    /// The report binds the TPM's key.
    fn new() -> Self {
        let swtpm = Swtpm::start().unwrap();
        let tpm = Tpm::open(&swtpm.tcti()).unwrap();
        let handle: AkHandle = AK.parse().unwrap();
        let ak = tpm.ensure_ak(handle, AkAlgorithm::Rsa2048).unwrap();
        drop(tpm);
        let machine = Self {
            swtpm,
            directory: tempfile::tempdir().unwrap(),
            chip: SoftSnp::vcek(Product::Milan, 5),
        };
        let claims = SoftAzure::claims_of(ak.key.public());
        let report = SoftAzure::hcl_report_of(&machine.chip, &claims);
        let size = report.len().to_string();
        let attributes = "ownerread|ownerwrite";
        let define = ["-C", "o", "-s", &size, "-a", attributes, INDEX];
        tool(&machine.swtpm, "tpm2_nvdefine", &define);
        machine.write_report(&report);
        machine
    }

    fn write_report(&self, report: &[u8]) {
        let path = self.directory.path().join("report");
        fs::write(&path, report).unwrap();
        let input = path.display().to_string();
        tool(&self.swtpm, "tpm2_nvwrite", &["-C", "o", "-i", &input, INDEX]);
    }

    fn settings(&self, url: &str) -> TpmSettings {
        TpmSettings {
            tcti: self.swtpm.tcti(),
            // Where Azure's key is.
            ak_handle: None,
            variant: Variant::AzureSevSnp.as_str().to_owned(),
            vcek_url: Some(url.to_owned()),
            vcek_file: None,
        }
    }

    /// A client connects to the node with these settings.
    async fn meet(&self, settings: &TpmSettings) -> Result<AtlsStream<DuplexStream>, AtlsError> {
        let attestation = Attestation::open(settings).unwrap();
        let server = endpoint().with_issuer(attestation.issuer).build().unwrap();
        let clock = Arc::new(ManualClock::new(SoftSnp::now()));
        let roots = SoftSnp::roots().clone();
        let trust = AzureSnpAk::with_roots(clock, Policy::new(), roots);
        let live: Arc<LiveMeasurements> = Arc::default();
        let validator = VtpmValidator::new(Variant::AzureSevSnp, Arc::new(trust), live);
        let client = endpoint().with_validator(Arc::new(validator));
        let client = client.build().unwrap();
        let (near, far) = tokio::io::duplex(256 * 1024);
        let serving = Box::pin(server.accept(near));
        let (served, met) = tokio::join!(serving, Box::pin(client.connect(far)));
        if let (Err(error), Err(_)) = (served, &met) {
            // The client only sees that the connection ended.
            assert!(!matches!(error, AtlsError::TimedOut(_)), "{error}");
        }
        met
    }
}

/// Serves each of these answers once, and the last one forever; returns its base URL, and a counter of
/// requests.
async fn metadata(
    answers: Vec<(u16, Vec<u8>)>,
) -> (String, impl Future<Output = std::convert::Infallible>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let serving = async move {
        let mut asked = 0;
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = vec![0; 4096];
            let size = stream.read(&mut head).await.unwrap();
            let head = String::from_utf8_lossy(&head[..size]).to_ascii_lowercase();
            let good = head.starts_with("get /metadata/thim/amd/certification ")
                && head.contains("\r\nmetadata: true\r\n");
            let (status, body) = &answers[asked.min(answers.len() - 1)];
            let status = if good { *status } else { 400 };
            asked += 1;
            let length = body.len();
            let text = format!("HTTP/1.1 {status} x\r\ncontent-length: {length}\r\n\r\n");
            let _ = stream.write_all(&[text.as_bytes(), body].concat()).await;
        }
    };
    (base, serving)
}

fn certified(chip: &SoftSnp) -> (u16, Vec<u8>) {
    let pem =
        pem_rfc7468::encode_string("CERTIFICATE", pem_rfc7468::LineEnding::LF, &chip.certificate());
    let document = serde_json::json!({"vcekCert": pem.unwrap(), "certificateChain": "",
                                      "tcbm": "0", "cacheControl": "86400"});
    (200, document.to_string().into_bytes())
}

async fn beside<T>(
    server: impl Future<Output = std::convert::Infallible>,
    client: impl Future<Output = T>,
) -> T {
    tokio::select! {
        never = server => match never {},
        answer = client => answer,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_believes_the_key_that_the_paravisor_and_the_processor_vouch_for() {
    let machine = Azure::new();
    let answers = vec![(429, vec![]), (200, b"{}".to_vec()), certified(&machine.chip)];
    let (base, serving) = metadata(answers).await;
    beside(serving, async {
        let settings = machine.settings(&base);
        let met = machine.meet(&settings).await.unwrap();
        let peer = met.peer().unwrap();
        assert_eq!(peer.variant(), Variant::AzureSevSnp);
        assert!(peer.ak().is_some() && peer.is_channel_bound());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_come_from_a_file_where_the_platform_gives_none() {
    let machine = Azure::new();
    let (base, serving) = metadata(vec![(500, vec![])]).await;
    let mut settings = machine.settings(&base);
    beside(serving, async {
        assert!(machine.meet(&settings).await.is_err());
        // In the format that AMD distributes: DER.
        let file = machine.directory.path().join("vcek.der");
        fs::write(&file, machine.chip.certificate()).unwrap();
        settings.vcek_file = Some(file);
        machine.meet(&settings).await.unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_nothing_vouches_for_are_refused() {
    let machine = Azure::new();
    let untrusted = |met: Result<_, AtlsError>| {
        let error = met.err().unwrap();
        assert!(matches!(error, AtlsError::Document(ValidateError::Untrusted { .. })), "{error}");
    };
    // The certificate of a different chip.
    let other = SoftSnp::vcek(Product::Milan, 6);
    let (base, serving) = metadata(vec![certified(&other)]).await;
    beside(serving, async {
        untrusted(machine.meet(&machine.settings(&base)).await);
    })
    .await;
    // A genuine report that names a different machine's key.
    let (base, serving) = metadata(vec![certified(&machine.chip)]).await;
    let stranger = SoftAzure::new(9);
    let claims = SoftAzure::claims_of(&stranger.tpm().public_key());
    machine.write_report(&SoftAzure::hcl_report_of(&machine.chip, &claims));
    beside(serving, async {
        untrusted(machine.meet(&machine.settings(&base)).await);
    })
    .await;
}
