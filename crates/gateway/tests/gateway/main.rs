//! Two whole gateways on loopback: sockets, threads, core, control socket.

mod control;
mod datagrams;
#[path = "../../../store/tests/support/server.rs"]
mod etcd;
mod history;
mod lifecycle;
mod messages;
mod site;
mod store;
mod streams;
