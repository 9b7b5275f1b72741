//! tec
