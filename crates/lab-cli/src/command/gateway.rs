//! `keiro-lab gateway`: a gateway with a controller that exists only to reproduce a paper's results.
//!
//! `keiro` neither reads the names of such controllers nor contains them.

use std::io;

use keiro_gateway::{EVENT_FIELDS, Options};
use keiro_linux::privilege::RunAs;
use keiro_model::aggregation::ControllerKind;
use keiro_terminal::VERSION;
use tracing_subscriber::{
    Layer,
    filter::{FilterExt, LevelFilter, filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{args, failure::Failure};

/// Runs until a signal, as the present user: laboratories are root's.
pub(super) fn gateway(args: &args::Gateway) -> Result<(), Failure> {
    let text = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false);
    // The text of an event has its fields in a sentence.
    let shown = filter_fn(|line| line.target() != EVENT_FIELDS);
    tracing_subscriber::registry()
        .with(text.with_filter(LevelFilter::INFO.and(shown)))
        .init();
    let options = Options {
        realtime_priority: args.realtime,
        cpu: args.cpu,
        controller: Some(ControllerKind::Custom(args.controller)),
        version: VERSION,
        ..Options::default()
    };
    keiro_gateway::run(&args.config, options, &RunAs::Present).map_err(Failure::from_anyhow)
}
