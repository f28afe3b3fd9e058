//! The command as a user runs it: one file per subject. What waits for times of a laboratory is in
//! binaries of its own, beside which nothing else runs.

mod command_line;
mod config_errors;
mod dependencies;
mod descriptors;
mod egress;
mod flowstats;
mod gateway;
mod gateway_start;
#[path = "../harness/mod.rs"]
mod harness;
mod hooks;
mod init;
mod measure_fit;
mod measure_net;
#[path = "../measure_server/mod.rs"]
mod measure_server;
mod old_keys;
mod other_hosts;
mod outcomes;
mod plan;
mod support;
mod top;
mod units;
mod web;

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");
