//! Networks with known lines, and measurements in them.

use std::{
    fmt,
    net::SocketAddr,
    sync::{atomic::AtomicBool, mpsc},
    thread,
    time::Duration,
};

use keiro_lab::{Interrupts, Lab, Topology, emulator::LATENESS_P99_MAX};
use keiro_measure::net::{Access, Limits, NetError, Server, Session};

use crate::{Failed, SEED};

const SERVER: &str = "198.51.100.2:7610";

/// Payload of a full packet of 1500 bytes, without IPv4 and TCP headers and TCP time stamps.
const PAYLOAD_BYTES: f64 = 1448.0;
/// Length of an IP packet, which the emulator counts.
const PACKET_BYTES: f64 = 1500.0;
/// Length of a frame, which the kernel's queues count.
const FRAME_BYTES: f64 = 1514.0;

/// Faster than the link, so that it does not limit the measurement, and slow enough for the emulator.
const LAN_MBIT: u32 = 400;

/// Two hosts with one link, and a router in front of it if there is a shaper.
#[derive(Clone, Copy)]
pub(crate) struct Network {
    /// Rate of IP packets.
    pub(crate) mbit: u32,
    /// One way.
    pub(crate) delay_ms: u32,
    /// Use a buffer that holds a whole transfer, and Reno, which does not pace, so that only the network
    /// determines the times. Otherwise use 512 KiB and the system's congestion control.
    pub(crate) lossless: bool,
    /// What is in front of the link.
    pub(crate) shaper: Option<Shaper>,
}

/// The kernel's token bucket (tbf): an implementation independent of Keiro.
#[derive(Clone, Copy)]
pub(crate) struct Shaper {
    /// Fill rate of the bucket, in Ethernet frames.
    pub(crate) mbit: u32,
    /// Size of the bucket.
    pub(crate) burst_bytes: u32,
}

impl Network {
    pub(crate) const fn plain(mbit: u32, delay_ms: u32) -> Self {
        Self {
            mbit,
            delay_ms,
            lossless: false,
            shaper: None,
        }
    }

    pub(crate) const fn lossless(mbit: u32, delay_ms: u32) -> Self {
        Self {
            lossless: true,
            ..Self::plain(mbit, delay_ms)
        }
    }

    /// Bandwidth B of the link, in Mbit/s of payload.
    pub(crate) fn bandwidth_mbit(self) -> f64 {
        f64::from(self.mbit) * PAYLOAD_BYTES / PACKET_BYTES
    }

    /// Overhead oh: the link's delay, plus a packet's transmission time on the first link if there is a
    /// router.
    pub(crate) fn overhead_ms(self) -> f64 {
        let first = PACKET_BYTES * 8.0 / f64::from(LAN_MBIT) / 1e3;
        f64::from(self.delay_ms) + self.shaper.map_or(0.0, |_| first)
    }

    /// Pause before a series in which the bucket fills, with a margin of 25 %.
    pub(crate) fn pause(self) -> Duration {
        self.shaper.map_or(Duration::ZERO, |shaper| {
            let seconds = f64::from(shaper.burst_bytes) * 8.0 / (f64::from(shaper.mbit) * 1e6);
            Duration::from_secs_f64(seconds * 1.25)
        })
    }

    pub(crate) fn up(self, interrupts: &Interrupts) -> Result<Lab, Failed> {
        let topology = Topology::parse(&self.topology(), "accuracy")?;
        let builder = Lab::builder(&topology).interrupts(interrupts).seed(SEED);
        let lab = builder.name(format!("a{}", std::process::id())).up()?;
        if let Some(shaper) = self.shaper {
            shaper.put_up(&lab)?;
        }
        Ok(lab)
    }

    fn topology(self) -> String {
        let Self {
            mbit,
            delay_ms,
            lossless,
            ..
        } = self;
        // Every kernel has Reno and permits it in a namespace.
        let (tcp, buffer) = match lossless {
            true => (
                "sysctl = { \"net.ipv4.tcp_congestion_control\" = \"reno\" }",
                "4MiB",
            ),
            false => ("", "512KiB"),
        };
        let end =
            |host, address| format!("{{ host = \"{host}\", addresses = [\"{address}/24\"] }}");
        let wan = format!(
            "b = {}\neach_way = {{ rate = \"{mbit}Mbit\", delay = \"{delay_ms}ms\", \
             buffer = \"{buffer}\" }}\n",
            end("osaka", "198.51.100.2")
        );
        match self.shaper {
            None => format!(
                "[host.tokyo]\n{tcp}\n[host.osaka]\n{tcp}\n[link.wan]\na = {}\n{wan}",
                end("tokyo", "198.51.100.1")
            ),
            // On a router, because on the sender the kernel's own queues would wait for the bucket.
            Some(_) => format!(
                "[host.tokyo]\n{tcp}\nroutes = [{{ to = \"198.51.100.0/24\", via = \"192.0.2.2\" }}]\n\
                 [host.nara]\nsysctl = {{ \"net.ipv4.ip_forward\" = 1 }}\n\
                 [host.osaka]\n{tcp}\nroutes = [{{ to = \"192.0.2.0/24\", via = \"198.51.100.1\" }}]\n\
                 [link.lan]\na = {}\nb = {}\n\
                 each_way = {{ rate = \"{LAN_MBIT}Mbit\", buffer = \"4MiB\" }}\n\
                 [link.wan]\na = {}\n{wan}",
                end("tokyo", "192.0.2.1"),
                end("nara", "192.0.2.2"),
                end("nara", "198.51.100.1"),
            ),
        }
    }
}

impl Shaper {
    /// Bandwidth B above the break, in Mbit/s of payload.
    pub(crate) fn bandwidth_mbit(self) -> f64 {
        f64::from(self.mbit) * PAYLOAD_BYTES / FRAME_BYTES
    }

    /// Payload that fits into the bucket.
    pub(crate) fn burst_payload_bytes(self) -> f64 {
        f64::from(self.burst_bytes) * PAYLOAD_BYTES / FRAME_BYTES
    }

    fn put_up(self, lab: &Lab) -> Result<(), Failed> {
        let (rate, burst) = (format!("{}mbit", self.mbit), self.burst_bytes.to_string());
        // More than a transfer has in flight, so that nothing is lost.
        let tbf = ["tbf", "rate", &rate, "burst", &burst, "limit", "16mb"];
        let status = lab
            .host("nara")?
            .command("tc")
            .args(["qdisc", "add", "dev", "wan", "root"])
            .args(tbf)
            .status()?;
        match status.success() {
            true => Ok(()),
            false => Err(format!("tc failed: {status}").into()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} Mbit/s, {} ms", self.mbit, self.delay_ms)?;
        match self.shaper {
            None => Ok(()),
            Some(Shaper { mbit, burst_bytes }) => {
                let kilobytes = f64::from(burst_bytes) / 1e3;
                write!(f, ", behind bursts of {kilobytes} kB at {mbit} Mbit/s")
            }
        }
    }
}

/// Runs `client` in host tokyo towards a server in host osaka.
pub(crate) fn measured<T: Send>(
    lab: &Lab,
    client: impl FnOnce(&mut Session<'_>) -> Result<T, NetError> + Send,
) -> Result<T, Failed> {
    let (tokyo, osaka) = (lab.host("tokyo")?, lab.host("osaka")?);
    let (bound, server) = mpsc::channel();
    thread::scope(|scope| {
        let serving = scope.spawn(move || {
            osaka.run(|| -> Result<(), Failed> {
                let address: SocketAddr = SERVER.parse()?;
                let server = Server::bind(address, Access::Open, Limits::default(), |_| {})?;
                bound.send(server.stop_handle())?;
                Ok(server.run()?)
            })?
        });
        let Ok(stop_server) = server.recv() else {
            return Err(serving
                .join()
                .expect("no panic")
                .err()
                .unwrap_or("no server".into()));
        };
        let stop = AtomicBool::new(false);
        let found = tokyo.run(|| {
            let mut session = Session::connect(SERVER, None, &stop)?;
            client(&mut session)
        });
        stop_server.stop();
        serving.join().expect("no panic")?;
        Ok(found??)
    })
}

/// Repeats `run` while the emulator is late, because lateness is the machine's and not the network's. The
/// third attempt counts in any case and says so.
pub(crate) fn in_time<T>(
    lab: &Lab,
    mut run: impl FnMut() -> Result<T, Failed>,
) -> Result<T, Failed> {
    for attempt in 1.. {
        lab.measure_from_now()?;
        let found = run()?;
        let late = lab.emulator_report()?.ok_or("no emulator")?.lateness.p99;
        if late <= LATENESS_P99_MAX {
            return Ok(found);
        }
        println!("(void: the emulator was late by {late:?} at the 99th percentile)");
        if attempt == 3 {
            return Ok(found);
        }
    }
    unreachable!("the third attempt ends it")
}
