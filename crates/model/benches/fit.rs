//! How long a fit takes: the search is bounded whatever the number of points.

use divan::{Bencher, black_box};
use keiro_model::fit::{Fit, Sample};
use keiro_units::ByteCount;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

fn main() {
    divan::main();
}

/// Sizes from 1 kB to 100 MB, all different, over 100 Mbit/s with 10 ms, 5 % more or less.
fn samples(count: usize) -> Vec<Sample> {
    let mut random = ChaCha12Rng::seed_from_u64(1);
    let mut uniform = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let mut sample = || {
        let bytes = (1e3 * 1e5_f64.powf(uniform())).round();
        let seconds = (0.010 + bytes * 8e-8) * (0.95 + 0.1 * uniform());
        Sample::new(ByteCount::new(bytes as u64), seconds).expect("a transfer")
    };
    (0..count).map(|_| sample()).collect()
}

#[divan::bench(args = [100, 1_000, 10_000, 100_000])]
fn fit(bencher: Bencher<'_, '_>, points: usize) {
    let samples = samples(points);
    bencher.bench(|| Fit::of(black_box(&samples)));
}
