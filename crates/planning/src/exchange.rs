//! The planner's configuration and input as the control socket carries them, so that another process plans as the
//! gateway would.
//!
//! What arrives may be anything: every number is checked before it is planned with.

use std::{collections::BTreeMap, time::Duration};

use keiro_control::{
    config::{
        App, AppIndex, CostPerGb, Name, PATHS_MAX, PathIndex, PathOrigin, PathRole, PathTerms,
        PathUse, PeerIndex,
    },
    protocol::{
        self, ExcessLossInput, HoldDownInput, LineUseInput, LossNeedInput, MessagesInput,
        PLANNER_INPUT_VERSION, PathLevelInput, PathTermsInput, PathUpInput, PlannedAppInput,
        PlannedPathInput, PlannerInputSnapshot, TrafficWindowInput, WindowHalfInput, WorkloadInput,
    },
};
use keiro_planner::{
    queueing::{Offered, OtherGateway, Residual, Spread, TrafficWindow, WindowHalf},
    steer::{LossUnit, PathHoldDown, PathSample},
};
use keiro_units::{Bandwidth, ByteCount, Probability};

use crate::{
    config::{PlannedPath, PlannerConfig},
    forecast::ForecastState,
    input::{ExcessLoss, MeasuredWorkload, PlannerInput, Workload},
    line_use::LineUse,
    loss_need::{LossNeed, LossNeeds},
};

/// What a gateway plans with, as another process has received it.
#[derive(Clone, Debug)]
pub struct ReceivedInput {
    pub config: PlannerConfig,
    pub input: PlannerInput,
    pub forecast_state: ForecastState,
    /// The gateway has a site, whose plan is not part of this.
    pub alone: bool,
}

/// Why a gateway's planner input cannot be planned with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidInput {
    /// It is of another version of Keiro.
    Version(u32),
    /// A list is longer than a configuration can have it.
    TooMany(&'static str),
    /// A value that makes no sense, by the name of its field.
    Value(&'static str),
}

impl std::fmt::Display for InvalidInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Version(version) => write!(
                f,
                "the gateway's planner input has version {version}, this program reads {PLANNER_INPUT_VERSION}"
            ),
            Self::TooMany(what) => write!(f, "the gateway's planner input has too many {what}"),
            Self::Value(field) => {
                write!(f, "`{field}` of the gateway's planner input makes no sense")
            }
        }
    }
}

impl std::error::Error for InvalidInput {}

/// Entries of each list. The bound of a configuration's, and as many that a hypothetical plan may add.
const ENTRIES_MAX: usize = 10_000;
/// Rates are below, in bit/s, and lengths, in bytes: the planner's bound.
const RATE_END: u64 = 1 << 48;
const LENGTH_END: u64 = 1 << 48;
/// Times are at most a day, as in the configuration.
const SECONDS_MAX: f64 = 86_400.0;

/// What a gateway plans with. `alone`: a site's plan is not part of `input`.
pub fn planner_input_snapshot(
    config: &PlannerConfig,
    input: &PlannerInput,
    forecast_state: &ForecastState,
    alone: bool,
) -> PlannerInputSnapshot {
    let paths = (0..config.paths.len()).map(PathIndex);
    let apps = (0..config.apps.len()).map(AppIndex);
    let uses = input.shared.uses.iter();
    let uses = uses.flat_map(|(path, uses)| uses.iter().map(|on_line| line_use(*path, on_line)));
    PlannerInputSnapshot {
        version: PLANNER_INPUT_VERSION,
        alone,
        planner: config.planner,
        scheduler: config.scheduler,
        tolerance_ratio: config.tolerance.get(),
        peers: config.peers.iter().map(Name::to_string).collect(),
        paths: paths
            .map(|path| path_input(config, forecast_state, path))
            .collect(),
        paths_up: input
            .up
            .iter()
            .map(|((path, peer), level)| path_up(input, *path, *peer, level.as_ref()))
            .collect(),
        apps: apps.map(|app| app_input(config, input, app)).collect(),
        line_uses: uses.collect(),
    }
}

fn path_input(
    config: &PlannerConfig,
    forecast_state: &ForecastState,
    index: PathIndex,
) -> PlannedPathInput {
    let path = &config[index];
    PlannedPathInput {
        name: path.name.to_string(),
        rate_bits_per_second: path.rate.map(Bandwidth::as_bits_per_second),
        delay_seconds: path.delay.map(|delay| delay.as_secs_f64()),
        role: role_input(path.role),
        cost_per_gb: path.cost.get(),
        uplink: match path.origin {
            PathOrigin::Further(PathIndex(of)) => Some(of),
            PathOrigin::Written | PathOrigin::Auto => None,
        },
        residual: forecast_state.residuals.get(&index).map(Residual::sums),
    }
}

fn role_input(role: PathRole) -> protocol::PathRole {
    match role {
        PathRole::Primary => protocol::PathRole::Primary,
        PathRole::Backup => protocol::PathRole::Backup,
    }
}

fn path_up(
    input: &PlannerInput,
    path: PathIndex,
    peer: PeerIndex,
    level: Option<&PathSample>,
) -> PathUpInput {
    let key = (path, peer);
    let terms = input.terms.get(&key);
    let capacity = input.shared.capacities.get(&key);
    PathUpInput {
        path: path.0,
        peer: peer.0,
        level: level.map(|level| PathLevelInput {
            rate_bits_per_second: level.bandwidth.as_bits_per_second(),
            delay_seconds: level.delay.as_secs_f64(),
            loss_ratio: level.loss.get(),
        }),
        hold_down: match input.hold_down(path, peer) {
            PathHoldDown::Released => HoldDownInput::Released,
            PathHoldDown::Probation => HoldDownInput::Probation,
            PathHoldDown::Held => HoldDownInput::Held,
            PathHoldDown::Validating => HoldDownInput::Validating,
        },
        flaps: input.flapping.contains(&key),
        terms: terms.map(|terms| PathTermsInput {
            role: role_input(terms.role),
            cost_per_gb: terms.cost.get(),
            budget_spent: terms.is_spent,
        }),
        capacity_bits_per_second: capacity.map(|capacity| capacity.as_bits_per_second()),
    }
}

fn app_input(config: &PlannerConfig, input: &PlannerInput, index: AppIndex) -> PlannedAppInput {
    let app = &config[index];
    let number = |path: &PathIndex| path.0;
    let of_app = (index, PathIndex(0))..=(index, PathIndex(usize::MAX));
    let excess = input.excess_losses.range(of_app);
    let excess = excess.map(|((_, path), excess)| ExcessLossInput {
        path: path.0,
        loss_ratio: excess.loss.get(),
        tolerance_ratio: excess.tolerance.get(),
    });
    PlannedAppInput {
        name: app.name.to_string(),
        class: app.class,
        peer: app.peer.0,
        latency_target_seconds: app.latency_target.map(|target| target.as_secs_f64()),
        length_bytes: app.length.map(ByteCount::get),
        interval_seconds: app.interval.map(|interval| interval.as_secs_f64()),
        essential: app.essential,
        pinned: app.path.as_ref().map(number),
        assigned: input.operator.get(&index).map(number),
        path_now: input.now.get(&index).map(number),
        waits: input.waiting.contains(&index),
        sends: input.sending.contains(&index),
        overdue: input.overdue.contains(&index),
        loss_need: config.loss_needs.get(index).map(|need| LossNeedInput {
            tolerance_ratio: need.tolerance.get(),
            of_aggregates: need.of == LossUnit::Aggregates,
        }),
        workload: input.workloads.get(&index).map(|seen| match seen {
            MeasuredWorkload::Sending(workload) => WorkloadInput::Sending(messages(workload)),
            MeasuredWorkload::BeforeRestart(workload) => {
                WorkloadInput::BeforeRestart(messages(workload))
            }
            MeasuredWorkload::Stopped => WorkloadInput::Stopped,
        }),
        window: input.traffic_windows.get(&index).map(window),
        excess_losses: excess.collect(),
    }
}

fn messages(workload: &Workload) -> MessagesInput {
    MessagesInput {
        length_bytes: workload.length.get(),
        interval_seconds: workload.interval.as_secs_f64(),
        length_variance_ratio: workload.length_spread.ratio(),
        interval_variance_ratio: workload.interval_spread.ratio(),
    }
}

fn window(window: &TrafficWindow) -> TrafficWindowInput {
    TrafficWindowInput {
        halves: window.halves.map(|half| WindowHalfInput {
            messages: half.messages,
            length_bytes: half.length_mean,
            length_variance_ratio: half.length_spread.ratio(),
        }),
        interval_variance_ratio: window.interval_spread.ratio(),
        together_ratio: window.together,
    }
}

fn line_use(path: PathIndex, on_line: &LineUse) -> LineUseInput {
    LineUseInput {
        path: path.0,
        gateway: on_line.gateway.clone(),
        apps: on_line.apps,
        load_bits_per_second: on_line.load.as_bits_per_second(),
        rate_bits_per_second: on_line.sender.rate.as_bits_per_second(),
        offered: on_line.sender.offered.sums(),
    }
}

impl TryFrom<&PlannerInputSnapshot> for ReceivedInput {
    type Error = InvalidInput;

    fn try_from(snapshot: &PlannerInputSnapshot) -> Result<Self, InvalidInput> {
        if snapshot.version != PLANNER_INPUT_VERSION {
            return Err(InvalidInput::Version(snapshot.version));
        }
        check_lengths(snapshot)?;
        let peers = snapshot.peers.iter().map(|peer| name(peer));
        let paths = snapshot.paths.iter().enumerate();
        let paths = paths.map(|(number, path)| planned_path(number, path, &snapshot.paths));
        let apps = snapshot.apps.iter().map(|app| planned_app(app, snapshot));
        let needs = snapshot.apps.iter().map(|app| loss_need(app.loss_need));
        let mut received = Self {
            config: PlannerConfig {
                planner: snapshot.planner,
                scheduler: snapshot.scheduler,
                tolerance: ratio(snapshot.tolerance_ratio, "tolerance_ratio")?,
                peers: peers.collect::<Result<_, _>>()?,
                paths: paths.collect::<Result<_, _>>()?,
                apps: apps.collect::<Result<_, _>>()?,
                loss_needs: LossNeeds::new(needs.collect::<Result<_, _>>()?),
            },
            input: PlannerInput::default(),
            forecast_state: ForecastState::default(),
            alone: snapshot.alone,
        };
        for (number, path) in snapshot.paths.iter().enumerate() {
            if let Some(sums) = path.residual {
                let residual = Residual::from_sums(sums).ok_or(InvalidInput::Value("residual"))?;
                let residuals = &mut received.forecast_state.residuals;
                residuals.insert(PathIndex(number), residual);
            }
        }
        for up in &snapshot.paths_up {
            received.add_path_up(up)?;
        }
        for (number, app) in snapshot.apps.iter().enumerate() {
            received.add_measurements(AppIndex(number), app)?;
        }
        received.add_line_uses(&snapshot.line_uses)?;
        Ok(received)
    }
}

fn check_lengths(snapshot: &PlannerInputSnapshot) -> Result<(), InvalidInput> {
    let lists = [
        (snapshot.peers.len(), ENTRIES_MAX, "peers"),
        (snapshot.paths.len(), PATHS_MAX, "paths"),
        (snapshot.apps.len(), ENTRIES_MAX, "apps"),
        (snapshot.paths_up.len(), ENTRIES_MAX * PATHS_MAX, "paths_up"),
        (snapshot.line_uses.len(), ENTRIES_MAX, "line_uses"),
    ];
    let long = lists.iter().find(|(length, max, _)| length > max);
    long.map_or(Ok(()), |(_, _, what)| Err(InvalidInput::TooMany(what)))
}

impl ReceivedInput {
    fn add_path_up(&mut self, up: &PathUpInput) -> Result<(), InvalidInput> {
        let path = PathIndex(below(up.path, self.config.paths.len(), "path")?);
        let peer = PeerIndex(below(up.peer, self.config.peers.len(), "peer")?);
        let key = (path, peer);
        let level = up.level.map(|level| -> Result<PathSample, InvalidInput> {
            Ok(PathSample {
                bandwidth: rate(level.rate_bits_per_second)?,
                delay: time(level.delay_seconds, "delay_seconds")?,
                loss: ratio(level.loss_ratio, "loss_ratio")?,
            })
        });
        self.input.up.insert(key, level.transpose()?);
        let hold_down = match up.hold_down {
            HoldDownInput::Released => None,
            HoldDownInput::Probation => Some(PathHoldDown::Probation),
            HoldDownInput::Held => Some(PathHoldDown::Held),
            HoldDownInput::Validating => Some(PathHoldDown::Validating),
        };
        self.input.hold_downs.extend(hold_down.map(|it| (key, it)));
        self.input.flapping.extend(up.flaps.then_some(key));
        if let Some(terms) = up.terms {
            let terms = PathTerms {
                role: role(terms.role),
                cost: cost(terms.cost_per_gb)?,
                is_spent: terms.budget_spent,
            };
            self.input.terms.insert(key, terms);
        }
        if let Some(capacity) = up.capacity_bits_per_second {
            self.input.shared.capacities.insert(key, rate(capacity)?);
        }
        Ok(())
    }

    fn add_measurements(
        &mut self,
        index: AppIndex,
        app: &PlannedAppInput,
    ) -> Result<(), InvalidInput> {
        let paths = self.config.paths.len();
        let input = &mut self.input;
        let place = |path: Option<usize>| {
            let path = path.map(|path| below(path, paths, "path"));
            path.transpose()
                .map(|path| path.map(|path| (index, PathIndex(path))))
        };
        input.operator.extend(place(app.assigned)?);
        input.now.extend(place(app.path_now)?);
        input.waiting.extend(app.waits.then_some(index));
        input.sending.extend(app.sends.then_some(index));
        input.overdue.extend(app.overdue.then_some(index));
        let workload = match app.workload {
            None => None,
            Some(WorkloadInput::Stopped) => Some(MeasuredWorkload::Stopped),
            Some(WorkloadInput::Sending(seen)) => Some(MeasuredWorkload::Sending(workload(seen)?)),
            Some(WorkloadInput::BeforeRestart(seen)) => {
                Some(MeasuredWorkload::BeforeRestart(workload(seen)?))
            }
        };
        input.workloads.extend(workload.map(|seen| (index, seen)));
        if let Some(seen) = app.window {
            input.traffic_windows.insert(index, traffic_window(seen)?);
        }
        for excess in &app.excess_losses {
            let path = PathIndex(below(excess.path, paths, "path")?);
            let excess = ExcessLoss {
                loss: ratio(excess.loss_ratio, "loss_ratio")?,
                tolerance: ratio(excess.tolerance_ratio, "tolerance_ratio")?,
            };
            input.excess_losses.insert((index, path), excess);
        }
        Ok(())
    }

    fn add_line_uses(&mut self, uses: &[LineUseInput]) -> Result<(), InvalidInput> {
        let mut by_path = BTreeMap::<PathIndex, Vec<LineUse>>::new();
        for on_line in uses {
            let path = PathIndex(below(on_line.path, self.config.paths.len(), "path")?);
            let offered = Offered::from_sums(on_line.offered);
            by_path.entry(path).or_default().push(LineUse {
                gateway: on_line.gateway.clone(),
                apps: on_line.apps,
                load: Bandwidth::from_bits_per_second(on_line.load_bits_per_second),
                sender: OtherGateway {
                    rate: rate(on_line.rate_bits_per_second)?,
                    offered: offered.ok_or(InvalidInput::Value("offered"))?,
                },
            });
        }
        let uses = by_path.into_iter().map(|(path, uses)| (path, uses.into()));
        self.input.shared.uses = uses.collect();
        Ok(())
    }
}

fn planned_path(
    number: usize,
    path: &PlannedPathInput,
    all: &[PlannedPathInput],
) -> Result<PlannedPath, InvalidInput> {
    let origin = match path.uplink {
        None => PathOrigin::Written,
        // A further path is over an uplink, not over itself or another further one.
        Some(of) if of != number && all.get(of).is_some_and(|of| of.uplink.is_none()) => {
            PathOrigin::Further(PathIndex(of))
        }
        Some(_) => return Err(InvalidInput::Value("uplink")),
    };
    let delay = path.delay_seconds.map(|delay| time(delay, "delay_seconds"));
    Ok(PlannedPath {
        name: name(&path.name)?,
        origin,
        rate: path.rate_bits_per_second.map(rate).transpose()?,
        delay: delay.transpose()?,
        role: role(path.role),
        cost: cost(path.cost_per_gb)?,
    })
}

fn planned_app(
    app: &PlannedAppInput,
    snapshot: &PlannerInputSnapshot,
) -> Result<App, InvalidInput> {
    let pinned = app
        .pinned
        .map(|path| below(path, snapshot.paths.len(), "pinned"));
    let target = app.latency_target_seconds;
    let target = target.map(|target| time(target, "latency_target_seconds"));
    let interval = app.interval_seconds.map(interval);
    Ok(App {
        name: name(&app.name)?,
        wire_name: None,
        class: app.class,
        peer: PeerIndex(below(app.peer, snapshot.peers.len(), "peer")?),
        latency_target: target.transpose()?,
        lifetime: None,
        loss: None,
        length: app.length_bytes.map(length).transpose()?,
        interval: interval.transpose()?,
        paths: PathUse::One,
        essential: app.essential,
        path: pinned.transpose()?.map(PathIndex),
    })
}

fn loss_need(need: Option<LossNeedInput>) -> Result<Option<LossNeed>, InvalidInput> {
    let need = need.map(|need| -> Result<LossNeed, InvalidInput> {
        Ok(LossNeed {
            tolerance: ratio(need.tolerance_ratio, "tolerance_ratio")?,
            of: match need.of_aggregates {
                true => LossUnit::Aggregates,
                false => LossUnit::Packets,
            },
        })
    });
    need.transpose()
}

fn workload(seen: MessagesInput) -> Result<Workload, InvalidInput> {
    Ok(Workload {
        length: length(seen.length_bytes)?,
        interval: interval(seen.interval_seconds)?,
        length_spread: spread(seen.length_variance_ratio, "length_variance_ratio")?,
        interval_spread: spread(seen.interval_variance_ratio, "interval_variance_ratio")?,
    })
}

fn traffic_window(seen: TrafficWindowInput) -> Result<TrafficWindow, InvalidInput> {
    let half = |half: WindowHalfInput| -> Result<WindowHalf, InvalidInput> {
        let sane = half.length_bytes.is_finite() && half.length_bytes.abs() < LENGTH_END as f64;
        Ok(WindowHalf {
            messages: half.messages,
            length_mean: match sane {
                true => half.length_bytes,
                false => return Err(InvalidInput::Value("length_bytes")),
            },
            length_spread: spread(half.length_variance_ratio, "length_variance_ratio")?,
        })
    };
    let [earlier, later] = seen.halves;
    Ok(TrafficWindow {
        halves: [half(earlier)?, half(later)?],
        interval_spread: spread(seen.interval_variance_ratio, "interval_variance_ratio")?,
        together: ratio(seen.together_ratio, "together_ratio")?.get(),
    })
}

fn role(role: protocol::PathRole) -> PathRole {
    match role {
        protocol::PathRole::Backup => PathRole::Backup,
        protocol::PathRole::Primary | protocol::PathRole::Unknown => PathRole::Primary,
    }
}

fn name(text: &str) -> Result<Name, InvalidInput> {
    Name::in_use(text).map_err(|_| InvalidInput::Value("name"))
}

fn below(number: usize, end: usize, field: &'static str) -> Result<usize, InvalidInput> {
    match number < end {
        true => Ok(number),
        false => Err(InvalidInput::Value(field)),
    }
}

fn rate(bits_per_second: u64) -> Result<Bandwidth, InvalidInput> {
    match (1..RATE_END).contains(&bits_per_second) {
        true => Ok(Bandwidth::from_bits_per_second(bits_per_second)),
        false => Err(InvalidInput::Value("rate_bits_per_second")),
    }
}

fn cost(per_gb: f64) -> Result<CostPerGb, InvalidInput> {
    CostPerGb::new(per_gb).ok_or(InvalidInput::Value("cost_per_gb"))
}

fn length(bytes: u64) -> Result<ByteCount, InvalidInput> {
    match bytes < LENGTH_END {
        true => Ok(ByteCount::new(bytes)),
        false => Err(InvalidInput::Value("length_bytes")),
    }
}

fn time(seconds: f64, field: &'static str) -> Result<Duration, InvalidInput> {
    let time = (0.0..=SECONDS_MAX).contains(&seconds);
    let time = time.then(|| Duration::try_from_secs_f64(seconds).ok());
    time.flatten().ok_or(InvalidInput::Value(field))
}

fn interval(seconds: f64) -> Result<Duration, InvalidInput> {
    let interval = time(seconds, "interval_seconds")?;
    match interval.is_zero() {
        true => Err(InvalidInput::Value("interval_seconds")),
        false => Ok(interval),
    }
}

fn ratio(ratio: f64, field: &'static str) -> Result<Probability, InvalidInput> {
    Probability::new(ratio).ok_or(InvalidInput::Value(field))
}

fn spread(ratio: f64, field: &'static str) -> Result<Spread, InvalidInput> {
    Spread::new(ratio).ok_or(InvalidInput::Value(field))
}
