//! Attacks, which must all fail.

use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tec_core::id::ResourcePath;
use tec_tpm::ak::AkHandle;
use tec_tpm::testing::SoftTpm;
use tec_tpm::tss::{Tpm, TpmAttester};

use super::Stage;
use super::boot::released;
use crate::machine::Machine;
use crate::wire;
use crate::wire::{Reply, Session, some_pubkey};

fn refusal(reply: &Reply) -> Result<(), (String, String)> {
    if reply.status < 300 { Ok(()) } else { Err((reply.code(), String::new())) }
}

fn attester(machine: &Machine) -> anyhow::Result<TpmAttester> {
    let log = machine.event_log();
    let tpm = Arc::new(Tpm::open(&machine.tcti())?);
    let attester = TpmAttester::new(tpm, AkHandle::default());
    Ok(attester.with_event_log(Arc::new(move || std::fs::read(&log).ok())))
}

impl Stage {
    /// Scene d: one byte of the kernel is changed.
    pub(super) fn changed_kernel(&mut self) -> anyhow::Result<()> {
        self.story.scene('d', "One byte of the kernel is changed");
        let mut node = self.one.take().context("machine one has not booted yet")?;
        let kernel = node.machine.chain.kernel()?;
        let good = std::fs::read(&kernel)?;
        self.story.works("flip one byte, reboot", || {
            node.machine.tamper_with_kernel()?;
            node.machine.reboot()
        })?;
        self.story.refused("the changed boot asks for its key", "TEC-A412", || {
            Ok(node.machine.unlock()?.map(drop).map_err(|r| (r.code, r.console)))
        })?;
        let id = node.id.to_string();
        let anchor = &self.anchor;
        self.story.works("tec explain names the kernel's file", || {
            let attempt = anchor.tec(&["explain", &id])?;
            let events = attempt["ladder"]["mismatch"]["events"].as_array();
            let named = events
                .context("no events")?
                .iter()
                .find_map(|event| event["expected"]["file"].as_str().map(str::to_owned));
            let named = named.context("no component is named")?;
            ensure!(named.contains("vmlinuz"), "the explanation names {named}, not the kernel");
            Ok(())
        })?;
        let text = self.anchor.tec_text(&["explain", &id])?;
        self.story.shows("what an admin reads", &text);
        self.story.works("the right kernel put back, reboot: the volume opens", || {
            std::fs::write(&kernel, &good)?;
            node.machine.reboot()?;
            released(node.machine.unlock()?)
        })?;
        self.one = Some(node);
        Ok(())
    }

    /// Scene e: evidence from an earlier session is replayed.
    pub(super) fn replayed_evidence(&mut self) -> anyhow::Result<()> {
        self.story.scene('e', "Old evidence is replayed");
        let kbs = self.anchor.kbs()?;
        let attester = attester(&self.one()?.machine)?;
        let runtime = &self.runtime;
        let proof = self.story.works("an honest session, recorded", || {
            runtime.block_on(async {
                let session = Session::open(&kbs).await?;
                let proof = session.prove(&attester, some_pubkey()).await?;
                let reply = session.attest(&proof).await?;
                ensure!(reply.status == 200, "{}", reply.body);
                Ok(proof)
            })
        })?;
        self.story.refused("the same evidence in a new session", "TEC-A405", || {
            runtime.block_on(async {
                let session = Session::open(&kbs).await?;
                Ok(refusal(&session.attest(&proof).await?))
            })
        })
    }

    /// Scene f: someone who knows a machine's ID registers their own key for it.
    pub(super) fn second_key(&mut self) -> anyhow::Result<()> {
        self.story.scene('f', "A second attestation key for the same machine");
        let [_, ak, _] = self.anchor.urls()?;
        let ca = self.anchor.ca()?;
        let thief = SoftTpm::p256(666);
        let body = json!({
            "public_key": thief.public_key().to_pem(),
            "uuid": self.one()?.id.to_string(),
        });
        let runtime = &self.runtime;
        self.story.refused("a stranger's key for machine one", "TEC-R410", || {
            let url = format!("{ak}/register-ak");
            Ok(refusal(&runtime.block_on(wire::put(&ca, &url, &body))?))
        })
    }

    /// Scene g: a correctly attested machine requests another machine's key.
    pub(super) fn foreign_path(&mut self) -> anyhow::Result<()> {
        self.story.scene('g', "A good machine asks for another machine's key");
        let chain = self.approved()?;
        let mut story = std::mem::take(&mut self.story);
        let two = story.works("machine two: first boot", || self.install("two", &chain))?;
        let kbs = self.anchor.kbs()?;
        let attester = attester(&two.machine)?;
        let foreign = ResourcePath::luks_root(&self.one()?.id);
        story.refused(
            "machine two attests, then asks for machine one's key",
            "TEC-A413",
            || {
                self.runtime.block_on(async {
                    let session = Session::open(&kbs).await?;
                    let proof = session.prove(&attester, some_pubkey()).await?;
                    let reply = session.attest(&proof).await?;
                    ensure!(reply.status == 200, "{}", reply.body);
                    Ok(refusal(&session.resource(foreign.as_str()).await?))
                })
            },
        )?;
        self.story = story;
        self.two = Some(two);
        Ok(())
    }
}
