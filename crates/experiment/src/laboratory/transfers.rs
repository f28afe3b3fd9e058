//! Transfers in the laboratory: what `keiro measure` does, between two hosts over an emulated link.
//!
//! The hosts' kernels carry the connection. Each transfer has its own laboratory and its own session with a
//! server of `keiro measure`.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use keiro_control::units::Text;
use keiro_lab::{
    Host, Lab, Topology, emulator::Direction as LinkDirection, traffic::load::ReceiveCounters,
};
use keiro_measure::net::{
    Access, Connection, Direction, Limits, NetError, Server, Session, Stop as StopServer,
};
use keiro_units::{Bandwidth, ByteCount};

use super::{CONGESTION_CONTROL, Laboratory, address, emulator_report};
use crate::{
    row::Source,
    transfers::{Full, Network, TransferOutcome, TransferRunner},
};

const SENDER: &str = "sender";
const RECEIVER: &str = "receiver";
const LINK: &str = "network";

const SUBNET: &str = "198.51.100.0/24";

/// The port of `keiro measure`.
const PORT: u16 = 7610;

/// How often a transfer is looked at.
const LOOK: Duration = Duration::from_millis(5);

/// A standstill is divided, because `keiro measure` gives up after five seconds without an answer, and answers
/// wait behind the transfer's own packets.
const STANDSTILLS: u32 = 2;

/// From one standstill to the next. Ours: long enough for an answer, and shorter than the least of the transfers.
const BETWEEN: Duration = Duration::from_millis(750);

/// TCP payload of a full packet of 1500 bytes, with time stamps.
const SEGMENT_BYTES: u64 = 1448;

impl TransferRunner for Laboratory {
    fn source(&self) -> Source {
        Source::Lab
    }

    fn transfer(
        &mut self,
        network: &Network,
        size: ByteCount,
        seed: u64,
        limit: Duration,
    ) -> anyhow::Result<TransferOutcome> {
        let topology = Topology::parse(&topology(network), &network.name)?;
        let lab = self.lab(&topology, seed)?;
        set_congestion_control(&lab)?;
        let transfer = Transfer {
            lab: &lab,
            address: address(&lab, LINK, RECEIVER, PORT)?,
            size,
            full: network.full.filter(|full| size > full.after.0),
            limit,
        };
        let seconds = transfer.carry()?;
        let emulator = emulator_report(&lab)?;
        lab.down().context("the laboratory could not be removed")?;
        Ok(TransferOutcome {
            seconds,
            emulator: Some(emulator),
        })
    }
}

/// Two hosts and the network between them.
fn topology(network: &Network) -> String {
    // The kernel counts memory, of which packets fill about half.
    let memory = network.receive_buffer.0.get().saturating_mul(2);
    format!(
        "name = \"transfers\"\n\n\
         [host.{SENDER}]\n\n\
         [host.{RECEIVER}]\n\
         sysctl = {{ \"net.ipv4.tcp_rmem\" = \"4096 131072 {memory}\" }}\n\n\
         [link.{LINK}]\n\
         a = {{ host = \"{SENDER}\", addresses = [\"198.51.100.1/24\"] }}\n\
         b = {{ host = \"{RECEIVER}\", addresses = [\"198.51.100.2/24\"] }}\n\
         each_way = {{ rate = \"{}\", delay = \"{}\", jitter = \"{}\", buffer = \"{}B\" }}\n",
        network.rate,
        Text(network.delay.0),
        Text(network.jitter.0),
        network.buffer.0.get()
    )
}

/// By the route, because a namespace may not choose any but the system's and Reno.
fn set_congestion_control(lab: &Lab) -> anyhow::Result<()> {
    let route = [
        "route",
        "replace",
        SUBNET,
        "dev",
        LINK,
        "congctl",
        CONGESTION_CONTROL,
    ];
    let status = lab.host(SENDER)?.command("ip").args(route).status()?;
    ensure!(
        status.success(),
        "the sender's congestion control cannot be set to {CONGESTION_CONTROL}; try `modprobe tcp_{CONGESTION_CONTROL}`"
    );
    Ok(())
}

struct Transfer<'a> {
    lab: &'a Lab,
    /// Of the server.
    address: SocketAddr,
    size: ByteCount,
    /// The buffer that fills in this transfer.
    full: Option<Full>,
    limit: Duration,
}

impl Transfer<'_> {
    /// Seconds that it took; `None` if longer than the limit.
    fn carry(&self) -> anyhow::Result<Option<f64>> {
        let (sender, receiver) = (self.lab.host(SENDER)?, self.lab.host(RECEIVER)?);
        let server = receiver
            .run(|| Server::bind(self.address, Access::Open, Limits::default(), |_| {}))??;
        let stop_server = server.stop_handle();
        let stop = AtomicBool::new(false);
        let (served, took, followed) = thread::scope(|scope| {
            let serving = scope.spawn(|| server.run());
            let carrier = scope.spawn(|| self.timed(sender, &stop, &stop_server));
            let followed = self.follow(receiver, &stop, || carrier.is_finished());
            // A transfer that is not followed any more must end, too.
            stop.fetch_or(followed.is_err(), Ordering::Relaxed);
            (joined(serving), joined(carrier), followed)
        });
        followed?;
        served.context("the server of `keiro measure` failed")?;
        match took? {
            Ok(took) => Ok(Some(took.as_secs_f64())),
            Err(NetError::Interrupted) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Carries it from `sender`, and stops the server.
    fn timed(
        &self,
        sender: &Host,
        stop: &AtomicBool,
        stop_server: &StopServer,
    ) -> anyhow::Result<Result<Duration, NetError>> {
        let carried = sender.run(|| {
            let mut session = Session::connect(&self.address.to_string(), None, stop)?;
            session.transfer(self.size.get(), Direction::There, Connection::Fresh)
        });
        stop_server.stop();
        Ok(carried?)
    }

    /// Until it has ended: sets `stop` when it takes too long, and fills the buffer within the network.
    fn follow(
        &self,
        receiver: &Host,
        stop: &AtomicBool,
        has_ended: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        let mut full = self.full;
        while !has_ended() {
            if started.elapsed() >= self.limit {
                stop.store(true, Ordering::Relaxed);
            }
            if let Some(filling) = full
                && delivered(receiver)? >= filling.after.0
            {
                full = None;
                for _ in 0..STANDSTILLS {
                    self.set_rate(Bandwidth::ZERO)?;
                    thread::sleep(filling.standstill.0 / STANDSTILLS);
                    self.set_rate(filling.rate.0)?;
                    thread::sleep(BETWEEN);
                }
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Of the direction of the transfer.
    fn set_rate(&self, rate: Bandwidth) -> anyhow::Result<()> {
        let link = self.lab.link(LINK)?;
        let current = link.current().context("the link is emulated")?;
        let mut config = current.a_to_b;
        config.rate = Some(rate);
        link.set(LinkDirection::AToB, config)?;
        Ok(())
    }
}

/// Payload that has arrived, as full packets.
fn delivered(receiver: &Host) -> anyhow::Result<ByteCount> {
    let counters = ReceiveCounters::read(receiver)?;
    let device = counters
        .devices
        .get(LINK)
        .context("the receiver has no device")?;
    Ok(ByteCount::new(device.received_packets * SEGMENT_BYTES))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    #[test]
    fn every_network_is_a_topology() {
        let plan = Plan::find("latency-bandwidth/fig2").expect("a plan");
        let networks = &plan.transfers().expect("transfers").networks.networks;
        for network in networks {
            let topology = Topology::parse(&topology(network), "test").expect("it is valid");
            let emulation = topology.links[LINK].emulation.as_ref().expect("emulated");
            assert_eq!(emulation.a_to_b.rate, Some(network.rate.0));
            assert_eq!(emulation.a_to_b.jitter, network.jitter.0);
            assert_eq!(emulation.b_to_a.delay, network.delay.0);
        }
    }
}
