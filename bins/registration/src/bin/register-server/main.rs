//! `register-server`: serves the Ignition config of a node's first boot, and registers its machine.
//!
//! ```text
//!   watch of the cluster object ─┐
//!   mounted CAs, token ──────────┴─► RegisterService, or the reason why there is none
//!   GET /ignition-clevis-pin-trustee ─► that service ─► one Machine object
//! ```
//! It is stateless, so any number of replicas can run.

mod cli;
mod compose;

use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use clap::Parser as _;
use tec_core::http::ReplyStyle;
use tec_k8s::client::KubeRegistry;
use tec_k8s::signal::Metric;
use tec_support::{SystemClock, exit, program};

use crate::cli::Args;
use crate::compose::Composer;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.front.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let form = (ReplyStyle::Registration, [Metric::RegisterRequests, Metric::RegisterSeconds]);
    registration::run((&args.front, args.port), form, |client, namespace, changes| {
        let registry = KubeRegistry::new(client, namespace, Arc::new(SystemClock));
        let composer = Arc::new(Composer::new(registry, args.files()));
        let follower = Arc::clone(&composer);
        let composed = async move { follower.follow(changes).await };
        let service = Router::new().fallback(move |request: Request| {
            let composer = Arc::clone(&composer);
            async move { composer.respond(request).await }
        });
        (service, || true, [Box::pin(composed)])
    })
    .await
}
