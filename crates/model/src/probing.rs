//! What it costs to keep an idle path alive and to know what it carries.
//!
//! A path is idle while neither end sends data on it. It is then measured as before for some minutes, and after that
//! less and less. A limit of bytes a month, of both ends together, leaves less from the beginning: where it is zero
//! the path is *metered*, and an idle one carries keepalives only.

use std::time::Duration;

use keiro_units::{Bandwidth, ByteCount};

/// What limits and costs are stated for.
pub const MONTH: Duration = Duration::from_secs(30 * 86_400);
/// Time after its last data for which a path is measured as in use. Ours: a person who reads and goes on.
pub const IDLE_AFTER: Duration = Duration::from_secs(300);
/// Then the rate of probes halves in this time. Ours: from 250 kbit/s to the floor in less than five minutes.
const HALVES_IN: Duration = Duration::from_secs(30);
/// Where that ends: a train of eight packets in three minutes and a half. Ours: both ends together send 0.3 GB a
/// month so.
pub const IDLE_PROBE_RATE: Bandwidth = Bandwidth::from_bits_per_second(480);
/// Time between keepalives of a path that is idle.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(2);
/// And of one that is metered, or has a limit. Ours: NATs forget a flow of UDP after 30 s or more (RFC 4787 §4.3
/// asks for two minutes).
pub const KEEPALIVE_METERED: Duration = Duration::from_secs(25);
/// A keepalive and its acknowledgement with the headers of IPv6 and UDP, bytes.
const KEEPALIVE_BYTES: u64 = 168;
/// Keepalives are up to a quarter closer together, so that paths do not send them in step: on the average an eighth.
const KEEPALIVE_SPREAD: f64 = 7.0 / 8.0;
/// A handshake with what confirms it, in IPv6, bytes; one every two minutes.
const HANDSHAKE_BYTES: u64 = 560;
const HANDSHAKE_EVERY: Duration = Duration::from_secs(120);
/// A search for a larger MTU every ten minutes where the path carries less than the interface, bytes.
const MTU_SEARCH_BYTES: u64 = 20_000;
const MTU_SEARCH_EVERY: Duration = Duration::from_secs(600);

/// The least limit that leaves something for measurement. Ours: a bit above what keepalives and handshakes take.
pub const LIMIT_MIN: ByteCount = ByteCount::new(60_000_000);

/// What pays for less than a train an hour measures nothing: a train has up to 16 packets of 1500 bytes.
const PROBE_RATE_MIN: Bandwidth = Bandwidth::from_bits_per_second(64);

/// What one end may spend on probes beside keepalives where the path has a limit, both ends' bytes a month.
pub fn rate_of_limit(limit: ByteCount) -> Bandwidth {
    let spare = limit.get().saturating_sub(LIMIT_MIN.get()) / 2;
    let rate = Bandwidth::from_bits_per_second(spare.saturating_mul(8) / MONTH.as_secs());
    match rate < PROBE_RATE_MIN {
        true => Bandwidth::ZERO,
        false => rate,
    }
}

/// What one end spends on probes of a path that has been idle for some time, of what it may spend while it is in use.
pub fn rate_when_idle(in_use: Bandwidth, idle: Duration) -> Bandwidth {
    let decaying = idle.saturating_sub(IDLE_AFTER);
    if decaying < HALVES_IN {
        return in_use;
    }
    let halvings = (decaying.as_millis() / HALVES_IN.as_millis()).min(63) as u32;
    let decayed = in_use.as_bits_per_second() >> halvings;
    Bandwidth::from_bits_per_second(decayed.max(IDLE_PROBE_RATE.as_bits_per_second())).min(in_use)
}

/// What an idle path costs in a month, bytes of IP packets of both ends in both directions: keepalives, handshakes and
/// probes. `probes`: what one end may spend on them while the path is in use; `limit`: both ends' bytes a month.
pub fn idle_cost(probes: Bandwidth, limit: Option<ByteCount>) -> ByteCount {
    let month = MONTH.as_secs_f64();
    let times = |every: Duration| month / every.as_secs_f64();
    let handshakes = times(HANDSHAKE_EVERY) * HANDSHAKE_BYTES as f64;
    let cost = |keepalive: Duration, probes: Bandwidth, searches: f64| {
        let keepalives = 2.0 * times(keepalive) / KEEPALIVE_SPREAD * KEEPALIVE_BYTES as f64;
        let probes = 2.0 * probes.as_bits_per_second() as f64 / 8.0 * month;
        let searches = 2.0 * searches * MTU_SEARCH_BYTES as f64;
        ByteCount::new((handshakes + keepalives + probes + searches) as u64)
    };
    let idle = rate_when_idle(probes, Duration::MAX);
    let unlimited = cost(KEEPALIVE_IDLE, idle, times(MTU_SEARCH_EVERY));
    let Some(limit) = limit else {
        return unlimited;
    };
    let limited = cost(KEEPALIVE_METERED, idle.min(rate_of_limit(limit)), 0.0);
    limited.min(unlimited)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn idle_paths_cost_what_is_promised() {
        for mbit in [1, 50, 1000] {
            let share = Bandwidth::from_bits_per_second(mbit * 5_000);
            let cost = idle_cost(share, None).get();
            assert!((GB / 2..=GB).contains(&cost), "{mbit} Mbit/s: {cost} bytes");
            let metered = idle_cost(share, Some(ByteCount::ZERO)).get();
            assert!(metered < 10_000_000 * 30 / 5, "{metered} bytes a month");
            for limit in [100_000_000, 500_000_000, GB, 100 * GB] {
                let cost = idle_cost(share, Some(ByteCount::new(limit))).get();
                assert!(metered <= cost && cost <= limit, "{cost} of {limit} bytes");
            }
        }
    }

    #[test]
    fn probes_decay_after_five_minutes_and_never_grow() {
        let in_use = Bandwidth::from_bits_per_second(250_000);
        let after =
            |seconds| rate_when_idle(in_use, Duration::from_secs(seconds)).as_bits_per_second();
        assert_eq!([0, 300, 329].map(after), [250_000; 3]);
        assert_eq!([330, 360, 420].map(after), [125_000, 62_500, 15_625]);
        assert_eq!([600, 86_400].map(after), [480; 2]);
        let little = Bandwidth::from_bits_per_second(100);
        assert_eq!(rate_when_idle(little, Duration::from_secs(9999)), little);
        assert_eq!(
            rate_when_idle(Bandwidth::ZERO, Duration::MAX),
            Bandwidth::ZERO
        );
    }

    #[test]
    fn a_limit_leaves_what_keepalives_do_not_take() {
        assert_eq!(rate_of_limit(ByteCount::ZERO), Bandwidth::ZERO);
        assert_eq!(rate_of_limit(LIMIT_MIN), Bandwidth::ZERO);
        assert_eq!(rate_of_limit(ByteCount::new(100_000_000)), Bandwidth::ZERO);
        let rate = rate_of_limit(ByteCount::new(GB)).as_bits_per_second();
        assert!((1_400..1_500).contains(&rate), "{rate} bit/s");
        assert!(rate_of_limit(ByteCount::MAX) > Bandwidth::from_mbit_per_second(1));
    }
}
