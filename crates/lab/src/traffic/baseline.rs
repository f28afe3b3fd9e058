//! Baselines without Keiro: kernel TCP over one link, or kernel MPTCP over several.

use std::{
    net::{IpAddr, SocketAddr},
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use keiro_linux::mptcp::{self, Subflow};

use super::{
    Connections, Exchange, MessageReceiver, MessageRecord, MessageSender, Plan, Protocol,
    StreamSender, TrafficError, connect, exchange,
};
use crate::lab::{Host, Lab, iproute};

/// Transport of messages without Keiro.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP, one connection for each application.
    Tcp {
        /// The link of all connections.
        link: String,
    },
    /// MPTCP, one connection for each application.
    Mptcp {
        /// The link over which connections start.
        first: String,
        /// The links over which each connection has a further subflow.
        also: Vec<String>,
    },
}

/// Sender, receiver, and the transport between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Baseline {
    /// The host of the sources.
    pub from: String,
    /// The host of the sinks.
    pub to: String,
    /// Transport of the messages.
    pub transport: Transport,
    /// See [`Connections::congestion`]; `Some("cubic")` is the default of Linux.
    pub congestion: Option<String>,
}

/// Sends `plan` from one host of `lab` to another and logs every message.
/// Connections, and for MPTCP all subflows, are established before the first message. The emulator's lateness
/// counts from then on. `on_received` and `stop` are those of [`exchange()`].
///
/// # Errors
/// [`TrafficError::Subflows`] if MPTCP does not use all of its links; [`TrafficError::Connect`]; names that
/// the laboratory does not have.
pub fn run_baseline(
    lab: &Lab,
    baseline: &Baseline,
    plan: &Plan,
    on_received: &(dyn Fn(&MessageRecord) + Sync),
    stop: &AtomicBool,
) -> Result<Exchange, TrafficError> {
    let (from, to) = (lab.host(&baseline.from)?, lab.host(&baseline.to)?);
    let connections = |protocol, path: Path| Connections {
        protocol,
        congestion: baseline.congestion.clone(),
        local: path.near,
        remote: SocketAddr::new(path.far, 0),
        count: plan.apps.len(),
    };
    // Held until the end of the run.
    let mut _endpoints = None;
    let pairs = match &baseline.transport {
        Transport::Tcp { link } => {
            let path = addresses(lab, link, from)?;
            connect(from, to, &connections(Protocol::Tcp, path))?
        }
        Transport::Mptcp { first, also } => {
            let path = addresses(lab, first, from)?;
            let mut paths = vec![path];
            for link in also {
                paths.push(addresses(lab, link, from)?);
            }
            _endpoints = Some(Endpoints::set(from, to, also, &paths[1..])?);
            let pairs = connect(from, to, &connections(Protocol::Mptcp, path))?;
            for (sender, _) in &pairs {
                wait_for_subflows(sender, &paths)?;
            }
            pairs
        }
    };
    lab.measure_from_now()?;
    let boxed = |(sender, receiver)| -> (Box<dyn MessageSender>, Box<dyn MessageReceiver>) {
        (Box::new(sender), Box::new(receiver))
    };
    let (senders, receivers) = pairs.into_iter().map(boxed).unzip();
    exchange(plan, senders, receivers, on_received, stop)
}

/// Time for subflows to be established; ours: a few round trips of the longest path, and a lost packet.
const SUBFLOW_WAIT: Duration = Duration::from_secs(10);

/// Period of checking subflows.
const SUBFLOW_STEP: Duration = Duration::from_millis(5);

/// The addresses of a link's two ends.
#[derive(Clone, Copy, Debug)]
struct Path {
    near: IpAddr,
    far: IpAddr,
}

/// The first pair of addresses of link `name` that are in one network, as seen from `host`.
fn addresses(lab: &Lab, name: &str, host: &Host) -> Result<Path, TrafficError> {
    let link = lab.link(name)?;
    let plan = link.plan();
    let near = plan
        .end(host.name())
        .into_iter()
        .flat_map(|end| &end.addresses);
    let far = || {
        plan.far_end(host.name())
            .into_iter()
            .flat_map(|end| &end.addresses)
    };
    near.flat_map(|near| far().map(move |far| (near, far)))
        .find(|(near, far)| near.contains(far.address()))
        .map(|(near, far)| Path {
            near: near.address(),
            far: far.address(),
        })
        .ok_or_else(|| TrafficError::NoAddresses {
            link: name.to_owned(),
        })
}

/// The path manager's settings in both hosts; reset when dropped.
struct Endpoints<'a> {
    hosts: [&'a Host; 2],
}

impl<'a> Endpoints<'a> {
    /// Makes `to` announce its addresses on `links`. `from` then opens a subflow to each, over the respective
    /// link.
    fn set(
        from: &'a Host,
        to: &'a Host,
        links: &[String],
        paths: &[Path],
    ) -> Result<Self, TrafficError> {
        let endpoints = Self { hosts: [from, to] };
        let mptcp = |host: &Host, arguments: &[&str]| {
            iproute::run(&[&["-n", host.namespace(), "mptcp"], arguments].concat())
        };
        for host in endpoints.hosts {
            mptcp(host, &["endpoint", "flush"])?;
            // The kernel's maximum of eight leaves the choice to the endpoints.
            mptcp(
                host,
                &["limits", "set", "subflows", "8", "add_addr_accepted", "8"],
            )?;
        }
        for (link, path) in links.iter().zip(paths) {
            let address = path.far.to_string();
            mptcp(to, &["endpoint", "add", &address, "dev", link, "signal"])?;
        }
        Ok(endpoints)
    }
}

impl Drop for Endpoints<'_> {
    fn drop(&mut self) {
        for host in self.hosts {
            // Fails only if the laboratory has been removed, and the settings with it.
            let _ = iproute::run(&["-n", host.namespace(), "mptcp", "endpoint", "flush"]);
        }
    }
}

/// Waits until a connection has exactly one established subflow over every path.
fn wait_for_subflows(sender: &StreamSender, paths: &[Path]) -> Result<(), TrafficError> {
    let mut wanted: Vec<_> = paths.iter().map(|path| path.near).collect();
    wanted.sort();
    let deadline = Instant::now() + SUBFLOW_WAIT;
    loop {
        let subflows = mptcp::subflows(sender.stream());
        let established = |subflows: &Vec<Subflow>| {
            let used = subflows.iter().filter(|subflow| subflow.established);
            let mut used: Vec<_> = used.map(|subflow| subflow.local.ip()).collect();
            used.sort();
            used
        };
        let got = subflows.as_ref().map(established);
        if got.as_ref().is_ok_and(|got| *got == wanted) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let got = match got {
                Ok(got) => format!("subflows from {}", list(&got)),
                Err(error) => format!("no subflows ({error})"),
            };
            return Err(TrafficError::Subflows {
                got,
                wanted: list(&wanted),
            });
        }
        thread::sleep(SUBFLOW_STEP);
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    texts.join(" and ")
}
