//! Ignition.
