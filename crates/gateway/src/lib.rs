//! The edge daemon: owns sockets, clock and threads, and drives the sans-IO core with them.
#![forbid(unsafe_code)]

mod access;
mod budgets;
mod control_server;
mod core_config;
mod daemon;
mod damped_terms;
mod data;
mod diagnosis;
mod direct;
mod document_counts;
mod endpoints;
mod enrolment;
mod epoll_token;
mod error_response;
mod event_log;
mod exits;
mod explain;
mod follow_registry;
mod follow_site;
mod gateway;
mod handshake_time;
mod history;
mod kept_file;
mod message_tls;
mod metrics;
mod network_channel;
mod offline;
mod options;
mod packet_trace;
mod past_workloads;
mod path_down_cause;
mod path_ids;
mod planned_delay_terms;
mod privileges;
mod qlog;
mod random;
mod recent_events;
mod record_history;
mod reload;
mod replan;
mod replan_backoff;
mod requests;
mod restart_only_settings;
mod running_config;
mod send_history;
mod show;
mod site_plan;
mod sites;
mod socket_files;
mod start;
mod status;
mod steering;
mod target_monitor;
mod tenant_view;
mod tenants;
mod track_endpoints;
mod track_uplinks;
mod trigger;
mod unrouted_prefixes;
mod uplinks;
mod workload;

use std::path::Path;

use anyhow::Context;
use keiro_control::network::NetworkState;
use keiro_linux::{
    limit,
    privilege::{self, RunAs},
    signal::Signals,
};

pub use event_log::EVENT_FIELDS;
pub use gateway::Gateway;
pub use message_tls::problem as message_tls_problem;
pub use offline::plan_of;
pub use options::Options;
pub use site_plan::store_problem;
pub use track_uplinks::{PathsNow, paths_now};
pub use trigger::Handle;

/// Runs the gateway that `config_path` describes until SIGTERM or SIGINT, then drains.
///
/// SIGHUP reloads. Signals of the calling thread are blocked, and the process becomes `run_as` and gives its
/// privileges up for good, so call this from the main thread before others are started.
///
/// # Errors
/// Everything that keeps the gateway from starting or from going on: what is wrong, where, and what
/// to try.
pub fn run(config_path: &Path, options: Options, run_as: &RunAs) -> anyhow::Result<()> {
    let signals = Signals::block().context("cannot take signals over")?;
    // One descriptor per flow of a forward: the default of 1024 is soon used up.
    limit::raise_open_files();
    if let Some(priority) = options.realtime_priority {
        // The data thread reports it if it does not get the priority.
        let _ = privilege::allow_realtime(priority);
    }
    let gateway = Gateway::start_with(config_path, &options, Some(run_as))?;
    gateway.serve(Some(signals))
}

/// Puts the rules and routes in place that block packets of the tenants of `config_path` while no gateway runs, as
/// after a stop. Returns those that were not there, a line each.
///
/// # Errors
/// The configuration is wrong, or the kernel refuses; CAP_NET_ADMIN is needed.
pub fn block(config_path: &Path) -> anyhow::Result<Vec<String>> {
    let of_file = start::load(config_path, None)?;
    let config = NetworkState::load(&of_file)?.applied_to(&of_file);
    Ok(tenants::block(&config)?)
}

/// Removes the rules and routes with which gateways that do not run any more block their tenants' packets.
/// Returns what it removed, a line each.
///
/// # Errors
/// The kernel refuses; CAP_NET_ADMIN is needed.
pub fn cleanup() -> anyhow::Result<Vec<String>> {
    Ok(tenants::cleanup()?)
}
