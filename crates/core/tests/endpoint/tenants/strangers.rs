//! Strangers overflow the socket at which a tenant's packets arrive.

use keiro_core::{PathConfig, PathId};

use super::*;

/// A socket whose buffer is full for a part of what arrives.
#[derive(Default)]
pub(super) struct Overflow {
    /// One in this number is dropped; zero: none.
    one_in: u64,
    arrived: u64,
    dropped: u64,
}

impl Overflow {
    /// Whether the next datagram is dropped.
    pub(super) fn drops_next(&mut self) -> bool {
        self.arrived += 1;
        // SplitMix64.
        let mixed = self.arrived.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        let is_dropped = self.one_in > 0 && (mixed ^ mixed >> 31).is_multiple_of(self.one_in);
        self.dropped += u64::from(is_dropped);
        is_dropped
    }
}

/// Why packets of the tenant do not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    None,
    /// Strangers fill the buffer of the socket, which drops a fifth of what arrives.
    Strangers,
    /// The line loses a fifth.
    Line,
}

/// One tenant that always has something to send.
struct Flooded {
    net: Net,
    loss: Loss,
}

impl Flooded {
    fn new(controller: ControllerConfig, loss: Loss) -> Self {
        let mut net = Net::new(100, narrow());
        net.set(tenant(ONE, 1.0, controller));
        Self { net, loss }
    }

    /// The path's rate is found.
    fn without_rate(loss: Loss) -> Self {
        let mut flooded = Self::new(ControllerConfig::Open, loss);
        let (net, unlimited) = (&mut flooded.net, peer(2, Some(address(2))));
        let path = PathConfig {
            rate: None,
            ..unlimited.paths[0].clone()
        };
        net.ends[0].set_paths(net.now, net.peers[0], &[path]);
        flooded
    }

    fn tick(loss: Loss, net: &mut Net) {
        while net.snapshot(ONE).stats.queued_bytes < 60_000 {
            net.send(ONE, 1, 1200).expect("accepted");
        }
        if loss != Loss::Strangers {
            return;
        }
        let stranger = address(777);
        for kind in 0..20 {
            if !net.overflow.drops_next() {
                let meta = support::meta(net.now, stranger);
                net.ends[1].handle_datagram(net.now, meta, &mut [kind % 6; 164]);
            }
        }
        net.ends[1].set_overflows(SocketId(0), net.overflow.dropped, 0);
    }

    /// Bytes that leave in five seconds after five, and the path's loss then.
    fn run(&mut self) -> (u64, f64) {
        let lossy = Duration::from_secs(5);
        self.run_for(lossy, Loss::None);
        self.net.overflow.one_in = if self.loss == Loss::None { 0 } else { 5 };
        self.run_for(lossy, self.loss);
        let before = self.path().0;
        self.run_for(lossy, self.loss);
        let (sent, loss) = self.path();
        (sent - before, loss)
    }

    fn run_for(&mut self, time: Duration, loss: Loss) {
        self.net.run(time, |net| Self::tick(loss, net));
    }

    fn path(&self) -> (u64, f64) {
        let session = self.net.ends[0].session(self.net.peers[0]);
        let paths = session.expect("peer exists").paths;
        let path = paths.iter().find(|path| path.id == PathId(0));
        let stats = path.expect("it has one").stats;
        let loss = stats.loss.expect("packets were sent");
        (stats.sent_bytes, loss.get())
    }
}

type Begin<'a> = &'a dyn Fn(Loss) -> Flooded;

#[test]
fn losses_by_strangers_slow_no_controller_and_those_of_the_line_do() {
    let i2vfc = ControllerConfig::I2vfc(Provider::default());
    // What is left of the rate where the line loses as much: a found one takes steady loss for
    // the line's own at any rate.
    let begins: [(&str, Begin<'_>, f64); 3] = [
        ("i2vfc", &|loss| Flooded::new(i2vfc, loss), 0.75),
        ("keiro", &|loss| Flooded::new(keiro(), loss), 0.75),
        ("a found rate", &Flooded::without_rate, 1.01),
    ];
    for (name, begin, keeps) in begins {
        let [(whole, _), (flooded, excused), (lossy, lost)] =
            [Loss::None, Loss::Strangers, Loss::Line].map(|loss| begin(loss).run());
        assert!(flooded * 10 >= whole * 9, "{name}: {flooded} of {whole}");
        assert!(excused < 0.01, "{name}: {excused}");
        let kept = lossy as f64 / whole as f64;
        assert!(kept < keeps, "{name}: {lossy} of {whole}");
        assert!(lost > 0.15, "{name}: {lost}");
    }
}

#[test]
fn impossible_drop_reports_exempt_no_losses() {
    let mut victim = Victim::new();
    for (path, packets) in [(0, (1 << 62) - 1), (0, 0), (63, 5), (255, 1)] {
        victim.inject(&support::stranger_drops(path, packets));
    }
    // Cut off.
    victim.inject(&frame(0x4d, &[&varint(1), &[0]]));
    assert_eq!(victim.drops(), [("malformed", 1)]);
    victim.assert_alive();
}
