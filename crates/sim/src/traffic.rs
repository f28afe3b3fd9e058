//! TCP and UDP hosts, routers and links of any topology, with the goodput of every flow.
//!
//! - [`Mesh`]: nodes, links and the event loop; routes by the fewest links.
//! - [`Device`]: a node that is not a router: a [`Host`] or a gateway.
//! - [`tcp`]: a sender and a receiver without content.
//! - [`UdpSpec`]: unresponsive sources.
//! - [`Chain`]: tenants with many flows over a chain of bottlenecks, `[fairness figs. 1, 6]`.
//! - [`Classes`]: weighted shares at a router.
//! - [`wire`]: packets as real bytes, for a gateway to carry.
//! - [`Edge`]: a gateway with a core endpoint in it; [`Chain::build_with_edges`] adds them.
//!
//! Packets here are a header and a length: no content is copied, and nothing is allocated per packet.
//! [`Network`](crate::Network), in contrast, carries real bytes between two gateways.

mod activity;
mod chain;
mod classes;
mod device;
mod edge;
mod host;
mod measure;
mod mesh;
mod packet;
mod port;
mod routes;
mod run;
mod station;
pub mod tcp;
mod udp;
pub mod wire;

pub use activity::Activity;
pub use chain::{Bottleneck, Chain, DevicePosition, Group};
pub use classes::Classes;
pub use device::{Device, DeviceOutput, PAYLOAD_MAX};
pub use edge::{Edge, EdgeCounts, EdgeSpec, Remote};
pub use host::{Host, PORTS_MAX, TcpSpec};
pub use measure::{BINS_MAX, Bins};
pub use mesh::{Mesh, MeshLink, MeshNode, NODES_MAX};
pub use packet::{
    Body, BufferId, Ecn, Flags, IP_HEADER, IpPacket, SACK_BLOCKS_MAX, SackBlocks, TCP_HEADER,
    TcpHeader, Timestamps, UDP_HEADER, UdpHeader,
};
pub use port::PortReport;
pub use run::{ChainRun, GroupReport, Placed, Ports};
pub use station::{HasHost, Station};
pub use tcp::{TcpConfig, TcpReceiver, TcpSender};
pub use udp::{Spacing, UdpSpec};
