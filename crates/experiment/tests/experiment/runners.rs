//! Short runs in the simulator and, as root, in the laboratory.

use keiro_control::units::Text;
use keiro_experiment::{
    laboratory::{Laboratory, Programs},
    plan::Plan,
    record::MessageRecord,
    runner::{MessageRunner, Outcome, Progress, Request, Schedule},
    setup::{Extent, Setup},
    simulator::Simulator,
};

/// A second of messages, all of them counted.
fn setup() -> Setup {
    let mut setup = Plan::find("path-selection/table6").unwrap().setup;
    setup.quick = Extent {
        rounds: 1,
        duration: Text(std::time::Duration::from_secs(1)),
        warm_up: Text(std::time::Duration::ZERO),
        drain: Text(std::time::Duration::from_secs(10)),
        seed: 5,
    };
    setup
}

fn run(
    runner: &mut dyn MessageRunner,
    setup: &Setup,
    variant: &str,
    last: &mut Progress,
) -> Outcome {
    let schedule = Schedule::of(setup, &setup.quick, 0);
    let request = Request {
        setup,
        variant: setup.variant(variant).unwrap(),
        round: 0,
        extent: &setup.quick,
        schedule: &schedule,
    };
    let outcome = runner.run(&request, &mut |progress| *last = progress.clone());
    outcome.unwrap_or_else(|error| panic!("seed {}: {error:#}", schedule.seed))
}

/// Every message of the schedule is recorded once, with its instant and at least an idle path's delay.
#[track_caller]
fn assert_complete(setup: &Setup, variant: &str, records: &[MessageRecord]) {
    let schedule = Schedule::of(setup, &setup.quick, 0);
    assert_eq!(records.len(), schedule.messages());
    let index = setup.variant(variant).unwrap();
    for (application, made) in schedule.made.iter().enumerate() {
        let floor = keiro_experiment::predict::floor(setup, index, application);
        let mut own: Vec<_> = records
            .iter()
            .filter(|r| r.application == application)
            .collect();
        own.sort_by_key(|record| record.sequence);
        assert_eq!(own.len(), made.len());
        for (record, made) in own.into_iter().zip(made) {
            assert_eq!(record.made_ns, made.as_nanos());
            assert!(
                record.delay_ms() >= floor.with_headers_ms * 0.98,
                "{record:?}, {floor:?}"
            );
            assert!(record.delay_ms() < 10_000.0, "{record:?}");
        }
    }
}

#[test]
fn simulator_carries_every_message_and_repeats_itself() {
    let setup = setup();
    for variant in ["conventional", "paper-assignment", "keiro"] {
        let mut progress = Progress::default();
        let first = run(&mut Simulator, &setup, variant, &mut progress);
        assert_complete(&setup, variant, &first.records);
        assert_eq!(first.emulator, None);
        let received: u64 = progress.applications.iter().map(|a| a.received).sum();
        assert_eq!(received, first.records.len() as u64);
        let again = run(&mut Simulator, &setup, variant, &mut progress);
        assert_eq!(first.records, again.records);
    }
    assert!(!Simulator.can_run(&setup, setup.variant("tcp").unwrap()));
}

#[test]
fn laboratory_carries_every_message_over_kernel_tcp_and_mptcp() {
    if !Laboratory::is_possible() {
        eprintln!("not root: nothing was run in the laboratory");
        return;
    }
    let setup = setup();
    let mut laboratory = Laboratory::new(programs("no-gateway-is-started"), None);
    for variant in ["tcp", "mptcp"] {
        let mut progress = Progress::default();
        let outcome = run(&mut laboratory, &setup, variant, &mut progress);
        assert_complete(&setup, variant, &outcome.records);
        assert!(outcome.emulator.unwrap().packets > 0);
        assert!(progress.applications.iter().any(|a| a.received > 0));
    }
}

#[test]
fn a_gateway_that_cannot_be_started_is_an_error_that_names_it() {
    if !Laboratory::is_possible() {
        eprintln!("not root: nothing was run in the laboratory");
        return;
    }
    let setup = setup();
    let schedule = Schedule::of(&setup, &setup.quick, 0);
    let request = Request {
        setup: &setup,
        variant: setup.variant("keiro").unwrap(),
        round: 0,
        extent: &setup.quick,
        schedule: &schedule,
    };
    let mut laboratory = Laboratory::new(programs("keiro-that-is-not-there"), None);
    let error = laboratory.run(&request, &mut |_| {}).unwrap_err();
    assert!(
        format!("{error:#}").contains("keiro-that-is-not-there"),
        "{error:#}"
    );
}

fn programs(name: &str) -> Programs {
    Programs {
        keiro: name.into(),
        keiro_lab: name.into(),
    }
}
