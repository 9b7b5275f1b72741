//! Tags that the operator follows, on a real API server.

mod fleet;
mod program;
mod refusals;
mod releases;
mod world;
