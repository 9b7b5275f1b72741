//! tec-trustee
