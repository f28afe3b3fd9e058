//! Two whole gateways on loopback: sockets, threads, core, control socket.

mod control;
mod datagrams;
mod history;
mod lifecycle;
mod messages;
mod site;
