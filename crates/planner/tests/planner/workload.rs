//! The workload meter over drawn traffic, and whether a forecast of that traffic is valid.

use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use keiro_model::workload::*;
use keiro_planner::queueing::{NoForecast, Spread, TrafficWindow, WindowHalf};
use keiro_units::Instant;
use std::time::Duration;

/// Feeds a meter; times in seconds.
struct Application {
    meter: WorkloadMeter,
    now: f64,
    random: ChaCha12Rng,
}

const SEED: u64 = 7;

impl Application {
    fn new() -> Self {
        Self {
            meter: WorkloadMeter::default(),
            now: 0.0,
            random: ChaCha12Rng::seed_from_u64(SEED),
        }
    }

    fn makes(&mut self, len: usize) {
        let made = Instant::from_nanos((self.now * 1e9).round() as u64);
        self.meter.on_made(made, len);
    }

    /// `count` batches of `size` messages 1 µs apart, one every `pause`.
    fn batches(&mut self, count: usize, size: usize, pause: f64) -> &mut Self {
        for _ in 0..count {
            let begun = self.now;
            for _ in 0..size {
                self.makes(1000);
                self.now += 1e-6;
            }
            self.now = begun + pause;
        }
        self
    }

    fn periodic(&mut self, count: usize, interval: f64) -> &mut Self {
        self.batches(count, 1, interval)
    }

    fn poisson(&mut self, count: usize, mean: f64) -> &mut Self {
        for _ in 0..count {
            self.makes(1000);
            self.now += self.exponential(mean);
        }
        self
    }

    fn silent(&mut self, seconds: f64) -> &mut Self {
        self.now += seconds;
        self
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        let uniform = ((self.random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -uniform.ln() * mean
    }

    fn seen(&self) -> Workload {
        self.meter.seen().unwrap()
    }

    /// The mean interval is `expected` seconds, within the part `tolerance`.
    fn comes_every(&self, expected: f64, tolerance: f64) {
        let seen = self.seen();
        let part = seen.interval.as_secs_f64() / expected;
        assert!(
            (part - 1.0).abs() <= tolerance,
            "not one every {expected} s: {seen:?}, seed {SEED}"
        );
    }

    /// What is said of a forecast for it, enough of it having been seen.
    fn judged(&self) -> Result<(), NoForecast> {
        let seen = self.seen();
        let half = WindowHalf {
            messages: 500,
            length_mean: seen.length_bytes,
            length_spread: Spread::new(seen.length_variation.powi(2)).unwrap(),
        };
        let window = TrafficWindow {
            halves: [half; 2],
            interval_spread: Spread::new(seen.interval_variation.powi(2)).unwrap(),
            together: seen.together,
        };
        window.check(0.5)
    }

    fn is_bursty(&self) -> bool {
        let judged = self.judged();
        matches!(
            judged,
            Err(NoForecast::Bursty { .. } | NoForecast::Together { .. })
        )
    }
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

#[test]
fn lengths_and_intervals_are_measured_with_their_spread() {
    const MESSAGES: u64 = 128;
    let mut meter = WorkloadMeter::default();
    meter.on_made(at(0), 500);
    assert_eq!(meter.seen(), None, "one message has no interval");
    for number in 1..=MESSAGES {
        meter.on_made(at(number * 100), if number % 2 == 0 { 500 } else { 1500 });
    }
    let seen = meter.seen().unwrap();
    assert_eq!(seen.count, MESSAGES);
    assert_eq!(seen.last_made, at(MESSAGES * 100));
    assert!((seen.length_bytes / 1000.0 - 1.0).abs() < 0.02, "{seen:?}");
    assert!((seen.length_variation / 0.5 - 1.0).abs() < 0.02, "{seen:?}");
    assert!((seen.interval.as_secs_f64() / 0.1 - 1.0).abs() < 1e-6);
    assert!(seen.interval_variation < 1e-6, "{seen:?}");
}

#[test]
fn periodic_traffic_is_regular() {
    for interval in [1e-4, 0.01, 1.0] {
        let mut app = Application::new();
        app.periodic(50_000, interval).comes_every(interval, 0.001);
        assert!(app.seen().interval_variation < 0.01, "{:?}", app.seen());
        assert_eq!(app.judged(), Ok(()));
    }
}

#[test]
fn a_message_a_minute_is_no_absence() {
    for interval in [45.0, 60.0, 75.0, 600.0] {
        let mut app = Application::new();
        app.periodic(101, interval).comes_every(interval, 0.001);
        assert_eq!(app.judged(), Ok(()));
        app.poisson(400, interval).comes_every(interval, 0.3);
        assert_eq!(app.judged(), Ok(()));
    }
}

#[test]
fn a_poisson_process_is_one_at_any_time() {
    for mean in [1e-4, 0.01, 1.0] {
        let mut app = Application::new();
        app.poisson(128, mean);
        for _ in 0..400 {
            app.poisson(50, mean);
            if app.now > 2.0 {
                app.comes_every(mean, 0.4);
                assert_eq!(app.judged(), Ok(()), "{:?}", app.seen());
                let spread = app.seen().interval_variation.powi(2);
                assert!((0.5..2.0).contains(&spread), "{:?}", app.seen());
            }
        }
    }
}

#[test]
fn bursts_have_the_rate_of_the_long_run_at_any_time() {
    // Size, and the time from one to the next.
    let patterns = [
        (2, 0.02),
        (2, 1.0),
        (3, 0.02),
        (3, 1.0),
        (20, 0.02),
        (20, 1.0),
        (20, 30.0),
        (20, 120.0),
        (40, 1.0),
        (40, 120.0),
        (200, 1.0),
        (1000, 300.0),
    ];
    for (size, pause) in patterns {
        let mut app = Application::new();
        // Enough to be planned with, and enough of time and bursts to see a pattern.
        let first = 100_usize
            .div_ceil(size)
            .max(5)
            .max((2.0 / pause) as usize + 1);
        app.batches(first, size, pause);
        for _ in 0..100 {
            app.batches(1, size, pause);
            app.comes_every(pause / size as f64, 0.3);
            assert!(app.is_bursty(), "{size} every {pause} s: {:?}", app.seen());
        }
        // In the middle of one as well.
        app.batches(1, size / 2, pause / 2.0);
        app.comes_every(pause / size as f64, 0.1);
    }
}

#[test]
fn bursts_of_any_size_at_any_time_have_the_rate_of_the_long_run() {
    let mut app = Application::new();
    for burst in 0..400 {
        let size = 1 + (app.exponential(19.0) as usize).min(100);
        let pause = app.exponential(1.0);
        app.batches(1, size, pause);
        if burst > 50 {
            app.comes_every(1.0 / 19.5, 0.4);
            assert!(app.is_bursty(), "{:?}", app.seen());
        }
    }
}

#[test]
fn bursts_beside_what_comes_all_the_time_are_no_change_of_pace() {
    for (size, pause) in [(200, 2.0), (200, 10.0), (600, 30.0), (1200, 60.0)] {
        let mut app = Application::new();
        for cycle in 1..=30 {
            app.batches(1, size, 0.05);
            for _ in 0..10 {
                app.poisson((pause * 2.0) as usize, 0.05);
                if app.now > 150.0 && cycle > 4 {
                    app.comes_every(pause / (pause * 20.0 + size as f64), 0.35);
                    assert!(app.is_bursty(), "{:?}", app.seen());
                }
            }
        }
    }
}

#[test]
fn one_burst_is_not_sent_on_and_on() {
    let mut app = Application::new();
    app.batches(1, 200, 30.0);
    app.comes_every(1.0 / 200.0, 0.01);
    app.batches(1, 1, 0.0);
    app.comes_every(30.0 / 200.0, 0.01);
}

#[test]
fn pauses_of_seconds_belong_to_the_pattern() {
    for (on, off) in [(1.0, 1.0), (1.0, 4.0), (10.0, 5.0), (10.0, 30.0)] {
        let mut app = Application::new();
        let messages = (on * 100.0) as usize;
        for cycle in 1..=40 {
            app.periodic(messages, 0.01).silent(off);
            if cycle > 5 {
                app.comes_every((on + off) / messages as f64, 0.3);
                assert!(app.is_bursty(), "{:?}", app.seen());
            }
        }
    }
}

#[test]
fn the_rate_is_that_of_the_time_between_absences() {
    for (on, off) in [(30.0, 90.0), (60.0, 300.0), (600.0, 3600.0)] {
        let mut app = Application::new();
        for _ in 0..10 {
            app.periodic((on * 100.0) as usize, 0.01).silent(off);
            app.comes_every(0.01, 0.01);
            assert_eq!(app.judged(), Ok(()));
        }
        let mut app = Application::new();
        for _ in 0..10 {
            app.batches(on as usize, 20, 1.0).silent(off);
            app.comes_every(0.05, 0.1);
            assert!(app.is_bursty());
        }
    }
}

#[test]
fn what_is_sent_in_seconds_every_few_minutes_is_a_burst() {
    let mut app = Application::new();
    for cycle in 1..=20 {
        app.periodic(500, 0.01).silent(115.0);
        if cycle > 3 {
            app.comes_every(120.0 / 500.0, 0.4);
            assert!(app.is_bursty());
        }
    }
}

#[test]
fn a_pause_that_was_the_only_one_is_no_pattern() {
    for silence in [2.0, 30.0, 3600.0] {
        let mut app = Application::new();
        app.periodic(200, 0.01).silent(silence).periodic(10, 0.01);
        app.comes_every(0.01, 0.01);
        assert_eq!(app.judged(), Ok(()));
    }
}

#[test]
fn early_single_message_does_not_distort_the_workload() {
    let mut app = Application::new();
    app.periodic(1, 12.0).periodic(110, 0.01);
    app.comes_every(0.01, 0.01);
    assert_eq!(app.seen().count, 110);
}

/// Messages until the mean interval is within a fifth of what it became.
fn followed_after(
    before: impl Fn(&mut Application),
    becomes: impl Fn(&mut Application),
    interval: f64,
) -> (u64, f64) {
    let mut app = Application::new();
    before(&mut app);
    let (messages, begun) = (app.seen().count, app.now);
    let is_right =
        |app: &Application| (app.seen().interval.as_secs_f64() / interval - 1.0).abs() <= 0.2;
    while !is_right(&app) {
        becomes(&mut app);
        assert!(app.seen().count < messages + 100_000, "{:?}", app.seen());
    }
    let after = (app.seen().count - messages, app.now - begun);
    for _ in 0..500 {
        becomes(&mut app);
    }
    app.comes_every(interval, 0.3);
    after
}

#[test]
fn a_change_of_pattern_is_followed() {
    type Pattern = (&'static str, f64, fn(&mut Application));
    let patterns: [Pattern; 6] = [
        ("100 a second", 0.01, |app| {
            app.periodic(1, 0.01);
        }),
        ("1 a second", 1.0, |app| {
            app.periodic(1, 1.0);
        }),
        ("10 a second by chance", 0.1, |app| {
            app.poisson(1, 0.1);
        }),
        ("20 at once every second", 0.05, |app| {
            app.batches(1, 20, 1.0);
        }),
        ("20 at once every 0.1 s", 0.005, |app| {
            app.batches(1, 20, 0.1);
        }),
        ("3 at once every 20 ms", 0.02 / 3.0, |app| {
            app.batches(1, 3, 0.02);
        }),
    ];
    for (was, _, before) in &patterns {
        for (is, interval, becomes) in &patterns {
            if was == is {
                continue;
            }
            let long = |app: &mut Application| (0..2000).for_each(|_| before(app));
            let (messages, seconds) = followed_after(long, becomes, *interval);
            println!("{was} to {is}: {messages} messages, {seconds:.1} s");
            assert!(
                messages <= 1000 || seconds <= 30.0,
                "{was} to {is}: {messages} messages, {seconds} s"
            );
        }
    }
}

#[test]
fn an_old_pattern_is_forgotten() {
    let mut app = Application::new();
    app.batches(200, 20, 1.0);
    assert!(app.is_bursty());
    // At the same rate, so that no change of it is seen.
    app.periodic(7000, 0.05);
    assert_eq!(app.judged(), Ok(()), "{:?}", app.seen());
    app.comes_every(0.05, 0.01);
    app.batches(100, 20, 1.0);
    assert!(app.is_bursty());
}

#[test]
fn a_change_of_length_is_followed() {
    let mut app = Application::new();
    for number in 0..3000 {
        app.makes(if number < 2000 { 1000 } else { 50 });
        app.now += 0.1;
    }
    let seen = app.seen();
    // The block in which it changed has some of the old ones.
    assert!((seen.length_bytes / 50.0 - 1.0).abs() < 0.25, "{seen:?}");
}

#[test]
fn long_silence_ends_the_workload() {
    let mut app = Application::new();
    app.periodic(500, 0.01);
    assert_eq!(app.seen().silence_max(), Duration::from_secs(60));
    app.periodic(500, 10.0);
    let silence = app.seen().silence_max().as_secs_f64();
    assert!((silence / 200.0 - 1.0).abs() < 0.01, "{silence}");
    // Twenty pauses of 10 s, too.
    let mut app = Application::new();
    app.batches(100, 20, 10.0);
    let silence = app.seen().silence_max().as_secs_f64();
    assert!((silence / 200.0 - 1.0).abs() < 0.1, "{silence}");
    // At most half an hour of those.
    let mut app = Application::new();
    app.batches(100, 20, 600.0);
    assert_eq!(app.seen().silence_max(), Duration::from_secs(1800));
}

#[test]
fn clocks_that_jump_and_empty_datagrams_do_no_harm() {
    let mut meter = WorkloadMeter::default();
    for (ms, len) in [(100, 0), (50, 0), (100, 0)] {
        meter.on_made(at(ms), len);
    }
    let seen = meter.seen().unwrap();
    assert_eq!(seen.count, 2);
    // Nothing is known of less than a second.
    assert_eq!(seen.interval, Duration::from_millis(500));
    assert_eq!((seen.interval_variation, seen.length_variation), (0.0, 0.0));
    assert_eq!(seen.last_made, at(100));
}
