//! The steady state of additive increase and multiplicative decrease, and the parameters that make
//! it what a weight asks for.
//!
//! A window that grows by *a* packets per round trip and is multiplied by 1 − *b* when a packet is
//! lost carries x = (1/R)·√(a(2−b)/(2bp)) packets per second, where p is the share of packets lost
//! and R the round trip (AIMD's well-known steady state; the paper sets a and b "from the measured
//! round trip and loss" without printing it). Windows are in packets, times in seconds.

use std::time::Duration;

use super::controller::Weight;
use keiro_units::Probability;

/// Increase and decrease of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Aimd {
    increase: f64,
    decrease: f64,
}

/// What the provider sets, the same at every ingress.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Provider {
    /// a, and b of a tenant of weight 1 at the reference round trip.
    pub aimd: Aimd,
    /// R₀: the round trip at which `aimd` holds for weight 1.
    pub round_trip: Duration,
    /// The window's packets are spread over the round trip. The paper does not say how they leave;
    /// windows that leave in bursts do not all see the same loss.
    pub spaced: bool,
}

/// Where b would leave (0, 1) it is held here and a is scaled: an ingress that gave up almost all
/// of its window at a loss would stop. Ours.
const DECREASE_MAX: f64 = 0.9;
/// The same at the other end: 700 losses to halve a window. Ours.
const DECREASE_MIN: f64 = 0.001;

impl Aimd {
    /// `increase`: packets per round trip, above 0; `decrease`: share of the window given up at a
    /// loss, in (0, 1). `None` outside of that.
    pub fn new(increase: f64, decrease: f64) -> Option<Self> {
        let valid = increase.is_finite() && increase > 0.0 && decrease > 0.0 && decrease < 1.0;
        valid.then_some(Self { increase, decrease })
    }

    /// a, packets per round trip.
    pub const fn increase(&self) -> f64 {
        self.increase
    }

    /// b, share of the window.
    pub const fn decrease(&self) -> f64 {
        self.decrease
    }

    /// x: packets per second in the steady state. `None` where nothing is lost or the round trip is
    /// zero: there is no bound then.
    pub fn rate(&self, loss: Probability, round_trip: Duration) -> Option<f64> {
        let (a, b, p) = (self.increase, self.decrease, loss.get());
        let r = round_trip.as_secs_f64();
        (p > 0.0 && r > 0.0).then(|| (a * (2.0 - b) / (2.0 * b * p)).sqrt() / r)
    }

    /// The b with which a window that grows by `increase` carries `rate` packets per second:
    /// b = 2a/(2pR²x² + a). Where no b below 1 does, b is held near it and a is scaled, so that the
    /// rate is met all the same.
    ///
    /// `None` if `increase` or `rate` is not above 0, or there is no loss or round trip to set it
    /// from.
    pub fn for_rate(
        increase: f64,
        rate: f64,
        loss: Probability,
        round_trip: Duration,
    ) -> Option<Self> {
        let (p, r) = (loss.get(), round_trip.as_secs_f64());
        let valid = increase > 0.0 && rate > 0.0 && p > 0.0 && r > 0.0;
        if !valid || !(increase * rate).is_finite() {
            return None;
        }
        let squared = p * (r * rate).powi(2);
        Self::meeting(increase, squared)
    }

    /// `squared`: p(Rx)², wanted to be a(2−b)/(2b).
    fn meeting(increase: f64, squared: f64) -> Option<Self> {
        let wanted = 2.0 * increase / (2.0 * squared + increase);
        let decrease = wanted.clamp(DECREASE_MIN, DECREASE_MAX);
        if decrease == wanted {
            return Self::new(increase, decrease);
        }
        Self::new(2.0 * decrease * squared / (2.0 - decrease), decrease)
    }
}

impl Provider {
    /// What a tenant of this weight does at this round trip so that it carries
    /// xᵢ = rᵢ·x(R₀, pᵢ) whatever its loss pᵢ is: p cancels, since x is proportional to 1/√p for
    /// every a and b. `None`: the round trip is zero.
    pub fn tenant(&self, weight: Weight, round_trip: Duration) -> Option<Aimd> {
        let Aimd { increase, decrease } = self.aimd;
        let ratio = round_trip.as_secs_f64() / self.round_trip.as_secs_f64();
        let usable = ratio.is_finite() && ratio > 0.0;
        // p(Rx)² with x = r·(1/R₀)·√(a(2−b₀)/(2b₀p)).
        let squared = (weight.get() * ratio).powi(2) * increase * (2.0 - decrease) / decrease / 2.0;
        usable.then(|| Aimd::meeting(increase, squared)).flatten()
    }
}

impl Default for Provider {
    /// a = 0.1 and b₀ = 0.1, with which the paper's prototype ran `[fairness table 6]`, at 100 ms.
    fn default() -> Self {
        Self {
            aimd: Aimd {
                increase: 0.1,
                decrease: 0.1,
            },
            round_trip: Duration::from_millis(100),
            spaced: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loss(p: f64) -> Probability {
        Probability::new(p).expect("a probability")
    }

    #[test]
    fn tcp_reno_gets_what_is_known_of_it() {
        // √(3/2)/(R√p): Mathis et al. 1997.
        let reno = Aimd::new(1.0, 0.5).expect("valid");
        let rate = reno.rate(loss(0.01), Duration::from_millis(100));
        assert!((rate.expect("loss") - 1.5f64.sqrt() * 100.0).abs() < 1e-9);
        assert_eq!(reno.rate(loss(0.0), Duration::from_millis(100)), None);
    }

    #[test]
    fn parameters_give_the_rate_that_was_wanted_even_where_b_ends() {
        let r = Duration::from_millis(80);
        for a in [0.01, 0.1, 1.0, 5.0] {
            for x in [0.1, 3.0, 500.0, 1e5] {
                for p in [1e-6, 1e-3, 0.2] {
                    let aimd = Aimd::for_rate(a, x, loss(p), r).expect("valid");
                    let met = aimd.rate(loss(p), r).expect("loss");
                    assert!((met / x - 1.0).abs() < 1e-9, "{a} {x} {p}: {met}");
                    assert!(aimd.decrease() > 0.0 && aimd.decrease() < 1.0);
                }
            }
        }
        assert_eq!(Aimd::for_rate(0.0, 1.0, loss(0.1), r), None);
        assert_eq!(Aimd::for_rate(1.0, f64::NAN, loss(0.1), r), None);
        assert_eq!(Aimd::for_rate(1.0, 1.0, loss(0.1), Duration::ZERO), None);
    }

    #[test]
    fn tenants_carry_their_weight_whatever_their_round_trip() {
        let provider = Provider::default();
        let one = Weight::new(1.0).expect("above 0");
        let r0 = provider.round_trip;
        assert_eq!(provider.tenant(one, r0).map(|aimd| aimd.decrease()), {
            Some(provider.aimd.decrease())
        });
        let p = loss(0.003);
        let unit = provider.aimd.rate(p, r0).expect("loss");
        for weight in [0.5, 1.0, 4.0, 100.0] {
            for ms in [1, 5, 150, 900] {
                let r = Duration::from_millis(ms);
                let weight = Weight::new(weight).expect("above 0");
                let aimd = provider.tenant(weight, r).expect("a round trip");
                let x = aimd.rate(p, r).expect("loss");
                assert!((x / unit / weight.get() - 1.0).abs() < 1e-9);
            }
        }
        assert_eq!(provider.tenant(one, Duration::ZERO), None);
    }
}
