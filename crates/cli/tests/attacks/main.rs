//! Attacks on a gateway, the hub, with an honest peer beside, the spoke: what the honest one notices of them.
//!
//! ```text
//! spoke ── hub ── crowd (forges addresses, or is a peer that says wrong things)
//!           └── fresh (a spoke whose address the hub does not know)
//! ```
//!
//! Every attack is measured beside a run without it that comes right before. The table and its verdicts are the
//! result: they depend on the machine, so that this is run by hand (CONTRIBUTING.md). Where the hub's data thread
//! waited for a processor for more than a few percent of the time, the machine had too much else to do, the
//! attackers included. Needs root and iproute2.

mod attackers;
#[path = "../harness/mod.rs"]
mod harness;
mod network;
mod probe;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../../core/tests/endpoint/support/mod.rs"]
mod support;

use std::time::Duration;

use attackers::{Attack, HOSTILE};
use network::Network;
use probe::Figures;

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");
/// How long each run takes.
const RUN: Duration = Duration::from_secs(6);

/// What an attack may do to the honest peer.
#[derive(Clone, Copy, Debug)]
struct Target {
    /// By which the 99th percentile of its delay may grow.
    p99_grows_by: Option<Duration>,
    lost: f64,
    /// Share of a core.
    processor: Option<f64>,
    /// Until a new spoke has a path.
    joins_within: Option<Duration>,
    pairs: usize,
}

/// A run without the attack, and one with it.
#[derive(Clone, Debug)]
struct Outcome {
    before: Figures,
    during: Figures,
    /// Of the hub during the attack: shares of the time that it ran, and that its data thread waited for a
    /// processor.
    processor: f64,
    waited: f64,
    memory: u64,
    /// Before, and during the attack.
    paths_down: [u64; 2],
    joined: Option<Option<Duration>>,
    /// What the attacker sent in a second.
    rate: f64,
}

fn peer_target() -> Target {
    Target {
        p99_grows_by: Some(Duration::from_millis(2)),
        lost: 0.005,
        processor: None,
        joins_within: None,
        pairs: 1,
    }
}

fn scenarios() -> Vec<(Attack, Target)> {
    let ms = Duration::from_millis;
    let flood = |rate, target| (Attack::Initiations { rate }, target);
    let mut all = vec![
        flood(
            100.0,
            Target {
                p99_grows_by: Some(ms(1)),
                pairs: 5,
                ..peer_target()
            },
        ),
        flood(
            20_000.0,
            Target {
                p99_grows_by: Some(ms(5)),
                processor: Some(0.6),
                joins_within: Some(ms(2000)),
                ..peer_target()
            },
        ),
        flood(
            150_000.0,
            Target {
                p99_grows_by: None,
                lost: 0.02,
                processor: Some(1.0),
                joins_within: Some(ms(5000)),
                pairs: 1,
            },
        ),
        (
            Attack::Connects { count: 15_000 },
            Target {
                p99_grows_by: Some(ms(5)),
                ..peer_target()
            },
        ),
    ];
    all.extend(HOSTILE.map(|kind| (Attack::Peer { kind }, peer_target())));
    all
}

#[test]
#[ignore = "a measurement of minutes, run by hand"]
fn an_honest_peer_hardly_notices_attacks() {
    keiro_linux::limit::raise_open_files();
    let wanted = std::env::var("KEIRO_ATTACK").unwrap_or_default();
    println!(
        "{:<22} {:>9} {:>23} {:>23} {:>6} {:>7} {:>8} {:>5} {:>8}  verdict",
        "attack",
        "rate/s",
        "before p50/p99/lost",
        "during p50/p99/lost",
        "CPU %",
        "wait %",
        "RSS MiB",
        "down",
        "joined s"
    );
    let mut missed = Vec::new();
    for (attack, target) in scenarios() {
        let name = attack.name();
        if !name.contains(&wanted) {
            continue;
        }
        let network = Network::start();
        let mut outcomes: Vec<Outcome> =
            (0..target.pairs).map(|_| pair(&network, attack)).collect();
        outcomes.sort_by_key(growth);
        let median = &outcomes[outcomes.len() / 2];
        let verdict = verdict(median, &target, network.answers());
        print_row(&name, median, &verdict);
        if verdict != "met" {
            missed.push(format!("{name}: {verdict}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

fn pair(network: &Network, attack: Attack) -> Outcome {
    let at_first = network.outages();
    let before = probe::measure(network, RUN);
    let (down, used) = (network.outages(), network.hub_processor());
    let waited = network.hub_waited();
    let begun = std::time::Instant::now();
    let running = attack.start(network);
    let joins = matches!(attack, Attack::Initiations { rate } if rate > 1000.0);
    let joined = std::thread::scope(|scope| {
        let fresh = scope.spawn(|| joins.then(|| network.join_fresh(RUN)));
        let during = probe::measure(network, RUN);
        (during, fresh.join().expect("it ends"))
    });
    let memory = network.hub_memory();
    let sent = running.stop();
    let seconds = begun.elapsed().as_secs_f64();
    Outcome {
        before,
        during: joined.0,
        processor: (network.hub_processor() - used) / seconds,
        waited: (network.hub_waited() - waited) / seconds,
        memory,
        paths_down: [down - at_first, network.outages() - down],
        joined: joined.1,
        rate: sent as f64 / seconds,
    }
}

fn growth(outcome: &Outcome) -> Duration {
    outcome.during.p99.saturating_sub(outcome.before.p99)
}

fn verdict(outcome: &Outcome, target: &Target, answers: bool) -> String {
    let mut missed = Vec::new();
    if target
        .p99_grows_by
        .is_some_and(|most| growth(outcome) > most)
    {
        missed.push(format!(
            "p99 +{:.1} ms",
            growth(outcome).as_secs_f64() * 1e3
        ));
    }
    if outcome.during.lost > target.lost + outcome.before.lost {
        missed.push(format!("{:.2} % lost", outcome.during.lost * 100.0));
    }
    if target
        .processor
        .is_some_and(|most| outcome.processor > most)
    {
        missed.push("processor".to_owned());
    }
    let [before, during] = outcome.paths_down;
    if during > before {
        missed.push(format!("{during} paths down"));
    }
    if let (Some(most), Some(joined)) = (target.joins_within, outcome.joined)
        && joined.is_none_or(|took| took > most)
    {
        missed.push("new spoke late".to_owned());
    }
    if !outcome.during.stream_flows {
        missed.push("stream stands still".to_owned());
    }
    if !answers {
        missed.push("status does not answer".to_owned());
    }
    match missed.is_empty() {
        true => "met".to_owned(),
        false => missed.join(", "),
    }
}

fn print_row(name: &str, outcome: &Outcome, verdict: &str) {
    let shown = |figures: &Figures| {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        format!(
            "{:.2}/{:.2} ms/{:.2} %",
            ms(figures.p50),
            ms(figures.p99),
            figures.lost * 100.0
        )
    };
    let joined = match outcome.joined {
        None => "-".to_owned(),
        Some(None) => "never".to_owned(),
        Some(Some(took)) => format!("{:.2}", took.as_secs_f64()),
    };
    println!(
        "{name:<22} {:>9.0} {:>23} {:>23} {:>6.0} {:>7.0} {:>8} {:>5} {joined:>8}  {verdict}",
        outcome.rate,
        shown(&outcome.before),
        shown(&outcome.during),
        outcome.processor * 100.0,
        outcome.waited * 100.0,
        outcome.memory >> 20,
        format!("{}/{}", outcome.paths_down[0], outcome.paths_down[1]),
    );
}
