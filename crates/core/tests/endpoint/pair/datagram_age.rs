//! Datagrams age: what is older than its application's lifetime is of no use to its receiver.

use std::time::Duration;

use keiro_core::{AppConfig, AppId, DeliveryClass, FlowId, Instant, NewDatagram, TransmitBuf};

use super::{APP, Pair, app_config};

const MS: Duration = Duration::from_millis(1);
const LIFETIME: Duration = Duration::from_secs(1);

impl Pair {
    fn with_lifetime(lifetime: Option<Duration>) -> Self {
        let mut pair = Self::new(DeliveryClass::Datagram);
        for end in 0..2 {
            let app = AppConfig {
                lifetime,
                ..app_config(DeliveryClass::Datagram)
            };
            let peer = pair.peers[end];
            pair.ends[end].set_app(peer, app);
        }
        pair.up();
        pair
    }

    /// Its data say when it was made.
    fn send_datagram_made(&mut self, made: Instant) {
        let data = made.as_nanos().to_be_bytes();
        let datagram = NewDatagram::new(AppId::of_name(APP), FlowId(1), made, &data);
        let sent = self.ends[0].send_datagram(self.now, self.peers[0], datagram);
        sent.expect("a peer and its application");
    }

    /// One every 20 ms for `duration`.
    fn send_datagrams(&mut self, duration: Duration) -> u64 {
        let count = (duration.as_millis() / 20) as u64;
        for _ in 0..count {
            self.send_datagram_made(self.now);
            self.run(20 * MS, |_| false);
        }
        count
    }

    /// How old each was when it arrived.
    fn ages(&self) -> Vec<Duration> {
        let arrived = self.sides[1].datagrams.iter().zip(&self.sides[1].came_at);
        let age = |((_, _, data), at): (&(FlowId, bool, Vec<u8>), &Instant)| {
            let made = u64::from_be_bytes(data[..].try_into().expect("eight bytes"));
            *at - Instant::from_nanos(made)
        };
        arrived.map(age).collect()
    }

    fn expired(&self) -> u64 {
        let session = self.ends[0].session(self.peers[0]).expect("a peer");
        session.apps[0].stats.expired_messages
    }

    fn refused_by_receiver(&self) -> u64 {
        let session = self.ends[1].session(self.peers[1]).expect("a peer");
        session.apps[0].stats.refused_messages
    }
}

#[test]
fn datagrams_older_than_their_lifetime_are_dropped_after_an_outage() {
    let mut pair = Pair::with_lifetime(Some(LIFETIME));
    let before = pair.send_datagrams(200 * MS);
    pair.down = [true; 2];
    let during = pair.send_datagrams(30_000 * MS);
    pair.down = [false; 2];
    let after = pair.send_datagrams(2_000 * MS);
    pair.run(LIFETIME, |_| false);
    let ages = pair.ages();
    assert!(ages.iter().all(|age| *age <= LIFETIME + 5 * MS), "{ages:?}");
    let (arrived, expired) = (ages.len() as u64, pair.expired());
    assert!(arrived >= before + after / 2, "{arrived}");
    // The others were on the dead path before its death was noticed.
    let lost = before + during + after - arrived - expired;
    assert!(expired >= during - 100 && lost <= 20, "{expired} {lost}");
}

#[test]
fn without_a_lifetime_queued_datagrams_arrive_after_an_outage() {
    let mut pair = Pair::with_lifetime(None);
    pair.down = [true; 2];
    pair.run(1_000 * MS, |_| false);
    pair.send_datagrams(10_000 * MS);
    pair.down = [false; 2];
    pair.run(10_000 * MS, |pair| pair.sides[1].datagrams.len() == 500);
    assert_eq!((pair.ages().len(), pair.expired()), (500, 0));
}

#[test]
fn age_of_a_datagram_counts_from_its_creation() {
    let mut pair = Pair::with_lifetime(Some(LIFETIME));
    pair.run(2_000 * MS, |_| false);
    let now = pair.now.as_nanos();
    let made = |before: Duration| Instant::from_nanos(now - before.as_nanos() as u64);
    pair.send_datagram_made(made(LIFETIME));
    pair.send_datagram_made(made(LIFETIME - 10 * MS));
    pair.run(100 * MS, |_| false);
    assert_eq!((pair.ages().len(), pair.expired()), (1, 1));
}

#[test]
fn what_the_kernel_of_the_receiver_held_for_longer_is_not_delivered() {
    let mut pair = Pair::with_lifetime(Some(LIFETIME));
    pair.run(4_000 * MS, |_| false);
    for (held, arrived) in [(LIFETIME - MS, 1), (LIFETIME + MS, 1)] {
        pair.send_datagram_made(pair.now);
        pair.drain(0, &mut TransmitBuf::new(10));
        pair.held = held;
        pair.run(10 * MS, |_| false);
        pair.held = Duration::ZERO;
        assert_eq!(pair.ages().len(), arrived, "{held:?}");
    }
    assert_eq!(pair.refused_by_receiver(), 1);
}
