//! tec-trustee beside other implementations of the same formats: the tests are all there is.
