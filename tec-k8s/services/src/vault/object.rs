//! One object of the vault: how to check it, and how to create it.

use serde_json::{Value, json};

use super::{MOUNTS, Request, Response, Verdict, password};

/// An object of the desired state.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object {
    /// Description for logs.
    pub(super) name: String,
    /// Path where it is read.
    pub(super) look: String,
    /// What the answer must contain, member by member; additional members are allowed.
    pub(super) want: Value,
    /// How to create it if it is absent.
    pub(super) make: Make,
    /// How to repair it if it differs; if `None`, a difference is a conflict.
    pub(super) mend: Option<(String, Value)>,
}

/// How to create an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Make {
    /// Creates it with one call.
    Post(String, Value),
    /// A password: randomness from the vault, written only if nothing exists.
    Password(String),
    /// The intermediate CA of a generation: a request, signed by its root, imported, named.
    Intermediate(u32),
}

/// State of an object compared with its desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    Same,
    Absent,
    Differs,
    Unknown(Verdict),
}

/// Name of the root CA of a generation, which also makes its creation idempotent.
pub(super) fn root_issuer(generation: u32) -> String {
    issuer("tec-root", generation)
}

/// Name of the intermediate CA of a generation.
pub(super) fn intermediate_issuer(generation: u32) -> String {
    issuer("tec-intermediate", generation)
}

/// The first generation had no number when it was the only one.
fn issuer(name: &str, generation: u32) -> String {
    match generation {
        1 => name.to_owned(),
        _ => format!("{name}-{generation}"),
    }
}

/// Lifetime of the root CA: ten years.
pub(super) const ROOT_LIFE: &str = "87600h";
/// Lifetime of the intermediate CA: five years.
pub(super) const INTERMEDIATE_LIFE: &str = "43800h";

impl Object {
    /// An object that is read at the path where it is written, and reads as written.
    pub(super) fn plain(name: impl Into<String>, path: impl Into<String>, want: Value) -> Self {
        let path = path.into();
        Self {
            name: name.into(),
            look: path.clone(),
            make: Make::Post(path.clone(), want.clone()),
            mend: Some((path, want.clone())),
            want,
        }
    }

    /// Compares what was read.
    pub(super) fn judge(&self, answer: &Response) -> Look {
        match answer.verdict() {
            Verdict::Absent => Look::Absent,
            Verdict::Good => match answer.data::<Value>() {
                Ok(data) if contains(&data, &self.want) => Look::Same,
                _ => Look::Differs,
            },
            verdict => Look::Unknown(verdict),
        }
    }
}

/// Whether `have` has every member of `want`, where lists match in any order.
fn contains(have: &Value, want: &Value) -> bool {
    match (have, want) {
        (Value::Object(have), Value::Object(want)) => {
            want.iter().all(|(key, want)| have.get(key).is_some_and(|have| contains(have, want)))
        }
        (Value::Array(have), Value::Array(want)) => {
            have.len() == want.len() && want.iter().all(|want| have.contains(want))
        }
        _ => have == want,
    }
}

/// The calls that create an object, one at a time, each built from the previous answer.
#[derive(Debug)]
pub(super) struct Making {
    stage: usize,
}

impl Making {
    /// The first call.
    pub(super) fn begin(make: &Make) -> (Self, Request) {
        let first = match make {
            Make::Post(path, body) => Request::post(path, body),
            Make::Password(_) => password::draw(),
            Make::Intermediate(_) => Request::post(
                format!("{}/intermediate/generate/internal", MOUNTS.pki_intermediate),
                &json!({"common_name": "TEC services intermediate", "key_type": "ec",
                        "key_bits": 256}),
            ),
        };
        (Self { stage: 0 }, first)
    }

    /// The next call, if any; `Err` if the answer is unusable.
    pub(super) fn next(
        &mut self,
        make: &Make,
        answer: &Response,
    ) -> Result<Option<Request>, Verdict> {
        self.stage += 1;
        match make {
            Make::Password(path) if self.stage == 1 => {
                let random = member(answer, "random_bytes")?;
                let body = json!({"options": {"cas": 0}, "data": {"password": random}});
                Ok(Some(Request::post(path, &body)))
            }
            Make::Post(..) | Make::Password(_) => Ok(None),
            Make::Intermediate(generation) => intermediate(*generation, self.stage, answer),
        }
    }
}

fn intermediate(
    generation: u32,
    stage: usize,
    answer: &Response,
) -> Result<Option<Request>, Verdict> {
    let (root, own) = (MOUNTS.pki_root, MOUNTS.pki_intermediate);
    Ok(Some(match stage {
        1 => Request::post(
            format!("{root}/issuer/{}/sign-intermediate", root_issuer(generation)),
            &json!({"csr": member(answer, "csr")?, "format": "pem_bundle",
                    "ttl": INTERMEDIATE_LIFE, "common_name": "TEC services intermediate"}),
        ),
        2 => Request::post(
            format!("{own}/intermediate/set-signed"),
            &json!({"certificate": member(answer, "certificate")?}),
        ),
        3 => {
            let issuer = with_key(answer).ok_or(Verdict::Unavailable)?;
            Request::post(
                format!("{own}/issuer/{issuer}"),
                &json!({"issuer_name": intermediate_issuer(generation)}),
            )
        }
        _ => return Ok(None),
    }))
}

/// The imported issuer whose key is in the vault.
fn with_key(answer: &Response) -> Option<String> {
    let data: Value = answer.data().ok()?;
    let mapping = data.get("mapping")?.as_object()?;
    let owned = mapping.iter().find(|(_, key)| key.as_str().is_some_and(|key| !key.is_empty()));
    owned.map(|(issuer, _)| issuer.clone())
}

fn member(answer: &Response, name: &str) -> Result<Value, Verdict> {
    let data: Value = answer.data().map_err(|_| Verdict::Unavailable)?;
    data.get(name).filter(|value| value.is_string()).cloned().ok_or(Verdict::Unavailable)
}
