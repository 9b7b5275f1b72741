//! What the machines last booted.

use tec_core::machine::MachineState;

use super::super::context::Context;
use super::decide::Machines;
use crate::api::Machine;

/// What each machine in service booted when it last got its key, from the cache.
pub(super) fn booted(ctx: &Context) -> Machines {
    let mut booted = Machines::default();
    for machine in ctx.caches.machines.all() {
        let is_in_service =
            matches!(machine.state(), MachineState::Active | MachineState::Quarantined);
        // Without a bound key it never got a disk key.
        if is_in_service && machine.bound_key().is_some() {
            count(&mut booted, &machine);
        }
    }
    booted.unknown.sort_unstable();
    booted.by_image.values_mut().for_each(|labels| labels.sort_unstable());
    booted
}

fn count(booted: &mut Machines, machine: &Machine) {
    let image = machine.status.as_ref().and_then(|status| status.image.as_deref());
    let Some(images) = image else {
        booted.unknown.push(machine.label());
        return;
    };
    // Several, if the boot has parts of several images or they cannot be told apart.
    for image in images.split(", ") {
        booted.by_image.entry(image.to_owned()).or_default().push(machine.label());
    }
}
