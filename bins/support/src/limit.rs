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
use tec_core::endpoint::network_of;
use tec_core::http::{ReplyStyle, refusal};

use crate::shared::SharedSources;

/// Number of addresses above which idle ones are dropped.
const FORGET_ABOVE: usize = 10_000;

/// Limits requests per client address and in total.
#[derive(Debug)]
pub struct Limiter {
    each: DefaultKeyedRateLimiter<IpAddr>,
    all: governor::DefaultDirectRateLimiter,
    style: ReplyStyle,
    shared: SharedSources,
}

impl Limiter {
    /// At most `per_second` requests in total and a tenth of that (at least one) per address, with bursts of
    /// ten seconds' worth: a rack that powers on all at once is not an attack.
    pub fn new(per_second: NonZeroU32, style: ReplyStyle) -> Self {
        let burst = |rate: NonZeroU32| rate.saturating_mul(TEN);
        let each = NonZeroU32::new(per_second.get() / 10).unwrap_or(NonZeroU32::MIN);
        Self {
            each: RateLimiter::keyed(Quota::per_second(each).allow_burst(burst(per_second))),
            all: RateLimiter::direct(Quota::per_second(per_second).allow_burst(burst(per_second))),
            style,
            shared: SharedSources::default(),
        }
    }

    /// Exempts clients in these networks from the limit per address: only the total limit applies to them.
    #[must_use]
    pub fn shared_by(self, shared: SharedSources) -> Self {
        Self { shared, ..self }
    }

    fn allows(&self, address: IpAddr) -> bool {
        if self.each.len() > FORGET_ABOVE {
            self.each.retain_recent();
        }
        let has_share =
            self.shared.contains(address) || self.each.check_key(&network_of(address)).is_ok();
        has_share && self.all.check().is_ok()
    }
}

const TEN: NonZeroU32 = NonZeroU32::MIN.saturating_add(9);

/// The middleware. It also records the network that a request came from, for limits per source.
pub async fn limit(
    State(limiter): State<Arc<Limiter>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    if limiter.allows(peer.ip()) {
        request.extensions_mut().insert(SourceNetwork::of(peer.ip()));
        next.run(request).await
    } else {
        refusal(limiter.style, Code::RegisterRate).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_a_flood_is_not() {
        let limiter = Limiter::new(NonZeroU32::new(2).unwrap(), ReplyStyle::Registration);
        let peer = IpAddr::from([192, 0, 2, 1]);
        let allowed = (0..100).filter(|_| limiter.allows(peer)).count();
        assert!((20..30).contains(&allowed), "{allowed}");
    }

    #[test]
    fn a_fleet_behind_one_address_has_the_rate_of_the_server_where_that_is_said() {
        let rate = NonZeroU32::new(1000).unwrap();
        let node = IpAddr::from([10, 0, 0, 1]);
        let allowed = |shared: SharedSources| {
            let limiter = Limiter::new(rate, ReplyStyle::Registration).shared_by(shared);
            // The share of one address is used up, but not the total.
            limiter.each.check_key_n(&network_of(node), rate.saturating_mul(TEN)).unwrap().unwrap();
            (0..1000).filter(|_| limiter.allows(node)).count()
        };
        assert!(allowed(SharedSources::default()) < 500);
        let shared = ["10.0.0.0/8".parse().unwrap()];
        assert_eq!(allowed(SharedSources::from(&shared[..])), 1000);
        let other = ["192.0.2.0/24".parse().unwrap()];
        assert!(allowed(SharedSources::from(&other[..])) < 500);
    }
}
