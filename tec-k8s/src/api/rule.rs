//! Validation rules in CEL, with the messages of existing clusters (trusted-cluster-operator).

use kube::core::Rule;

/// The value never changes. Kubernetes checks this only if it was set before.
pub(super) fn immutable() -> Rule {
    Rule::new("self == oldSelf").message("Value is immutable")
}

/// The value may become false, but never true.
pub(super) fn only_to_false() -> Rule {
    Rule::new("oldSelf || !self").message("A cluster cannot return to plain HTTP")
}

/// The image is referenced by digest. Existing clusters accept anything after `@sha256:`.
pub(super) fn by_digest() -> Rule {
    Rule::new("self.matches('.*@sha256:.*')").message("Image must be referenced by digest")
}

/// A field of the object may be added, but not removed.
pub(super) fn stays_set(field: &str) -> Rule {
    Rule::new(format!("!has(oldSelf.{field}) || has(self.{field})"))
        .message("Value is required once set")
}

/// A field of the object cannot be added later.
pub(super) fn set_at_creation(field: &str) -> Rule {
    Rule::new(format!("has(oldSelf.{field}) || !has(self.{field})"))
        .message("Value must be set at creation")
}

/// The name of a recovery key is determined by its machine and its number, so that no number occurs twice. A
/// rule that compares the whole name would be refused as too expensive, since the API server knows no bound
/// on the result of `string`. An ID has 36 characters.
pub(super) fn named_after_machine_and_number() -> Rule {
    Rule::new(
        "self.metadata.name.startsWith('recovery-' + self.spec.machine + '-') && \
         self.metadata.name.substring(46) == string(self.spec.number)",
    )
    .message("The name must be recovery-<machine>-<number>")
}

/// The name fits into a label, and into the names of what is derived from the object.
pub(super) fn short_name() -> Rule {
    Rule::new("self.metadata.name.size() <= 50").message("The name must have at most 50 characters")
}

/// What shim starts is used only if the file is named that the firmware starts.
pub(super) fn shim_starts_after_firmware() -> Rule {
    Rule::new("!has(self.shimStarts) || has(self.firmwareStarts)")
        .message("shimStarts needs firmwareStarts")
}

/// Endorsement key roots are named only if they are checked.
pub(super) fn roots_need_their_policy() -> Rule {
    Rule::new("!has(self.endorsementRootsConfigMap) || (has(self.policy) && self.policy == 'EndorsementKey')")
        .message("endorsementRootsConfigMap needs the policy EndorsementKey")
}

/// An entry has a CA, or states that nodes need none.
pub(super) fn ca_or_plain_http() -> Rule {
    Rule::new(
        "has(self.certificateAuthority) != (has(self.dangerousPlainHttp) && self.dangerousPlainHttp)",
    )
    .message("Either certificateAuthority or dangerousPlainHttp: true is required")
}

/// Guests must be specified: otherwise any software in a genuine guest could claim any TPM as its own.
pub(super) fn guests_are_named() -> Rule {
    Rule::new(
        "!('AzSnpVtpm' in self.kinds) || (has(self.snp) && \
         ((has(self.snp.idKeys) && size(self.snp.idKeys) > 0) || \
         (has(self.snp.measurements) && size(self.snp.measurements) > 0)))",
    )
    .message("AzSnpVtpm needs snp.idKeys or snp.measurements")
}

/// Requirements need evidence that is checked against them: otherwise they would be mistaken for a check.
pub(super) fn snp_needs_its_kind() -> Rule {
    Rule::new("!has(self.snp) || 'AzSnpVtpm' in self.kinds").message("snp needs the kind AzSnpVtpm")
}

/// The policies that a Trustee receives support only TPM quotes.
pub(super) fn azure_needs_builtin() -> Rule {
    Rule::new(
        "!has(self.evidence) || !('AzSnpVtpm' in self.evidence.kinds) || \
         (has(self.keyBroker) && self.keyBroker == 'Builtin')",
    )
    .message("The evidence kind AzSnpVtpm needs keyBroker Builtin")
}
