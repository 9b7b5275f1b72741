//! Registration endpoints.
