//! What `operator` puts together beside tec-operator: the files of a new Trustee, with their certificates.

mod maker;

pub use self::maker::Maker;
