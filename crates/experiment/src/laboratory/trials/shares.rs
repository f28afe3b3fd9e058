//! Tenants at several sites, each with its own gateway and TCP flows, over one bottleneck.
//!
//! Receivers count arriving bytes in bins of 0.1 s. Small datagrams outside the tunnels measure the queue,
//! because they wait in it like all other packets.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    ops::Range,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use keiro_control::PublicKey;
use keiro_lab::{Host, Lab};
use keiro_model::fairness::{jain, weighted_index};
use socket2::{Domain, Socket, Type};

use super::{
    super::{
        Laboratory, PROGRESS_STEP, emulator_report,
        gateways::{
            Gateway, Program, ensure_running, gateway_table, log_tail, start_all, stop_all,
            wait_for_path,
        },
    },
    megabits,
};
use crate::{
    runner::Progress,
    stats,
    trials::{Shares, Sharing, Trace, TrialOutcome, TrialRequest},
};

/// Destination of all tenants' flows.
const HEAD: &str = "head";
const ROUTER: &str = "router";
/// The link with the bottleneck, and its devices' name.
const CORE: &str = "core";
/// a and b of the paper [fairness §4.2], and of TCP Reno.
const PAPER: [f64; 2] = [0.1, 0.1];
const RENO: [f64; 2] = [1.0, 0.5];
/// The gateways' port, and that of the probes.
const PORT: u16 = 7600;
const PROBE_PORT: u16 = 7950;
/// Interval of the queue's probes.
const PROBE_STEP: Duration = Duration::from_millis(20);
/// Length of a bin; shares are computed over ten bins.
const BIN: Duration = Duration::from_millis(100);
const BINS_PER_SHARE: usize = 10;
/// Shares have converged when this many consecutive bins have an index of [`SETTLED`].
const SETTLED: f64 = 0.95;
const SETTLED_BINS: usize = 3;
/// Maximum of bytes written and read at once.
const CHUNK_BYTES: usize = 1 << 16;
/// Period of checking whether a transfer's time is over.
const LOOK: Duration = Duration::from_millis(200);
/// Time for a connection through the tunnel.
const CONNECT_WAIT: Duration = Duration::from_secs(10);

/// A tenant's flows, from 0.
struct Flow {
    tenant: usize,
    /// Bytes read, by bin since the first tenant's start.
    bins: Vec<AtomicU64>,
}

/// Gateways of all sites and of the head, ended when dropped.
struct Sites {
    gateways: Vec<Gateway>,
    _directory: tempfile::TempDir,
}

impl Drop for Sites {
    fn drop(&mut self) {
        stop_all(&self.gateways);
    }
}

impl Laboratory {
    pub(super) fn shares(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        shares: &Shares,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let (sharing, congestion) = shares.cases().nth(request.case).context("a case")?;
        let sites = self.start_sites(lab, shares, sharing)?;
        if sharing == Sharing::Htb {
            add_classes(lab, shares.flows.len())?;
        }
        let length = request.extent.duration.0;
        let bins = (length.as_millis() / BIN.as_millis()) as usize;
        let flows = shares.flows.iter().enumerate().flat_map(|(tenant, count)| {
            let flow = move |_| Flow {
                tenant,
                bins: (0..bins).map(|_| AtomicU64::new(0)).collect(),
            };
            (0..*count).map(flow)
        });
        let flows: Vec<Flow> = flows.collect();
        lab.measure_from_now()?;
        let carried = carry(lab, &flows, shares, congestion, length, progress);
        let round_trips = carried.with_context(|| log_tail(&sites.gateways))?;
        ensure_running(&sites.gateways).with_context(|| log_tail(&sites.gateways))?;
        let results = ShareResults::of(shares, &flows, &round_trips);
        Ok(TrialOutcome {
            values: results.values(),
            durations_ms: Vec::new(),
            traces: traces(shares, &flows),
            samples: Vec::new(),
            remarks: results.remarks(),
            void: None,
            emulator: emulator_report(lab)?,
        })
    }

    fn start_sites(&self, lab: &Lab, shares: &Shares, sharing: Sharing) -> anyhow::Result<Sites> {
        let names: Vec<String> = (1..=shares.flows.len()).map(site).collect();
        let mut hosts: Vec<&str> = names.iter().map(String::as_str).collect();
        hosts.push(HEAD);
        let (directory, gateways) = start_all(
            lab,
            &hosts,
            Program::anywhere(&self.programs.keiro),
            |own, home, keys| configuration(own, home, keys, shares, sharing),
        )?;
        let sites = Sites {
            gateways,
            _directory: directory,
        };
        wait_for_path(&sites.gateways).with_context(|| log_tail(&sites.gateways))?;
        Ok(sites)
    }
}

/// Index of a tenant's site, counted from 1.
fn site(number: usize) -> String {
    format!("site{number}")
}

/// As in `experiments/fairness/sites.toml`.
fn address_of_site(tenant: usize) -> Ipv4Addr {
    Ipv4Addr::new(192, 0, 2, 4 * tenant as u8 + 1)
}

const ADDRESS_OF_HEAD: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

/// Addresses of a tenant's device at its site and at the head.
fn inside(tenant: usize) -> [Ipv4Addr; 2] {
    [1, 2].map(|end| Ipv4Addr::new(10, tenant as u8 + 1, end, 1))
}

/// Configuration of a site's gateway, or of the head's, which is the last.
fn configuration(
    own: usize,
    home: &Path,
    keys: &[PublicKey],
    shares: &Shares,
    sharing: Sharing,
) -> anyhow::Result<String> {
    let head = keys.len() - 1;
    let is_head = own == head;
    let name = match is_head {
        true => HEAD.to_owned(),
        false => site(own + 1),
    };
    let mut text = gateway_table(&name, home);
    let local = match is_head {
        true => ADDRESS_OF_HEAD,
        false => address_of_site(own),
    };
    writeln!(text, "[[path]]\nname = \"wan\"\nlocal = \"{local}:{PORT}\"")?;
    writeln!(text, "rate = \"{}\"\n[fairness]", shares.rate)?;
    let [increase, decrease] = match sharing {
        Sharing::Aimd => RENO,
        _ => PAPER,
    };
    writeln!(text, "increase = {increase}\ndecrease = {decrease}")?;
    writeln!(text, "unit = \"{}\"", shares.unit)?;
    writeln!(text, "round_trip = \"{}\"", shares.round_trip)?;
    let controller = match sharing {
        Sharing::None | Sharing::Htb => "open",
        Sharing::Aimd | Sharing::I2vfc => "i2vfc",
        Sharing::Keiro => "keiro",
    };
    let tenants = match is_head {
        true => 0..head,
        false => own..own + 1,
    };
    for tenant in tenants {
        let (peer, remote, key) = match is_head {
            true => (site(tenant + 1), address_of_site(tenant), &keys[tenant]),
            false => (HEAD.to_owned(), ADDRESS_OF_HEAD, &keys[head]),
        };
        let addresses = inside(tenant);
        let (here, there) = match is_head {
            true => (addresses[1], addresses[0]),
            false => (addresses[0], addresses[1]),
        };
        let number = tenant + 1;
        writeln!(text, "[[peer]]\nname = \"{peer}\"\npublic_key = \"{key}\"")?;
        writeln!(text, "endpoints = {{ wan = \"{remote}:{PORT}\" }}")?;
        writeln!(
            text,
            "[[app]]\nname = \"ip{number}\"\nclass = \"datagram\"\npeer = \"{peer}\""
        )?;
        writeln!(
            text,
            "[tenant.t{number}]\nid = {number}\ndevice = \"t{number}\"\ncontroller = \"{controller}\""
        )?;
        writeln!(
            text,
            "addresses = [\"{here}/32\"]\nprefixes = [\"{here}/32\"]"
        )?;
        writeln!(text, "[tenant.t{number}.peer.{peer}]")?;
        writeln!(text, "prefixes = [\"{there}/32\"]\napp = \"ip{number}\"")?;
    }
    Ok(text)
}

/// An HTB class for each tenant in front of the bottleneck, selected by the packet's site. It is slightly
/// slower than the bottleneck, so that the queue forms here.
fn add_classes(lab: &Lab, tenants: usize) -> anyhow::Result<()> {
    const RATE_MBIT: usize = 49;
    let router = lab.host(ROUTER)?;
    tc(
        router,
        &format!("qdisc add dev {CORE} root handle 1: htb default 99"),
    )?;
    tc(
        router,
        &format!(
            "class add dev {CORE} parent 1: classid 1:1 htb rate {RATE_MBIT}mbit quantum 1514"
        ),
    )?;
    // Probes bypass the classes.
    tc(
        router,
        &format!(
            "class add dev {CORE} parent 1:1 classid 1:99 htb rate 1mbit ceil {RATE_MBIT}mbit prio 0 quantum 1514"
        ),
    )?;
    for tenant in 0..tenants {
        let class = 10 + tenant;
        let rate = RATE_MBIT * 1000 / tenants;
        tc(
            router,
            &format!(
                "class add dev {CORE} parent 1:1 classid 1:{class} htb rate {rate}kbit ceil {RATE_MBIT}mbit prio 1 quantum 1514"
            ),
        )?;
        tc(
            router,
            &format!("qdisc add dev {CORE} parent 1:{class} pfifo limit 50"),
        )?;
        tc(
            router,
            &format!(
                "filter add dev {CORE} parent 1: protocol ip prio 1 u32 match ip src {}/32 match ip protocol 17 0xff match ip sport {PORT} 0xffff flowid 1:{class}",
                address_of_site(tenant)
            ),
        )?;
    }
    Ok(())
}

fn tc(router: &Host, arguments: &str) -> anyhow::Result<()> {
    let mut command = router.command("tc");
    let done = command.args(arguments.split_whitespace()).output()?;
    ensure!(
        done.status.success(),
        "`tc {arguments}`: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    Ok(())
}

/// Lets all flows send until the time is over. Returns the round trips of probes since the shares count.
fn carry(
    lab: &Lab,
    flows: &[Flow],
    shares: &Shares,
    congestion: &str,
    length: Duration,
    progress: &mut dyn FnMut(&Progress),
) -> anyhow::Result<Vec<Duration>> {
    let head = lab.host(HEAD)?;
    let listeners: Vec<TcpListener> = (0..shares.flows.len())
        .map(|tenant| listen(head, inside(tenant)[1]))
        .collect::<Result<_, _>>()?;
    let began = Instant::now();
    let ends = began + length;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let probing = scope.spawn(|| probe(lab, began + shares.counts_from(), ends));
        let mut running = Vec::new();
        for flow in flows {
            let (listener, done) = (&listeners[flow.tenant], &done);
            let starts = began + shares.apart.0 * flow.tenant as u32;
            running.push(scope.spawn(move || -> anyhow::Result<()> {
                while Instant::now() < starts && !done.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(5));
                }
                let from = lab.host(&site(flow.tenant + 1))?;
                let (source, sink) = connect(from, listener, flow.tenant, congestion)?;
                thread::scope(|both| {
                    let sending = both.spawn(|| send(source, ends, done));
                    let received = receive(sink, flow, began..ends, done);
                    sending
                        .join()
                        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                    received
                })?;
                Ok(())
            }));
        }
        while !probing.is_finished() && !running.iter().all(thread::ScopedJoinHandle::is_finished) {
            thread::sleep(PROGRESS_STEP);
            progress(&Progress {
                elapsed: began.elapsed().min(length),
                applications: Vec::new(),
            });
        }
        done.store(true, Ordering::Release);
        for one in running {
            one.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        probing
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn listen(head: &Host, address: Ipv4Addr) -> anyhow::Result<TcpListener> {
    let listener = head.run(|| TcpListener::bind((address, 0)))?;
    listener.with_context(|| format!("cannot listen at {address}"))
}

/// Connects through the tunnel. The other end may serve another flow of the same tenant, which makes no
/// difference.
fn connect(
    from: &Host,
    listener: &TcpListener,
    tenant: usize,
    congestion: &str,
) -> anyhow::Result<(TcpStream, TcpStream)> {
    let to = listener.local_addr()?;
    let own = SocketAddr::from((inside(tenant)[0], 0));
    let source = from.run(|| -> anyhow::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket
            .set_tcp_congestion(congestion.as_bytes())
            .with_context(|| format!("the kernel has no congestion control `{congestion}`; try `modprobe tcp_{congestion}`"))?;
        socket.bind(&own.into())?;
        socket.connect_timeout(&to.into(), CONNECT_WAIT)?;
        Ok(socket.into())
    })??;
    let (sink, _) = listener.accept()?;
    source.set_write_timeout(Some(LOOK))?;
    sink.set_read_timeout(Some(LOOK))?;
    Ok((source, sink))
}

fn send(mut source: TcpStream, ends: Instant, done: &AtomicBool) -> io::Result<()> {
    let chunk = vec![0; CHUNK_BYTES];
    while Instant::now() < ends && !done.load(Ordering::Acquire) {
        match source.write(&chunk) {
            Ok(_) => {}
            Err(error) if is_pause(&error) => {}
            // The other end may have noticed the end first.
            Err(_) if Instant::now() >= ends || done.load(Ordering::Acquire) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn receive(
    mut sink: TcpStream,
    flow: &Flow,
    time: Range<Instant>,
    done: &AtomicBool,
) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    while Instant::now() < time.end && !done.load(Ordering::Acquire) {
        match sink.read(&mut chunk) {
            Ok(0) if Instant::now() < time.end => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                let bin = time.start.elapsed().as_millis() / BIN.as_millis();
                if let Some(bin) = flow.bins.get(bin as usize) {
                    bin.fetch_add(count as u64, Ordering::Relaxed);
                }
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Round trips of small datagrams from the first site to the head, between `from` and `until`.
fn probe(lab: &Lab, from: Instant, until: Instant) -> anyhow::Result<Vec<Duration>> {
    let far = lab.host(HEAD)?;
    let far = far.run(|| UdpSocket::bind((ADDRESS_OF_HEAD, PROBE_PORT)))??;
    let near = lab.host(&site(1))?;
    let near = near.run(|| UdpSocket::bind((address_of_site(0), PROBE_PORT)))??;
    near.connect((ADDRESS_OF_HEAD, PROBE_PORT))?;
    near.set_read_timeout(Some(LOOK))?;
    far.set_read_timeout(Some(LOOK))?;
    let begins = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while Instant::now() < until {
                if let Ok((length, from)) = far.recv_from(&mut buffer) {
                    let _ = far.send_to(&buffer[..length], from);
                }
            }
        });
        let sending = scope.spawn(|| {
            while Instant::now() < until {
                let sent = begins.elapsed().as_nanos() as u64;
                let _ = near.send(&sent.to_be_bytes());
                thread::sleep(PROBE_STEP);
            }
        });
        let mut found = Vec::new();
        let mut buffer = [0; 64];
        while Instant::now() < until {
            let Ok(8) = near.recv(&mut buffer) else {
                continue;
            };
            let now = begins.elapsed();
            let sent = u64::from_be_bytes(buffer[..8].try_into().unwrap_or_default());
            if begins + Duration::from_nanos(sent) >= from {
                found.push(now.saturating_sub(Duration::from_nanos(sent)));
            }
        }
        if sending.join().is_err() || found.is_empty() {
            bail!("no probe of the queue came back");
        }
        Ok(found)
    })
}

/// The results of a run.
struct ShareResults {
    /// F of every second since the last start.
    indices: Vec<f64>,
    /// Index of the first of them that counts.
    counts: usize,
    inside: Option<f64>,
    /// In bit/s.
    goodput: f64,
    queue: Duration,
    /// Goodput of each tenant, in bit/s.
    tenants: Vec<f64>,
}

/// Goodput of each tenant, in Mbit/s per second.
fn traces(shares: &Shares, flows: &[Flow]) -> Vec<Trace> {
    let seconds = flows
        .first()
        .map_or(0, |flow| flow.bins.len() / BINS_PER_SHARE);
    let got = |tenant: usize, second: usize| {
        let bins = second * BINS_PER_SHARE..(second + 1) * BINS_PER_SHARE;
        let of_tenant = flows.iter().filter(|flow| flow.tenant == tenant);
        let bytes: u64 = of_tenant
            .flat_map(|flow| &flow.bins[bins.clone()])
            .map(|bin| bin.load(Ordering::Relaxed))
            .sum();
        (second as f64, bytes as f64 * 8.0 / 1e6)
    };
    let trace = |(tenant, count): (usize, &usize)| Trace {
        name: match count {
            1 => format!("tenant {}, 1 flow", tenant + 1),
            count => format!("tenant {}, {count} flows", tenant + 1),
        },
        steps: (0..seconds).map(|second| got(tenant, second)).collect(),
    };
    shares.flows.iter().enumerate().map(trace).collect()
}

impl ShareResults {
    fn of(shares: &Shares, flows: &[Flow], round_trips: &[Duration]) -> Self {
        let tenants = shares.flows.len();
        let bins = |time: Duration| (time.as_millis() / BIN.as_millis()) as usize;
        let last_start = bins(shares.counts_from() - shares.settling.0);
        let counted = bins(shares.counts_from());
        let all = flows.first().map_or(0, |flow| flow.bins.len());
        let read = |flow: &Flow, from: usize, to: usize| -> f64 {
            let bins = flow.bins[from..to].iter();
            bins.map(|bin| bin.load(Ordering::Relaxed) as f64).sum()
        };
        let of_tenants = |from: usize, to: usize| -> Vec<f64> {
            let mut sums = vec![0.0; tenants];
            for flow in flows {
                sums[flow.tenant] += read(flow, from, to);
            }
            sums
        };
        let seconds = (last_start..)
            .step_by(BINS_PER_SHARE)
            .take_while(|from| from + BINS_PER_SHARE <= all);
        let weights = vec![1.0; tenants];
        let index = |from: usize| {
            let sums = of_tenants(from, from + BINS_PER_SHARE);
            weighted_index(&sums, &weights).unwrap_or(0.0)
        };
        let several = (0..tenants).filter(|tenant| shares.flows[*tenant] > 1);
        let inside: Vec<f64> = several
            .filter_map(|tenant| {
                let of_tenant = flows.iter().filter(|flow| flow.tenant == tenant);
                let sums: Vec<f64> = of_tenant.map(|flow| read(flow, counted, all)).collect();
                jain(&sums)
            })
            .collect();
        let time = BIN.as_secs_f64() * (all - counted).max(1) as f64;
        let rates: Vec<f64> = of_tenants(counted, all)
            .into_iter()
            .map(|bytes| bytes * 8.0 / time)
            .collect();
        let least = round_trips.iter().min().copied().unwrap_or_default();
        let waits: Duration = round_trips.iter().map(|trip| *trip - least).sum();
        Self {
            indices: seconds.map(index).collect(),
            counts: (counted - last_start) / BINS_PER_SHARE,
            inside: (!inside.is_empty()).then(|| mean(&inside)),
            goodput: rates.iter().sum(),
            queue: waits / u32::try_from(round_trips.len().max(1)).unwrap_or(u32::MAX),
            tenants: rates,
        }
    }

    /// In the order of the trial's quantities.
    fn values(&self) -> Vec<Option<f64>> {
        let counted = &self.indices[self.counts.min(self.indices.len())..];
        let sorted = stats::sorted(counted.iter().copied());
        let worst = sorted.get(sorted.len() / 20);
        let fair = self.indices.windows(SETTLED_BINS);
        let settled = fair
            .clone()
            .position(|bins| bins.iter().all(|f| *f >= SETTLED));
        let percent = |share: f64| 100.0 * share;
        vec![
            (!counted.is_empty()).then(|| percent(mean(counted))),
            worst.copied().map(percent),
            // Bins of 1 s.
            settled.map(|bins| bins as f64),
            self.inside.map(percent),
            Some(megabits(self.goodput)),
            Some(self.queue.as_secs_f64() * 1e3),
        ]
    }

    fn remarks(&self) -> Vec<String> {
        let rates = self
            .tenants
            .iter()
            .map(|rate| format!("{:.2}", megabits(*rate)));
        vec![format!(
            "the tenants got {} Mbit/s",
            rates.collect::<Vec<_>>().join(", ")
        )]
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[cfg(test)]
mod tests {
    use keiro_control::units::Text;
    use keiro_units::Bandwidth;

    use super::*;

    fn shares() -> Shares {
        Shares {
            flows: vec![1, 2],
            apart: Text(Duration::from_secs(1)),
            settling: Text(Duration::from_secs(2)),
            rate: Text(Bandwidth::from_mbit_per_second(100)),
            unit: Text(Bandwidth::from_mbit_per_second(25)),
            round_trip: Text(Duration::from_millis(8)),
            ways: vec![Sharing::Keiro],
            congestion: vec!["cubic".to_owned()],
        }
    }

    /// A flow with this many bytes per bin in each second.
    fn flow(tenant: usize, per_second: &[u64]) -> Flow {
        let bins = per_second.iter().flat_map(|bytes| [*bytes; 10]);
        Flow {
            tenant,
            bins: bins.map(AtomicU64::new).collect(),
        }
    }

    #[test]
    fn shares_count_from_the_last_start_once_converged() {
        let flows = [
            flow(0, &[9, 6, 4, 4, 4, 4]),
            flow(1, &[0, 1, 3, 2, 2, 2]),
            flow(1, &[0, 1, 1, 2, 2, 2]),
        ];
        let trips = [4, 5, 9].map(Duration::from_millis);
        let results = ShareResults::of(&shares(), &flows, &trips);
        // (6 + 2)² / (2 (6² + 2²)) = 0.8 in the very first second.
        assert_eq!(results.indices.len(), 5);
        assert!((results.indices[0] - 0.8).abs() < 1e-12);
        let values: Vec<f64> = results.values().into_iter().map(Option::unwrap).collect();
        let expected = [100.0, 100.0, 1.0, 100.0, 640e-6, 2.0];
        for (found, expected) in values.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{values:?}");
        }
    }

    #[test]
    fn a_case_that_never_converges_has_no_convergence_time() {
        let flows = [flow(0, &[9; 6]), flow(1, &[1; 6])];
        let trips = [Duration::from_millis(4)];
        let results = ShareResults::of(&shares(), &flows, &trips);
        assert_eq!(results.values()[2], None);
    }

    #[test]
    fn every_gateway_has_a_valid_configuration() {
        let keys = [[1; 32], [2; 32], [3; 32]].map(PublicKey::from_bytes);
        for own in 0..3 {
            let text = configuration(own, Path::new("/run/x"), &keys, &shares(), Sharing::I2vfc);
            let found = keiro_control::config::Config::parse(&text.unwrap(), "x.toml");
            let found = found.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(found.tenants.len(), if own == 2 { 2 } else { 1 });
        }
    }
}
