//! Command lines that exist on Kubernetes only.

pub(crate) mod member;
