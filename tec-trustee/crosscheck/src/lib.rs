//! tec-trustee compared with other implementations of the same formats: it contains only tests.
