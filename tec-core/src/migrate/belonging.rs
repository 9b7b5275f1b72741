//! What an anchor keeps besides its units: what it demands of nodes, and which CAs nodes trust.
//!
//! ```text
//!   what comes ─┐
//!               ├─ weigh ─► for each article: same, bring, known, or a clash
//!   what is here┘           nothing that is here is overwritten
//! ```
//! Pure: anchors read what they have, call this module to decide, and write what is missing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::pcr::PcrIndex;
use crate::secret::SecretBytes;

/// Who may register a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Entry {
    /// Every node that can reach the server.
    #[default]
    Open,
    /// Nodes that show the token.
    Token,
    /// Nobody: an admin creates the machines.
    Manual,
}

/// What binds an attestation key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Binding {
    /// The key is the first one of its machine.
    #[default]
    FirstUse,
    /// The key is the first one of its machine, and proven to be in the TPM of an endorsement key.
    EndorsementKey,
    /// An admin approved it.
    Manual,
}

/// What an anchor demands of the machines that it admits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Demands {
    /// Who may register.
    pub entry: Entry,
    /// What binds a key.
    pub binding: Binding,
    /// Fingerprints of the accepted endorsement keys; any if empty.
    pub endorsement_keys: BTreeSet<String>,
    /// SHA-256, in hexadecimal, of the CA bundle that endorsement-key certificates must chain to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endorsement_roots: Option<String>,
}

impl Demands {
    /// What is demanded less than `before`, in words; `None` if nothing is. Another list of endorsement keys or
    /// other CAs of theirs are no less.
    pub fn less_than(&self, before: &Self) -> Option<&'static str> {
        let entry = |demands: &Self| match demands.entry {
            Entry::Open => 0,
            Entry::Token => 1,
            Entry::Manual => 2,
        };
        let binding = |demands: &Self| match demands.binding {
            Binding::FirstUse => 0,
            Binding::EndorsementKey => 1,
            Binding::Manual => 2,
        };
        // A key or a CA is named, so that not every TPM is accepted.
        let names_tpms = |demands: &Self| {
            !demands.endorsement_keys.is_empty() || demands.endorsement_roots.is_some()
        };
        if entry(self) < entry(before) {
            Some("less would be demanded of who registers (--registration-token-file)")
        } else if binding(self) < binding(before) {
            Some("less would bind an attestation key (--ak-approval)")
        } else if binding(self) == binding(before) && names_tpms(before) && !names_tpms(self) {
            Some("the endorsement key of any TPM would do (--ek-roots, --allow-ek)")
        } else {
            None
        }
    }
}

/// A server that nodes talk to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Service {
    /// Releases keys.
    KeyBroker,
    /// Registers machines.
    Registration,
    /// Accepts attestation keys.
    AttestationKeys,
}

/// A certificate with its key.
#[derive(Debug)]
pub struct Certificate {
    /// The chain, PEM.
    pub chain: String,
    /// Its private key, PEM.
    pub key: SecretBytes,
    /// The CA that vouches for it, PEM; its own chain if it is a CA.
    pub ca: String,
}

/// Whether a server has a certificate.
#[derive(Debug)]
pub enum Place {
    /// The server serves plain HTTP.
    Plain,
    /// The server should have a certificate, but none exists yet.
    Empty,
    /// The server has this certificate.
    Holds(Certificate),
}

/// What an anchor keeps besides its units.
#[derive(Debug, Default)]
pub struct Belongings {
    /// Its demands; `None` if nobody has set any yet.
    pub demands: Option<Demands>,
    /// Whether the demands are still those that came from another anchor, and so follow that
    /// anchor.
    pub follows: bool,
    /// The registers that the boot of every image must match, if known; the empty set if each image
    /// has its own.
    pub pcrs: Option<BTreeSet<PcrIndex>>,
    /// The token that nodes show to register.
    pub token: Option<SecretBytes>,
    /// The CA that it signs certificates with.
    pub ca: Option<Certificate>,
    /// Its servers.
    pub servers: BTreeMap<Service, Place>,
    /// CAs, PEM, that its nodes are configured to trust.
    pub told: BTreeSet<String>,
}

impl Belongings {
    fn believes(&self, ca: &str) -> bool {
        let own = self.ca.iter().map(|own| &own.ca);
        let served = self.servers.values().filter_map(|place| match place {
            Place::Holds(certificate) => Some(&certificate.ca),
            Place::Plain | Place::Empty => None,
        });
        let mut all = self.told.iter().chain(own).chain(served);
        all.any(|known| known.trim() == ca.trim())
    }
}

/// One thing that an anchor keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Article {
    /// The registers that must match.
    Pcrs,
    /// What it demands of the machines that it admits.
    Demands,
    /// The token that nodes show to register.
    Token,
    /// The CA.
    Ca,
    /// The certificate of a server.
    Certificate(Service),
}

impl Article {
    /// Whether the article concerns demands rather than the CAs that nodes trust.
    pub fn is_policy(self) -> bool {
        matches!(self, Self::Pcrs | Self::Demands | Self::Token)
    }
}

impl fmt::Display for Article {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pcrs => "pinned registers",
            Self::Demands => "registration and approval",
            Self::Token => "registration token",
            Self::Ca => "CA",
            Self::Certificate(Service::KeyBroker) => "certificate of the key broker",
            Self::Certificate(Service::Registration) => "certificate of the registration",
            Self::Certificate(Service::AttestationKeys) => "certificate of the key registration",
        })
    }
}

/// Result for one article.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "why")]
#[non_exhaustive]
pub enum Verdict {
    /// It is the same here.
    Same,
    /// It is missing here, and is added.
    Bring,
    /// There is another one here, which nodes also trust.
    Known,
    /// It contradicts what is here, which takes precedence.
    Stays,
    /// It contradicts what is here: a conflict. What is here is left unchanged.
    Clash(&'static str),
}

/// Decides what happens to each incoming article. For articles in `stay`, what is here takes
/// precedence.
///
/// # Security
/// Nothing here is ever overwritten, except for demands that came from the same anchor and have not
/// been changed since.
pub fn weigh(
    comes: &Belongings,
    here: &Belongings,
    stay: impl Fn(Article) -> bool,
) -> Vec<(Article, Verdict)> {
    let mut weighed = Vec::new();
    let mut note = |article, verdict: Option<Verdict>| {
        let verdict = verdict.map(|verdict| match verdict {
            Verdict::Clash(_) if stay(article) => Verdict::Stays,
            other => other,
        });
        weighed.extend(verdict.map(|verdict| (article, verdict)));
    };
    note(Article::Pcrs, pcrs(comes, here));
    let wanted = demands(comes, here);
    let keeps = matches!(wanted, Some(Verdict::Clash(_))) && stay(Article::Demands);
    note(Article::Demands, wanted);
    // If nobody is going to ask for a token, none is brought.
    let demands = if keeps { here } else { comes }.demands.as_ref();
    if demands.is_some_and(|demands| demands.entry == Entry::Token) {
        note(Article::Token, token(comes, here));
    }
    note(Article::Ca, ca(comes, here));
    for (service, place) in &here.servers {
        // The other servers are used at first boot only, and the new installer config directs that.
        if comes.servers.is_empty() && *service != Service::KeyBroker {
            continue;
        }
        let verdict = certificate(comes.servers.get(service), place, comes);
        note(Article::Certificate(*service), verdict);
    }
    weighed
}

fn pcrs(comes: &Belongings, here: &Belongings) -> Option<Verdict> {
    let (comes, here) = (comes.pcrs.as_ref()?, here.pcrs.as_ref()?);
    Some(if comes == here {
        Verdict::Same
    } else {
        Verdict::Clash("the target pins other registers")
    })
}

fn demands(comes: &Belongings, here: &Belongings) -> Option<Verdict> {
    let wanted = comes.demands.as_ref()?;
    let said = here.demands.as_ref();
    Some(match said {
        Some(said) if said == wanted => Verdict::Same,
        _ if wanted.endorsement_roots.is_some() => {
            Verdict::Clash("the target checks no certificates of endorsement keys")
        }
        None if *wanted == Demands::default() => Verdict::Same,
        None => Verdict::Bring,
        Some(_) if here.follows => Verdict::Bring,
        Some(_) => Verdict::Clash("the target demands something else of whom it lets in"),
    })
}

fn token(comes: &Belongings, here: &Belongings) -> Option<Verdict> {
    match (&comes.token, &here.token) {
        (Some(comes), Some(here)) if comes.ct_eq(here) => Some(Verdict::Same),
        (Some(_), Some(_)) => Some(Verdict::Clash("the target has another registration token")),
        (Some(_), None) => Some(Verdict::Bring),
        (None, _) => None,
    }
}

fn ca(comes: &Belongings, here: &Belongings) -> Option<Verdict> {
    let wanted = comes.ca.as_ref()?;
    Some(match &here.ca {
        None => Verdict::Bring,
        Some(here) if here.ca.trim() == wanted.ca.trim() => Verdict::Same,
        Some(here) if comes.believes(&here.ca) => Verdict::Known,
        Some(_) => Verdict::Clash("nodes are not told of the CA of the target"),
    })
}

fn certificate(from: Option<&Place>, here: &Place, comes: &Belongings) -> Option<Verdict> {
    match (from, here) {
        (Some(Place::Holds(_)), Place::Empty) => Some(Verdict::Bring),
        (Some(Place::Holds(_)), Place::Plain) => {
            Some(Verdict::Clash("the target serves plain HTTP, and the source does not"))
        }
        (Some(Place::Holds(from)), Place::Holds(here)) if from.ca.trim() == here.ca.trim() => {
            Some(Verdict::Same)
        }
        (_, Place::Holds(here)) if comes.believes(&here.ca) => Some(Verdict::Known),
        (Some(Place::Holds(_)), Place::Holds(_)) => {
            Some(Verdict::Clash("nodes are not told of the CA of the target"))
        }
        // Booting nodes must trust it, but were configured with other CAs only.
        (None, Place::Holds(_)) if !comes.told.is_empty() => {
            Some(Verdict::Clash("nodes are not told of the CA of the target"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
