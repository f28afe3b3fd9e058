//! What the other gateways of a site send over the lines of this one, from their published inputs
//! and the site's plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use keiro_planner::{
    delay::AppSpec,
    queueing::{Offered, OtherGateway, Spread, Traffic, WireFormat},
};
use keiro_planning::{LineUse, forecast::wire_format};
use keiro_store::{AppInputs, Inputs, PathInputs, SitePlan, SiteView};
use keiro_units::{Bandwidth, ByteCount};

use super::leader::place;

/// What other gateways send, by the name of the line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Others {
    pub(super) lines: BTreeMap<String, Arc<[LineUse]>>,
    /// What forecasts leave out, and why; the first, and how many there are.
    pub(super) refused: Option<(String, usize)>,
}

/// Rates from here on are refused: the planner's bound.
const RATE_END: f64 = (1_u64 << 48) as f64;
/// So are lengths, in bytes.
const LENGTH_END: f64 = (1_u64 << 48) as f64;

/// What the gateways in `view` but `own` send over `lines`, being where `plan` has them.
///
/// What one sends to this gateway comes the other way, and is left out.
pub(super) fn others_on(
    view: &SiteView,
    plan: Option<&SitePlan>,
    own: &str,
    lines: &BTreeSet<String>,
) -> Others {
    let members = view.gateways.iter().filter(|(name, _)| *name != own);
    let inputs = members.map(|(_, member)| &member.inputs);
    others_of(inputs, plan, own, lines)
}

/// The same of the gateways with these `inputs`, which `own` is not one of.
pub(super) fn others_of<'a>(
    inputs: impl Iterator<Item = &'a Inputs>,
    plan: Option<&SitePlan>,
    own: &str,
    lines: &BTreeSet<String>,
) -> Others {
    let mut others = Others::default();
    let mut uses: BTreeMap<String, Vec<LineUse>> = BTreeMap::new();
    for inputs in inputs {
        for (line, on_line) in others.of_gateway(inputs, plan, own, lines) {
            uses.entry(line).or_default().push(on_line);
        }
    }
    others.lines = uses
        .into_iter()
        .map(|(line, uses)| (line, uses.into()))
        .collect();
    others
}

impl Others {
    /// What one gateway sends over `lines`.
    fn of_gateway(
        &mut self,
        gateway: &Inputs,
        plan: Option<&SitePlan>,
        own: &str,
        lines: &BTreeSet<String>,
    ) -> BTreeMap<String, LineUse> {
        let formats = formats(gateway);
        let mut uses: BTreeMap<String, LineUse> = BTreeMap::new();
        for app in gateway.apps.iter().filter(|app| app.peer != own) {
            let on_path = place(gateway, app, plan, |path| formats.contains_key(path));
            let on_path = on_path.and_then(|line| formats.get_key_value(line));
            let Some((line, (rate, wire))) = on_path.filter(|(line, _)| lines.contains(**line))
            else {
                continue;
            };
            let traffic = match traffic_of(app) {
                Ok(traffic) => traffic,
                Err(why) => {
                    self.refuse(gateway, app, &why);
                    continue;
                }
            };
            let on_line = uses.entry((*line).to_owned()).or_insert_with(|| LineUse {
                gateway: gateway.gateway.clone(),
                apps: 0,
                load: Bandwidth::ZERO,
                sender: OtherGateway {
                    rate: *rate,
                    offered: Offered::default(),
                },
            });
            on_line.apps += 1;
            on_line.load = on_line.load.saturating_add(traffic.app.rate());
            on_line.sender.offered.add(&traffic, wire);
        }
        uses
    }

    fn refuse(&mut self, gateway: &Inputs, app: &AppInputs, why: &str) {
        let (name, gateway) = (&app.name, &gateway.gateway);
        let (_, count) = self
            .refused
            .get_or_insert_with(|| (format!("application {name} of gateway {gateway}: {why}"), 0));
        *count += 1;
    }

    /// For the operator; `None`: nothing is left out.
    pub(super) fn notice(&self) -> Option<String> {
        let (first, count) = self.refused.as_ref()?;
        let more = match count {
            1 => String::new(),
            _ => format!(", and {} more", count - 1),
        };
        Some(format!(
            "forecasts leave out {first}{more}; correct what that gateway publishes"
        ))
    }
}

/// By name of a gateway's path: how fast it sends there at most, and how messages become packets.
fn formats(gateway: &Inputs) -> BTreeMap<&str, (Bandwidth, WireFormat)> {
    let mut quickest: BTreeMap<&str, &PathInputs> = BTreeMap::new();
    for path in &gateway.paths {
        let known = quickest.entry(&path.peer).or_insert(path);
        if path.delay_seconds.total_cmp(&known.delay_seconds).is_lt() {
            *known = path;
        }
    }
    let mut outcomes: BTreeMap<&str, f64> = BTreeMap::new();
    for app in &gateway.apps {
        let path = quickest.get(app.peer.as_str());
        if let (Some(path), Ok(traffic)) = (path, traffic_of(app)) {
            *outcomes.entry(&path.name).or_default() += 1.0 / traffic.app.interval.as_secs_f64();
        }
    }
    let mut formats = BTreeMap::new();
    for path in &gateway.paths {
        let outcomes = outcomes.get(path.name.as_str()).copied();
        let rate = rate_of(path);
        let format = (rate, wire_format(rate, outcomes.unwrap_or(0.0)));
        let known = formats.entry(path.name.as_str()).or_insert(format);
        if rate > known.0 {
            *known = format;
        }
    }
    formats
}

/// What a gateway sends over a path at most.
fn rate_of(path: &PathInputs) -> Bandwidth {
    let usable = path.bandwidth_bits_per_second;
    let rate = path.line_bits_per_second.unwrap_or(usable).max(usable);
    Bandwidth::from_bits_per_second(rate.clamp(1.0, RATE_END) as u64)
}

/// What an application sends, or why that cannot be.
fn traffic_of(app: &AppInputs) -> Result<Traffic, String> {
    let seconds = app.interval_seconds;
    let interval = Duration::try_from_secs_f64(seconds).ok();
    let Some(interval) = interval.filter(|interval| !interval.is_zero()) else {
        return Err(format!("an interval of {seconds:e} s"));
    };
    let length = app.length_bytes;
    if !(0.0..LENGTH_END).contains(&length) {
        return Err(format!(
            "a length of {length:e} bytes, at most 2^48 are taken"
        ));
    }
    let rate = length * 8.0 / interval.as_secs_f64();
    if rate >= RATE_END {
        return Err(format!("{rate:.3e} bit/s, at most 2^48 are taken"));
    }
    let spread = |cv2: Option<f64>| cv2.and_then(Spread::new);
    let target = app.latency_target_seconds;
    Ok(Traffic {
        length_spread: spread(app.length_cv2).unwrap_or(Spread::NONE),
        interval_spread: spread(app.interval_cv2).unwrap_or(Spread::EXPONENTIAL),
        app: AppSpec {
            length: ByteCount::new(length as u64),
            interval,
            latency_target: target.and_then(|target| Duration::try_from_secs_f64(target).ok()),
        },
    })
}

#[cfg(test)]
mod tests {
    use keiro_store::Member;

    use super::*;

    fn app(name: &str, length_bytes: f64, interval_seconds: f64) -> AppInputs {
        AppInputs {
            name: name.into(),
            peer: "hub".into(),
            length_bytes,
            interval_seconds,
            ..AppInputs::default()
        }
    }

    fn inputs(gateway: &str, apps: Vec<AppInputs>) -> Inputs {
        let path = |name: &str| PathInputs {
            name: name.into(),
            peer: "hub".into(),
            bandwidth_bits_per_second: 60e6,
            line_bits_per_second: Some(100e6),
            ..PathInputs::default()
        };
        Inputs {
            gateway: gateway.into(),
            sequence: 1,
            paths: vec![path("fibre"), path("radio")],
            apps,
            ..Inputs::default()
        }
    }

    /// All applications of all gateways on `line`.
    fn view(gateways: Vec<Inputs>, line: &str) -> SiteView {
        let mut view = SiteView::default();
        let mut plan = SitePlan::default();
        for inputs in gateways {
            let places = inputs.apps.iter();
            let places = places.map(|app| (app.name.clone(), line.to_owned()));
            let name = inputs.gateway.clone();
            plan.made_from.insert(name.clone(), inputs.sequence);
            plan.assignments.insert(name.clone(), places.collect());
            let member = Member {
                inputs,
                age: Duration::ZERO,
                revision: 1,
            };
            view.gateways.insert(name, member);
        }
        view.plan = Some(plan);
        view
    }

    fn others(view: &SiteView, lines: &[&str]) -> Others {
        let lines = lines.iter().map(|line| (*line).to_owned()).collect();
        others_on(view, view.plan.as_ref(), "gw1", &lines)
    }

    #[test]
    fn every_other_gateway_on_a_line_is_counted_where_the_plan_has_its_applications() {
        let apps = || vec![app("x", 100_000.0, 0.016), app("y", 1000.0, 0.1)];
        let gateways = ["gw1", "gw2", "gw3"].map(|name| inputs(name, apps()));
        let mut view = view(gateways.into(), "fibre");
        let found = others(&view, &["fibre", "radio"]);
        assert_eq!(found.refused, None);
        let uses = &found.lines["fibre"];
        let names: Vec<&str> = uses.iter().map(|on_line| &*on_line.gateway).collect();
        assert_eq!(names, ["gw2", "gw3"]);
        assert_eq!(found.lines.len(), 1);
        for on_line in uses.iter() {
            assert_eq!(on_line.apps, 2);
            assert_eq!(on_line.load.as_bits_per_second(), 50_080_000);
            assert_eq!(on_line.sender.rate, Bandwidth::from_mbit_per_second(100));
            // 71 packets and one, with headers.
            let on_wire = on_line.sender.offered.rate().as_bits_per_second();
            assert!((52_600_000..53_500_000).contains(&on_wire), "{on_wire}");
        }
        // This gateway has no such path.
        assert_eq!(others(&view, &["radio"]).lines.len(), 0);
        // gw2 has put x elsewhere itself, which the plan does not know yet.
        let moved = view.gateways.get_mut("gw2").unwrap();
        moved.inputs.sequence = 2;
        moved.inputs.apps[0].path_now = Some("radio".into());
        let found = others(&view, &["fibre", "radio"]);
        assert_eq!(found.lines["fibre"][0].apps, 1);
        assert_eq!(found.lines["radio"][0].apps, 1);
        // Its entry has run out.
        view.gateways.remove("gw2");
        let found = others(&view, &["fibre", "radio"]);
        assert_eq!(found.lines["fibre"].len(), 1);
        assert_eq!(found.lines.len(), 1);
    }

    #[test]
    fn what_comes_to_this_gateway_or_takes_a_path_that_is_down_is_not_counted() {
        let mut back = app("back", 100_000.0, 0.016);
        back.peer = "gw1".into();
        let mut down = inputs("gw3", vec![app("x", 1000.0, 0.1)]);
        down.paths.retain(|path| path.name == "radio");
        let view = view(vec![inputs("gw2", vec![back]), down], "fibre");
        assert_eq!(others(&view, &["fibre"]), Others::default());
    }

    #[test]
    fn senseless_values_are_refused_one_by_one_with_a_reason() {
        for (length, interval, why) in [
            (
                1e300,
                1.0,
                "application bad of gateway gw2: a length of 1e300 bytes",
            ),
            (1000.0, 0.0, "an interval of 0e0 s"),
            (1000.0, 1e300, "an interval of 1e300 s"),
            (1e6, 1e-9, "bit/s, at most 2^48 are taken"),
            (1e14, 1e-3, "bit/s, at most 2^48 are taken"),
        ] {
            let apps = vec![
                app("bad", length, interval),
                app("x", 1000.0, 0.1),
                app("too", length, interval),
            ];
            let found = others(&view(vec![inputs("gw2", apps)], "fibre"), &["fibre"]);
            assert_eq!(found.lines["fibre"][0].apps, 1, "{length} {interval}");
            let notice = found.notice().unwrap();
            assert!(notice.contains(why), "{notice}");
            assert!(notice.contains(", and 1 more; correct what"), "{notice}");
        }
    }

    #[test]
    fn bounds_hold_for_a_site_of_many_gateways_and_applications() {
        let apps = || {
            (0..2_000)
                .map(|n| app(&format!("a{n}"), 1e12, 1.0))
                .collect()
        };
        let gateways = (0..20).map(|n| inputs(&format!("g{n}"), apps()));
        let found = others(&view(gateways.collect(), "fibre"), &["fibre"]);
        // One entry for each gateway, however many its applications are.
        assert_eq!(found.lines["fibre"].len(), 20);
        assert_eq!(found.lines["fibre"][0].apps, 2_000);
    }
}
