//! The guard's container is large enough for the worst case that its limits allow.

use tec_k8s::render::GUARD_MEMORY_MIB;
use tec_support::listen::Limits;
use tec_trustee::guard::MAX_KEPT;

/// Memory of the guard before any client connects: program, store, watches of the API server.
const IDLE: usize = 24 << 20;

#[test]
fn all_clients_together_fit_into_the_container() {
    let connections = Limits::default().most_bytes() + Limits::probes().most_bytes();
    let worst = IDLE + connections + MAX_KEPT;
    let most = GUARD_MEMORY_MIB << 20;
    assert!(worst <= most, "{} of {GUARD_MEMORY_MIB} MiB", worst >> 20);
}
