//! A short run of the path-selection experiment in virtual time: its results are where the paper's model puts
//! them. The experiment itself measures for longer.

use std::time::Duration;

use keiro_core::MessageOutcome;
use keiro_sim::{
    MessageRecord,
    path_selection::{Variant, run},
};

/// A4 on path 2 as well: the result of a strict reading of the latency targets.
const STRICT: Variant = Variant::Planned([0, 0, 1, 1, 1]);
const DURATION: Duration = Duration::from_secs(12);

fn mean_ms(records: &[MessageRecord], app: usize) -> f64 {
    let delays: Vec<f64> = records
        .iter()
        .filter(|record| record.app == app)
        .map(|record| record.delay().unwrap().as_secs_f64() * 1e3)
        .collect();
    delays.iter().sum::<f64>() / delays.len() as f64
}

#[test]
fn every_message_of_every_variant_is_delivered_and_acknowledged() {
    for variant in [Variant::Conventional, Variant::PaperAssignment, STRICT] {
        let records = run(variant, 1, DURATION);
        // 5 + 4 × 10 messages a second.
        assert!((400..680).contains(&records.len()), "{}", records.len());
        for record in &records {
            assert_eq!(record.outcome, Some(MessageOutcome::Delivered));
            assert!(record.done >= record.delivered_at);
        }
    }
}

#[test]
fn variants_see_the_same_arrivals() {
    let made = |variant| -> Vec<_> {
        let records = run(variant, 3, Duration::from_secs(2));
        let first = records[0].made;
        records
            .iter()
            .map(|record| (record.app, record.bytes, record.made - first))
            .collect()
    };
    assert_eq!(made(Variant::Conventional), made(STRICT));
}

#[test]
fn keiros_plan_is_near_the_floor_on_path_2() {
    let records = run(STRICT, 1, DURATION);
    let (a3, a5) = (mean_ms(&records, 2), mean_ms(&records, 4));
    assert!((10.0..11.5).contains(&a3), "A3 {a3} ms");
    assert!((2.8..3.5).contains(&a5), "A5 {a5} ms");
}

#[test]
fn the_conventional_assignment_is_far_slower_for_the_demanding_applications() {
    let conventional = run(Variant::Conventional, 1, DURATION);
    let planned = run(STRICT, 1, DURATION);
    for app in [2, 4] {
        let (before, after) = (mean_ms(&conventional, app), mean_ms(&planned, app));
        assert!(after < 0.7 * before, "app {app}: {before} ms, {after} ms");
    }
}
