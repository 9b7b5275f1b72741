//! What anchors keep in addition to their units: demands, registers and certificates.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;
use tec_core::code::Code;
use tec_core::migrate::belonging::{Article, Belongings, Certificate, Verdict, weigh};
use tec_core::secret::SecretBytes;
use tec_support::exit::CodedError;
use tec_support::files::write_private;

use super::super::coded;
use super::anchor::Anchor;
use crate::state::{Endpoints, Said};

/// CA files of a state directory, as included in backups.
const CA: [&str; 2] = ["ca.key", "ca.pem"];

/// What the target keeps, even if the source differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Stay {
    /// The target's pinned registers, and its policy on admitting nodes.
    Policy,
    /// The target's CA and certificates: nodes trust them already, or receive them in another way.
    Ca,
}

/// One article with the verdict on it.
#[derive(Debug, Serialize)]
pub(super) struct Weighed {
    #[serde(skip)]
    article: Article,
    /// The article in words.
    what: String,
    #[serde(flatten)]
    verdict: Verdict,
}

impl Weighed {
    pub(super) fn text(&self) -> String {
        let how = match self.verdict {
            Verdict::Same => "the same",
            Verdict::Bring => "copied",
            Verdict::Known => "different, but nodes trust both",
            Verdict::Stays => "different; the target keeps its own",
            Verdict::Clash(why) => return format!("conflict: {}: {why}", self.article),
            _ => "unknown",
        };
        format!("{}: {how}", self.article)
    }
}

/// What the source has, and what happens to it at the target.
pub(super) struct Luggage {
    comes: Belongings,
    pub(super) weighed: Vec<Weighed>,
}

impl Luggage {
    pub(super) async fn weigh(
        source: &Anchor,
        target: &Anchor,
        stay: &[Stay],
    ) -> anyhow::Result<Self> {
        let (comes, here) = (belongings(source).await?, belongings(target).await?);
        let stays = |article: Article| {
            stay.contains(if article.is_policy() { &Stay::Policy } else { &Stay::Ca })
        };
        let mut weighed = weigh(&comes, &here, stays);
        if matches!(target, Anchor::Store(..)) {
            // A server gets its token from its own file.
            weighed.retain(|(article, _)| *article != Article::Token);
            // There, the server itself is configured with its demands.
            for (article, verdict) in &mut weighed {
                if *verdict == Verdict::Bring && article.is_policy() {
                    *verdict = if stays(*article) {
                        Verdict::Stays
                    } else {
                        Verdict::Clash("no server with this policy has run there yet")
                    };
                }
            }
        }
        let weighed = weighed.into_iter();
        let weighed = weighed.map(|(article, verdict)| Weighed {
            article,
            what: article.to_string(),
            verdict,
        });
        Ok(Self { comes, weighed: weighed.collect() })
    }

    pub(super) fn brings(&self) -> Vec<Article> {
        let brought = |weighed: &&Weighed| weighed.verdict == Verdict::Bring;
        let brought = self.weighed.iter().filter(brought);
        brought.map(|weighed| weighed.article).collect()
    }

    /// Fails if there are contradictions, and lists them.
    pub(super) fn refuse_clashes(&self) -> Result<(), CodedError> {
        self.refuse(Code::TrustConflict, |verdict| matches!(verdict, Verdict::Clash(_)))
    }

    /// Also fails if something is not at the target yet.
    pub(super) fn refuse_missing(&self) -> Result<(), CodedError> {
        self.refuse(Code::TrustIncomplete, |verdict| {
            matches!(verdict, Verdict::Clash(_) | Verdict::Bring)
        })
    }

    fn refuse(&self, code: Code, is_bad: impl Fn(&Verdict) -> bool) -> Result<(), CodedError> {
        let bad = self.weighed.iter().filter(|weighed| is_bad(&weighed.verdict));
        let list: Vec<_> = bad.map(Weighed::text).collect();
        if list.is_empty() {
            return Ok(());
        }
        Err(CodedError::new(code, list.join("; ")))
    }

    pub(super) async fn bring(&self, target: &Anchor) -> anyhow::Result<()> {
        let articles = self.brings();
        match target {
            Anchor::Namespace(registry) => {
                let brought = registry.bring(&self.comes, &articles).await;
                let failed = coded(target.unavailable(), "bring policies and certificates");
                Ok(brought.map_err(failed)?)
            }
            Anchor::Store(_, directory) => match &self.comes.ca {
                Some(ca) if articles.contains(&Article::Ca) => write_ca(directory, ca),
                _ => Ok(()),
            },
        }
    }
}

async fn belongings(anchor: &Anchor) -> anyhow::Result<Belongings> {
    match anchor {
        Anchor::Namespace(registry) => {
            let found = registry.belongings().await;
            let failed = coded(anchor.unavailable(), "read policies and certificates");
            Ok(found.map_err(failed)?)
        }
        Anchor::Store(_, directory) => of_directory(directory),
    }
}

/// The belongings of a state directory: its CA, and what the last server that ran on it recorded.
fn of_directory(directory: &Path) -> anyhow::Result<Belongings> {
    let said = Said::read(directory)?;
    let mut told = BTreeSet::new();
    if let Ok(endpoints) = Endpoints::read(directory) {
        let brokers = endpoints.kbs.iter().map(|kbs| kbs.cert.clone());
        told.extend(brokers.chain([endpoints.ca]));
        told.remove("");
    }
    let (pcrs, demands) = said.map(|said| (said.pcrs, said.demands)).unzip();
    Ok(Belongings { demands, pcrs, ca: read_ca(directory)?, told, ..Belongings::default() })
}

fn read_ca(directory: &Path) -> anyhow::Result<Option<Certificate>> {
    let read = |name: &str| match fs::read(directory.join(name)) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {name}")),
    };
    let [key, certificate] = CA;
    let (Some(key), Some(certificate)) = (read(key)?, read(certificate)?) else {
        return Ok(None);
    };
    let ca = String::from_utf8(certificate).context("the CA is not PEM")?;
    Ok(Some(Certificate { chain: ca.clone(), key: SecretBytes::new(key), ca }))
}

/// Writes the key before its certificate, because the certificate's existence implies the key's.
fn write_ca(directory: &Path, ca: &Certificate) -> anyhow::Result<()> {
    let [key, certificate] = CA.map(|name| directory.join(name));
    anyhow::ensure!(!certificate.exists(), "another process created a CA in the meantime");
    let bytes = ca.key.expose("the other anchor signs with it");
    write_private(&key, bytes).with_context(|| format!("cannot write {}", key.display()))?;
    write_private(&certificate, ca.ca.as_bytes())
        .with_context(|| format!("cannot write {}", certificate.display()))
}
