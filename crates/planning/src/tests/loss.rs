//! Applications and paths that lose more than these tolerate.

use keiro_control::config::Planner;

use super::*;

/// The paths that are planned for applications on the path "quick", which loses as much of them.
fn planned_beside_loss(
    config: &PlannerConfig,
    lost: &[(usize, PathIndex, f64)],
    mode: PlanMode,
) -> Plan {
    let tolerance = Probability::new(0.01).unwrap();
    let excess = |(app, path, loss): &(usize, PathIndex, f64)| {
        let loss = Probability::new(*loss).unwrap();
        ((AppIndex(*app), *path), ExcessLoss { loss, tolerance })
    };
    let input = PlannerInput {
        now: (0..config.apps.len())
            .map(|app| (AppIndex(app), QUICK))
            .collect(),
        excess_losses: lost.iter().map(excess).collect(),
        ..both_up()
    };
    PlanningProblem::new(config, &input).answer(mode, &ForecastState::default())
}

const QUICK: PathIndex = PathIndex(0);
const SLOW: PathIndex = PathIndex(1);

fn datagrams(name: &str, more: &str) -> String {
    format!("[[app]]\nname = \"{name}\"\nclass = \"datagram\"\npeer = \"osaka\"\n{more}")
}

const THIN: &str = "length = \"200B\"\ninterval = \"20ms\"\n";

#[test]
fn application_leaves_a_path_that_loses_more_than_it_tolerates() {
    for planner in ["frugal", "exact"] {
        for mode in [PlanMode::Revise, PlanMode::FromScratch] {
            for target in ["", "latency_target = \"60ms\"\n"] {
                let apps =
                    datagrams("voice", THIN) + &datagrams("sensors", &format!("{THIN}{target}"));
                let mut config = with_apps(&apps);
                config.planner = match planner {
                    "exact" => Planner::Exact,
                    _ => Planner::Frugal,
                };
                let plan = planned_beside_loss(&config, &[(1, QUICK, 0.1)], mode);
                let paths = [0, 1].map(|app| plan.paths()[&AppIndex(app)]);
                assert_eq!(paths, [QUICK, SLOW], "{planner}, {mode:?}, {target}");
                assert_eq!(plan.unmet(), 0);
                let nothing = planned_beside_loss(&config, &[], PlanMode::Revise);
                assert_eq!(nothing.paths()[&AppIndex(1)], QUICK);
            }
        }
    }
}

#[test]
fn an_application_stays_on_a_lossy_path_where_the_others_serve_it_worse() {
    let late = "latency_target = \"15ms\"\n";
    let heavy = "length = \"1kB\"\ninterval = \"650us\"\n";
    for (apps, lost, what) in [
        // 30 ms are twice the target, and 1.5 % is 1.5 times the tolerance.
        (
            datagrams("voice", &format!("{THIN}{late}")),
            vec![(0, QUICK, 0.015)],
            "late",
        ),
        // The other path carries 20 Mbit/s.
        (
            datagrams("bulk", "length = \"1kB\"\ninterval = \"300us\"\n"),
            vec![(0, QUICK, 0.1)],
            "narrow",
        ),
        (
            datagrams("one", heavy) + &datagrams("two", heavy),
            vec![(0, QUICK, 0.1), (1, QUICK, 0.1)],
            "narrow for both",
        ),
        (
            datagrams("voice", THIN),
            vec![(0, QUICK, 0.03), (0, SLOW, 0.2)],
            "lossier",
        ),
    ] {
        let mut config = with_apps(&apps);
        if what == "narrow" {
            config.paths[0].rate = Some(Bandwidth::from_mbit_per_second(100));
        }
        let plan = planned_beside_loss(&config, &lost, PlanMode::Revise);
        let on_quick = plan.paths().values().filter(|path| **path == QUICK).count();
        assert_eq!(on_quick, 1, "{what}");
        assert_eq!(plan.unmet(), 1, "{what}: what it loses is not met");
    }
    // Ten times the tolerance is worse than twice the target.
    let config = with_apps(&datagrams("voice", &format!("{THIN}{late}")));
    let plan = planned_beside_loss(&config, &[(0, QUICK, 0.1)], PlanMode::Revise);
    assert_eq!(plan.paths()[&AppIndex(0)], SLOW);
}

#[test]
fn a_pinned_application_stays_on_a_lossy_path_and_is_not_met() {
    let config = with_apps(&datagrams("voice", &format!("{THIN}path = \"quick\"\n")));
    let plan = planned_beside_loss(&config, &[(0, QUICK, 0.1)], PlanMode::Revise);
    assert_eq!((plan.paths()[&AppIndex(0)], plan.unmet()), (QUICK, 1));
}

#[test]
fn supposed_loss_is_compared_with_the_tolerance() {
    let config = with_apps(&(datagrams("voice", THIN) + &datagrams("any", "loss = \"100%\"\n")));
    let input = PlannerInput {
        now: (0..2).map(|app| (AppIndex(app), QUICK)).collect(),
        ..both_up()
    };
    let planned = |change: &str| {
        let changes = [WhatIf::parse(change).unwrap()];
        let Ok(supposed) = suppose(&config, &input, &changes) else {
            panic!("{change}")
        };
        PlanningProblem::new(&supposed.config, &supposed.input)
            .answer(PlanMode::Revise, &ForecastState::default())
            .paths()
    };
    assert_eq!(
        planned("set quick loss=5%")[&AppIndex(0)],
        QUICK,
        "copies save it"
    );
    let lossy = planned("set quick loss=30%");
    assert_eq!([lossy[&AppIndex(0)], lossy[&AppIndex(1)]], [SLOW, QUICK]);
}
