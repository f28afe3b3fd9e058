//! Figures of trials: those of the egress suite, after [egress figs. 8, 9, 10], and the costs of tenants
//! [fairness figs. 11, 12, 13].

use super::{
    Flows, IspTransport, Isps, Load, Measured, Pattern, Routes, Scale, Shares, Sharing, Trace,
    Transport,
};
use crate::{
    evaluate::NamedDrawing,
    figure::{
        self, BoxGroup, BoxesFigure, DrawError, LinesFigure, TimeFigure, TimeLine, TimePanel,
        ValueLine,
    },
    stats,
};

/// Goodput of each transport, one figure per load. If rates change during the flow: traffic by path over
/// time.
pub(super) fn of_flows(
    flows: &Flows,
    measured: &Measured,
    about: &str,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let mut drawings = Vec::new();
    for load in [Load::Cbr, Load::Bulk] {
        if flows.patterns.iter().any(|pattern| pattern.then.is_some()) {
            let panels = over_time(flows, measured, load);
            if !panels.is_empty() {
                let figure = time_figure(flows, load, panels, about);
                drawings.push((format!("over-time-{}", load.name()), figure.draw()?));
            }
            continue;
        }
        let groups = goodputs(flows, measured, load);
        if !groups.is_empty() {
            let rate = flows.cbr.0.as_bits_per_second() as f64 / 1e6;
            let figure = BoxesFigure {
                title: format!("Goodput of one flow over two transits, {}", words(load)),
                subtitle: format!("laboratory; rates of link a / link b in Mbit/s{about}"),
                quantity: "goodput (Mbit/s)".to_owned(),
                groups,
                levels: match load {
                    Load::Cbr => vec![("what is offered".to_owned(), rate)],
                    Load::Bulk => Vec::new(),
                },
            };
            drawings.push((format!("goodput-{}", load.name()), figure.draw()?));
        }
    }
    Ok(drawings)
}

/// Goodput of tenants over time, after [fairness fig. 10]: one figure per congestion control, with a panel of
/// the first run of each sharing.
pub(super) fn of_shares(
    shares: &Shares,
    measured: &Measured,
    about: &str,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let cases: Vec<_> = shares.cases().collect();
    let mut drawings = Vec::new();
    for control in &shares.congestion {
        let panel = |(case, (transport, of)): (usize, &(Sharing, &str))| {
            let run = measured.runs.get(&case)?.first()?;
            (of == control).then(|| TimePanel {
                name: format!("{}: Mbit/s", transport.name()),
                ..rates(&run.outcome.traces)
            })
        };
        let panels: Vec<TimePanel> = cases.iter().enumerate().filter_map(panel).collect();
        if panels.is_empty() {
            continue;
        }
        let figure = TimeFigure {
            title: format!("Goodput of each tenant, flows with {control}"),
            subtitle: format!("laboratory, the first run, in steps of 1 s{about}"),
            to_s: end_of(&panels),
            spans: Vec::new(),
            panels,
        };
        drawings.push((format!("shares-{control}"), figure.draw()?));
    }
    Ok(drawings)
}

/// Goodput to clients of every provider by one connection of each kind, with the gain below. For providers to
/// which twelve connections get less than one: goodput of all transports.
pub(super) fn of_isps(
    isps: &Isps,
    measured: &Measured,
    about: &str,
) -> Result<Vec<NamedDrawing>, DrawError> {
    if measured.runs.is_empty() {
        return Ok(Vec::new());
    }
    let name = |case: usize| isps.isp[case].name.clone();
    let groups = measured.runs.keys().map(|&case| {
        let gain = match medians(measured, case, [IspTransport::Tcp(1), IspTransport::Mptcp]) {
            [Some(tcp), Some(mptcp)] => format!("{:+.0} %", (mptcp / tcp - 1.0) * 100.0),
            _ => String::new(),
        };
        let boxes = [IspTransport::Tcp(1), IspTransport::Mptcp].map(|transport| {
            (
                transport.kind().to_owned(),
                of_transport(measured, case, transport),
            )
        });
        BoxGroup {
            name: vec![name(case), gain],
            boxes: boxes.into(),
        }
    });
    let figure = |title: String, groups| BoxesFigure {
        title,
        subtitle: format!("laboratory; two transits{about}"),
        quantity: "goodput (Mbit/s)".to_owned(),
        groups,
        levels: Vec::new(),
    };
    let title = "Goodput to clients of several providers".to_owned();
    let goodput = figure(title, groups.collect());
    let mut drawings = vec![("goodput".to_owned(), goodput.draw()?)];
    for &case in measured.runs.keys() {
        let [Some(one), Some(twelve)] = medians(
            measured,
            case,
            [IspTransport::Tcp(1), IspTransport::Tcp(12)],
        ) else {
            continue;
        };
        if twelve < one {
            let mut transports = IspTransport::ALL;
            // TCP is first, as in the other figure, so that it has the same colour.
            transports.sort_by_key(|transport| *transport == IspTransport::Mptcp);
            let groups = transports.map(|transport| BoxGroup {
                name: vec![transport.connections()],
                boxes: vec![(
                    transport.kind().to_owned(),
                    of_transport(measured, case, transport),
                )],
            });
            let title = format!("Connections at once to a client of provider {}", name(case));
            let parallel = figure(title, groups.into());
            drawings.push((format!("parallel-{}", name(case)), parallel.draw()?));
        }
    }
    Ok(drawings)
}

/// Goodputs of a transport in all runs of a case.
fn of_transport(measured: &Measured, case: usize, transport: IspTransport) -> Vec<f64> {
    let place = IspTransport::ALL.iter().position(|one| *one == transport);
    let runs = measured.runs.get(&case).into_iter().flatten();
    runs.filter_map(|run| run.outcome.values[place?]).collect()
}

fn medians(measured: &Measured, case: usize, transports: [IspTransport; 2]) -> [Option<f64>; 2] {
    transports.map(|transport| stats::median(&of_transport(measured, case, transport)))
}

/// Resource use of gateways, over the offered rate or the number of tenants.
pub(super) fn of_scale(
    scale: &Scale,
    measured: &Measured,
    about: &str,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let points: Vec<usize> = measured.runs.keys().copied().collect();
    if points.is_empty() {
        return Ok(Vec::new());
    }
    let all = |of: fn(&super::ScalePoint) -> u64| {
        let mut values = points.iter().map(|&case| of(&scale.points[case]));
        let first = values.next();
        values.all(|value| Some(value) == first)
    };
    let by_rate = all(|point| point.tenants as u64);
    let (across, beside) = match by_rate {
        true => {
            let tenants = scale.points[points[0]].tenants;
            ("offered, Mbit/s", format!("{tenants} tenants"))
        }
        false => {
            let offered = scale.points[points[0]].offered;
            ("tenants", format!("{offered}/s offered"))
        }
    };
    let place = |&case: &usize| {
        let point = &scale.points[case];
        match by_rate {
            true => format!("{}", point.offered.0.as_bits_per_second() as f64 / 1e6),
            false => point.tenants.to_string(),
        }
    };
    let figure = |title: &str, quantities: [usize; 2]| {
        let line = |(index, (name, quantity)): (usize, (&str, usize))| ValueLine {
            name: name.to_owned(),
            colour: figure::colour(index),
            values: points
                .iter()
                .map(|case| value_with_interval(measured, *case, quantity))
                .collect(),
        };
        let lines: Vec<ValueLine> = ["ingress", "egress"]
            .into_iter()
            .zip(quantities)
            .enumerate()
            .map(line)
            .collect();
        let values = lines.iter().flat_map(|line| line.values.iter().flatten());
        let most = values.map(|(value, (_, high))| value.max(*high));
        let step = round_step(most.fold(0.0, f64::max) / 5.0);
        LinesFigure {
            title: title.to_owned(),
            subtitle: format!("laboratory; {beside}, packets of {}{about}", scale.packet),
            across: across.to_owned(),
            categories: points.iter().map(place).collect(),
            range: (0.0, 6.0 * step),
            step,
            lines,
            levels: Vec::new(),
        }
    };
    let cpu = figure("What a gateway uses of one CPU, %", [0, 1]).draw()?;
    let memory = figure("What a gateway has in memory, MB", [2, 3]).draw()?;
    Ok(vec![("cpu".to_owned(), cpu), ("memory".to_owned(), memory)])
}

/// Median and interval over a case's runs.
fn value_with_interval(
    measured: &Measured,
    case: usize,
    quantity: usize,
) -> Option<(f64, (f64, f64))> {
    let runs = measured.runs.get(&case)?.iter();
    let values: Vec<f64> = runs
        .filter_map(|run| run.outcome.values[quantity])
        .collect();
    let value = stats::median(&values)?;
    let interval = stats::sections(value, &values);
    Some((value, interval.map_or((value, value), |i| (i.low, i.high))))
}

/// 1, 2 or 5 times a power of ten, not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.max(1e-3).log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|factor| factor * power);
    let fits = steps.into_iter().find(|step| *step >= least);
    fits.unwrap_or(10.0 * power)
}

/// Durations of route changes.
pub(super) fn of_routes(
    routes: &Routes,
    measured: &Measured,
    about: &str,
) -> Result<Vec<NamedDrawing>, DrawError> {
    let mut groups: Vec<BoxGroup> = Vec::new();
    for (&case, runs) in &measured.runs {
        let samples = runs.iter().flat_map(|run| &run.outcome.samples);
        for sample in samples {
            let name = vec![
                sample.group.clone(),
                match routes.reflectors[case] {
                    super::Reflector::Frr => "reflected by FRR".to_owned(),
                    super::Reflector::Gobgp => "reflected by gobgpd".to_owned(),
                    super::Reflector::None => "without a reflector".to_owned(),
                },
            ];
            let group = match groups.iter_mut().position(|group| group.name == name) {
                Some(place) => &mut groups[place],
                None => {
                    groups.push(BoxGroup {
                        name,
                        boxes: Vec::new(),
                    });
                    groups.last_mut().expect("it was just pushed")
                }
            };
            match group
                .boxes
                .iter_mut()
                .find(|(name, _)| *name == sample.name)
            {
                Some((_, values)) => values.extend(&sample.values),
                None => group
                    .boxes
                    .push((sample.name.clone(), sample.values.clone())),
            }
        }
    }
    if groups.is_empty() {
        return Ok(Vec::new());
    }
    let figure = BoxesFigure {
        title: "From the clients' provider's command to the content server".to_owned(),
        subtitle: format!("laboratory; all changes of all runs{about}"),
        quantity: "time (ms)".to_owned(),
        groups,
        levels: Vec::new(),
    };
    Ok(vec![("changes".to_owned(), figure.draw()?)])
}

fn words(load: Load) -> &'static str {
    match load {
        Load::Cbr => "at a constant rate",
        Load::Bulk => "a file as fast as it goes",
    }
}

fn goodputs(flows: &Flows, measured: &Measured, load: Load) -> Vec<BoxGroup> {
    let of_pattern = |pattern: &Pattern| {
        let boxes = flows.transports.iter().filter_map(|&transport| {
            let mut cases = flows.cases();
            let case = cases
                .position(|(t, l, p)| (t, l) == (transport, load) && std::ptr::eq(p, pattern))?;
            let runs = measured.runs.get(&case)?;
            let values = runs.iter().filter_map(|run| run.outcome.values[0]);
            let name = match transport {
                Transport::Tcp => "TCP, best path",
                Transport::Mptcp => "MPTCP, all paths",
            };
            Some((name.to_owned(), values.collect()))
        });
        BoxGroup {
            name: vec![pattern.name()],
            boxes: boxes.collect(),
        }
    };
    let groups = flows.patterns.iter().map(of_pattern);
    groups.filter(|group| !group.boxes.is_empty()).collect()
}

/// A panel for every case that was run, with its first run.
fn over_time(flows: &Flows, measured: &Measured, load: Load) -> Vec<TimePanel> {
    let cases = flows.cases().enumerate();
    let cases = cases.filter(|(_, (_, of, _))| *of == load);
    let panel = |(case, (transport, _, pattern)): (usize, (Transport, Load, &Pattern))| {
        let run = measured.runs.get(&case)?.first()?;
        let traces = &run.outcome.traces;
        if traces.is_empty() {
            return None;
        }
        let transport = match transport {
            Transport::Tcp => "TCP",
            Transport::Mptcp => "MPTCP",
        };
        Some(TimePanel {
            name: format!("{}, {transport}: Mbit/s on the wire", pattern.name()),
            ..rates(traces)
        })
    };
    cases.filter_map(panel).collect()
}

/// An unnamed panel of rates in Mbit/s.
fn rates(traces: &[Trace]) -> TimePanel {
    let line = |(index, trace): (usize, &Trace)| TimeLine {
        name: trace.name.clone(),
        colour: figure::colour(index),
        steps: steps(trace),
    };
    TimePanel {
        name: String::new(),
        height: 130,
        range: (0.0, RATE_MAX),
        logarithmic: false,
        ticks: (0..=4)
            .map(|t| f64::from(t) * RATE_MAX / 4.0)
            .map(|v| (v, format!("{v}")))
            .collect(),
        lines: traces.iter().enumerate().map(line).collect(),
    }
}

/// End of the time axis, in s.
fn end_of(panels: &[TimePanel]) -> f64 {
    let lines = panels.iter().flat_map(|panel| &panel.lines);
    let ends = lines
        .filter_map(|line| line.steps.last())
        .map(|(at, _)| *at);
    ends.fold(1.0, f64::max).ceil()
}

/// Adds an end: the last value holds as long as the one before it.
fn steps(trace: &Trace) -> Vec<(f64, Option<f64>)> {
    let all = trace.steps.iter().map(|(at, value)| (*at, Some(*value)));
    let end = match trace.steps.as_slice() {
        [.., before, last] => Some((2.0 * last.0 - before.0, None)),
        _ => None,
    };
    all.chain(end).collect()
}

fn time_figure(flows: &Flows, load: Load, panels: Vec<TimePanel>, about: &str) -> TimeFigure {
    let to_s = end_of(&panels);
    let changes = flows
        .patterns
        .iter()
        .filter_map(|pattern| pattern.then.as_ref());
    let change = changes.map(|then| then.at(load).as_secs_f64()).next();
    TimeFigure {
        title: format!("What left by each path, {}", words(load)),
        subtitle: format!(
            "laboratory; rates of link a / link b in Mbit/s, the first run, in steps of 100 ms{about}"
        ),
        to_s,
        spans: change
            .map(|at| (at, to_s, "after the change".to_owned()))
            .into_iter()
            .collect(),
        panels,
    }
}

/// End of the axis: what both links, or the bottleneck, carry at most, headers included.
const RATE_MAX: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_at_round_values() {
        for (least, step) in [
            (0.0, 0.001),
            (3.0, 5.0),
            (5.1, 10.0),
            (0.02, 0.02),
            (61.0, 100.0),
        ] {
            assert!((round_step(least) / step - 1.0).abs() < 1e-9, "{least}");
        }
    }

    #[test]
    fn a_trace_ends_a_step_after_its_last_value() {
        let trace = |steps| Trace {
            name: "best path".to_owned(),
            steps,
        };
        let drawn_steps = steps(&trace(vec![(0.0, 1.0), (0.5, 2.0)]));
        assert_eq!(
            drawn_steps,
            [(0.0, Some(1.0)), (0.5, Some(2.0)), (1.0, None)]
        );
        assert_eq!(steps(&trace(Vec::new())), []);
    }
}
