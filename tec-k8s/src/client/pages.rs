//! All objects of a kind, or their metadata.

use std::fmt::Debug;

use futures::stream::{Stream, try_unfold};
use k8s_openapi::NamespaceResourceScope;
use kube::api::{ListParams, PartialObjectMeta};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tec_core::port::PortError;

use super::error::port_error;
use super::is_terminating;

/// Objects per page of a list.
const PAGE: u32 = 500;

/// An object of a namespace. Implemented by every type that meets its bounds.
pub trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
{
}

/// The metadata of every object, page by page, as of one moment.
pub(crate) fn metadata_pages<K: Object>(
    objects: Api<K>,
) -> impl Stream<Item = Result<Vec<PartialObjectMeta<K>>, PortError>> {
    try_unfold((objects, Some(whole_pages())), async |(objects, params)| {
        let Some(mut params) = params else { return Ok(None) };
        let page = objects.list_metadata(&params).await;
        let page = page.map_err(|error| port_error(format!("list {}", K::plural(&())), error))?;
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        let next = params.continue_token.is_some().then_some(params);
        Ok(Some((page.items, (objects, next))))
    })
}

/// Parameters to list everything, in pages of small objects.
pub(super) fn whole_pages() -> ListParams {
    ListParams::default().limit(PAGE)
}

/// Passes on every object that these parameters match and that is not being removed, page by page.
pub(super) async fn each<K: Object>(
    objects: Api<K>,
    params: ListParams,
    mut take: impl FnMut(K),
) -> Result<(), PortError> {
    let take = |page: Vec<K>| {
        page.into_iter().filter(|object| !is_terminating(object)).for_each(&mut take);
    };
    pages(&objects, params, take).await
}

/// Every object that these parameters match, read page by page, including those that are being removed.
pub async fn list_all<K>(objects: &Api<K>, params: ListParams) -> Result<Vec<K>, PortError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let mut all = Vec::new();
    pages(objects, params.limit(PAGE), |page| all.extend(page)).await?;
    Ok(all)
}

async fn pages<K>(
    objects: &Api<K>,
    mut params: ListParams,
    mut take: impl FnMut(Vec<K>),
) -> Result<(), PortError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    loop {
        let page = objects.list(&params).await;
        let page = page.map_err(|error| port_error(format!("list {}", K::plural(&())), error))?;
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        take(page.items);
        if params.continue_token.is_none() {
            return Ok(());
        }
    }
}
