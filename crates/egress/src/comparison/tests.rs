use proptest::prelude::*;

use super::*;

const HALF: Settings = Settings {
    held_out: 0.5,
    ..Settings::DEFAULT
};

/// All connections count, one in five as held out: the same evidence as with the default's one in twenty, of
/// which a quarter counts.
const FIFTH: Settings = Settings {
    held_out: 0.2,
    ..Settings::DEFAULT
};

fn at(seconds: u64) -> Instant {
    Instant::from_nanos(seconds * 1_000_000_000)
}

fn client(number: u128) -> IpAddr {
    std::net::Ipv6Addr::from((0x2001_0db8 << 96) | (number << 80) | 1).into()
}

/// Cycles of evidence that are tried.
const SEEDS: u64 = 400;

/// Goodputs of connections, distributed log-normally.
struct Site {
    random: Comparison,
    /// Standard deviation of the logarithm.
    spread: f64,
    loss: f64,
}

impl Site {
    fn new(seed: u64, spread: f64, loss: f64) -> Self {
        Self {
            // Of another stream than what is drawn.
            random: Comparison::new(Settings::DEFAULT, !seed),
            spread,
            loss,
        }
    }

    fn normal(&mut self) -> f64 {
        // Box and Muller.
        let (a, b) = (1.0 - self.random.chance(), self.random.chance());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }

    /// For how long a connection is busy with 10 MB.
    fn took(&mut self, single: bool) -> Duration {
        let factor = if single { 1.0 } else { 1.0 - self.loss };
        let goodput = 20e6 * factor * (self.spread * self.normal()).exp();
        Duration::from_secs_f64(80e6 / goodput)
    }

    /// A connection from beginning to end, and what was decided then.
    fn connect(&mut self, all: &mut Comparison, now: Instant, number: u128) -> Option<Compared> {
        let drawn = all.draw(now, client(number));
        all.record(now, drawn, 10_000_000, self.took(drawn.single));
        all.poll_decision()
    }
}

/// Connections of one prefix until something is decided, or evidence has begun anew; what, and after how many.
fn cycle(seed: u64, settings: Settings, spread: f64, loss: f64) -> (Option<Compared>, u64) {
    let mut all = Comparison::new(settings, seed);
    let mut site = Site::new(seed, spread, loss);
    let mut count = 0;
    loop {
        count += 1;
        let decided = site.connect(&mut all, at(0), 0);
        // The cycle number changed, or there was a decision.
        if decided.is_some() || all.cycles > 1 {
            return (decided, count);
        }
    }
}

/// How many of `seeds` cycles decided that multipath is worse.
fn alarms(seeds: u64, settings: Settings, spread: f64, loss: f64) -> usize {
    let decided = (0..seeds).filter(|seed| {
        let (decided, _) = cycle(*seed, settings, spread, loss);
        decided.is_some_and(|reported| reported.mode == PrefixMode::SinglePath)
    });
    decided.count()
}

#[test]
fn equal_distributions_are_almost_never_taken_for_worse() {
    for spread in [0.1, 0.5, 1.5] {
        let found = alarms(SEEDS, FIFTH, spread, 0.0);
        println!("equal, spread {spread}: {found} false alarms in {SEEDS} cycles of 640 held out");
        assert!(found <= 4, "{found}");
    }
}

#[test]
fn a_loss_that_is_just_admitted_is_taken_for_worse_as_seldom_as_is_configured() {
    for spread in [0.1, 0.5, 1.5] {
        let found = alarms(SEEDS, FIFTH, spread, 0.05);
        println!("loses 5 %, spread {spread}: {found} alarms in {SEEDS} cycles");
        // 1 % of them are 4; five standard deviations more.
        assert!(found <= 14, "{found}");
    }
}

#[test]
fn regression_of_a_fifth_is_detected() {
    for (spread, at_least, of) in [(0.1, 200, 200), (0.5, 196, 200)] {
        let mut counts = Vec::new();
        for seed in 0..of {
            let (decided, count) = cycle(seed, FIFTH, spread, 0.2);
            if let Some(reported) = decided {
                assert_eq!(reported.mode, PrefixMode::SinglePath);
                assert!(reported.confident);
                let low = reported.evidence.loss_low_permille.unwrap();
                assert!(low >= 50, "seed {seed}: {reported:?}");
                counts.push(count);
            }
        }
        counts.sort_unstable();
        println!(
            "loses 20 %, spread {spread}: found in {} of {of} cycles, after {} connections in the median (four times as many with the default)",
            counts.len(),
            counts[counts.len() / 2]
        );
        assert!(
            counts.len() >= at_least,
            "spread {spread}: {}",
            counts.len()
        );
    }
}

#[test]
fn better_multipath_stays() {
    assert_eq!(alarms(200, FIFTH, 0.5, -0.5), 0);
}

#[test]
fn a_share_of_connections_is_held_out() {
    let mut all = Comparison::new(Settings::DEFAULT, 5);
    let drawn: Vec<Assignment> = (0..100_000).map(|_| all.draw(at(0), client(0))).collect();
    let held = drawn.iter().filter(|drawn| drawn.single).count();
    assert!((4_700..5_300).contains(&held), "{held}");
    let measured = |drawn: &&Assignment| drawn.counts.is_some() && !drawn.single;
    let measured = drawn.iter().filter(measured).count();
    assert!((19_000..21_000).contains(&measured), "{measured}");
    assert!(drawn.iter().all(|d| !d.single || d.counts.is_some()));
}

#[test]
fn nothing_is_withheld_where_it_is_turned_off() {
    let off = Settings {
        held_out: 0.0,
        ..Settings::DEFAULT
    };
    let mut all = Comparison::new(off, 5);
    assert!((0..1000).all(|_| all.draw(at(0), client(0)) == Assignment::default()));
    assert_eq!(all.summary(at(0)), ComparisonStatus::default());
}

/// Until something is decided.
fn until_decided(all: &mut Comparison, site: &mut Site, now: Instant) -> Compared {
    let decided = (0..100_000).find_map(|_| site.connect(all, now, 0));
    decided.expect("something is decided")
}

#[test]
fn multipath_is_tried_again_after_pauses_that_double_and_is_back_when_it_is_good() {
    let mut all = Comparison::new(HALF, 3);
    let mut site = Site::new(3, 0.2, 0.3);
    let first = until_decided(&mut all, &mut site, at(0));
    assert_eq!(
        (first.mode, first.confident),
        (PrefixMode::SinglePath, true)
    );
    assert!(all.withholds(client(0)) && !all.withholds(client(1)));
    let mut now = 0;
    let mut pauses = Vec::new();
    for _ in 0..7 {
        let reported = all.explain(at(now), "2001:db8::/32".parse().unwrap());
        let waits = reported[0].again_seconds.unwrap();
        pauses.push(waits / 3600);
        let before = at(now + waits - 1);
        let none = all.draw(before, client(0));
        assert_eq!((none.single, none.counts), (true, None));
        now += waits;
        let trial = site.connect(&mut all, at(now), 0).expect("it is time");
        assert_eq!((trial.mode, trial.confident), (PrefixMode::Trial, false));
        let again = until_decided(&mut all, &mut site, at(now));
        assert_eq!(
            (again.mode, again.confident),
            (PrefixMode::SinglePath, true)
        );
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 16, 16]);
    // The paths have become better.
    site.loss = -0.3;
    now += 17 * 3600;
    site.connect(&mut all, at(now), 0).expect("it is time");
    let back = until_decided(&mut all, &mut site, at(now));
    assert_eq!((back.mode, back.confident), (PrefixMode::Multipath, true));
    assert!(back.evidence.loss_high_permille.unwrap() < 50, "{back:?}");
    assert!(!all.withholds(client(0)));
    // What it takes to know that it stays so, and the next pause is the first one again.
    let before = all.prefixes.values().next().unwrap().pause;
    assert_eq!(before.as_secs(), 16 * 3600);
    let cycles = all.cycles;
    while all.cycles == cycles {
        assert_eq!(site.connect(&mut all, at(now), 0), None);
    }
    assert_eq!(all.prefixes.values().next().unwrap().pause.as_secs(), 3600);
}

#[test]
fn a_trial_that_stays_undecided_ends_by_the_estimate() {
    // With such a spread no decision is ever confident.
    let (mut ends, mut confident) = ([0, 0], 0);
    for seed in 0..50 {
        let mut all = Comparison::new(HALF, seed);
        let mut site = Site::new(seed, 0.1, 0.5);
        until_decided(&mut all, &mut site, at(0));
        (site.spread, site.loss) = (3.0, 0.05);
        site.connect(&mut all, at(3600), 0).expect("it is time");
        let ended = until_decided(&mut all, &mut site, at(3600));
        confident += usize::from(ended.confident);
        let is_less = ended.evidence.loss_permille.unwrap() < 50;
        assert_eq!(is_less, ended.mode == PrefixMode::Multipath, "{ended:?}");
        ends[usize::from(is_less)] += 1;
    }
    assert!(ends[0] > 5 && ends[1] > 5, "{ends:?}");
    assert!(confident < 5, "{confident}");
}

#[test]
fn small_connections_and_those_of_other_evidence_do_not_count() {
    let mut all = Comparison::new(HALF, 1);
    let drawn = all.draw(at(0), client(0));
    let second = Duration::from_secs(1);
    all.record(at(0), drawn, (1 << 20) - 1, second);
    assert_eq!(all.summary(at(0)).stats.counted_connections, 0);
    all.record(at(0), drawn, 1 << 20, second);
    assert_eq!(all.summary(at(0)).stats.counted_connections, 1);
    // A day later it is of evidence that has gone.
    let late = at(25 * 3600);
    all.record(late, drawn, 1 << 20, second);
    let shown = &all.summary(late).shown[0].evidence;
    assert_eq!(shown.single_connections + shown.multipath_connections, 0);
    all.record(late, drawn, 1 << 20, second);
    assert_eq!(
        all.summary(late).stats.counted_connections,
        2,
        "its evidence is gone"
    );
}

#[test]
fn least_recently_seen_prefix_is_evicted() {
    let two = Settings {
        prefixes_max: 2,
        ..HALF
    };
    let mut all = Comparison::new(two, 1);
    for number in [0, 1, 0, 2] {
        all.draw(at(0), client(number));
    }
    let known: Vec<String> = all.prefixes.keys().map(ToString::to_string).collect();
    assert_eq!(known, ["2001:db8::/48", "2001:db8:2::/48"]);
    assert_eq!((all.stats.forgotten_prefixes, all.by_use.len()), (1, 2));
    all.set(Settings {
        prefixes_max: 1,
        ..two
    });
    assert_eq!((all.prefixes.len(), all.by_use.len()), (1, 1));
    // Other prefixes: what is known is of none of them.
    all.set(Settings {
        prefix_bits: 56,
        ..two
    });
    assert_eq!((all.prefixes.len(), all.by_use.len()), (0, 0));
}

#[test]
fn evidence_is_shown_by_address_and_by_prefix() {
    let mut all = Comparison::new(HALF, 1);
    for number in 0..3 {
        all.draw(at(0), client(number));
    }
    for address in ["192.0.2.1", "192.0.2.200", "198.51.100.7"] {
        all.draw(at(0), address.parse().unwrap());
    }
    let of = |asked: &str| -> Vec<String> {
        let reported = all.explain(at(0), asked.parse().unwrap());
        reported.iter().map(|one| one.prefix.to_string()).collect()
    };
    assert_eq!(of("2001:db8:1::5/128"), ["2001:db8:1::/48"]);
    assert_eq!(of("2001:db8:2::/48"), ["2001:db8:2::/48"]);
    assert_eq!(of("2001:db8::/47"), ["2001:db8::/48", "2001:db8:1::/48"]);
    assert_eq!(of("::/0").len(), 3);
    assert_eq!(of("2001:db9::/32").len(), 0);
    assert_eq!(of("192.0.2.1/32"), ["192.0.2.0/24"]);
    assert_eq!(of("192.0.0.0/8"), ["192.0.2.0/24"]);
    assert_eq!(of("0.0.0.0/0").len(), 2);
}

proptest! {
    #[test]
    fn too_few_connections_decide_nothing(
        seed: u64,
        held_out in 0.01..0.5,
        goodputs in prop::collection::vec((1_u64..1_000_000, any::<bool>()), 1..400),
    ) {
        let settings = Settings { held_out, bytes_min: 1, ..Settings::DEFAULT };
        let mut all = Comparison::new(settings, seed);
        let (mut single, mut multipath) = (0, 0);
        for (bytes, slow) in goodputs {
            let drawn = all.draw(at(0), client(0));
            let took = Duration::from_millis(if slow { 10_000 } else { 20 });
            all.record(at(0), drawn, bytes, took);
            match drawn {
                Assignment { single: true, counts: Some(_) } => single += 1,
                Assignment { single: false, counts: Some(_) } => multipath += 1,
                _ => {}
            }
            if let Some(reported) = all.poll_decision() {
                prop_assert!(single >= 20 && multipath >= 20, "{} and {}: {:?}", single, multipath, reported);
                let low = reported.evidence.loss_low_permille.unwrap();
                prop_assert!(low >= 50, "{:?}", reported);
                return Ok(());
            }
        }
    }

    #[test]
    fn whatever_happens_the_table_and_what_is_shown_are_bounded(
        seed: u64,
        steps in prop::collection::vec((0_u128..60, 1_u64..10_000_000, 0_u64..20_000, 0_u64..40), 1..600),
    ) {
        let settings = Settings { prefixes_max: 20, bytes_min: 1000, ..HALF };
        let mut all = Comparison::new(settings, seed);
        let mut now = 0;
        let mut under_way = VecDeque::new();
        for (number, bytes, ms, minutes) in steps {
            now += minutes * 60;
            under_way.push_back((all.draw(at(now), client(number % 25)), bytes, ms));
            if under_way.len() > 10 {
                let (drawn, bytes, ms) = under_way.pop_front().unwrap();
                all.record(at(now), drawn, bytes, Duration::from_millis(ms));
            }
            prop_assert!(all.prefixes.len() <= 20 && all.by_use.len() == all.prefixes.len());
            let reported = all.summary(at(now));
            prop_assert_eq!(reported.shown.len() as u64, reported.stats.prefixes);
            for one in &reported.shown {
                prop_assert_eq!(one.again_seconds.is_some(), one.mode == PrefixMode::SinglePath);
            }
        }
    }
}

/// What is written down, with something in it changed.
fn written(kept: &StoredEvidence, from: &str, to: &str) -> StoredEvidence {
    let text = serde_json::to_string(kept).unwrap();
    assert!(text.contains(from), "{from}: {text}");
    serde_json::from_str(&text.replace(from, to)).unwrap()
}

#[test]
fn evidence_survives_a_restart_and_ages() {
    let mut first = Comparison::new(HALF, 1);
    let mut site = Site::new(1, 0.1, 0.5);
    while !first.withholds(client(0)) {
        site.connect(&mut first, at(100), 0);
    }
    for _ in 0..30 {
        site.connect(&mut first, at(100), 1);
    }
    let day = |seconds: u64| Duration::from_secs(1_700_000_000 + seconds);
    let kept = first.kept(at(110), day(0));
    let read = |later: u64, kept: &StoredEvidence| {
        let mut second = Comparison::new(HALF, 2);
        // The machine has rebooted: its clock starts anew.
        let known = second.take_up(at(5), day(later), kept);
        known.map(|_| second)
    };
    let prefix = |number: u128| {
        IpNet::new(
            std::net::Ipv6Addr::from(0x2001_0db8 << 96 | number << 80).into(),
            48,
        )
        .unwrap()
    };
    let of = |all: &Comparison, number: u128| all.explain(at(5), prefix(number)).remove(0);

    let second = read(20, &kept).unwrap();
    assert!(second.withholds(client(0)) && !second.withholds(client(1)));
    let before = first.explain(at(110), prefix(1)).remove(0);
    let after = of(&second, 1);
    let connections = |one: &PrefixStatus| {
        (
            one.evidence.single_connections,
            one.evidence.multipath_connections,
        )
    };
    assert_eq!(connections(&before), connections(&after));
    assert_eq!(before.next_look, after.next_look);
    let bits = |one: &PrefixStatus| one.evidence.single_bits_per_second.unwrap();
    assert!(bits(&before).abs_diff(bits(&after)) <= 1);
    assert_eq!(
        of(&second, 0).decided,
        first.explain(at(110), prefix(0)).remove(0).decided
    );
    // Ten seconds of the hour passed here, and twenty while the daemon was down.
    assert_eq!(of(&second, 0).again_seconds, Some(3600 - 30));
    // It goes on from there.
    let again = second.kept(at(5), day(20));
    assert_eq!(read(20, &again).unwrap().kept(at(5), day(20)), again);

    // A clock that was put back changes nothing; a day is too long, and pauses are over.
    assert_eq!(of(&read(0, &kept).unwrap(), 0).again_seconds, Some(3590));
    let mut late = read(25 * 3600, &kept).unwrap();
    assert_eq!(connections(&of(&late, 1)), (0, 0));
    assert_eq!(of(&late, 0).again_seconds, Some(0));
    late.draw(at(6), client(0));
    assert_eq!(of(&late, 0).mode, PrefixMode::Trial);

    for (from, to) in [
        ("\"version\":1", "\"version\":2"),
        ("\"prefix_bits\":48", "\"prefix_bits\":56"),
        ("2001:db8:1::/48", "2001:db8:1::/47"),
        ("2001:db8:1::/48", "2001:db8:1::1/48"),
        ("\"looks\":0", "\"looks\":6"),
        ("\"squares\":", "\"squares\":-1"),
        ("\"count\":", "\"count\":99999999999"),
        ("\"mean\":", "\"mean\":99"),
        ("2001:db8:1::/48", "2001:db8::/48"),
    ] {
        let broken = written(&kept, from, to);
        assert!(read(20, &broken).is_err(), "{to}");
    }
}

#[test]
fn of_more_than_are_written_down_those_that_matter_most_are_however_they_are_taken() {
    let settings = Settings {
        prefixes_max: 100_000,
        ..HALF
    };
    let mut all = Comparison::new(settings, 1);
    let mut site = Site::new(1, 0.1, 0.5);
    while !all.withholds(client(0)) {
        site.connect(&mut all, at(0), 0);
    }
    for number in 1..=25_000 {
        all.draw(at(1), client(number));
    }
    let day = Duration::from_secs(1_700_000_000);
    let kept = all.kept(at(2), day);
    let mut parts = Gathered::default();
    let (mut behind, mut count) = (None, 0);
    loop {
        let part = all.part(at(2), behind, 700);
        behind = part.behind();
        parts.add(part);
        count += 1;
        if behind.is_none() {
            break;
        }
    }
    assert_eq!(count, 25_001_usize.div_ceil(700));
    assert!(parts.kept(48, day) == kept);
    let mut second = Comparison::new(settings, 2);
    assert_eq!(second.take_up(at(2), day, &kept), Ok(10_000));
    // The one that is not multipath is there though it was used first; of the others the last ones.
    assert!(second.withholds(client(0)));
    let is_known = |number: u128| !second.explain(at(2), client(number).into()).is_empty();
    assert!(is_known(25_000) && is_known(15_002) && !is_known(15_001));
}
