//! Sockets, timers, namespaces and other kernel interfaces; the only crate with unsafe code.

pub mod netns;
pub mod offload;
pub mod packet;
pub mod process;
pub mod realtime;
