//! `[aggregation]`: how small packets are aggregated, and how that is adapted.

use std::{ops::Range, time::Duration};

use keiro_config::{Report, TableReader, ValueError, choice, quantity};
use keiro_model::aggregation::{
    AGGREGATE_HEAD, ControllerKind, INTERVAL_MIN, Limits, LimitsError, PARITY_HEAD, Settings,
    Thresholds, within,
};
use keiro_units::{ByteCount, Probability};
use toml::de::DeValue;

use super::{Path, values::value};
use crate::units::Text;

/// `[aggregation]`: small datagrams and data of streams are sent in aggregates.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregation {
    /// When aggregates leave.
    pub mode: Mode,
    /// How their size, interval and copies are adapted.
    pub controller: ControllerKind,
    /// Bounds of these.
    pub limits: Limits,
    /// Where and when copies are sent.
    pub spread: Spread,
    /// Protection of each aggregate.
    pub redundancy: Redundancy,
}

/// Protection of aggregates. The number of copies decides how much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Redundancy {
    /// Copies of each aggregate.
    #[default]
    Copies,
    /// Parity of groups of aggregates.
    Fec(Fec),
}

/// Parity of groups of aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fec {
    /// Aggregates of a group, 1 to 32.
    pub group: u8,
    /// Parity packets of a group where two copies would be sent, 1 to as many as aggregates; as many
    /// more for every further copy.
    pub parity: u8,
    /// How long a group waits for its next aggregate, 50 µs to 100 ms; `None`: one and a half intervals.
    pub wait: Option<Duration>,
}

/// When aggregates leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// At once, limited by a token bucket.
    #[default]
    Eager,
    /// Every interval, as in the aggregation paper.
    Fixed,
    /// No aggregation, no copies.
    Off,
}

/// Where and when the copies of an aggregate are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// One after the other on the same path.
    #[default]
    BackToBack,
    Paths,
    /// On the same path with this gap.
    Spaced(Duration),
}

const MODES: &[(&str, Mode)] = &[
    ("eager", Mode::Eager),
    ("fixed", Mode::Fixed),
    ("off", Mode::Off),
];
const SPREADS: &[(&str, Spread)] = &[
    ("back-to-back", Spread::BackToBack),
    ("paths", Spread::Paths),
];
const REDUNDANCIES: &[(&str, bool)] = &[("copies", false), ("fec", true)];
/// Most aggregates of a group: as many as a receiver takes.
const FEC_GROUP_MAX: u8 = 32;

/// A copy that comes later than this repairs nothing that a retransmission would not. Ours.
const SPACED_MAX: Duration = Duration::from_millis(100);

impl Default for Aggregation {
    /// Eager, adapted by Keiro's controller within the paper's values of size, interval and copies.
    fn default() -> Self {
        Self {
            mode: Mode::Eager,
            controller: ControllerKind::Adaptive,
            limits: Limits::default(),
            spread: Spread::BackToBack,
            redundancy: Redundancy::Copies,
        }
    }
}

impl Default for Fec {
    /// Half of what a copy takes, and less loss than that leaves of independent losses up to 13 %.
    fn default() -> Self {
        Self {
            group: 4,
            parity: 2,
            wait: None,
        }
    }
}

pub(super) fn aggregation(
    mut fields: TableReader<'_, '_>,
    report: &mut Report<'_>,
) -> Option<Aggregation> {
    let mode = fields.optional(report, "mode", |v| choice(v, MODES));
    let controllers = ControllerKind::BUILT_IN.map(|kind| (kind.name(), kind));
    let controller = fields.optional(report, "controller", |v| choice(v, &controllers));
    let spread = fields.optional(report, "spread", spread);
    let redundancy = fields.optional(report, "redundancy", |v| choice(v, REDUNDANCIES));
    let with_parity = value(redundancy).unwrap_or(false);
    let fec = fec(&mut fields, report);
    let mut settings = settings(&mut fields, report);
    if with_parity {
        settings.header = ByteCount::new(AGGREGATE_HEAD.get() + PARITY_HEAD.get());
    }
    let section = ParsedSection {
        mode: value(mode).unwrap_or_default(),
        controller: value(controller).unwrap_or_default(),
        with_parity,
        fec,
        has_unknown_keys: fields.refuse_unknown_keys(report),
        settings,
    };
    section.check(&fields, report);
    Some(Aggregation {
        mode: section.mode,
        controller: section.controller,
        limits: Limits::try_from(section.settings).ok()?,
        spread: value(spread).unwrap_or_default(),
        redundancy: match with_parity {
            true => Redundancy::Fec(fec),
            false => Redundancy::Copies,
        },
    })
}

fn fec(fields: &mut TableReader<'_, '_>, report: &mut Report<'_>) -> Fec {
    let group = fields.optional(report, "fec_group", |v| within_group(v, FEC_GROUP_MAX));
    let group = value(group).unwrap_or(Fec::default().group);
    let parity = fields.optional(report, "fec_parity", |v| within_group(v, FEC_GROUP_MAX));
    let wait = fields.optional(report, "fec_wait", wait);
    Fec {
        group,
        parity: value(parity).unwrap_or(Fec::default().parity.min(group)),
        wait: value(wait),
    }
}

/// Values of size, interval and copies, and the controller's thresholds; without parity.
fn settings(fields: &mut TableReader<'_, '_>, report: &mut Report<'_>) -> Settings {
    let default = Settings::default();
    let size = fields.optional(report, "size", quantity::<ByteCount>);
    let size_min = fields.optional(report, "size_min", quantity::<ByteCount>);
    let size_max = fields.optional(report, "size_max", quantity::<ByteCount>);
    let interval = fields.optional(report, "interval", quantity::<Duration>);
    let intervals = fields.optional(report, "intervals", |v| list(v, quantity));
    let copies = fields.optional(report, "copies", copies_number);
    let copies_values = fields.optional(report, "copies_values", |v| list(v, copies_number));
    Settings {
        intervals: value(intervals).unwrap_or(default.intervals),
        interval_initial: value(interval).unwrap_or(default.interval_initial),
        copies: value(copies_values).unwrap_or(default.copies),
        copies_initial: value(copies).unwrap_or(default.copies_initial),
        size_min: value(size_min).unwrap_or(default.size_min),
        size_max: value(size_max).unwrap_or(default.size_max),
        size_initial: value(size).unwrap_or(default.size_initial),
        header: AGGREGATE_HEAD,
        thresholds: thresholds(fields, report, default.thresholds),
    }
}

fn thresholds(
    fields: &mut TableReader<'_, '_>,
    report: &mut Report<'_>,
    default: Thresholds,
) -> Thresholds {
    let overflow_high = fields.optional(report, "overflow_high", |v| count(v, "40"));
    let overflow_low = fields.optional(report, "overflow_low", |v| count(v, "4"));
    let loss_high = fields.optional(report, "loss_high", quantity::<Probability>);
    let loss_low = fields.optional(report, "loss_low", quantity::<Probability>);
    let loss_target = fields.optional(report, "loss_target", quantity::<Probability>);
    Thresholds {
        overflow_high: value(overflow_high).unwrap_or(default.overflow_high),
        overflow_low: value(overflow_low).unwrap_or(default.overflow_low),
        loss_high: value(loss_high).unwrap_or(default.loss_high),
        loss_low: value(loss_low).unwrap_or(default.loss_low),
        loss_target: value(loss_target).unwrap_or(default.loss_target),
    }
}

/// The section as written, with defaults for the rest.
struct ParsedSection {
    mode: Mode,
    controller: ControllerKind,
    with_parity: bool,
    fec: Fec,
    settings: Settings,
    has_unknown_keys: bool,
}

impl ParsedSection {
    /// Reports what is impossible or without effect together.
    fn check(&self, fields: &TableReader<'_, '_>, report: &mut Report<'_>) {
        for problem in self.settings.problems() {
            // A value that is absent may be the one whose key is misspelt.
            let keys = problem.keys();
            if !self.has_unknown_keys || keys.iter().all(|key| fields.has(key)) {
                complain(&problem, self.mode, fields, report);
            }
        }
        if self.is_known("fec_group", fields) && self.fec.parity > self.fec.group {
            let error = not_within(self.fec.group);
            error.add_to(report, &fields.span_of("fec_parity"), "fec_parity");
        }
        if self.with_parity {
            self.complain_of_no_parity(fields, report);
        } else if self.is_known("redundancy", fields) {
            complain_of_parity_for_nothing(fields, report);
        }
    }

    /// The value of a key is what the file means: it is not refused, nor may it be misspelt.
    fn is_known(&self, key: &str, fields: &TableReader<'_, '_>) -> bool {
        !fields.is_refused(key) && (!self.has_unknown_keys || fields.has(key))
    }

    /// Reports parity that is never sent: there is some only where N is more than one.
    fn complain_of_no_parity(&self, fields: &TableReader<'_, '_>, report: &mut Report<'_>) {
        let (key, most) = match self.controller {
            ControllerKind::None => ("copies", Some(self.settings.copies_initial)),
            _ => ("copies_values", self.settings.copies.last().copied()),
        };
        if most != Some(1) || !self.is_known(key, fields) {
            return;
        }
        let (message, hint) = match self.controller {
            ControllerKind::None => (
                "sends no parity with copies = 1, which controller = \"none\" leaves as it is",
                "write copies = 2, or leave redundancy out",
            ),
            _ => (
                "sends no parity with copies_values = [1]",
                "list 2 there, as copies_values = [1, 2], or leave redundancy out",
            ),
        };
        report.add(
            &fields.span_of("redundancy"),
            format!("redundancy: `fec` {message}"),
            hint,
        );
    }
}

/// Reports at the likeliest key what the values of several keys make impossible together.
fn complain(
    problem: &LimitsError,
    mode: Mode,
    fields: &TableReader<'_, '_>,
    report: &mut Report<'_>,
) {
    let keys = problem.keys();
    if keys.iter().any(|key| fields.is_refused(key)) {
        return;
    }
    let written = keys.iter().find(|key| fields.has(key));
    let key = written.or(keys.first()).copied().unwrap_or_default();
    let text = problem.to_string();
    let (message, hint) = text.split_once("; ").unwrap_or((&text, ""));
    let is_short = matches!(
        problem,
        LimitsError::IntervalZero { .. } | LimitsError::IntervalTooShort { .. }
    );
    let way_out = match is_short && mode == Mode::Fixed {
        true => ", or to send without waiting mode = \"eager\"",
        false => "",
    };
    // The others have their defaults, which may be what has to change.
    let is_missing = |key: &&&'static str| !fields.has(key);
    let missing = match problem {
        LimitsError::SizesCrossed { .. }
        | LimitsError::OverflowsCrossed { .. }
        | LimitsError::LossesCrossed { .. } => keys.iter().find(is_missing),
        _ => keys.first().filter(is_missing),
    };
    let other = missing.map_or_else(String::new, |key| {
        format!(", or write {key} too, which now has its default")
    });
    let named = match keys.iter().any(|key| message.starts_with(key)) {
        true => message.to_owned(),
        false => format!("{key}: {message}"),
    };
    report.add(
        &fields.span_of(key),
        named,
        &format!("{hint}{way_out}{other}"),
    );
}

/// Reports settings of parity where copies are sent.
fn complain_of_parity_for_nothing(fields: &TableReader<'_, '_>, report: &mut Report<'_>) {
    for key in ["fec_group", "fec_parity", "fec_wait"] {
        if fields.has(key) && !fields.is_refused(key) {
            let message = format!("{key}: has no effect without redundancy = \"fec\"");
            let hint = format!("add redundancy = \"fec\", or leave {key} out");
            report.add(&fields.span_of(key), message, &hint);
        }
    }
}

/// With `mode = "fixed"` a path must carry the smallest combination `[aggregation eq. 2]`. `paths`
/// come with the spans of their rates.
pub(super) fn check<'a>(
    aggregation: &Aggregation,
    paths: impl Iterator<Item = (&'a Path, &'a Range<usize>)>,
    report: &mut Report<'_>,
) {
    let Aggregation { mode, limits, .. } = aggregation;
    if *mode != Mode::Fixed {
        return;
    }
    for (path, rate_at) in paths {
        let rate = path.rate_bound();
        if let Err(narrow) = within(limits.initial(), limits, rate) {
            let message = format!(
                "rate: `{}` is too narrow for mode = \"fixed\": even {} needs {}, and the path gives {}",
                path.name,
                narrow.smallest,
                Text(narrow.needed()),
                Text(rate)
            );
            let hint = "write mode = \"eager\" in [aggregation], a longer interval, a smaller size_min or fewer copies";
            report.add(rate_at, message, hint);
        }
    }
}

fn list<'i, T>(
    value: &DeValue<'i>,
    read: impl Fn(&DeValue<'i>) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    match value {
        DeValue::Array(entries) => entries.iter().map(|e| read(e.get_ref())).collect(),
        _ => Err(ValueError::new(
            "must be a list",
            "write the values in brackets, in rising order",
        )),
    }
}

fn count(value: &DeValue<'_>, example: &str) -> Result<u32, ValueError> {
    let wrong = || {
        let message = format!("is not a whole number from 0 to {}", u32::MAX);
        ValueError::new(
            message,
            format!("write a number without quotes, as {example}"),
        )
    };
    match value {
        DeValue::Integer(number) => {
            u32::from_str_radix(number.as_str(), number.radix()).map_err(|_| wrong())
        }
        _ => Err(wrong()),
    }
}

fn copies_number(value: &DeValue<'_>) -> Result<u8, ValueError> {
    let wrong = || ValueError::new("is not a number of copies", "write 1 to 10");
    count(value, "2")
        .ok()
        .and_then(|n| u8::try_from(n).ok())
        .ok_or_else(wrong)
}

fn within_group(value: &DeValue<'_>, max: u8) -> Result<u8, ValueError> {
    let number = count(value, "4").ok().and_then(|n| u8::try_from(n).ok());
    let within = number.filter(|n| (1..=max).contains(n));
    within.ok_or_else(|| not_within(max))
}

fn not_within(max: u8) -> ValueError {
    ValueError::new(
        format!("is not a number from 1 to {max}"),
        "a group has 1 to 32 aggregates, and no more parity than aggregates",
    )
}

fn wait(value: &DeValue<'_>) -> Result<Duration, ValueError> {
    let wait = quantity::<Duration>(value)?;
    if !(INTERVAL_MIN..=SPACED_MAX).contains(&wait) {
        return Err(ValueError::new(
            "is not a time from 50 µs to 100 ms",
            "write a little more than `interval`, as in \"1500us\"",
        ));
    }
    Ok(wait)
}

fn spread(value: &DeValue<'_>) -> Result<Spread, ValueError> {
    if let Ok(spread) = choice(value, SPREADS) {
        return Ok(spread);
    }
    match quantity::<Duration>(value) {
        Ok(gap) if !gap.is_zero() && gap <= SPACED_MAX => Ok(Spread::Spaced(gap)),
        _ => Err(ValueError::new(
            "is neither a choice nor a time up to 100 ms",
            "write \"back-to-back\", \"paths\" or a time as in \"500us\"",
        )),
    }
}

impl Mode {
    /// As in the configuration.
    pub fn as_str(self) -> &'static str {
        let found = MODES.iter().find(|(_, mode)| *mode == self);
        found.map_or("", |(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keiro_units::Probability;

    use crate::Config;

    fn config(aggregation: &str) -> Result<Aggregation, String> {
        let text = format!(
            "[gateway]\nname = \"a\"\n[[path]]\nname = \"p\"\nlocal = \"192.0.2.1:4500\"\n\
             rate = \"1100kbit\"\n{aggregation}"
        );
        let config = Config::parse(&text, "f").map_err(|error| error.to_string())?;
        Ok(config.aggregation)
    }

    #[test]
    fn missing_aggregation_table_gives_defaults() {
        assert_eq!(config("").unwrap(), Aggregation::default());
        assert_eq!(config("[aggregation]\n").unwrap(), Aggregation::default());
    }

    #[test]
    fn the_papers_settings_are_read() {
        let read = config(
            "[aggregation]\nmode = \"fixed\"\ncontroller = \"table2\"\nsize = \"2048B\"\ninterval = \"1ms\"\n\
             copies = 2\ncopies_values = [1, 2, 3]\nintervals = [\"500us\", \"1ms\", \"4ms\"]\n\
             spread = \"250us\"\nloss_high = \"1%\"\nloss_low = \"0.02%\"\nloss_target = \"0.2%\"\n\
             overflow_high = 50\noverflow_low = 5",
        )
        .unwrap();
        assert_eq!(
            (read.mode, read.controller),
            (Mode::Fixed, ControllerKind::Table2)
        );
        assert_eq!(read.spread, Spread::Spaced(Duration::from_micros(250)));
        assert_eq!(read.limits.intervals().len(), 3);
        let Thresholds {
            overflow_high,
            overflow_low,
            loss_high,
            loss_low,
            loss_target,
        } = *read.limits.thresholds();
        assert_eq!((overflow_high, overflow_low), (50, 5));
        let losses = [loss_high, loss_low, loss_target].map(Probability::get);
        assert_eq!(losses, [0.01, 0.0002, 0.002]);
    }

    #[test]
    fn controllers_modes_and_spreads_are_read_by_their_names() {
        let read =
            |key: &str, name: &str| config(&format!("[aggregation]\n{key} = \"{name}\"")).unwrap();
        for (name, controller) in [
            ("adaptive", ControllerKind::Adaptive),
            ("table2", ControllerKind::Table2),
            ("none", ControllerKind::None),
        ] {
            assert_eq!(read("controller", name).controller, controller, "{name}");
        }
        for (name, mode) in [("eager", Mode::Eager), ("off", Mode::Off)] {
            assert_eq!(read("mode", name).mode, mode, "{name}");
        }
        for (name, spread) in [
            ("back-to-back", Spread::BackToBack),
            ("paths", Spread::Paths),
        ] {
            assert_eq!(read("spread", name).spread, spread, "{name}");
        }
    }

    #[test]
    fn fec_replaces_copies() {
        let read = config("[aggregation]\nredundancy = \"fec\"").unwrap();
        assert_eq!(read.redundancy, Redundancy::Fec(Fec::default()));
        let read = config(
            "[aggregation]\nredundancy = \"fec\"\nfec_group = 8\nfec_parity = 3\n\
             fec_wait = \"2ms\"",
        )
        .unwrap();
        let fec = Fec {
            group: 8,
            parity: 3,
            wait: Some(Duration::from_millis(2)),
        };
        assert_eq!(read.redundancy, Redundancy::Fec(fec));
        // A group of one has one.
        let read = config("[aggregation]\nredundancy = \"fec\"\nfec_group = 1").unwrap();
        assert!(matches!(
            read.redundancy,
            Redundancy::Fec(Fec { parity: 1, .. })
        ));
    }

    #[test]
    fn contradictory_settings_are_refused_with_the_reason() {
        for (written, error_text) in [
            ("intervals = []", "intervals: no interval I is given"),
            (
                "interval = \"0s\"",
                ":8:12: interval: an interval I of zero never ends; give at least 50µs\n",
            ),
            (
                "mode = \"fixed\"\nintervals = [\"1ns\", \"1ms\"]",
                "intervals: an interval I of 1ns is too short; give at least 50µs, or to send \
                 without waiting mode = \"eager\"",
            ),
            (
                "size_min = \"75B\"",
                "a size S of 75B leaves no room for payload behind 118B of headers",
            ),
            (
                "redundancy = \"fec\"\nsize_min = \"139B\"",
                "a size S of 139B leaves no room for payload behind 139B of headers",
            ),
            ("copies = 0", "copies: N = 0 sends nothing"),
            ("copies = \"2\"", "copies: is not a number of copies"),
            ("copies = 300", "copies: is not a number of copies"),
            (
                "loss_low = \"2%\"",
                ":8:12: loss_low, 2%, is not below loss_high, 0.5%",
            ),
            ("overflow_high = 1", ":8:17: overflow_low, 4 per second"),
            ("overflow_high = 0", "overflow_high of 0 would act where"),
            ("loss_high = \"0%\"", "give at least 0.0001%, as 0.5%\n"),
            (
                "size_min = \"9000B\"",
                "take a smaller or a larger one, or write size_max too, which now has its default",
            ),
            (
                "size_max = \"1000B\"",
                "take one inside, or write size too, which now has its default",
            ),
            ("overflow_high = -1", "overflow_high: is not a whole number"),
            ("spread = \"2s\"", "spread: is neither a choice nor a time"),
            (
                "intervals = [\"2ms\", \"1ms\"]",
                "intervals: interval 1ms comes after",
            ),
            ("mode = \"often\"", "mode: `often` is none of the choices"),
            (
                "mode = \"fixed\"\nsize_min = \"640B\"",
                "rate: `p` is too narrow for mode = \"fixed\": even S 640B, I 4ms, N 1 needs \
                 1.28Mbit, and the path gives 1.1Mbit",
            ),
            (
                "mode = \"fixed\"\ncopies_values = [2, 3]",
                "S 512B, I 4ms, N 2 needs 2.048Mbit",
            ),
            ("copies_values = []", "copies_values: no number of copies"),
            ("redundancy = \"raid\"", "redundancy: `raid` is none of"),
            ("fec_group = 0", "fec_group: is not a number from 1 to 32"),
            ("fec_group = 33", "fec_group: is not a number from 1 to 32"),
            ("fec_parity = 0", "fec_parity: is not a number from 1 to 32"),
            (
                "fec_group = 2\nfec_parity = 3",
                "fec_parity: is not a number from 1 to 2",
            ),
            (
                "fec_wait = \"0s\"",
                "fec_wait: is not a time from 50 µs to 100 ms",
            ),
            (
                "redundancy = \"fec\"\nfec_wait = \"49us\"",
                "fec_wait: is not a time from 50 µs to 100 ms",
            ),
            (
                "fec_wait = \"1s\"",
                "fec_wait: is not a time from 50 µs to 100 ms",
            ),
            (
                "interval = \"2s\"",
                ":8:12: interval: an interval I of 2s is too long; give at most 1s\n",
            ),
            (
                "copies = 11",
                ":8:10: copies: N = 11 is too many; give at most 10\n",
            ),
            (
                "fec_group = 8",
                ":8:13: fec_group: has no effect without redundancy = \"fec\"",
            ),
            (
                "redundancy = \"copies\"\nfec_wait = \"1ms\"",
                ":9:12: fec_wait: has no effect without redundancy = \"fec\"",
            ),
            (
                "redundancy = \"fec\"\ncopies = 1\ncopies_values = [1]",
                ":8:14: redundancy: `fec` sends no parity with copies_values = [1]",
            ),
            (
                "redundancy = \"fec\"\ncontroller = \"none\"\ncopies = 1",
                ":8:14: redundancy: `fec` sends no parity with copies = 1",
            ),
            (
                "loss_high = \"60%\"",
                ":8:13: loss_high of 60% asks for nothing, as a line that loses so much",
            ),
            (
                "loss_target = \"0.00001%\"",
                ":8:15: loss_target of 0.00001% is less than a count can show",
            ),
            (
                "intervals = [\"0s\", \"1ms\"]",
                "intervals: an interval I of zero",
            ),
            ("overflow_low = 40", ":8:16: overflow_low, 40 per second"),
            (
                "loss_target = \"100%\"",
                "loss_target of 100% asks for nothing",
            ),
            ("overflow_low = -1", "write a number without quotes, as 4"),
            (
                "size = \"9kB\"",
                "the initial size 9000B is outside 512B to 8192B",
            ),
            ("speed = 3", "unknown key `speed` in [aggregation]"),
        ] {
            let error = config(&format!("[aggregation]\n{written}")).unwrap_err();
            assert!(error.contains(error_text), "{written}: {error}");
            assert!(error.contains("; "), "{written} has no hint: {error}");
        }
    }

    #[test]
    fn integers_are_read_in_every_toml_base() {
        let read = config("[aggregation]\noverflow_high = 0xff\noverflow_low = 0o12").unwrap();
        let thresholds = read.limits.thresholds();
        assert_eq!(
            (thresholds.overflow_high, thresholds.overflow_low),
            (255, 10)
        );
        let error_text = config("[aggregation]\noverflow_high = 0x1_0000_0000").unwrap_err();
        assert!(
            error_text.contains("overflow_high: is not a whole number"),
            "{error_text}"
        );
    }

    #[test]
    fn each_problem_is_reported_once_and_at_its_place() {
        for (written, spans) in [
            (
                "interval = \"3ms\"\ncopies = 9\nsize_max = \"1kB\"\nloss_target = \"0%\"",
                vec![
                    ":8:12: interval:",
                    ":9:10: copies:",
                    ":10:12: size_max:",
                    ":11:15: loss_target of zero",
                ],
            ),
            // Of two keys the one that is wrong.
            (
                "interval = \"1ms\"\nintervals = [\"1ms\", \"2s\"]",
                vec![":9:13: intervals:"],
            ),
            (
                "interval = \"1ms\"\nintervals = [\"0s\", \"1ms\"]",
                vec![":9:13: intervals:"],
            ),
            (
                "intervals = [\"1ms\", \"2ms\"]\ninterval = \"10us\"",
                vec![":9:12: interval:"],
            ),
            (
                "copies = 1\ncopies_values = [0, 1]",
                vec![":9:17: copies_values:"],
            ),
            (
                "size_min = \"4kB\"\nsize_max = \"6kB\"",
                vec![":8:12: size_min:"],
            ),
            // What was not understood is not compared with the rest, but what stands for itself is.
            ("intervals = [\"1\"]\ninterval = \"3ms\"", vec![":8:13: "]),
            (
                "intervals = [\"1\"]\ninterval = \"0s\"",
                vec![":8:13: ", ":9:12: interval:"],
            ),
            (
                "redundancy = \"fec\"\nfec_group = 99\nfec_parity = 6",
                vec![":9:13: fec_group:"],
            ),
            (
                "redundancy = \"fec\"\nfec_gruop = 8\nfec_parity = 6",
                vec![":9:1: unknown key `fec_gruop`"],
            ),
            (
                "redundancy = \"fec\"\nfec_group = 5\nfec_parity = 6",
                vec![":10:14: fec_parity:"],
            ),
            (
                "redundancy = \"fec\"\nfec_parity = 6",
                vec![":9:14: fec_parity:"],
            ),
            (
                "intervalls = [\"3ms\"]\ninterval = \"3ms\"",
                vec![":8:1: unknown key `intervalls`"],
            ),
            // Every key of what there is not; none where it may be.
            (
                "fec_group = 8\nfec_parity = 2\nfec_wait = \"1ms\"",
                vec![
                    ":8:13: fec_group:",
                    ":9:14: fec_parity:",
                    ":10:12: fec_wait:",
                ],
            ),
            (
                "redundency = \"fec\"\nfec_group = 8",
                vec![":8:1: unknown key `redundency`"],
            ),
            ("redundancy = \"raid\"\nfec_group = 8", vec![":8:14: "]),
        ] {
            let error_text = config(&format!("[aggregation]\n{written}")).unwrap_err();
            for place in &spans {
                assert!(error_text.contains(place), "{place} is not in {error_text}");
            }
            let count = error_text
                .lines()
                .filter(|line| line.starts_with("f:"))
                .count();
            assert_eq!(count, spans.len(), "{error_text}");
        }
    }
}
