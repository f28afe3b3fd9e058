//! Recorded lines in the laboratory: a link for each transport, all replaying the same recording at once.
//!
//! Two hosts, the source and the sink, are joined by these links. Kernel connections use theirs directly; the
//! pair of gateways runs in the same two hosts and is reached over their loopback interfaces.

mod flows;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use keiro_control::{PublicKey, units::Text};
use keiro_lab::{
    Lab, Topology,
    emulator::{Direction, Queueing},
};

use super::{
    Laboratory, PROGRESS_STEP, emulator_report,
    gateways::{
        Gateway, Program, ensure_running, gateway_table, log_tail, start_pair, stop_all,
        wait_for_path,
    },
};
use crate::{
    recorded::{Carried, RecordedOutcome, RecordedRequest, RecordedRunner, Transport},
    row::Source,
    runner::Progress,
};
use flows::{Bulk, Thin};

const SOURCE: &str = "source";
const SINK: &str = "sink";

/// The gateways' port on the link.
const OVERLAY_PORT: u16 = 7600;
/// The sink's port for bulk data, and for datagrams; the source's gateway listens on the same.
const BULK_PORT: u16 = 7801;
const THIN_PORT: u16 = 7802;

/// What kernel connections may buffer. Ours: several times what the fastest recorded lines hold in their
/// buffers and on the way, so that these decide how much is in flight.
const SOCKET_BYTES_MAX: u64 = 128 << 20;

impl RecordedRunner for Laboratory {
    fn source(&self) -> Source {
        Source::Lab
    }

    fn missing(&self, transport: Transport) -> Option<String> {
        let control = congestion_control(transport)?;
        let available = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let available = available.unwrap_or_default();
        match available.split_whitespace().any(|one| one == control) {
            true => None,
            false => Some(format!(
                "this kernel has no congestion control `{control}`; try `modprobe tcp_{control}`"
            )),
        }
    }

    fn run(
        &mut self,
        request: &RecordedRequest<'_>,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<RecordedOutcome> {
        let topology = Topology::parse(&topology(request), &request.link.name)?;
        let lab = self.lab(&topology, request.seed)?;
        let lanes = Lane::all(&lab, request)?;
        // Gateways find a path as it is, before the recording begins again with the data.
        for lane in &lanes {
            lane.replay(request)?;
        }
        let gateways = match request.transports.contains(&Transport::Keiro) {
            true => Some(Gateways::start(&lab, &self.programs.keiro)?),
            false => None,
        };
        let carried = carry(&lanes, request, progress);
        let carried = carried.with_context(|| match &gateways {
            Some(gateways) => log_tail(&gateways.pair),
            None => "without gateways".to_owned(),
        })?;
        if let Some(gateways) = &gateways {
            ensure_running(&gateways.pair).with_context(|| log_tail(&gateways.pair))?;
        }
        drop(gateways);
        let emulator = Some(emulator_report(&lab)?);
        lab.down().context("the laboratory could not be removed")?;
        Ok(RecordedOutcome { carried, emulator })
    }
}

/// The kernel's name; `None` for transports that use none.
const fn congestion_control(transport: Transport) -> Option<&'static str> {
    match transport {
        Transport::Cubic => Some("cubic"),
        Transport::Bbr => Some("bbr"),
        Transport::Keiro | Transport::Alone => None,
    }
}

/// The addresses of source and sink on a transport's link.
fn addresses(transport: Transport) -> [Ipv4Addr; 2] {
    let subnet = transport as u8;
    [1, 2].map(|end| Ipv4Addr::new(198, 51, 100, 4 * subnet + end))
}

/// Two hosts with a link for each transport.
fn topology(request: &RecordedRequest<'_>) -> String {
    let sockets = format!(
        "sysctl = {{ \"net.ipv4.tcp_rmem\" = \"4096 131072 {SOCKET_BYTES_MAX}\", \
         \"net.ipv4.tcp_wmem\" = \"4096 65536 {SOCKET_BYTES_MAX}\" }}"
    );
    let mut text =
        format!("name = \"recorded\"\n[host.{SOURCE}]\n{sockets}\n[host.{SINK}]\n{sockets}\n");
    let buffer = request
        .trace
        .mean()
        .bytes_in_floor(request.recorded.buffer.0);
    for &transport in request.transports {
        let [source, sink] = addresses(transport);
        let _ = write!(
            text,
            "[link.{}]\n\
             a = {{ host = \"{SOURCE}\", addresses = [\"{source}/30\"] }}\n\
             b = {{ host = \"{SINK}\", addresses = [\"{sink}/30\"] }}\n\
             emulated = true\n\
             each_way = {{ delay = \"{}\", jitter = \"{}\" }}\n\
             a_to_b = {{ buffer = \"{}B\" }}\n",
            transport.name(),
            Text(request.link.delay.0),
            Text(request.link.jitter.0),
            buffer.get().max(1)
        );
    }
    text
}

/// A transport and its link.
struct Lane<'a> {
    lab: &'a Lab,
    transport: Transport,
}

impl<'a> Lane<'a> {
    fn all(lab: &'a Lab, request: &RecordedRequest<'_>) -> anyhow::Result<Vec<Self>> {
        ensure!(
            !request.transports.is_empty(),
            "no transport can be measured"
        );
        let lane = |&transport: &Transport| Self { lab, transport };
        Ok(request.transports.iter().map(lane).collect())
    }

    fn replay(&self, request: &RecordedRequest<'_>) -> anyhow::Result<()> {
        let link = self.lab.link(self.transport.name())?;
        link.replay(Direction::AToB, Some(request.trace.clone()))?;
        Ok(())
    }

    fn queueing(&self) -> anyhow::Result<Option<Queueing>> {
        let link = self.lab.link(self.transport.name())?;
        Ok(link.measure_queueing(Direction::AToB)?)
    }

    /// Where data are sent to, and where they arrive.
    fn ends(&self, port: u16) -> [SocketAddr; 2] {
        let at = match self.transport {
            Transport::Keiro => Ipv4Addr::LOCALHOST,
            of => addresses(of)[1],
        };
        [SocketAddr::from((at, port)); 2]
    }

    fn bulk(&self) -> anyhow::Result<Option<Bulk>> {
        if self.transport == Transport::Alone {
            return Ok(None);
        }
        let [to, at] = self.ends(BULK_PORT);
        let hosts = [self.lab.host(SOURCE)?, self.lab.host(SINK)?];
        let control = congestion_control(self.transport);
        Bulk::connect(hosts, to, at, control).map(Some)
    }

    fn thin(&self) -> anyhow::Result<Thin> {
        let [to, at] = self.ends(THIN_PORT);
        Thin::bind([self.lab.host(SOURCE)?, self.lab.host(SINK)?], to, at)
    }
}

/// Lets all transports send from the beginning of the recording until the time is over.
fn carry(
    lanes: &[Lane<'_>],
    request: &RecordedRequest<'_>,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<BTreeMap<Transport, Carried>> {
    let bulks = lanes.iter().map(Lane::bulk);
    let bulks: Vec<Option<Bulk>> = bulks.collect::<Result<_, _>>()?;
    let thins = lanes.iter().map(Lane::thin);
    let thins: Vec<Thin> = thins.collect::<Result<_, _>>()?;
    let interval = Duration::from_secs(1) / request.recorded.thin_per_second;
    let stop = AtomicBool::new(false);
    lanes[0].lab.measure_from_now()?;
    for lane in lanes {
        lane.replay(request)?;
        lane.queueing()?;
    }
    let begun = Instant::now();
    let ends = begun + request.duration;
    thread::scope(|scope| {
        let stop = &stop;
        let bulks: Vec<_> = bulks
            .into_iter()
            .map(|bulk| bulk.map(|bulk| scope.spawn(move || bulk.carry(ends))))
            .collect();
        let thins: Vec<_> = thins
            .into_iter()
            .map(|thin| scope.spawn(move || thin.carry(interval, begun, ends, stop)))
            .collect();
        while Instant::now() < ends {
            thread::sleep(PROGRESS_STEP.min(ends.saturating_duration_since(Instant::now())));
            progress(&Progress {
                elapsed: begun.elapsed().min(request.duration),
                applications: Vec::new(),
            });
        }
        let queueing: Vec<_> = lanes.iter().map(Lane::queueing).collect();
        thread::sleep(request.drain);
        stop.store(true, Ordering::Relaxed);
        let mut carried = BTreeMap::new();
        for (((lane, bulk), thin), queueing) in lanes.iter().zip(bulks).zip(thins).zip(queueing) {
            let mut of_lane = Carried {
                thin_ms: joined(thin)?,
                ..Carried::default()
            };
            if let Some(bulk) = bulk {
                let ended = joined(bulk);
                of_lane.received_bytes = ended.received_bytes;
                of_lane.remarks = ended.remarks;
            }
            if let Some(queueing) = queueing? {
                of_lane.queue_p50_ms = queueing.quantile_ms(0.5);
                of_lane.queue_p95_ms = queueing.quantile_ms(0.95);
                of_lane.bins = queueing.bins;
            }
            carried.insert(lane.transport, of_lane);
        }
        Ok(carried)
    })
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    match thread.join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A pair of gateways over their link, ended when dropped.
struct Gateways {
    pair: [Gateway; 2],
    _directory: tempfile::TempDir,
}

impl Gateways {
    fn start(lab: &Lab, keiro: &Path) -> anyhow::Result<Self> {
        let (directory, pair) =
            start_pair(lab, [SOURCE, SINK], Program::anywhere(keiro), configuration)?;
        let gateways = Self {
            pair,
            _directory: directory,
        };
        wait_for_path(&gateways.pair).with_context(|| log_tail(&gateways.pair))?;
        Ok(gateways)
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        stop_all(&self.pair);
    }
}

/// The configuration of the source's gateway (`own` = 0) or the sink's: a path without a rate, a stream and
/// datagrams, all else as it is by default.
fn configuration(own: usize, home: &Path, peer_key: &PublicKey) -> anyhow::Result<String> {
    let names = [SOURCE, SINK];
    let at = addresses(Transport::Keiro).map(|address| SocketAddr::from((address, OVERLAY_PORT)));
    let peer = names[1 - own];
    let mut text = gateway_table(names[own], home);
    writeln!(text, "[[path]]\nname = \"wan\"\nlocal = \"{}\"", at[own])?;
    writeln!(
        text,
        "[[peer]]\nname = \"{peer}\"\npublic_key = \"{peer_key}\""
    )?;
    writeln!(text, "endpoints = {{ wan = \"{}\" }}", at[1 - own])?;
    let table = ["listener", "forward"][own];
    for (app, class, transport, port) in [
        ("bulk", "stream", "tcp", BULK_PORT),
        ("thin", "datagram", "udp", THIN_PORT),
    ] {
        writeln!(
            text,
            "[[app]]\nname = \"{app}\"\nclass = \"{class}\"\npeer = \"{peer}\""
        )?;
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        writeln!(text, "[[{table}]]\napp = \"{app}\"\n{transport} = \"{to}\"")?;
        if table == "forward" {
            writeln!(text, "allow_local = true")?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use keiro_link::Trace;

    use super::*;
    use crate::plan::Plan;

    #[test]
    fn every_recorded_link_is_a_topology_with_its_buffer() {
        let plan = Plan::find("uplinks/recorded").unwrap();
        let recorded = plan.recorded().unwrap();
        // 1.2 Mbit/s.
        let trace = Trace::from_mahimahi("10\n").unwrap();
        for link in &recorded.links {
            let request = RecordedRequest {
                recorded,
                link,
                trace: &trace,
                transports: &Transport::ALL,
                seed: 1,
                duration: Duration::from_secs(1),
                drain: Duration::ZERO,
            };
            let topology = Topology::parse(&topology(&request), "test").expect("it is valid");
            assert_eq!(topology.links.len(), 4);
            let emulation = topology.links["bbr"].emulation.as_ref().expect("emulated");
            let buffer = keiro_units::ByteCount::new(150_000);
            assert_eq!(emulation.a_to_b.buffer, keiro_link::Buffer::Bytes(buffer));
            assert_eq!(emulation.b_to_a.delay, link.delay.0);
            assert_eq!(emulation.a_to_b.jitter, link.jitter.0);
        }
    }
}
