//! What instances read from tags or attributes; the same on all clouds.
//!
//! In addition to the tags of the older implementation, two replace queries to a cloud's API, which would
//! need an account: addresses of control planes, and the API server's name.

use crate::metadata::Instance;

use super::Record;

pub(super) const ROLE: &str = "constellation-role";
pub(super) const INIT_SECRET_HASH: &str = "constellation-init-secret-hash";
pub(super) const API_SERVER: &str = "tec-api-server";
pub(super) const CONTROL_PLANES: &str = "tec-control-planes";

/// Maximum number of addresses that are read.
const MAX_ADDRESSES: usize = 256;

/// Addresses come without names, so names are derived from them.
pub(super) fn control_planes(list: &str) -> Vec<Instance> {
    let addresses = list.split([',', ' ']).filter(|address| !address.is_empty());
    let records: Vec<Record> = addresses
        .take(MAX_ADDRESSES)
        .map(|address| Record {
            name: format!("peer-{}", address.replace([':', '.'], "-")),
            provider_id: String::new(),
            role: "control-plane".into(),
            address: address.to_owned(),
        })
        .collect();
    Record::instances(&records)
}
