//! Rate limits per address, for endpoints that anyone may call.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tec_core::ak::SourceNetwork;
use tec_core::code::Code;
use tec_core::http::{ReplyStyle, refusal};

use crate::shared::SharedSources;

/// Number of addresses above which idle ones are dropped.
const FORGET_ABOVE: usize = 10_000;

/// Requests that each network may send whatever others send: a boot takes three, and Clevis repeats it.
const FREE: NonZeroU32 = NonZeroU32::MIN.saturating_add(11);
/// Paths that answer from memory. They take nothing from what all clients share, so that they can neither use it
/// up nor fail when others do.
const PROBES: [&str; 2] = ["/healthz", "/metrics"];

/// Limits requests per client address and in total.
#[derive(Debug)]
pub struct Limiter {
    each: DefaultKeyedRateLimiter<SourceNetwork>,
    free: DefaultKeyedRateLimiter<SourceNetwork>,
    all: governor::DefaultDirectRateLimiter,
    style: ReplyStyle,
    shared: SharedSources,
}

impl Limiter {
    /// At most `per_second` requests in total and a tenth of that (at least one) per address, with bursts of
    /// ten seconds' worth, of which one address has half: a rack that powers on all at once is not an attack.
    /// A few requests of each network count towards neither.
    pub fn new(per_second: NonZeroU32, style: ReplyStyle) -> Self {
        let burst = per_second.saturating_mul(TEN);
        let half = NonZeroU32::new(burst.get() / 2).unwrap_or(NonZeroU32::MIN);
        let each = NonZeroU32::new(per_second.get() / 10).unwrap_or(NonZeroU32::MIN);
        Self {
            each: RateLimiter::keyed(Quota::per_second(each).allow_burst(half)),
            free: RateLimiter::keyed(Quota::per_second(NonZeroU32::MIN).allow_burst(FREE)),
            all: RateLimiter::direct(Quota::per_second(per_second).allow_burst(burst)),
            style,
            shared: SharedSources::default(),
        }
    }

    /// Exempts clients in these networks from the limit per address: only the total limit applies to them.
    pub fn shared_by(self, shared: SharedSources) -> Self {
        Self { shared, ..self }
    }

    fn allows(&self, address: IpAddr, path: &str) -> bool {
        for known in [&self.each, &self.free] {
            if known.len() > FORGET_ABOVE {
                known.retain_recent();
            }
        }
        let source = SourceNetwork::of(address);
        // A probe takes none of the requests of the nodes beside it.
        let is_probe = PROBES.contains(&path);
        if !is_probe && self.free.check_key(&source.customer()).is_ok() {
            return true;
        }
        let has_share = self.shared.contains(address) || self.each.check_key(&source).is_ok();
        has_share && (is_probe || self.all.check().is_ok())
    }
}

const TEN: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);

/// The middleware.
pub async fn limit(
    State(limiter): State<Arc<Limiter>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if limiter.allows(peer.ip(), request.uri().path()) {
        next.run(request).await
    } else {
        refusal(limiter.style, Code::RegisterRate).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "/kbs/v0/auth";

    fn limiter(per_second: u32) -> Limiter {
        Limiter::new(NonZeroU32::new(per_second).unwrap(), ReplyStyle::Registration)
    }

    fn host(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn a_burst_is_allowed_and_a_flood_is_not() {
        let limiter = limiter(2);
        let allowed = (0..100).filter(|_| limiter.allows(host(1), BOOT)).count();
        assert!((22..30).contains(&allowed), "{allowed}");
    }

    #[test]
    fn a_node_boots_while_others_use_up_everything() {
        let limiter = limiter(20);
        for attacker in 1..=20 {
            let flood = (0..500).filter(|_| limiter.allows(host(attacker), BOOT));
            assert!(flood.count() < 200);
        }
        assert!(limiter.all.check().is_err(), "nothing is left of what all share");
        for node in 100..120 {
            assert!((0..9).all(|_| limiter.allows(host(node), BOOT)));
        }
    }

    #[test]
    fn probes_use_up_nothing_that_others_need() {
        let limiter = limiter(20);
        for attacker in 1..=20 {
            for _ in 0..500 {
                limiter.allows(host(attacker), "/healthz");
            }
        }
        assert_eq!(limiter.free.len(), 0, "nor those of their own network");
        let left = limiter.all.check_n(NonZeroU32::new(200).unwrap());
        assert!(left.is_ok_and(|left| left.is_ok()));
    }

    #[test]
    fn the_networks_of_one_customer_share_the_free_requests() {
        let limiter = limiter(1);
        let network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, last, 0, 0, 0, 1]);
        let allowed = (0..256).filter(|last| limiter.allows(network(*last), BOOT)).count();
        assert!(allowed < 30, "{allowed}");
        assert!(limiter.allows(network(256), BOOT), "another customer");
    }

    #[test]
    fn a_fleet_behind_one_address_has_the_rate_of_the_server_where_that_is_said() {
        let node = IpAddr::from([10, 0, 0, 1]);
        let allowed = |shared: SharedSources| {
            let limiter = limiter(1000).shared_by(shared);
            // The share of one address is used up, but not the total.
            let share = NonZeroU32::new(5000).unwrap();
            limiter.each.check_key_n(&SourceNetwork::of(node), share).unwrap().unwrap();
            (0..1000).filter(|_| limiter.allows(node, BOOT)).count()
        };
        assert!(allowed(SharedSources::default()) < 500);
        let shared = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(allowed(SharedSources::from(&shared[..])), 1000);
        let other = ["192.0.2.0/24".parse().unwrap()];
        assert!(allowed(SharedSources::from(&other[..])) < 500);
    }
}
