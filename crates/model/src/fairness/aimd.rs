//! The steady state of additive increase and multiplicative decrease, and the parameters that make
//! it what a weight asks for.
//!
//! A window that grows by *a* packets per round trip and is multiplied by 1 − *b* when a packet is
//! lost carries x = (1/R)·√(a(2−b)/(2bp)) packets per second, where p is the share of packets lost
//! and R the round trip (AIMD's well-known steady state; the paper sets a and b "from the measured
//! round trip and loss" without printing it). Windows are in packets, times in seconds.
//!
//! Tenant i is to carry rᵢ·x₁ whatever its p and R are: b = 2a/(2p(R·rᵢ·x₁)² + a). In the paper x₁ is
//! what VPN 1 carries, which its other ingresses know. Ours do not know of each other, so x₁ is
//! configured, the same at all of them. A number alone would be no congestion control: were it more
//! than there is, every loss would make b smaller and losses more. So x₁ falls with p, but slowly:
//! within [`FLAT`] x₁ = unit·(p₁/p)^⅙, where p₁ is the loss at which a, b and R₀ carry the unit. A
//! tenant with nine times the loss gets two thirds, where the 1/√p of AIMD leaves one. Beyond,
//! the unit is far from what there is, and x₁ follows 1/√p as AIMD does.

use std::time::Duration;

use super::controller::Weight;
use keiro_units::{Bandwidth, ByteCount, Probability};

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
    /// What a weight of 1 is expected to get, roughly, in wire bytes. `None`: x₁ is what AIMD carries at
    /// R₀ and the tenant's own loss, so that a tenant with more loss gets less.
    pub unit: Option<Bandwidth>,
    /// The window's packets are spread over the round trip. The paper does not say how they leave;
    /// windows that leave in bursts do not all see the same loss.
    pub spaced: bool,
}

/// x₁ ∝ p to the power of −`SLOPE`. Ours: over the three bottlenecks of the paper's fig. 7 a larger one
/// leaves the tenant that meets all of them less, and a smaller one lets losses grow more where the unit
/// is too large.
const SLOPE: f64 = 1.0 / 6.0;
/// As multiples of p₁. A unit that is 1.6 times too small or twice too large is within. Wider ones
/// would let b or the loss become too large with a unit that is wrong. Ours.
const FLAT: [f64; 2] = [1.0 / 16.0, 64.0];
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
        Self::for_rate_at(increase, rate, loss.get(), round_trip)
    }

    /// The same; `loss` may be above 1, where a formula has it so.
    fn for_rate_at(increase: f64, rate: f64, loss: f64, round_trip: Duration) -> Option<Self> {
        let r = round_trip.as_secs_f64();
        let valid = increase > 0.0 && rate > 0.0 && loss > 0.0 && r > 0.0;
        let squared = loss * (r * rate).powi(2);
        (valid && squared > 0.0 && (increase + squared).is_finite())
            .then(|| Self::meeting(increase, squared))
            .flatten()
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
    /// p₁: the loss at which a, b and R₀ carry the unit. Above 1 where they carry less at any loss. Without
    /// a unit any loss will do, since it cancels.
    pub(super) fn reference_loss(&self, packet: ByteCount) -> f64 {
        let Aimd { increase, decrease } = self.aimd;
        let Some(unit) = self.packets_per_second(packet) else {
            return 1.0;
        };
        let window = unit * self.round_trip.as_secs_f64();
        increase * (2.0 - decrease) / (2.0 * decrease) / window.powi(2)
    }

    /// The unit in packets per second. `packet`: wire bytes of each.
    fn packets_per_second(&self, packet: ByteCount) -> Option<f64> {
        let bits = self.unit?.as_bits_per_second().max(1) as f64;
        Some(bits / 8.0 / packet.get().max(1) as f64)
    }

    /// What a tenant of this weight does at this round trip and share of packets lost so that it carries
    /// rᵢ·x₁. `packet`: wire bytes of its packets. `None`: R or R₀ is zero.
    pub fn tenant(
        &self,
        weight: Weight,
        round_trip: Duration,
        loss: f64,
        packet: ByteCount,
    ) -> Option<Aimd> {
        let a = self.aimd.increase();
        let p1 = self.reference_loss(packet);
        let Some(unit) = self.packets_per_second(packet) else {
            let x1 = self.aimd.rate(Probability::ONE, self.round_trip)?;
            return Aimd::for_rate_at(a, weight.get() * x1, p1, round_trip);
        };
        // Held within the flat part, and so b with it: the window of that b goes with 1/√p beyond.
        let of_p1 = (loss / p1).clamp(FLAT[0], FLAT[1]);
        let x1 = unit * of_p1.powf(-SLOPE);
        Aimd::for_rate_at(a, weight.get() * x1, of_p1 * p1, round_trip)
    }
}

impl Default for Provider {
    /// a = 0.1 and b₀ = 0.1, with which the paper's prototype ran `[fairness table 6]`, at 100 ms; the
    /// unit of controller `keiro`.
    fn default() -> Self {
        Self {
            aimd: Aimd {
                increase: 0.1,
                decrease: 0.1,
            },
            round_trip: Duration::from_millis(100),
            unit: Some(Bandwidth::from_mbit_per_second(4)),
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

    const PACKET: ByteCount = ByteCount::new(1500);

    #[test]
    fn tenants_carry_their_weight_of_the_unit_whatever_their_round_trip() {
        let provider = Provider::default();
        let one = Weight::ONE;
        let p1 = provider.reference_loss(PACKET);
        let at_reference = provider.tenant(one, provider.round_trip, p1, PACKET);
        let b = at_reference.map(|aimd| aimd.decrease()).expect("valid");
        assert!((b / provider.aimd.decrease() - 1.0).abs() < 1e-9, "{b}");
        let unit = 4e6 / 8.0 / 1500.0;
        for weight in [0.5, 1.0, 4.0, 100.0] {
            for ms in [1, 5, 150, 900] {
                // x₁ at this loss: the sixth root, and beyond 16 and 64 the square root.
                for (of_p1, of_unit) in [
                    (1.0, 1.0),
                    (64.0, 0.5),
                    (1.0 / 256.0, 16f64.powf(SLOPE) * 4.0),
                    (256.0, 0.25),
                ] {
                    let r = Duration::from_millis(ms);
                    let weight = Weight::new(weight).expect("above 0");
                    let aimd = provider.tenant(weight, r, of_p1 * p1, PACKET);
                    let x = aimd
                        .expect("valid")
                        .rate(loss(of_p1 * p1), r)
                        .expect("loss");
                    let wanted = unit * weight.get() * of_unit;
                    assert!(
                        (x / wanted - 1.0).abs() < 1e-9,
                        "{of_p1} {r:?}: {x} {wanted}"
                    );
                }
            }
        }
    }

    #[test]
    fn without_a_unit_loss_cancels() {
        let provider = Provider {
            unit: None,
            ..Provider::default()
        };
        let p = loss(0.003);
        let unit = provider.aimd.rate(p, provider.round_trip).expect("loss");
        for ms in [1, 100, 900] {
            let r = Duration::from_millis(ms);
            for measured in [1e-9, 0.003, 1.0] {
                let aimd = provider.tenant(Weight::ONE, r, measured, PACKET);
                let x = aimd.expect("valid").rate(p, r).expect("loss");
                assert!((x / unit - 1.0).abs() < 1e-9, "{ms} {measured}");
            }
        }
    }

    #[test]
    fn parameters_stay_within_bounds_whatever_is_measured_or_configured() {
        let numbers = [
            0.0,
            1e-300,
            1e-9,
            0.5,
            1.0,
            1e300,
            f64::INFINITY,
            f64::NAN,
            -1.0,
        ];
        let times = [0, 1, 1_000_000, u64::MAX].map(Duration::from_nanos);
        let units = [None, Some(0), Some(1), Some(u64::MAX)];
        for unit in units.map(|unit| unit.map(Bandwidth::from_bits_per_second)) {
            for reference in times {
                let provider = Provider {
                    unit,
                    round_trip: reference,
                    ..Provider::default()
                };
                for (measured, packet) in numbers.iter().flat_map(|n| [(*n, 0), (*n, u64::MAX)]) {
                    for round_trip in times {
                        let weight = Weight::new(1e6).expect("the largest");
                        let packet = ByteCount::new(packet);
                        let Some(aimd) = provider.tenant(weight, round_trip, measured, packet)
                        else {
                            continue;
                        };
                        assert!(aimd.increase().is_finite() && aimd.increase() > 0.0);
                        assert!((DECREASE_MIN..=DECREASE_MAX).contains(&aimd.decrease()));
                    }
                }
                let zero = provider.tenant(Weight::ONE, Duration::ZERO, 0.1, PACKET);
                assert_eq!(zero, None);
            }
        }
    }
}
