//! Configuration of a link: a value that can be compared, generated and shrunk.

use std::time::Duration;

use keiro_units::{Bandwidth, ByteCount, Probability};

/// One direction of one link.
///
/// The default is a perfect link: unlimited rate, no delay, no loss, unlimited buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// Rate of the transmitter in bit/s, counting packet lengths plus
    /// [`overhead_per_packet`](Self::overhead_per_packet). `None` is unlimited: packets take no time and
    /// nothing ever waits. At zero nothing leaves until the rate changes.
    pub rate: Option<Bandwidth>,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Each packet's delay is increased by a value drawn uniformly from 0..=`jitter`.
    pub jitter: Duration,
    /// Whether a packet with little jitter may overtake one with much. Otherwise (the default) it waits and
    /// leaves at the same instant, behind it.
    pub jitter_overtakes: bool,
    /// Packets lost in flight, after transmission.
    pub loss: Loss,
    /// Probability that a packet arrives twice, back to back. The duplicate uses no transmission time.
    pub duplicate: Probability,
    /// Probability that one bit of a packet is flipped.
    pub corrupt: Probability,
    /// Packets delayed in flight so that later ones overtake them.
    pub reorder: Reorder,
    /// Capacity of the transmitter's buffer.
    pub buffer: Buffer,
    /// Layer-2 bytes that a packet takes beside its length, for the rate and for a buffer in
    /// bytes. Zero counts exactly the length given to [`arrive`](crate::Link::arrive), by
    /// convention the IP packet; 38 counts Ethernet with header, check sequence, preamble and gap.
    /// Negative values subtract a header; a packet never counts less than zero bytes.
    pub overhead_per_packet: i32,
    /// Cut: every arrival is dropped, and packets in the link when it is cut are lost as well.
    pub down: bool,
}

/// Capacity of the transmitter's buffer. The packet in transmission does not count, and a packet that finds
/// the transmitter idle is always accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Buffer {
    /// As much as [`PACKETS_MAX`](crate::PACKETS_MAX) allows.
    #[default]
    Unlimited,
    /// Number of packets, whatever their length.
    Packets(u32),
    /// Bytes, including [`overhead_per_packet`](LinkConfig::overhead_per_packet). A packet that would exceed
    /// the limit is dropped completely.
    Bytes(ByteCount),
}

/// Loss model of packets in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    #[default]
    None,
    /// Independent losses with this probability.
    Bernoulli(Probability),
    GilbertElliott(GilbertElliott),
}

/// Losses in bursts: two states, a step before every packet (Gilbert 1960, Elliott 1963).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// From the good to the bad state, per packet.
    pub good_to_bad: Probability,
    /// From the bad to the good state, per packet.
    pub bad_to_good: Probability,
    /// Loss in the good state.
    pub loss_good: Probability,
    /// Loss in the bad state.
    pub loss_bad: Probability,
}

/// Packets delayed so that later ones overtake them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reorder {
    /// Fraction of delayed packets.
    pub probability: Probability,
    /// Extra delay, in addition to delay and jitter.
    pub extra_delay: Duration,
}

impl LinkConfig {
    /// The bytes that a packet of length `len` counts.
    pub fn counted(&self, len: ByteCount) -> ByteCount {
        ByteCount::new(
            len.get()
                .saturating_add_signed(i64::from(self.overhead_per_packet)),
        )
    }
}

impl GilbertElliott {
    /// Bursts in which all packets are lost: `mean_loss` of all packets, in bursts of `mean_burst_packets` on
    /// average.
    ///
    /// `None` if bursts are shorter than one packet, or if so much loss needs longer bursts
    /// (`mean_loss / (1 − mean_loss) > mean_burst_packets`, or all packets lost).
    pub fn from_mean_loss_and_burst(
        mean_loss: Probability,
        mean_burst_packets: f64,
    ) -> Option<Self> {
        if !(mean_burst_packets >= 1.0 && mean_burst_packets.is_finite()) {
            return None;
        }
        let bad_to_good = 1.0 / mean_burst_packets;
        let loss = mean_loss.get();
        Some(Self {
            good_to_bad: Probability::new(bad_to_good * loss / (1.0 - loss))?,
            bad_to_good: Probability::new(bad_to_good)?,
            loss_good: Probability::ZERO,
            loss_bad: Probability::ONE,
        })
    }

    /// Long-term fraction of lost packets; `None` if neither state is ever left, so that it is undefined.
    pub fn mean_loss(&self) -> Option<f64> {
        let (enter, leave) = (self.good_to_bad.get(), self.bad_to_good.get());
        let bad = (enter + leave > 0.0).then(|| enter / (enter + leave))?;
        Some(bad * self.loss_bad.get() + (1.0 - bad) * self.loss_good.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probability(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    #[test]
    fn bursts_have_the_configured_mean_loss() {
        for (loss, burst) in [(0.01, 1.0), (0.01, 5.0), (0.3, 20.0), (0.5, 1.0)] {
            let chain = GilbertElliott::from_mean_loss_and_burst(probability(loss), burst).unwrap();
            let mean = chain.mean_loss().unwrap();
            assert!((mean - loss).abs() < 1e-12, "{mean} instead of {loss}");
        }
    }

    #[test]
    fn impossible_bursts_are_refused() {
        for (loss, burst) in [
            (0.01, 0.5),
            (0.9, 1.0),
            (1.0, 5.0),
            (0.1, f64::NAN),
            (0.1, f64::INFINITY),
        ] {
            assert_eq!(
                GilbertElliott::from_mean_loss_and_burst(probability(loss), burst),
                None
            );
        }
    }

    #[test]
    fn overhead_counts_with_its_sign_and_stops_at_zero() {
        let with = |overhead_per_packet| LinkConfig {
            overhead_per_packet,
            ..LinkConfig::default()
        };
        assert_eq!(with(38).counted(ByteCount::new(100)), ByteCount::new(138));
        assert_eq!(with(-14).counted(ByteCount::new(100)), ByteCount::new(86));
        assert_eq!(with(-14).counted(ByteCount::new(10)), ByteCount::ZERO);
    }
}
