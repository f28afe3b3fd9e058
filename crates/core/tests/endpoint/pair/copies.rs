//! Copies of aggregates on other paths: what is told of copies that never left.

use keiro_core::{AggregationConfig, AggregationMode, CopySpread, Parity, Redundancy};

use super::{
    aggregates::{fixed_copies, pair},
    *,
};

fn on_paths(copies: u8) -> AggregationConfig {
    AggregationConfig {
        spread: CopySpread::Paths,
        ..fixed_copies(AggregationMode::Eager, copies)
    }
}

impl Pair {
    fn change_first_path(&mut self, change: impl FnOnce(&mut PathConfig)) {
        let mut paths = paths_to(1, Bandwidth::from_mbit_per_second(100));
        change(&mut paths[0]);
        self.ends[0].set_paths(self.now, self.peers[0], &paths);
    }

    fn send_thin(&mut self, len: usize) {
        let (now, peer, app) = (self.now, self.peers[0], AppId::of_name(APP));
        self.ends[0]
            .send_datagram(now, peer, app, FlowId(1), false, &vec![7; len])
            .expect("room");
    }
}

#[test]
fn copies_that_the_other_path_is_too_narrow_for_are_no_loss() {
    let parity = Parity::new(1, 1, None).expect("as much as copies");
    for redundancy in [Redundancy::Copies, Redundancy::Parity(parity)] {
        let mut pair = pair(&AggregationConfig {
            redundancy,
            ..on_paths(2)
        });
        pair.change_first_path(|path| path.mtu_max = 1280);
        for _ in 0..1000 {
            pair.send_thin(1330);
            pair.run(Duration::from_millis(1), |_| false);
        }
        pair.run(Duration::from_millis(100), |_| false);
        let seen = pair.aggregation();
        assert!(seen.aggregates.sent > 900, "{seen:?}");
        assert_eq!((seen.aggregates.lost, seen.copies.lost), (0, 0), "{seen:?}");
        assert_eq!(seen.copies_left_out, 1000, "{seen:?}");
    }
}

#[test]
fn copies_that_a_path_took_with_it_are_no_loss() {
    let mut pair = pair(&on_paths(2));
    pair.send_many(100, Duration::from_millis(1));
    // The aggregate leaves, and its copy waits when the other path is removed.
    pair.send_one(100);
    let mut buf = TransmitBuf::new(1);
    let transmit = pair.ends[0].poll_transmit(pair.now, &mut buf);
    assert_eq!(transmit.map(|transmit| transmit.socket), Some(SocketId(1)));
    let paths = paths_to(1, Bandwidth::from_mbit_per_second(100));
    pair.ends[0].set_paths(pair.now, pair.peers[0], &paths[1..]);
    let session = pair.ends[0].session(pair.peers[0]).expect("peer exists");
    let seen = session.paths[0].aggregation.as_ref().expect("it gathers");
    assert_eq!(seen.copies_left_out, 1);
}
