//! Command lines of what exists on Kubernetes only.

pub(crate) mod member;
