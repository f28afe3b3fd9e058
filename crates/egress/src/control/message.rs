//! Requests and answers of the control socket.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{
    looking_glass::{RouteQuery, RoutesPage},
    status::{DrainStatus, Explanation, Reloaded, Status},
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// The status of the daemon. Its kernel state is what the daemon has put there.
    Status,
    /// What is known about a prefix. Kernel routes are those that the daemon has put there.
    Explain(IpNet),
    /// As `Status`, with the kernel's state read for it, which takes seconds with full tables.
    VerifiedStatus,
    /// As `Explain`, with the kernel's routes read for it, which takes seconds with full tables.
    VerifiedExplain(IpNet),
    /// A page of received routes.
    Routes(Box<RouteQuery>),
    /// Events from now on. The answer is [`Answer::Monitoring`], then a [`TimedEvent`] per line
    /// until either side closes the connection.
    Monitor,
    /// Read the configuration file again.
    Reload,
    /// Drain an egress peer, or use it again.
    Drain { peer: String, draining: bool },
    /// How far a drain, or its end, has come. It changes nothing.
    DrainProgress { peer: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Status(Box<Status>),
    Explanation(Box<Explanation>),
    Routes(RoutesPage),
    Monitoring,
    /// The new configuration is in force.
    Reloaded(Box<Reloaded>),
    /// Of [`Request::Drain`] and [`Request::DrainProgress`].
    Drain(Box<DrainStatus>),
    /// The request was rejected, for this reason.
    Refused(String),
}
