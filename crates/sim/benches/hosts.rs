//! Simulated time over real time with TCP hosts: `cargo bench -p keiro-sim --bench hosts`.
//!
//! The first lines are the setting of `[fairness §3.1]`: five tenants of 30 flows over 50 Mbit/s with 30 %
//! background, 50 s, without gateways and with gateways that run the daemon's protocol. Each is printed with
//! its target. The others look for costs that grow with the number of flows or with the window. An argument
//! selects lines whose name contains it. For the ratio between two versions, not for a test: the machine must
//! be otherwise idle.

use std::time::Duration;

use keiro_core::{TenantConfig, TenantId};
use keiro_model::fairness::controller::{ControllerConfig, Weight};
use keiro_sim::traffic::{Bottleneck, Chain, ChainRun, Device, HasHost, TcpConfig};
use keiro_units::{Bandwidth, Instant, Probability};

const RUNS: u64 = 5;
/// Targets of simulated over real time, for hosts and routers alone, and with gateways between them.
const TARGET_PLAIN: f64 = 100.0;
const TARGET_WITH_PROTOCOL: f64 = 20.0;
/// Rate of the gateways' access lines, and the expected rate of a weight of 1 at the bottleneck.
const LINE: Bandwidth = Bandwidth::from_mbit_per_second(1000);
const UNIT: Bandwidth = Bandwidth::from_bits_per_second(50_000_000 / 12);

fn main() {
    paper("5 tenants of 30 flows, RFC", TcpConfig::RFC);
    paper("5 tenants of 30 flows, Linux", TcpConfig::LINUX);
    with_protocol(
        "the same, controller keiro",
        ControllerConfig::Keiro { unit: Some(UNIT) },
    );
    with_protocol(
        "the same, controller i2vfc",
        ControllerConfig::I2vfc(Default::default()),
    );
    let delay = Duration::from_millis(50);
    let mut fast = Chain::reference(1, TcpConfig::LINUX);
    fast.bottlenecks = vec![Bottleneck::new(1000, 8000, delay, Probability::ZERO)];
    fast.groups[0].tcp.receive_buffer = keiro_units::ByteCount::new(64 << 20);
    line("1 flow, 1 Gbit/s, 100 ms", 10, None, || fast.build(1));
    let mut many = Chain::reference(10_000, TcpConfig::LINUX);
    many.bottlenecks = vec![Bottleneck::new(1000, 8000, delay, Probability::ZERO)];
    line("10,000 flows, 1 Gbit/s, 100 ms", 10, None, || many.build(1));
}

fn paper(name: &str, tcp: TcpConfig) {
    let chain = Chain::one_bottleneck(tcp);
    line(name, 50, Some(TARGET_PLAIN), || chain.build(1));
}

fn with_protocol(name: &str, controller: ControllerConfig) {
    let chain = Chain::one_bottleneck(TcpConfig::LINUX);
    let tenants = (1..).zip(&chain.groups).map(|(id, group)| TenantConfig {
        controller,
        weight: Weight::new(group.weight).expect("the setting's weights are above zero"),
        ..TenantConfig::new(TenantId(id))
    });
    let tenants: Vec<TenantConfig> = tenants.collect();
    line(name, 50, Some(TARGET_WITH_PROTOCOL), || {
        chain.build_with_edges(1, LINE, &tenants)
    });
}

// A benchmark is the one place that measures real time.
#[allow(clippy::disallowed_methods)]
fn line<D: Device + HasHost>(
    name: &str,
    seconds: u64,
    target: Option<f64>,
    build: impl Fn() -> ChainRun<D>,
) {
    let wanted = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with("--"));
    if wanted.is_some_and(|wanted| !name.contains(&wanted)) {
        return;
    }
    let mut shortest = Duration::MAX;
    let (mut events, mut hash, mut used) = (0, 0, 0.0);
    for _ in 0..RUNS {
        let begun = std::time::Instant::now();
        let mut run = build();
        run.run(Instant::ZERO, Instant::ZERO + Duration::from_secs(seconds));
        shortest = shortest.min(begun.elapsed());
        events = run.mesh.counts().events;
        hash = run.mesh.trace_hash();
        used = run.port(0).utilisation.unwrap_or(0.0);
    }
    let times = seconds as f64 / shortest.as_secs_f64();
    let verdict = target.map_or_else(String::new, |target| {
        let verdict = if times >= target { "reached" } else { "MISSED" };
        format!(" (asked {target:.0}: {verdict})")
    });
    println!(
        "{name:31} {seconds} s in {shortest:.3?} (shortest of {RUNS}): {times:.1} times real \
         time{verdict}, {events} events, {:.2} million a second, {:.0} % used, trace {hash:016x}",
        events as f64 / shortest.as_secs_f64() / 1e6,
        used * 100.0,
    );
}
