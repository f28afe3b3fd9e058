//! Cost of many tenants between two gateways, in CPU time and memory.
//!
//! Every tenant has a device at both ends. Packets of all tenants in turn are offered at a constant rate and
//! counted where they arrive. A gateway's use is the kernel's accounting of its process.

use std::{
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_control::{PublicKey, units::Text};
use keiro_lab::Lab;
use keiro_units::Bandwidth;

use super::super::{
    Laboratory, PROGRESS_STEP, emulator_report,
    gateways::{
        Program, ensure_running, gateway_table, log_tail, start_pair, stop_all, wait_for_path,
    },
    usage::{cpu_seconds, memory_max},
};
use crate::{
    runner::Progress,
    trials::{Scale, ScalePoint, TrialOutcome, TrialRequest},
};

/// The hosts, and the gateways' addresses between them.
const HOSTS: [&str; 2] = ["a", "b"];
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
const PORT: u16 = 7600;
/// Where packets are counted.
const SINK_PORT: u16 = 7951;
/// Interval of the offered bursts: 1 ms of 400 Mbit/s are 36 packets.
const STEP: Duration = Duration::from_millis(1);
/// IPv4 and UDP headers of the offered packets.
const HEADERS_BYTES: u64 = 28;

impl Laboratory {
    pub(super) fn scale(
        &self,
        lab: &Lab,
        request: &TrialRequest<'_>,
        scale: &Scale,
        progress: &mut dyn FnMut(&Progress),
    ) -> anyhow::Result<TrialOutcome> {
        let point = scale.points.get(request.case).context("a case")?;
        let (directory, gateways) = start_pair(
            lab,
            HOSTS,
            Program::anywhere(&self.programs.keiro),
            |own, home, key| configuration(own, home, key, scale, point),
        )?;
        let measured = (|| {
            wait_for_path(&gateways)?;
            let counted = carry(lab, request, scale, point, progress, || {
                let of = |own: usize| cpu_seconds(gateways[own].process.id());
                Ok([of(0)?, of(1)?])
            })?;
            ensure_running(&gateways)?;
            let memory = [0, 1].map(|own| memory_max(gateways[own].process.id()));
            let [ingress, egress] = memory;
            anyhow::Ok((counted, [ingress?, egress?]))
        })();
        let measured = measured.with_context(|| log_tail(&gateways));
        stop_all(&gateways);
        drop(directory);
        let (counted, memory) = measured?;
        let seconds = counted.seconds;
        let share = |cpu: f64| Some(cpu / seconds * 100.0);
        let offered = point.offered.0.as_bits_per_second() as f64;
        let carried = counted.packets as f64 * scale.packet.0.get() as f64 * 8.0 / seconds;
        Ok(TrialOutcome {
            values: vec![
                share(counted.cpu[0]),
                share(counted.cpu[1]),
                Some(memory[0]),
                Some(memory[1]),
                Some(carried / offered * 100.0),
            ],
            durations_ms: Vec::new(),
            traces: Vec::new(),
            samples: Vec::new(),
            remarks: Vec::new(),
            void: None,
            emulator: emulator_report(lab)?,
        })
    }
}

/// Counts since the end of the warm-up.
struct Counted {
    seconds: f64,
    /// CPU time of each gateway, in s.
    cpu: [f64; 2],
    packets: u64,
}

fn carry(
    lab: &Lab,
    request: &TrialRequest<'_>,
    scale: &Scale,
    point: &ScalePoint,
    progress: &mut dyn FnMut(&Progress),
    cpu: impl Fn() -> anyhow::Result<[f64; 2]>,
) -> anyhow::Result<Counted> {
    let sink = lab
        .host(HOSTS[1])?
        .run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, SINK_PORT)))??;
    let source = lab
        .host(HOSTS[0])?
        .run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
    sink.set_read_timeout(Some(PROGRESS_STEP))?;
    let (arrived, done) = (AtomicU64::new(0), AtomicBool::new(false));
    lab.measure_from_now()?;
    thread::scope(|scope| {
        let sending = scope.spawn(|| offer(&source, scale, point, &done));
        scope.spawn(|| {
            let mut buffer = [0; 2048];
            while !done.load(Ordering::Acquire) {
                if sink.recv(&mut buffer).is_ok() {
                    arrived.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        let began = Instant::now();
        let mut wait_until = |at: Duration| {
            while began.elapsed() < at && !sending.is_finished() {
                thread::sleep(PROGRESS_STEP.min(at.saturating_sub(began.elapsed())));
                progress(&Progress {
                    elapsed: began.elapsed(),
                    applications: Vec::new(),
                });
            }
        };
        let counted = (|| {
            wait_until(request.extent.warm_up.0);
            let (from, before, packets) = (Instant::now(), cpu()?, arrived.load(Ordering::Relaxed));
            wait_until(request.extent.duration.0);
            let after = cpu()?;
            Ok(Counted {
                seconds: from.elapsed().as_secs_f64(),
                cpu: [after[0] - before[0], after[1] - before[1]],
                packets: arrived.load(Ordering::Relaxed) - packets,
            })
        })();
        done.store(true, Ordering::Release);
        let sent = sending.join();
        sent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            .context("offering packets")?;
        counted
    })
}

/// Sends packets of all tenants in turn at the rate of `point`.
fn offer(
    source: &UdpSocket,
    scale: &Scale,
    point: &ScalePoint,
    done: &AtomicBool,
) -> std::io::Result<()> {
    let bytes = scale.packet.0.get();
    let payload = vec![0x5a; bytes.saturating_sub(HEADERS_BYTES) as usize];
    let per_second = point.offered.0.as_bits_per_second() as f64 / (bytes as f64 * 8.0);
    let (began, mut sent) = (Instant::now(), 0u64);
    while !done.load(Ordering::Acquire) {
        let due = (began.elapsed().as_secs_f64() * per_second) as u64;
        while sent < due {
            let tenant = (sent % point.tenants as u64) as usize;
            let to = SocketAddr::from((inside(tenant)[1], SINK_PORT));
            match source.send_to(&payload, to) {
                Ok(_) => {}
                // A full device means overload, which shows in the arrivals.
                Err(error) if error.raw_os_error() == Some(ENOBUFS) => {}
                Err(error) => return Err(error),
            }
            sent += 1;
        }
        thread::sleep(STEP);
    }
    Ok(())
}

/// `ENOBUFS` (`asm-generic/errno.h`).
const ENOBUFS: i32 = 105;

/// Names of a tenant's devices at a and b.
fn inside(tenant: usize) -> [Ipv4Addr; 2] {
    let [.., high, low] = (tenant as u32).to_be_bytes();
    [1, 2].map(|end| Ipv4Addr::new(10, high, low, end))
}

fn configuration(
    own: usize,
    home: &Path,
    key: &PublicKey,
    scale: &Scale,
    point: &ScalePoint,
) -> anyhow::Result<String> {
    let (name, peer) = (HOSTS[own], HOSTS[1 - own]);
    let (local, remote) = (ADDRESSES[own], ADDRESSES[1 - own]);
    // A tenant's expected rate is an equal share of the gateways' rate.
    let unit = scale.rate.0.as_bits_per_second() / point.tenants as u64;
    let unit = Text(Bandwidth::from_bits_per_second(unit));
    let mut text = gateway_table(name, home);
    writeln!(text, "[[path]]\nname = \"wan\"\nlocal = \"{local}:{PORT}\"")?;
    writeln!(text, "rate = \"{}\"", scale.rate)?;
    writeln!(
        text,
        "[fairness]\nunit = \"{unit}\"\ntenants_max = {}",
        point.tenants
    )?;
    writeln!(text, "[[peer]]\nname = \"{peer}\"\npublic_key = \"{key}\"")?;
    writeln!(text, "endpoints = {{ wan = \"{remote}:{PORT}\" }}")?;
    writeln!(
        text,
        "[[app]]\nname = \"ip\"\nclass = \"datagram\"\npeer = \"{peer}\""
    )?;
    for tenant in 0..point.tenants {
        let addresses = inside(tenant);
        let (here, there) = (addresses[own], addresses[1 - own]);
        let number = tenant + 1;
        writeln!(
            text,
            "[tenant.t{number}]\nid = {number}\ndevice = \"t{number}\""
        )?;
        writeln!(
            text,
            "addresses = [\"{here}/32\"]\nprefixes = [\"{here}/32\"]"
        )?;
        writeln!(text, "[tenant.t{number}.peer.{peer}]")?;
        writeln!(text, "prefixes = [\"{there}/32\"]\napp = \"ip\"")?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_tenant_has_addresses_of_its_own() {
        let all: BTreeSet<_> = (0..1000).flat_map(inside).collect();
        assert_eq!(all.len(), 2000);
    }
}
