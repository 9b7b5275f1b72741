//! Recovery keys: printed by `tec machine recovery-key`.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use tec_core::code::Code;
use tec_core::flow;
use tec_core::id::MachineId;
use tec_core::recovery::RecoveryKey;
use tec_core::secret::SecretBytes;
use tec_support::exit::CodedError;
use tec_trustee::jwe::{EcPrivateKey, Jwe};

use crate::anchor::Anchor;
use crate::output::Output;

/// A key that a machine has escrowed.
#[derive(Serialize)]
struct Left {
    number: u32,
    #[serde(flatten)]
    content: Content,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Content {
    /// The sealed key, for an admin who has the private key elsewhere.
    Sealed(Jwe),
    /// The digits, printed because the user requested them.
    Key(String),
}

/// Prints the recovery keys of a machine.
pub(crate) async fn print(
    anchor: &Anchor,
    id: MachineId,
    identity: Option<&Path>,
    output: &Output,
) -> anyhow::Result<()> {
    let identity = identity.map(read_identity).transpose()?;
    let found = flow::escrowed(&*anchor.ports, &id).await;
    let failed = anchor.failed(format!("look up the recovery keys of machine {id}"));
    let found = found.map_err(failed)?;
    if found.is_empty() {
        let message = format!("machine {id} left no recovery key");
        return Err(CodedError::new(Code::KeyMissing, message).into());
    }
    let left = found
        .iter()
        .map(|(number, sealed)| read(*number, sealed, identity.as_ref()))
        .collect::<anyhow::Result<Vec<_>>>()?;
    output.print(&left, |left| {
        let lines: Vec<_> = left.iter().map(line).collect();
        lines.join("\n")
    })
}

fn read_identity(path: &Path) -> anyhow::Result<EcPrivateKey> {
    let json = std::fs::read(path).map(SecretBytes::new);
    let json =
        json.with_context(|| format!("cannot read the admin's key from {}", path.display()))?;
    EcPrivateKey::from_jwk(json.expose("read the admin's key"))
        .with_context(|| format!("{} is not a private JWK on P-256 or P-521", path.display()))
}

fn read(number: u32, sealed: &SecretBytes, key: Option<&EcPrivateKey>) -> anyhow::Result<Left> {
    let jwe = sealed.expose("show it to the admin");
    let jwe: Jwe = serde_json::from_slice(jwe).context("cannot read a recovery key")?;
    let content = match key {
        None => Content::Sealed(jwe),
        Some(key) => Content::Key(opened(number, &jwe, key)?),
    };
    Ok(Left { number, content })
}

/// A machine can escrow anything, so only a valid recovery key is displayed.
fn opened(number: u32, jwe: &Jwe, key: &EcPrivateKey) -> anyhow::Result<String> {
    let not_ours = || format!("recovery key {number} cannot be opened with this key");
    let content = key.decrypt(jwe).with_context(not_ours)?;
    let text = std::str::from_utf8(content.expose("print it")).with_context(not_ours)?;
    let parsed = RecoveryKey::parse(text).with_context(not_ours)?;
    let digits = parsed.passphrase().expose("print it").to_vec();
    Ok(String::from_utf8(digits)?)
}

fn line(left: &Left) -> String {
    match &left.content {
        Content::Key(key) => format!("{} {}", left.number, key.as_str()),
        Content::Sealed(jwe) => {
            let sealed = serde_json::to_string(jwe).unwrap_or_default();
            format!("{} {sealed}", left.number)
        }
    }
}
