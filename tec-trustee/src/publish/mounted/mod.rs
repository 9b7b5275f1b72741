//! The mounted form: a Trustee whose files come from ConfigMaps and Secrets, and whose admin API is closed
//! (Trustee, KBS configuration).
//!
//! ```text
//! Desired ─ render ─► Form: ConfigMaps, Secrets, volumes of the pod
//!                       │ diff against Observed
//!                       ▼
//!                     Patch ─ MountedTarget::apply ─► cluster
//! ```
//! Trustee reads policies, reference values and resources for each request, and its configuration once.
//! So only a changed configuration or changed volumes require a new pod; the digest of both is an annotation
//! of the pod template, and the pod is patched when it changes.
//!
//! *What it is not*: a Kubernetes client. A program implements [`MountedTarget`] with one.

mod debounce;
mod form;
mod layout;
mod patch;
mod pod;
mod publisher;
mod reference;
#[cfg(test)]
mod tests;

pub use self::debounce::Debounce;
pub use self::form::{Form, RenderError, render};
pub use self::layout::Layout;
pub use self::patch::{Change, Object, Observed, Patch};
pub use self::pod::{Mount, Pod, RESTART_ANNOTATION, Volume};
pub use self::publisher::{MountedPublisher, MountedTarget};
