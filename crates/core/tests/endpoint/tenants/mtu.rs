//! The largest packet of a path on which packets get lost: congestion takes packets of every size,
//! and only a path that carries less than before takes the long ones alone.

use super::{ControllerConfig, Duration, MS, Net, ONE, app, narrow, tenant};

impl Net {
    fn mtu(&self) -> u64 {
        self.ends[0].paths(self.peers[0])[0].stats.mtu_bytes
    }

    /// Has as many packets of the tenant wait as there are, each as long as the path has room for.
    fn send_full(&mut self, count: usize) {
        let room = self.ends[0].packet_room(self.peers[0], ONE, app());
        for _ in 0..count {
            self.send(ONE, 1, room.expect("the path is up"))
                .expect("it has room for it");
        }
    }
}

/// A tenant without a window on a path that is known to carry 1500 bytes.
fn open(pacer: u64) -> Net {
    let mut net = Net::new(pacer, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    assert_eq!(net.mtu(), 1500);
    net
}

#[test]
fn losses_of_congestion_leave_the_mtu() {
    let mut net = open(1000);
    net.run(Duration::from_secs(2), |net| {
        net.send_full(100);
        assert_eq!(net.mtu(), 1500, "at {}", net.now);
    });
    let sent = &net.snapshot(ONE).paths[0];
    let of_hundred = 100 * sent.stats.lost_packets / sent.stats.sent_packets;
    assert!(of_hundred > 80, "only {of_hundred} % are lost");
}

#[test]
fn packets_that_are_only_late_leave_the_mtu() {
    let mut net = open(1000);
    net.run(100 * MS, |net| net.send_full(1));
    net.bottleneck.delay += 60 * MS;
    net.send_full(20);
    net.run(150 * MS, |net| {
        assert_eq!(net.mtu(), 1500, "at {}", net.now);
    });
    let (sent, path) = (net.snapshot(ONE), &net.ends[0].paths(net.peers[0])[0]);
    assert_eq!(sent.paths[0].stats.lost_packets, 0);
    assert!(
        path.stats.spurious_lost_packets > 5,
        "nothing was in doubt: {path:?}"
    );
}

#[test]
fn a_path_that_carries_less_than_before_is_noticed() {
    let mut net = open(1000);
    let each = |net: &mut Net| {
        net.send_full(1);
        net.send(ONE, 2, 100).expect("it has room for it");
    };
    net.run(100 * MS, each);
    net.longest = 1400;
    net.run(100 * MS, each);
    assert_eq!(net.mtu(), 1280);
    net.run(Duration::from_secs(4), each);
    assert!((1392..=1400).contains(&net.mtu()), "{}", net.mtu());
    let before = net.arrived[&ONE];
    net.run(Duration::from_secs(1), each);
    let arrived = net.arrived[&ONE] - before;
    assert!(arrived > 990 * 1400, "{arrived} bytes in a second");
}

#[test]
fn size_after_a_suspected_black_hole_is_probed_at_once() {
    let mut net = open(1000);
    net.run(100 * MS, |net| net.send_full(1));
    // Nothing long passes for a moment: what probes the tail is short.
    net.longest = 500;
    net.send_full(20);
    net.run(150 * MS, |_| {});
    net.longest = 1500;
    net.run(Duration::from_secs(1), |_| {});
    assert_eq!(net.mtu(), 1500);
}
