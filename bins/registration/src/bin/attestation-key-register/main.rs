//! `attestation-key-register`: registers the attestation keys of nodes.
//!
//! ```text
//!   watches of cluster, machines, keys ─► what is known ─┐
//!   PUT /register-ak ─► the cluster's policy decides ────┴─► one AttestationKey object
//! ```
//! It may submit keys but not bind them; the operator does that. It is stateless: any number of replicas can
//! run, and with a shared key any of them accepts the answer to a challenge.

mod cli;
mod compose;
mod setting;

use std::process::ExitCode;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use clap::Parser as _;
use tec_core::http::ReplyStyle;
use tec_k8s::server::Known;
use tec_k8s::signal::Metric;
use tec_support::{exit, program};

use crate::cli::Args;
use crate::compose::Composer;

fn main() -> ExitCode {
    let args = Args::parse();
    exit::finish(program::run(&args.front.log, run(&args)))
}

async fn run(args: &Args) -> anyhow::Result<u8> {
    let form = (ReplyStyle::AttestationKey, [Metric::KeyRequests, Metric::KeySeconds]);
    registration::run((&args.front, args.port), form, |client, namespace, changes| {
        let known = Arc::new(Known::default());
        let composer = Composer::new(client.clone(), namespace, Arc::clone(&known), args.files());
        let composer = Arc::new(composer);
        let each = || (Arc::clone(&known), client.clone(), namespace.to_owned());
        let (machines, client, home) = each();
        let machines = async move { machines.follow_machines(client, &home).await };
        let (keys, client, home) = each();
        let keys = async move { keys.follow_keys(client, &home).await };
        let composed = Arc::clone(&composer);
        let composed = async move { composed.follow(changes).await };
        let service = Router::new().fallback(move |request: Request| {
            let composer = Arc::clone(&composer);
            async move { composer.respond(request).await }
        });
        let is_synced = move || known.is_synced();
        (service, is_synced, [Box::pin(machines), Box::pin(keys), Box::pin(composed)])
    })
    .await
}
