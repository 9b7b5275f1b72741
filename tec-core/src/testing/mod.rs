//! Doubles and suites.
