//! Accuracy of the link emulator on this machine: delay at 2 and 100 ms, rate at 100 Mbit/s.
//!
//! ```text
//! emulator_accuracy [RUNS]               all cases with Keiro's emulator, RUNS times (5)
//! emulator_accuracy own CASE             one case with Keiro's emulator
//! emulator_accuracy path CASE FROM TO    one case over an existing path;
//!                                        FROM and TO are NAMESPACE:INTERFACE:ADDRESS
//! ```
//!
//! CASE is `delay-2ms`, `delay-100ms` or `rate-100Mbit`. Needs root. Runs in which the emulator was late are
//! void and repeated, at most three times.

use std::{error::Error, fmt, net::Ipv4Addr, process::ExitCode, time::Duration};

use keiro_lab::{
    Interrupts, Lab, Topology,
    emulator::measure::{self, DelayError, Observation, PathEnd, Traffic},
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Maximum of repeats of a void run.
const REPEATS_MAX: u32 = 3;

/// Bounds of the emulator's errors.
const DELAY_P99_MICROS_MAX: f64 = 50.0;
const RATE_ERROR_MAX: f64 = 0.005;

/// Time until the queue has filled, in a test of the rate.
const WARM_UP: Duration = Duration::from_millis(300);

#[derive(Clone, Copy)]
enum Case {
    Delay(Duration),
    /// In bit/s.
    Rate(f64),
}

enum Figure {
    Delay(DelayError),
    /// Measured over configured, minus 1.
    RateError(f64),
}

struct Run {
    figure: Figure,
    /// The emulator's own report; `None` over a path that is not emulated.
    remarks: Option<String>,
    void: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        [] => all(5),
        ["own", case] => one(case),
        ["path", case, from, to] => path(case, from, to),
        [runs] => runs.parse().map_err(Into::into).and_then(all),
        _ => Err("see the first lines of emulator_accuracy.rs for how to use it".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("emulator_accuracy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn all(runs: usize) -> Result<()> {
    let interrupts = Interrupts::install(Duration::ZERO)?;
    for name in ["delay-2ms", "delay-100ms", "rate-100Mbit"] {
        let mut figures = Vec::new();
        for _ in 0..runs.max(1) {
            figures.push(run_until_valid(name, &interrupts)?);
        }
        let median = |value: fn(&Figure) -> f64| {
            let mut values: Vec<f64> = figures.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        match figures[0] {
            Figure::Delay(_) => {
                let (p50, p99) = (median(Figure::p50), median(Figure::p99_or_rate_error));
                let verdict = verdict(p99 <= DELAY_P99_MICROS_MAX);
                println!(
                    "{name}: median of {runs} runs: delay error p50 {p50:.1} µs, p99 {p99:.1} µs \
                     (at most {DELAY_P99_MICROS_MAX} µs: {verdict})"
                );
            }
            Figure::RateError(_) => {
                let error = median(Figure::p99_or_rate_error);
                let verdict = verdict(error <= RATE_ERROR_MAX);
                println!(
                    "{name}: median of {runs} runs: rate error {:.4} % (at most {} %: {verdict})",
                    100.0 * error,
                    100.0 * RATE_ERROR_MAX
                );
            }
        }
    }
    Ok(())
}

fn one(case: &str) -> Result<()> {
    let interrupts = Interrupts::install(Duration::ZERO)?;
    run_until_valid(case, &interrupts).map(drop)
}

fn path(name: &str, from: &str, to: &str) -> Result<()> {
    let case = Case::of(name)?;
    let observation = measure::observe(&end(from)?, &end(to)?, case.traffic())?;
    println!("{name} path {}", case.figure(&observation)?);
    Ok(())
}

fn run_until_valid(name: &str, interrupts: &Interrupts) -> Result<Figure> {
    for _ in 0..=REPEATS_MAX {
        let run = run(Case::of(name)?, interrupts)?;
        let void = if run.void { " VOID" } else { "" };
        println!(
            "{name} keiro{void} {}; {}",
            run.figure,
            run.remarks.unwrap_or_default()
        );
        if !run.void {
            return Ok(run.figure);
        }
    }
    Err(format!(
        "{name}: void {} times: the machine is too busy",
        REPEATS_MAX + 1
    )
    .into())
}

fn run(case: Case, interrupts: &Interrupts) -> Result<Run> {
    let emulated = match case {
        Case::Delay(delay) => format!("delay = \"{}us\"", delay.as_micros()),
        // The buffer must outlast a sender that is delayed by up to 120 ms.
        Case::Rate(rate) => format!("rate = \"{rate}bit\", buffer = \"1000packets\""),
    };
    let text = format!(
        "[host.a]\n[host.b]\n[link.path]\n\
         a = {{ host = \"a\", addresses = [\"192.0.2.1/30\"] }}\n\
         b = {{ host = \"b\", addresses = [\"192.0.2.2/30\"] }}\n\
         each_way = {{ {emulated} }}\n"
    );
    let topology = Topology::parse(&text, "emulator_accuracy")?;
    let lab = Lab::builder(&topology)
        .name(format!("acc{}", std::process::id()))
        .interrupts(interrupts)
        .up()?;
    let end = |host: &str, address| -> Result<PathEnd> {
        let netns = lab.host(host)?.namespace().to_owned();
        Ok(PathEnd {
            netns,
            interface: "path".into(),
            address,
        })
    };
    let from = end("a", Ipv4Addr::new(192, 0, 2, 1))?;
    let to = end("b", Ipv4Addr::new(192, 0, 2, 2))?;
    lab.measure_from_now()?;
    let observation = measure::observe(&from, &to, case.traffic())?;
    let report = lab.emulator_report()?.ok_or("the link is not emulated")?;
    lab.down()?;
    let counters = report.links[0].a_to_b;
    let remarks = format!(
        "{}; {:.0} % CPU, {} lost by the emulator, {} by its buffer{}",
        report.lateness,
        100.0 * report.cpu_time.as_secs_f64() / report.running.as_secs_f64(),
        report.frames_lost(),
        counters.link.drops.buffer,
        if report.real_time {
            ""
        } else {
            ", no real-time scheduling"
        },
    );
    Ok(Run {
        figure: case.figure(&observation)?,
        remarks: Some(remarks),
        void: report.void(),
    })
}

impl Case {
    fn of(name: &str) -> Result<Self> {
        match name {
            "delay-2ms" => Ok(Self::Delay(Duration::from_millis(2))),
            "delay-100ms" => Ok(Self::Delay(Duration::from_millis(100))),
            "rate-100Mbit" => Ok(Self::Rate(100e6)),
            _ => Err(format!("unknown case `{name}`: delay-2ms, delay-100ms, rate-100Mbit").into()),
        }
    }

    fn traffic(self) -> Traffic {
        match self {
            // An interval that shares no period with the kernel's clock tick.
            Self::Delay(_) => Traffic {
                packets: 1000,
                interval: Duration::from_micros(3_137),
                ip_bytes: 200,
                patience: Duration::from_secs(1),
            },
            // 20 % more than the link carries.
            Self::Rate(rate) => Traffic {
                packets: (3.0 * 1.2 * rate / (1500.0 * 8.0)) as u32,
                interval: Duration::from_secs_f64(1500.0 * 8.0 / (1.2 * rate)),
                ip_bytes: 1500,
                patience: Duration::from_millis(500),
            },
        }
    }

    fn figure(self, observation: &Observation) -> Result<Figure> {
        let nothing = "no packet arrived";
        match self {
            Self::Delay(delay) => Ok(Figure::Delay(
                observation.delay_error(delay).ok_or(nothing)?,
            )),
            Self::Rate(rate) => Ok(Figure::RateError(
                observation.rate(WARM_UP).ok_or(nothing)? / rate - 1.0,
            )),
        }
    }
}

impl Figure {
    fn p50(&self) -> f64 {
        match self {
            Self::Delay(error) => error.p50_micros,
            Self::RateError(error) => error.abs(),
        }
    }

    fn p99_or_rate_error(&self) -> f64 {
        match self {
            Self::Delay(error) => error.p99_micros,
            Self::RateError(error) => error.abs(),
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Delay(error) => write!(
                f,
                "delay_error_us mean {:.1} p50 {:.1} p99 {:.1} max {:.1} packets {}",
                error.mean_micros,
                error.p50_micros,
                error.p99_micros,
                error.max_micros,
                error.packets
            ),
            Self::RateError(error) => write!(f, "rate_error_percent {:.4}", 100.0 * error),
        }
    }
}

fn end(text: &str) -> Result<PathEnd> {
    let parts: Vec<_> = text.split(':').collect();
    let [netns, interface, address] = parts[..] else {
        return Err(format!("`{text}` is not NAMESPACE:INTERFACE:ADDRESS").into());
    };
    Ok(PathEnd {
        netns: netns.into(),
        interface: interface.into(),
        address: address.parse()?,
    })
}

fn verdict(holds: bool) -> &'static str {
    if holds { "met" } else { "MISSED" }
}
