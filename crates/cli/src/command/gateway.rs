//! `keiro gateway`: logging, then the daemon.

use std::io;

use keiro_gateway::Options;
use tracing_subscriber::{
    Layer, filter::LevelFilter, fmt::time::FormatTime, layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    args,
    args::LogFormat,
    failure::Failure,
    output::{self, Style},
};
use keiro_control::protocol::Timestamp;

pub(crate) fn gateway(args: &args::Gateway) -> Result<(), Failure> {
    if args.cleanup {
        return cleaned();
    }
    log(args.log_format, args.verbose);
    let (run_as, warning) = super::run_as::choose(&args.user)?;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let options = Options {
        realtime_priority: args.realtime,
        cpu: args.cpu,
        spin: args.spin.map(|spin| spin.0),
        lab_variants: args.lab_variants,
        version: keiro_terminal::VERSION,
        ..Options::default()
    };
    keiro_gateway::run(&args.config, options, &run_as).map_err(Failure::from_anyhow)
}

fn cleaned() -> Result<(), Failure> {
    let removed = keiro_gateway::cleanup().map_err(Failure::from_anyhow)?;
    if removed.is_empty() {
        output::message!("keiro: no stopped gateway blocks packets here; nothing was removed");
    }
    let lines = removed.iter().map(|entry| format!("removed {entry}\n"));
    output::text(lines.collect::<String>())
}

/// Log lines go to standard error, so that data and messages stay apart.
pub(super) fn log(format: LogFormat, verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::INFO,
        1 => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_timer(Rfc3339)
        .with_target(verbose > 0);
    let layer = match format {
        LogFormat::Text => layer.with_ansi(Style::of_stderr() == Style::Colour).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(level))
        .init();
}

/// RFC 3339 in UTC, as events have it.
struct Rfc3339;

impl FormatTime for Rfc3339 {
    fn format_time(&self, w: &mut tracing_subscriber::fmt::format::Writer<'_>) -> std::fmt::Result {
        write!(w, "{}", Timestamp(std::time::SystemTime::now()))
    }
}
