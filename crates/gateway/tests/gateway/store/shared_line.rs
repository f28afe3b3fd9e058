//! Forecasts of gateways of one site that share a line.

use super::*;

/// Two gateways of a site, `a` and `b`, with one line to a hub of another site, and an application each
/// that takes 45 % of it.
struct SharedLine {
    a: Site,
    b: Site,
    _hub: Site,
}

fn shared_line(etcd: &Etcd) -> SharedLine {
    let (mut a, mut b, mut hub) = (Site::new("a"), Site::new("b"), Site::new("h"));
    let peers = Site::peer("a", &a, false) + &Site::peer("b", &b, false);
    hub.write(&format!("{}{peers}", hub.gateway("hub", "")));
    hub.start();
    for (name, site) in [("a", &mut a), ("b", &mut b)] {
        // 105 kB with headers, which take 4.2 ms.
        let app = app("X", "message", "hub")
            + "length = \"100kB\"\ninterval = \"9344us\"\nlatency_target = \"20ms\"\npath = \"p1\"\n";
        let gateway = site.gateway(name, "scheduler = \"fifo\"");
        let peer = Site::peer("hub", &hub, true);
        site.write(&format!("{gateway}{peer}{app}{}", of_site(etcd)));
        site.start();
    }
    for site in [&a, &b] {
        site.wait_up(2);
    }
    SharedLine { a, b, _hub: hub }
}

/// Without what the path takes, which is measured and longer on a busy machine.
fn forecast_millis(site: &Site) -> Option<f64> {
    let terms = plan(site, false).apps[0].terms?;
    let mean = terms.predicted_delay_seconds? - terms.propagation_seconds;
    Some(mean * 1e3)
}

/// The other gateways on the application's path, as far as `show app` and `show path` say the same: what changes
/// between the two questions is waited for.
fn others_on_line(site: &Site) -> Vec<(String, u64, u64)> {
    let line = site.app("X").shared_line;
    let Response::Paths { paths } = site.ask(&Request::ShowPath {
        name: Some("p1".into()),
    }) else {
        panic!("paths were asked for")
    };
    let is_same = paths.iter().all(|path| path.shared_line == line);
    let gateways = line
        .filter(|_| is_same)
        .into_iter()
        .flat_map(|line| line.gateways);
    gateways
        .map(|other| (other.gateway, other.apps, other.load_bits_per_second as u64))
        .collect()
}

fn explained(site: &Site) -> String {
    match site.ask(&Request::Explain { app: "X".into() }) {
        Response::Explanation(explanation) => explanation.text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn two_gateways_of_a_site_forecast_what_both_send_over_a_line() {
    undisturbed("two_gateways_of_a_site_forecast", forecast_by_both);
}

fn forecast_by_both() -> Result<(), String> {
    /// H (1 + Q/W) + B: 45 % by each, H = 5.92 ms, B = 18.92 - 2 * 1.72 ms.
    const JOINT: f64 = 24.1;
    const ALONE: f64 = 5.92;
    let mut etcd = Etcd::start();
    let mut site = shared_line(&etcd);
    for (own, other) in [(&site.a, "b"), (&site.b, "a")] {
        wait_for("the other gateway on the line", || {
            others_on_line(own) == [(other.to_owned(), 1, 85_616_439)]
        });
        let forecast = forecast_millis(own);
        println!("forecast by both: {forecast:?} ms");
        let is_joint = forecast.is_some_and(|ms| (ms / JOINT - 1.0).abs() < 0.01);
        expect(is_joint, ("the joint forecast", forecast))?;
        let text = explained(own);
        let part = format!("Of Q, 85.6 Mbit/s by gateway {other}.");
        expect(text.contains(&part), &text)?;
        let planned = plan(own, false);
        let terms = planned.apps[0].terms.expect("its path is up");
        assert_eq!(terms.site_load_bits_per_second, 85_616_439.0);
        assert_eq!(terms.other_load_bits_per_second, 85_616_439.0);
        // 24 ms on average are not 20.
        expect(!planned.feasible, planned.unmet)?;
    }
    // What was known last counts while the store is gone, and its age is named.
    etcd.kill();
    wait_for_state(&site.a, StoreState::Lost);
    wait_for("the age of what is known", || {
        let line = site.a.app("X").shared_line;
        line.is_some_and(|line| line.age_seconds.is_some() && line.gateways.len() == 1)
    });
    let text = explained(&site.a);
    let part = "by gateway b. The plan store has not answered for ";
    expect(text.contains(part), &text)?;
    etcd.restart();
    wait_for_state(&site.a, StoreState::Connected);
    wait_for("the other gateway again", || {
        others_on_line(&site.a).len() == 1
    });
    // A gateway that ends is not counted any more.
    site.b.stop();
    wait_for("a line for one", || others_on_line(&site.a).is_empty());
    let forecast = forecast_millis(&site.a);
    let is_alone = forecast.is_some_and(|ms| (ms / ALONE - 1.0).abs() < 0.01);
    expect(is_alone, ("the forecast for one", forecast))
}
