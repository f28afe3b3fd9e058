//! Transfers over networks of different latency and bandwidth, in the simulator.

use keiro_experiment::plan::Plan;

use crate::simulate;

#[test]
fn the_papers_lines_are_reproduced_with_their_break() {
    let (report, _directory) =
        simulate("latency-bandwidth/table1", &["transfers.run.rounds=2"], &[]);
    assert!(report.is_reached(), "{}", report.table());
    let row = |name: &str| report.rows.iter().find(|row| row.name == name).expect(name);
    assert_eq!(row("overhead below internet sim").paper, Some(0.6580));
    let near = |name: &str, within: f64| {
        let (paper, measured) = (
            row(name).paper.expect("of the paper"),
            row(name).measured.expect("a line"),
        );
        assert!(
            (measured / paper - 1.0).abs() < within,
            "{name}: {measured} for {paper}"
        );
    };
    near("overhead below lan sim", 0.5);
    near("overhead below campus sim", 0.3);
    near("overhead below internet sim", 0.3);
    near("overhead above internet sim", 0.2);
}

#[test]
fn the_networks_share_a_figure_of_times_and_of_throughputs() {
    // The largest number of TOML, too.
    let few = [
        "transfers.run.rounds=1",
        "transfers.run.seed=9223372036854775807",
    ];
    for (id, figure, networks) in [
        ("latency-bandwidth/fig2", "time", 3),
        ("latency-bandwidth/fig3", "time", 2),
        ("latency-bandwidth/fig4", "throughput", 3),
    ] {
        let (report, directory) = simulate(id, &few, &[]);
        assert!(report.is_reached(), "{}", report.table());
        let read = |name: &str| {
            let file = directory.path().join(&report.directory).join(name);
            std::fs::read_to_string(file).expect(name)
        };
        let svg = read(&format!("{figure}.svg"));
        assert!(svg.contains("lan") && svg.contains("campus"));
        assert_eq!(svg.contains("internet"), networks == 3);
        assert_eq!(read("times.csv").lines().count(), 1 + networks * 20);
    }
}

#[test]
fn a_transfer_that_takes_too_long_is_counted_and_misses_its_target() {
    let set = ["transfers.run.rounds=1", "transfers.run.duration=20s"];
    let (report, _directory) = simulate("latency-bandwidth/fig2", &set, &[]);
    let row = report
        .rows
        .iter()
        .find(|row| row.name == "unended internet sim")
        .expect("a row");
    assert_eq!(
        (row.measured, row.verdict.to_string().as_str()),
        (Some(4.0), "missed")
    );
}

#[test]
fn wrong_networks_are_refused() {
    let plan = Plan::find("latency-bandwidth/fig2").expect("it is built in");
    for (set, part) in [
        ("transfers.networks.lan.rate=1bit", "a rate is at least"),
        (
            "transfers.networks.lan.buffer=0B",
            "buffers must be above zero",
        ),
        (
            "transfers.networks.lan.name=campus",
            "each network has its own",
        ),
        ("transfers.sizes=[\"1MB\"]", "3 different sizes"),
        ("transfers.split=1GB", "3 different sizes"),
        ("shown=[\"moon\"]", "there are lan, campus, internet"),
    ] {
        let error = plan
            .clone()
            .with(&[set.parse().expect("a setting")])
            .expect_err(set);
        assert!(
            error.to_string().contains(part),
            "`{part}` is missing in: {error}"
        );
    }
}
