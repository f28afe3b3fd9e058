//! Capacity by packet trains under cross traffic.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use keiro_lab::Interrupts;
use keiro_measure::net::{TrainPlan, measure_trains};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use crate::{
    Failed, SEED,
    laboratory::{Network, measured},
    verdicts::{Bound, Figure, Verdicts},
};

const CAPACITY: Bound = Bound::percent(5.0);

/// `load` is the share of the link that cross traffic uses, in percent, in each direction.
pub(crate) fn under_load(
    interrupts: &Interrupts,
    mbit: u32,
    load: u32,
    verdicts: &mut Verdicts,
) -> Result<(), Failed> {
    let lab = Network::plain(mbit, 5).up(interrupts)?;
    let stop = AtomicBool::new(false);
    let (tokyo, osaka) = (lab.host("tokyo")?, lab.host("osaka")?);
    let rate = f64::from(mbit) * 1e6 * f64::from(load) / 100.0;
    lab.measure_from_now()?;
    let report = thread::scope(|scope| {
        let stop = &stop;
        let noise = [(tokyo, "198.51.100.2:9"), (osaka, "198.51.100.1:9")];
        for (seed, (host, to)) in (0..).zip(noise) {
            scope.spawn(move || host.run(|| poisson(to, rate, seed, stop)));
        }
        let plan = TrainPlan {
            trains: 40,
            packets: 40,
            bytes: 1372,
            seed: SEED,
        };
        let report = measured(&lab, |session| measure_trains(session, &plan, &mut |_| {}));
        stop.store(true, Ordering::Release);
        report
    })?;
    verdicts.heading(&format!("{mbit} Mbit/s, {load} % others' traffic"));
    for (way, found) in [("there", &report.there), ("back", &report.back)] {
        let what = format!("capacity {way}");
        match found {
            Ok(found) => {
                let found = found.rate.as_bits_per_second() as f64 / 1e6;
                verdicts.check(
                    &what,
                    Figure {
                        found,
                        truth: f64::from(mbit),
                        unit: "Mbit/s",
                    },
                    CAPACITY,
                );
            }
            Err(reason) => verdicts.missing(&what, &reason.to_string()),
        }
    }
    let emulator = lab.emulator_report()?.ok_or("no emulator")?;
    let link = emulator.links.first().ok_or("no link")?;
    let [there, back] = [link.a_to_b, link.b_to_a].map(|way| {
        let bits = way.link.departed_bytes as f64 * 8.0;
        bits / emulator.measured.as_secs_f64() / f64::from(mbit) / 1e4
    });
    println!(
        "  ({there:.0} % and {back:.0} % in use; the emulator was late by {:?}, 99 %)",
        emulator.lateness.p99
    );
    Ok(lab.down()?)
}

/// Sends packets of several lengths at random times, at a mean of `rate` bit/s of IP, until stopped.
fn poisson(to: &str, rate: f64, seed: u64, stop: &AtomicBool) -> Result<(), Failed> {
    if rate <= 0.0 {
        return Ok(());
    }
    // It also receives the other direction's load, so that no ICMP errors answer it.
    let socket = UdpSocket::bind("0.0.0.0:9")?;
    let _ = keiro_linux::realtime::set_timer_slack(Duration::ZERO);
    let mut rng = ChaCha12Rng::seed_from_u64(seed);
    let lengths = [1500.0, 1500.0, 576.0, 60.0];
    let mean = lengths.iter().sum::<f64>() / lengths.len() as f64;
    let data = [0; 1472];
    let begin = Instant::now();
    let mut at = 0.0;
    while !stop.load(Ordering::Acquire) {
        let uniform = (f64::from(rng.next_u32()) + 0.5) / (f64::from(u32::MAX) + 1.0);
        at -= uniform.ln() * mean * 8.0 / rate;
        let due = begin + Duration::from_secs_f64(at);
        thread::sleep(due.saturating_duration_since(Instant::now()));
        let length = lengths[(rng.next_u32() % 4) as usize] as usize - 28;
        // A full buffer refuses the packet; cross traffic may be lost.
        let _ = socket.send_to(&data[..length], to);
    }
    Ok(())
}
