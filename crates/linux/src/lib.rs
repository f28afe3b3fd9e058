//! Sockets, timers, namespaces and other kernel interfaces; the only crate with unsafe code.

pub mod bgp_socket;
pub mod bpf;
pub mod clock;
pub mod epe;
pub mod epoll;
pub mod interface;
pub mod limit;
pub mod mptcp;
pub mod mptcp_pm;
mod netlink;
pub mod netns;
pub mod nexthop;
pub mod offload;
pub mod overflow;
pub mod packet;
pub mod privilege;
pub mod process;
pub mod realtime;
pub mod route;
pub mod rule;
pub mod seg6;
pub mod signal;
pub mod sock_diag;
pub mod tcp;
pub mod tun;
pub mod udp;
pub mod unix;
