//! What a train costs the data thread: one more, of those that are kept.

use std::time::Duration;

use divan::Bencher;
use keiro_model::{
    bottleneck::CapacityTracker,
    capacity::{Stamp, Train},
};
use keiro_units::Instant;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

fn main() {
    divan::main();
}

/// Trains over 100 Mbit/s, each packet after a packet of others with this probability in per cent,
/// each stamp up to 20 us late.
fn trains(packets: u32, others: u32) -> Vec<Train> {
    let mut random = ChaCha12Rng::seed_from_u64(1);
    let mut train = || {
        let mut at_nanos = 0;
        let received = (0..packets)
            .map(|index| {
                let met = u64::from(random.next_u32() % 100 < others);
                at_nanos += 120_000 * (1 + met);
                Stamp {
                    index,
                    at_nanos: at_nanos + u64::from(random.next_u32() % 20_000),
                    bytes: 1500,
                }
            })
            .collect();
        Train {
            send_span: None,
            sent_packets: packets,
            received,
        }
    };
    (0..1000).map(|_| train()).collect()
}

#[divan::bench(args = [(2, 0), (2, 10), (16, 0), (16, 6), (16, 30)])]
fn train(bencher: Bencher<'_, '_>, (packets, others): (u32, u32)) {
    let trains = trains(packets, others);
    let mut follower = CapacityTracker::default();
    let mut now = Instant::ZERO;
    let mut next = 0;
    let mut take = || {
        now += Duration::from_millis(25);
        next = (next + 1) % trains.len();
        follower.on_train(now, trains[next].clone());
    };
    for _ in 0..100 {
        take();
    }
    bencher.bench_local(take);
}
