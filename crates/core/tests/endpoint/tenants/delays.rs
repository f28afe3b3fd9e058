//! Measured delays of IP packets are those that they had.

use std::collections::VecDeque;

use keiro_core::Instant;

use super::{Bottleneck, ControllerConfig, Duration, MS, Net, ONE, app, narrow, tenant};

/// Delays that are measured, and those that the packets had, in seconds on average.
fn delays(path_mbit: u64, bottleneck: Bottleneck, queued_bytes: u64) -> (f64, f64, usize) {
    let mut net = Net::new(path_mbit, bottleneck);
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    let mut sent: VecDeque<Instant> = VecDeque::new();
    let (mut had, mut measured) = (Vec::new(), Vec::new());
    let mut arrived = 0;
    net.run(Duration::from_secs(3), |net| {
        let now = net.arrived.get(&ONE).copied().unwrap_or(0);
        for _ in 0..(now - arrived) / 1000 {
            let since = sent.pop_front().expect("it was sent");
            had.push((net.now - since).as_secs_f64());
        }
        arrived = now;
        while let Some(sample) = net.ends[0].poll_delay_sample() {
            assert_eq!((sample.peer, sample.app), (net.peers[0], app()));
            measured.push(sample.delay.as_secs_f64());
        }
        while net.snapshot(ONE).stats.queued_bytes < queued_bytes {
            net.send(ONE, 1, 1000).expect("accepted");
            sent.push_back(net.now);
        }
    });
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    (mean(&measured), mean(&had), measured.len())
}

#[test]
fn delays_of_ip_packets_are_measured_in_queues_here_and_on_the_way() {
    let unlimited = Bottleneck {
        buffer: Duration::from_secs(1),
        ..narrow()
    };
    // A queue at the pacer, which CoDel keeps short; a deep one behind a pacer that is too fast.
    for (mbit, queued) in [(19, 8000), (25, 1000)] {
        let (measured, had, samples) = delays(mbit, unlimited, queued);
        assert!(samples > 100, "{mbit} Mbit/s: {samples} samples");
        // Arrivals are looked at once a millisecond.
        let had = had - MS.as_secs_f64() / 2.0;
        let error = (measured / had - 1.0).abs();
        assert!(error < 0.1, "{mbit} Mbit/s: {measured} s of {had} s");
    }
}
