//! Keiro's controller of aggregation period by period: how far each of its steps goes.

use std::time::Duration;

use keiro_model::aggregation::{
    Cause, Controller, ControllerKind, Decision, DeliveryCounts, Limits, Observation,
};
use keiro_units::{Bandwidth, Instant};

const WIDE: Bandwidth = Bandwidth::from_mbit_per_second(100);
const PERIOD: Duration = Duration::from_millis(100);

/// A controller that is given one observation after the other.
struct Periods {
    controller: Box<dyn Controller>,
    now: Instant,
}

impl Periods {
    fn new() -> Self {
        Self::on(WIDE)
    }

    fn on(bandwidth: Bandwidth) -> Self {
        Self {
            controller: ControllerKind::Adaptive
                .controller(Limits::default(), bandwidth)
                .expect("the smallest combination fits"),
            now: Instant::ZERO,
        }
    }

    fn pass(&mut self, seen: &Observation) -> Decision {
        self.now += PERIOD;
        let seen = Observation {
            period: PERIOD,
            ..*seen
        };
        self.controller
            .on_period(self.now, &seen)
            .expect("the smallest combination fits")
    }

    fn copies(&self) -> u8 {
        self.controller.parameters().copies()
    }
}

/// So many copies were sent and lost, each by itself.
fn copies(sent: u64, lost: u64) -> Observation {
    Observation {
        aggregates: DeliveryCounts {
            sent: sent / 2,
            lost: 0,
        },
        copies: DeliveryCounts { sent, lost },
        bandwidth: WIDE,
        sent: Bandwidth::from_mbit_per_second(11),
        offered: Bandwidth::from_bits_per_second(5_500_000),
        ..Observation::default()
    }
}

/// The receiver's system dropped so many packets.
fn dropped(system_overflows: u64, sent: u64, lost: u64) -> Observation {
    Observation {
        system_overflows,
        ..copies(sent, lost)
    }
}

/// Half of the target would do for fewer copies: what they may leave at worst is compared with that.
#[test]
fn fewer_copies_have_to_leave_less_than_half_of_the_target_at_worst() {
    // The target is 0.1 %; at worst, 30 of 100,000 are 0.042 % and 45 are 0.060 %.
    for (lost, expected) in [(30, 1), (45, 2), (70, 2)] {
        let mut periods = Periods::new();
        assert_eq!(periods.copies(), 2);
        periods.pass(&copies(100_000, lost));
        assert_eq!(periods.copies(), expected, "{lost} lost");
    }
}

/// Has N rise from 1 to 2 because 5 % are lost: at most 6.5 % were, as far as chance explains.
fn raised() -> Periods {
    let mut periods = Periods::new();
    for _ in 0..20 {
        periods.pass(&copies(1000, 0));
    }
    assert_eq!(periods.copies(), 1);
    let decision = periods.pass(&copies(1000, 50));
    assert!(
        matches!(decision.cause, Cause::LineLoss { .. }),
        "{decision}"
    );
    assert_eq!(periods.copies(), 2);
    periods
}

#[test]
fn more_copies_are_taken_back_if_a_quarter_more_is_lost_than_may_have_been_before() {
    // 1.25 · 6.5 % is 8.2 %.
    for (lost, is_worse) in [(160, false), (170, true)] {
        let mut periods = raised();
        let decision = periods.pass(&copies(2000, lost));
        assert_eq!(periods.copies() == 1, is_worse, "{decision}");
        let has_grown = matches!(decision.cause, Cause::CopyLossGrew { .. });
        assert_eq!(has_grown, is_worse, "{decision}");
    }
}

/// A queue of 200 ms, and a share of the copies lost.
fn congested(sent: u64, lost: u64) -> Observation {
    Observation {
        queueing: Some(Duration::from_millis(200)),
        ..copies(sent, lost)
    }
}

/// With one copy on a congested path: the rate is held; also what had arrived.
fn held() -> (Periods, Bandwidth) {
    let mut periods = Periods::new();
    periods.pass(&congested(200, 60));
    assert_eq!(periods.copies(), 1, "copies go first");
    // What waits in the queue was sent before that.
    for _ in 0..2 {
        periods.pass(&congested(100, 30));
    }
    let decision = periods.pass(&congested(100, 30));
    let Cause::Congestion { arrived, .. } = decision.cause else {
        panic!("{decision}");
    };
    (periods, arrived)
}

fn rate_of(periods: &Periods) -> f64 {
    periods.controller.parameters().rate().as_bits_per_second() as f64
}

#[test]
fn congestion_holds_the_rate_a_twentieth_below_what_arrived() {
    let (periods, arrived) = held();
    let share = rate_of(&periods) / arrived.as_bits_per_second() as f64;
    assert!((0.945..=0.95).contains(&share), "{share}");
}

#[test]
fn rate_that_was_held_is_let_up_by_a_tenth_and_by_twice_as_much_each_time() {
    let (mut periods, _) = held();
    let mut rates = vec![rate_of(&periods)];
    for _ in 0..200 {
        let decision = periods.pass(&copies(100, 0));
        if decision.is_change() {
            assert!(matches!(decision.cause, Cause::Calm { .. }), "{decision}");
            rates.push(rate_of(&periods));
        }
    }
    let steps: Vec<f64> = rates.windows(2).map(|two| two[1] / two[0]).collect();
    for (step, expected) in steps.iter().zip([1.1, 1.2, 1.4, 1.8]) {
        assert!((step / expected - 1.0).abs() < 0.01, "{steps:?}");
    }
    assert!(steps.len() >= 4, "{steps:?}");
}

#[test]
fn congestion_lets_the_rate_up_in_small_steps_again() {
    let (mut periods, _) = held();
    while periods.pass(&copies(100, 0)).parameters.rate() < Bandwidth::from_mbit_per_second(12) {}
    for _ in 0..4 {
        periods.pass(&congested(100, 30));
    }
    let before = rate_of(&periods);
    let step = loop {
        if periods.pass(&copies(100, 0)).is_change() {
            break rate_of(&periods) / before;
        }
    };
    assert!((step / 1.1 - 1.0).abs() < 0.01, "{step}");
}

/// S yields to a shorter I, but not below what it was at first.
#[test]
fn interval_is_shortened_only_while_the_initial_size_fits() {
    // 2048 bytes in 1 ms are 16.4 Mbit/s, in 0.75 ms 21.8, in 0.5 ms 32.8.
    for (mbit, expected_us) in [(20, 1000), (30, 750), (40, 500)] {
        let bandwidth = Bandwidth::from_mbit_per_second(mbit);
        let mut periods = Periods::on(bandwidth);
        for _ in 0..600 {
            periods.pass(&Observation {
                bandwidth,
                ..copies(100, 0)
            });
        }
        let interval = periods.controller.parameters().interval();
        assert_eq!(interval.as_micros(), expected_us, "{mbit} Mbit/s");
    }
}

/// Others overflow the receiver's system where it drops more than four times what is lost of ours,
/// and less than a tenth of ours is.
#[test]
fn drops_are_others_beyond_four_times_ours_unless_a_tenth_of_ours_is_lost() {
    for (system, lost, is_ours) in [
        (8, 2, true),
        (9, 2, false),
        (350, 19, false),
        (350, 20, true),
        (76, 19, true),
        (77, 19, false),
    ] {
        let mut periods = Periods::new();
        let before = periods.controller.parameters().interval();
        let decision = periods.pass(&dropped(system, 200, lost));
        let is_relieved = decision.parameters.interval() > before;
        assert_eq!(is_relieved, is_ours, "{system} {lost}: {decision}");
    }
}

/// ReceiverBackoff that does not help is tried again after 2 s, and each time after twice as long, up to a
/// minute.
#[test]
fn others_are_held_to_overflow_the_receiver_for_twice_as_long_each_time() {
    let mut periods = Periods::new();
    let mut stays = Vec::new();
    let mut tried = Vec::new();
    for _ in 0..2500 {
        let decision = periods.pass(&dropped(20, 200, 20));
        match decision.cause {
            Cause::OverflowsStay { .. } => stays.push(periods.now),
            Cause::Overflows { .. } => tried.push(periods.now),
            _ => {}
        }
    }
    let waits: Vec<u64> = stays
        .iter()
        .zip(&tried[1..])
        .map(|(stay, tried)| (*tried - *stay).as_secs())
        .collect();
    assert_eq!(waits[..6], [2, 4, 8, 16, 32, 60], "{waits:?}");
}
