//! tec-trustee compared with other implementations of the same formats: there is nothing but the tests.
