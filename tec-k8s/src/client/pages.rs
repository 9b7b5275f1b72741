//! The metadata of all objects of a kind.

use std::fmt::Debug;

use futures::stream::{Stream, try_unfold};
use kube::api::{ListParams, PartialObjectMeta};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tec_core::port::PortError;

use super::error::port_error;

/// Objects in one answer of a list.
const PAGE: u32 = 500;

/// The metadata of every object, page by page, as a list of one moment.
pub(crate) fn metadata_pages<K>(
    objects: Api<K>,
) -> impl Stream<Item = Result<Vec<PartialObjectMeta<K>>, PortError>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let first = Some(ListParams::default().limit(PAGE));
    try_unfold((objects, first), async |(objects, params)| {
        let Some(mut params) = params else { return Ok(None) };
        let page = objects.list_metadata(&params).await;
        let page = page.map_err(|error| port_error(format!("list {}", K::plural(&())), error))?;
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        let next = params.continue_token.is_some().then_some(params);
        Ok(Some((page.items, (objects, next))))
    })
}
