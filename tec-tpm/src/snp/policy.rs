//! What a report must satisfy besides being genuine.

use std::collections::{BTreeMap, BTreeSet};

use super::{GuestPolicy, Product, Tcb};

/// What an operator requires. Debugging and migration are never allowed, and the report must have been
/// requested at the highest privilege level.
///
/// # Security
/// Without [`measurements`](Self::with_measurements) or [`ID keys`](Self::with_id_keys), any software in a
/// genuine guest passes. It can claim that any vTPM is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    pub(super) minimum_tcb: BTreeMap<Product, Tcb>,
    pub(super) measurements: Option<BTreeSet<[u8; 48]>>,
    pub(super) id_keys: Option<BTreeSet<[u8; 48]>>,
    pub(super) author_keys: Option<BTreeSet<[u8; 48]>>,
    pub(super) host_data: Option<BTreeSet<[u8; 32]>>,
    pub(super) forbidden: GuestPolicy,
    pub(super) required: GuestPolicy,
}

impl Policy {
    /// Neither debugging nor migration; any measurement, any ID key, any TCB that is consistent.
    pub fn new() -> Self {
        Self {
            minimum_tcb: BTreeMap::new(),
            measurements: None,
            id_keys: None,
            author_keys: None,
            host_data: None,
            forbidden: GuestPolicy::DEBUG.union(GuestPolicy::MIGRATE_MA),
            required: GuestPolicy::default(),
        }
    }

    /// Guests with one of these ID keys, by SHA-384, and one of these measurements; an empty list
    /// requires nothing. `None` if both are empty, because any guest could then claim any vTPM.
    pub fn of_guests(id_keys: &[[u8; 48]], measurements: &[[u8; 48]]) -> Option<Self> {
        let mut policy = Self::new();
        if !id_keys.is_empty() {
            policy = policy.with_id_keys(id_keys.iter().copied());
        }
        if !measurements.is_empty() {
            policy = policy.with_measurements(measurements.iter().copied());
        }
        (!id_keys.is_empty() || !measurements.is_empty()).then_some(policy)
    }

    /// The reported, committed and launch TCBs of a product must be at least this, part by part.
    pub fn with_minimum_tcb(mut self, product: Product, minimum: Tcb) -> Self {
        self.minimum_tcb.insert(product, minimum);
        self
    }

    /// The same minimum for every product. Each product has its own scale: use this for machines of one
    /// product, or for a minimum that suits all products.
    pub fn with_minimum_tcb_of_all(self, minimum: Tcb) -> Self {
        Product::ALL
            .into_iter()
            .fold(self, |policy, product| policy.with_minimum_tcb(product, minimum))
    }

    /// The digest at launch must be one of these; an empty list accepts none.
    #[must_use]
    pub fn with_measurements(mut self, allowed: impl IntoIterator<Item = [u8; 48]>) -> Self {
        self.measurements = Some(allowed.into_iter().collect());
        self
    }

    /// The key that signed the guest's ID block must be one of these, by SHA-384; an empty list accepts none.
    #[must_use]
    pub fn with_id_keys(mut self, allowed: impl IntoIterator<Item = [u8; 48]>) -> Self {
        self.id_keys = Some(allowed.into_iter().collect());
        self
    }

    /// The key that certified the guest's ID key must be one of these, by SHA-384; an empty list accepts
    /// none.
    #[must_use]
    pub fn with_author_keys(mut self, allowed: impl IntoIterator<Item = [u8; 48]>) -> Self {
        self.author_keys = Some(allowed.into_iter().collect());
        self
    }

    /// What the host provided at launch must be one of these; an empty list accepts none.
    ///
    /// # Security
    /// The host chooses it: it distinguishes owners only if the measurement depends on it, or if the host is
    /// trusted to set it.
    #[must_use]
    pub fn with_host_data(mut self, allowed: impl IntoIterator<Item = [u8; 32]>) -> Self {
        self.host_data = Some(allowed.into_iter().collect());
        self
    }

    /// The guest's policy must not allow any of these, either.
    pub fn forbidding(mut self, bits: GuestPolicy) -> Self {
        self.forbidden = self.forbidden.union(bits);
        self
    }

    /// The guest's policy must have all of these.
    pub fn requiring(mut self, bits: GuestPolicy) -> Self {
        self.required = self.required.union(bits);
        self
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self::new()
    }
}
