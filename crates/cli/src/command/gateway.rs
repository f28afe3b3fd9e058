//! `keiro gateway`: logging, then the daemon.

use std::io;

use keiro_control::protocol::Timestamp;
use keiro_gateway::{EVENT_FIELDS, Options};
use serde_json::{Map, Value};
use tracing::Subscriber;
use tracing_subscriber::{
    Layer,
    filter::{FilterExt, LevelFilter, filter_fn},
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer, time::FormatTime},
    layer::SubscriberExt,
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::{
    args,
    args::LogFormat,
    failure::Failure,
    output::{self, Style},
};

pub(crate) fn gateway(args: &args::Gateway) -> Result<(), Failure> {
    if args.cleanup {
        return cleaned();
    }
    if args.block {
        return blocked(args);
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
        version: keiro_terminal::VERSION,
        ..Options::default()
    };
    keiro_gateway::run(&args.config, options, &run_as).map_err(Failure::from_anyhow)
}

fn blocked(args: &args::Gateway) -> Result<(), Failure> {
    let added = keiro_gateway::block(&args.config).map_err(Failure::from_anyhow)?;
    let lines = added.iter().map(|entry| format!("added {entry}\n"));
    output::text(lines.collect::<String>())
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
        LogFormat::Json => layer
            .json()
            .flatten_event(true)
            .map_event_format(JsonLine)
            .boxed(),
    };
    // The text of an event has its fields in a sentence.
    let shows_fields = matches!(format, LogFormat::Json);
    let filter = filter_fn(move |line| shows_fields || line.target() != EVENT_FIELDS);
    tracing_subscriber::registry()
        .with(layer.with_filter(level.and(filter)))
        .init();
}

/// Lines of JSON in which an event's fields are fields of the line.
struct JsonLine<F>(F);

impl<S, N, F> FormatEvent<S, N> for JsonLine<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        let mut line = String::new();
        self.0
            .format_event(context, Writer::new(&mut line), event)?;
        match with_fields_of_event(&line) {
            Some(merged) => writeln!(writer, "{merged}"),
            None => writer.write_str(&line),
        }
    }
}

/// The line with the fields of `event_fields` instead of it; `None`: it has none.
fn with_fields_of_event(line: &str) -> Option<String> {
    let mut line: Map<String, Value> = serde_json::from_str(line).ok()?;
    let fields = line.remove("event_fields")?;
    let fields: Map<String, Value> = serde_json::from_str(fields.as_str()?).ok()?;
    for (name, value) in fields {
        line.entry(name).or_insert(value);
    }
    serde_json::to_string(&line).ok()
}

/// RFC 3339 in UTC, as events have it.
struct Rfc3339;

impl FormatTime for Rfc3339 {
    fn format_time(&self, w: &mut Writer<'_>) -> std::fmt::Result {
        write!(w, "{}", Timestamp(std::time::SystemTime::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_an_event_become_fields_of_its_line() {
        let line = r#"{"level":"INFO","message":"up","event":"path_up","event_fields":"{\"event\":\"path_up\",\"path\":\"wan0\",\"level\":1}"}"#;
        assert_eq!(
            with_fields_of_event(line).as_deref(),
            Some(r#"{"event":"path_up","level":"INFO","message":"up","path":"wan0"}"#)
        );
        assert_eq!(with_fields_of_event(r#"{"level":"INFO"}"#), None);
    }
}
