//! Discrete-event simulator that runs core endpoints in virtual time.
//!
//! - [`Network`]: nodes joined by links, an event queue, virtual time from zero.
//! - [`Scenario`]: topology, traffic and timed events as plain values.
//! - [`GatewayPair`]: runs a scenario with two gateways and returns a [`Report`].
//! - [`GatewaySite`]: the same with several pairs whose paths are shared lines.
//! - [`path_selection`]: the path-selection paper's experiment.
//! - [`traffic`]: TCP and UDP hosts, routers and links of any topology, with the goodput of each flow.
//! - [`Capture`]: packet captures in virtual time.
//!
//! One seed determines all randomness: the same scenario and seed give the same
//! [`trace_hash`](Report::trace_hash). There is no I/O: captures are bytes that the caller may write to a
//! file. `docs/simulator.md` describes how to use it.
#![forbid(unsafe_code)]

mod content;
mod cross;
mod gateway;
mod in_transit;
mod middlebox;
mod network;
mod node;
mod packet;
mod pair;
pub mod path_selection;
mod pcap;
mod queue;
mod report;
mod scenario;
pub mod seed;
mod site;
mod trace;
pub mod traffic;

pub use cross::Cross;
pub use gateway::{
    DeliveredDatagram, DeliveredMessage, Gateway, Log, QLOG_BYTES_MAX, SentDatagram, SentDialogue,
    SentMessage, StreamObservation,
};
pub use middlebox::{Attack, Injected, Middlebox};
pub use network::{
    Counts, Direction, EVENTS_PER_INSTANT_MAX, LinkId, LinkSpec, Network, NodeId, Stop,
};
pub use node::{Goal, Interface, Never, Node, Outbox};
pub use packet::{HEADERS_V4, HEADERS_V6, Packet, headers};
pub use pair::{Failure, GatewayPair};
pub use pcap::{CAPTURE_BYTES_MAX, Capture};
pub use queue::{EventQueue, Source};
pub use report::{DatagramRecord, DialogueRecord, MessageRecord, Report, SideReport, StreamRecord};
pub use scenario::{
    AppSpec, Arrivals, Bursts, Change, Dialogues, GatewaySpec, Length, PathDirection, PathSpec,
    Processing, Reading, Receiver, Scenario, ScenarioEvent, SetUp, Side, Start, StreamEnd,
    TimedEvent, Traffic,
};
pub use site::GatewaySite;
pub use trace::TraceHash;
