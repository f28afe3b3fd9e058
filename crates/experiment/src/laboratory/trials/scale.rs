//! Many tenants between two gateways: what it costs to carry them, in time and memory.
//!
//! Every tenant has a device at both ends. Packets of all tenants by turns are offered at a constant
//! rate and counted where they arrive. What a gateway uses is the kernel's account of its process.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use keiro_control::{PublicKey, units::Text};
use keiro_lab::{Lab, Process};
use keiro_units::Bandwidth;

use super::{
    super::{
        Laboratory, PROGRESS_STEP, emulator_report,
        gateways::{
            Program, end_all, gateway_table, last_words, make_sure_they_run, start_pair,
            until_a_path_is_up,
        },
    },
    clients::memory_max,
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
/// From one burst of what is offered to the next: 1 ms of 400 Mbit/s are 36 packets.
const STEP: Duration = Duration::from_millis(1);
/// IPv4 and UDP headers of what is offered.
const HEADERS_BYTES: u64 = 28;
/// `USER_HZ`: 100 on every architecture that Keiro is built for (`proc_pid_stat(5)`).
const TICKS_PER_SECOND: f64 = 100.0;

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
            until_a_path_is_up(&gateways)?;
            let counted = carry(lab, request, (scale, point), progress, || {
                let of = |own: usize| cpu_seconds(&gateways[own].process);
                Ok([of(0)?, of(1)?])
            })?;
            make_sure_they_run(&gateways)?;
            let memory = [0, 1].map(|own| memory_max(&gateways[own].process));
            let [ingress, egress] = memory;
            anyhow::Ok((counted, [ingress?, egress?]))
        })();
        let measured = measured.with_context(|| last_words(&gateways));
        end_all(&gateways);
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
            emulator: emulator_report(lab)?,
        })
    }
}

/// What was counted from the end of the warm-up on.
struct Counted {
    seconds: f64,
    /// What each gateway used, s.
    cpu: [f64; 2],
    packets: u64,
}

fn carry(
    lab: &Lab,
    request: &TrialRequest<'_>,
    (scale, point): (&Scale, &ScalePoint),
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

/// Sends packets of all tenants by turns at the rate of `point`.
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
                // A full device is overload, which is seen in what arrives.
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

/// Of a tenant's devices at a and b.
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
    // An even part of what the gateways may send is what a tenant may expect.
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

/// What a process has used so far, user and system, s.
fn cpu_seconds(process: &Process) -> anyhow::Result<f64> {
    let file = format!("/proc/{}/stat", process.id());
    let stat = fs::read_to_string(&file).with_context(|| format!("cannot read {file}"))?;
    ticks(&stat)
        .map(|ticks| ticks as f64 / TICKS_PER_SECOND)
        .with_context(|| format!("{file} has no times"))
}

/// Fields 14 and 15 of `proc_pid_stat(5)`; the second is a name that may hold anything.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11);
    let user: u64 = times.next()?.parse().ok()?;
    let system: u64 = times.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn times_are_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 9 0 0 0 250 130 0 0 20 0 3 0 5 6 7";
        assert_eq!(ticks(stat), Some(380));
        assert_eq!(ticks("7 (a) S 1 7"), None);
    }

    #[test]
    fn every_tenant_has_addresses_of_its_own() {
        let all: BTreeSet<_> = (0..1000).flat_map(inside).collect();
        assert_eq!(all.len(), 2000);
    }
}
