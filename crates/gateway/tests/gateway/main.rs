//! Two whole gateways on loopback: sockets, threads, core, control socket.

mod control;
mod datagrams;
mod lifecycle;
mod messages;
mod site;
