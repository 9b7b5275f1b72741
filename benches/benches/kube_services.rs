//! Bootstrap calls of components over gRPC, with a real vault and API server, against bare logins at the
//! same vault in the same run.

use std::time::Duration;

use tec_benches::{Figure, Suite, Unit, load};
use tec_e2e::services::load::{CALLERS, Durations, Load};

const COMPONENT: &str = "kube_services/component";
/// Number of calls for each one that the suite requests: with too few per caller, no calls would be
/// concurrent.
const EACH: u32 = 80;

fn main() -> anyhow::Result<()> {
    let suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    if !suite.wants(COMPONENT) {
        return Ok(());
    }
    let runtime = load::runtime()?;
    let load = runtime.block_on(Load::start())?;
    let (calls, logins) = (Durations::default(), Durations::default());
    let of = |times: u64| times * u64::from(EACH);
    let calls_of = |times| took(runtime.block_on(load.bootstrap(of(times), &calls))) / EACH;
    let logins_of = |times| took(runtime.block_on(load.log_in(of(times), &logins))) / EACH;
    let what = "BootstrapComponent / login at the vault";
    suite.ratio_timed(
        COMPONENT,
        |ratio| format!("{what}, {CALLERS} callers; {}", ratio.per_second()),
        calls_of,
        logins_of,
    )?;
    let (call, login) = (calls.p99().as_secs_f64(), logins.p99().as_secs_f64());
    let note = format!("p99 of {what}, {:.1} ms and {:.1} ms", call * 1e3, login * 1e3);
    let name = format!("{COMPONENT}_p99");
    suite.figure(Figure::new(&name, call / login, Unit::Count, &note))?;
    suite.finish();
    Ok(())
}

/// A refused call is not a measurement.
#[expect(clippy::panic, reason = "a benchmark that measures nothing must end")]
fn took(outcome: anyhow::Result<Duration>) -> Duration {
    outcome.unwrap_or_else(|error| panic!("{error:#}"))
}
