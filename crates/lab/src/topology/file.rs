//! The topology file: its keys for serde, and the checks that make a [`Topology`] of it.
//!
//! ```toml
//! name = "two-paths"
//!
//! [host.tokyo]
//! routes = [{ to = "198.51.100.0/24", via = "192.0.2.2" }]
//! sysctl = { "net.ipv4.ip_forward" = 1 }
//!
//! [host.osaka]
//!
//! [link.path1]
//! a = { host = "tokyo", addresses = ["192.0.2.1/30", "2001:db8:1::1/64"] }
//! b = { host = "osaka", addresses = ["192.0.2.2/30", "2001:db8:1::2/64"] }
//! each_way = { rate = "100Mbit", delay = "2ms", buffer = "64KiB" }
//! a_to_b = { loss = "1%" }   # overrides each_way, key by key
//!
//! [link.lte]
//! a = { host = "tokyo", addresses = ["192.0.2.5/30"] }
//! b = { host = "osaka", addresses = ["192.0.2.6/30"] }
//! each_way = { recording = "drive.csv", column = "lte", delay = "25ms", buffer = "1s" }
//! ```

mod check;

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use keiro_config::{ConfigError, Report, deserialize_into, units::Text};
use keiro_link::{Buffer, GilbertElliott, LinkConfig, Loss, Reorder, Trace};
use keiro_units::{Bandwidth, ByteCount, Probability};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;

use self::check::Checker;
pub(crate) use self::check::LAB_NAME_BYTES_MAX;
use super::{Prefix, Topology};
use crate::recording;

/// Reads and checks a topology; `file` is its name in messages.
pub(super) fn read(text: &str, file: &str) -> Result<Topology, ConfigError> {
    let mut report = Report::new(file, text);
    let parsed = deserialize_into(&mut report);
    let mut checker = Checker::default();
    let beside = Path::new(file).parent();
    checker.recordings.beside = beside.map(Path::to_owned).unwrap_or_default();
    let topology = parsed.and_then(|parsed| checker.topology(parsed, &mut report));
    report.finish()?;
    Ok(topology.expect("a file without problems is a topology"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopologyFile {
    name: Option<Spanned<String>>,
    #[serde(default)]
    host: BTreeMap<Spanned<String>, HostFile>,
    #[serde(default)]
    link: BTreeMap<Spanned<String>, LinkFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostFile {
    #[serde(default)]
    routes: Vec<RouteFile>,
    #[serde(default)]
    sysctl: BTreeMap<Spanned<String>, SysctlValue>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteFile {
    to: Spanned<String>,
    via: Spanned<IpAddr>,
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a sysctl is a string, a whole number or a boolean"
)]
enum SysctlValue {
    Text(String),
    Number(i64),
    Switch(bool),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    a: EndFile,
    b: EndFile,
    mtu: Option<Spanned<u32>>,
    /// Emulate even if nothing is limited yet, so that it can be changed later.
    #[serde(default)]
    emulated: bool,
    each_way: Option<Spanned<DirectionFile>>,
    a_to_b: Option<Spanned<DirectionFile>>,
    b_to_a: Option<Spanned<DirectionFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndFile {
    host: Spanned<String>,
    #[serde(default)]
    addresses: Vec<Spanned<FromText<Prefix>>>,
}

/// One direction as written. An absent key falls back to `each_way`, then to a perfect link.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectionFile {
    rate: Option<Text<Bandwidth>>,
    /// A recorded line, instead of a rate.
    recording: Option<String>,
    /// Of a recording that is a table.
    column: Option<String>,
    delay: Option<Text<Duration>>,
    jitter: Option<Text<Duration>>,
    jitter_overtakes: Option<bool>,
    loss: Option<Text<Probability>>,
    loss_burst: Option<FromText<Packets>>,
    duplicate: Option<Text<Probability>>,
    corrupt: Option<Text<Probability>>,
    reorder: Option<Text<Probability>>,
    reorder_delay: Option<Text<Duration>>,
    buffer: Option<FromText<BufferText>>,
    packet_overhead: Option<Text<ByteCount>>,
}

impl DirectionFile {
    fn or(self, mut fallback: Self) -> Self {
        // A direction has either a rate or a recording, whatever holds for both.
        if self.rate.is_some() {
            (fallback.recording, fallback.column) = (None, None);
        }
        if self.recording.is_some() {
            (fallback.rate, fallback.column) = (None, None);
        }
        Self {
            rate: self.rate.or(fallback.rate),
            recording: self.recording.or(fallback.recording),
            column: self.column.or(fallback.column),
            delay: self.delay.or(fallback.delay),
            jitter: self.jitter.or(fallback.jitter),
            jitter_overtakes: self.jitter_overtakes.or(fallback.jitter_overtakes),
            loss: self.loss.or(fallback.loss),
            loss_burst: self.loss_burst.or(fallback.loss_burst),
            duplicate: self.duplicate.or(fallback.duplicate),
            corrupt: self.corrupt.or(fallback.corrupt),
            reorder: self.reorder.or(fallback.reorder),
            reorder_delay: self.reorder_delay.or(fallback.reorder_delay),
            buffer: self.buffer.or(fallback.buffer),
            packet_overhead: self.packet_overhead.or(fallback.packet_overhead),
        }
    }

    /// Checks the values that do not depend on others.
    fn check(&self) -> Result<(), String> {
        for text in [self.delay, self.jitter, self.reorder_delay]
            .into_iter()
            .flatten()
        {
            if text.0 > DELAY_MAX {
                return Err(format!(
                    "{text} is too long; the bound is {}",
                    Text(DELAY_MAX)
                ));
            }
        }
        match self.packet_overhead {
            Some(text) if overhead(text).is_none() => {
                Err(format!("packet_overhead is at most {OVERHEAD_BYTES_MAX}B"))
            }
            _ => Ok(()),
        }
    }

    /// The complete direction and its recording; single values have been checked.
    fn config(self, recordings: &mut Recordings) -> Result<(LinkConfig, Option<Trace>), String> {
        let trace = self.trace(recordings)?;
        if (self.rate.is_some() || trace.is_some()) && self.buffer.is_none() {
            let what = if trace.is_some() { "recording" } else { "rate" };
            return Err(format!(
                "a {what} needs a buffer: say how much may wait, as in buffer = \"64KiB\", \
                 \"50 packets\", \"1s\" or \"unlimited\""
            ));
        }
        let rate = self.rate.map(|text| text.0);
        let mean = rate.or(trace.as_ref().map(Trace::mean));
        let buffer = self
            .buffer
            .map_or(Ok(Buffer::Unlimited), |buffer| buffer.0.at(mean))?;
        let time = |text: Option<Text<Duration>>| text.map_or(Duration::ZERO, |text| text.0);
        let share = |text: Option<Text<Probability>>| text.map_or(Probability::ZERO, |text| text.0);
        let config = LinkConfig {
            rate,
            delay: time(self.delay),
            jitter: time(self.jitter),
            jitter_overtakes: self.jitter_overtakes.unwrap_or(false),
            loss: loss(share(self.loss), self.loss_burst.map(|burst| burst.0.0))?,
            duplicate: share(self.duplicate),
            corrupt: share(self.corrupt),
            reorder: Reorder {
                probability: share(self.reorder),
                extra_delay: time(self.reorder_delay),
            },
            buffer,
            overhead_per_packet: self.packet_overhead.and_then(overhead).unwrap_or(0),
            down: false,
        };
        Ok((config, trace))
    }

    fn trace(&self, recordings: &mut Recordings) -> Result<Option<Trace>, String> {
        match (&self.recording, &self.column) {
            (Some(_), _) if self.rate.is_some() => {
                Err("a link has a rate or a recording, not both".to_owned())
            }
            (Some(_), _) if self.packet_overhead.is_some() => Err(
                "a recording has its packets' overhead in it; leave packet_overhead out".to_owned(),
            ),
            (Some(name), column) => recordings.load(name, column.as_deref()).map(Some),
            (None, Some(_)) => Err("a column needs a recording".to_owned()),
            (None, None) => Ok(None),
        }
    }
}

fn overhead(text: Text<ByteCount>) -> Option<i32> {
    let bytes = i32::try_from(text.0.get()).ok()?;
    (bytes <= OVERHEAD_BYTES_MAX).then_some(bytes)
}

/// Ours: no link-layer framing takes more than this.
const OVERHEAD_BYTES_MAX: i32 = 1500;

/// Ours: more is probably a typing error, and would hold packets for as long.
const DELAY_MAX: Duration = Duration::from_secs(60);

fn loss(mean: Probability, burst_packets: Option<u32>) -> Result<Loss, String> {
    match burst_packets {
        _ if mean == Probability::ZERO => Ok(Loss::None),
        None => Ok(Loss::Bernoulli(mean)),
        Some(burst) => GilbertElliott::from_mean_loss_and_burst(mean, f64::from(burst))
            .map(Loss::GilbertElliott)
            .ok_or_else(|| {
                format!(
                    "a loss of {} does not fit bursts of {burst} packets",
                    Text(mean)
                )
            }),
    }
}

/// A value read from a string by [`FromStr`].
#[derive(Clone)]
struct FromText<T>(T);

impl<'de, T> Deserialize<'de> for FromText<T>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(de::Error::custom)
    }
}

/// A value such as `"5 packets"`.
#[derive(Clone)]
struct Packets(u32);

impl FromStr for Packets {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.strip_suffix("packets")
            .or_else(|| text.strip_suffix("packet"))
            .and_then(|number| number.trim_end().parse().ok())
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a number of packets, as in \"5 packets\""))
    }
}

/// `"50 packets"`, `"64KiB"`, `"1s"` or `"unlimited"`.
#[derive(Clone, Copy)]
enum BufferText {
    Room(Buffer),
    /// What the rate, or a recording on the mean, carries in this time.
    Time(Text<Duration>),
}

impl BufferText {
    /// At a link of this rate.
    fn at(self, mean: Option<Bandwidth>) -> Result<Buffer, String> {
        match (self, mean) {
            (Self::Room(buffer), _) => Ok(buffer),
            (Self::Time(time), _) if time.0 > DELAY_MAX => Err(format!(
                "a buffer of {time} is too long; the bound is {}",
                Text(DELAY_MAX)
            )),
            (Self::Time(time), Some(rate)) => Ok(Buffer::Bytes(rate.bytes_in_floor(time.0))),
            (Self::Time(time), None) => {
                Err(format!("a buffer of {time} needs a rate or a recording"))
            }
        }
    }
}

impl FromStr for BufferText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(time) = text.parse() {
            return Ok(Self::Time(time));
        }
        Ok(Self::Room(match text {
            "unlimited" => Buffer::Unlimited,
            _ if text.contains("packet") => Buffer::Packets(text.parse::<Packets>()?.0),
            _ => Buffer::Bytes(
                text.parse::<Text<ByteCount>>()
                    .map_err(|error| format!("{error}, \"50 packets\", \"1s\" or \"unlimited\""))?
                    .0,
            ),
        }))
    }
}

/// Recordings that a topology names, each read once.
#[derive(Default)]
struct Recordings {
    /// The directory that names are relative to.
    beside: PathBuf,
    /// By file and column.
    loaded: BTreeMap<(String, Option<String>), Trace>,
}

impl Recordings {
    fn load(&mut self, name: &str, column: Option<&str>) -> Result<Trace, String> {
        let key = (name.to_owned(), column.map(str::to_owned));
        if let Some(trace) = self.loaded.get(&key) {
            return Ok(trace.clone());
        }
        let trace = recording::load(&self.beside.join(name), column);
        let trace = trace.map_err(|error| format!("recording: {error}"))?;
        self.loaded.insert(key, trace.clone());
        Ok(trace)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Emulation, *};

    const GOOD: &str = r#"
name = "two-paths"

[host.tokyo]
routes = [
    { to = "198.51.100.0/24", via = "192.0.2.2" },
    { to = "default", via = "2001:db8:1::2" },
]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv4.tcp_congestion_control" = "cubic", "net.ipv6.conf.all.forwarding" = true }

[host.osaka]

[link.path1]
a = { host = "tokyo", addresses = ["192.0.2.1/30", "2001:db8:1::1/64"] }
b = { host = "osaka", addresses = ["192.0.2.2/30", "2001:db8:1::2/64"] }
each_way = { rate = "100Mbit", delay = "2ms", buffer = "50 packets" }
a_to_b = { loss = "1%", loss_burst = "4 packets", buffer = "64KiB" }

[link.plain]
a = { host = "tokyo", addresses = ["10.0.0.1/24"] }
b = { host = "osaka", addresses = ["10.0.0.2/24"] }
mtu = 9000
"#;

    fn refused(text: &str) -> String {
        read(text, "t.toml").unwrap_err().problems()[0].to_string()
    }

    fn refused_with(from: &str, to: &str) -> String {
        assert!(GOOD.contains(from), "{from}");
        refused(&GOOD.replace(from, to))
    }

    #[test]
    fn directions_override_each_way_key_by_key() {
        let topology = read(GOOD, "t.toml").unwrap();
        let path1 = &topology.links["path1"];
        let emulation = path1.emulation.as_ref().unwrap();
        assert_eq!(emulation.b_to_a.buffer, Buffer::Packets(50));
        assert_eq!(emulation.b_to_a.loss, Loss::None);
        assert_eq!(
            emulation.a_to_b.buffer,
            Buffer::Bytes(ByteCount::new(65_536))
        );
        assert!(matches!(emulation.a_to_b.loss, Loss::GilbertElliott(_)));
        for direction in [&emulation.a_to_b, &emulation.b_to_a] {
            assert_eq!(direction.rate, Some(Bandwidth::from_mbit_per_second(100)));
            assert_eq!(direction.delay, Duration::from_millis(2));
        }
        assert_eq!(path1.mtu, 1500);
        assert_eq!(path1.far_end("tokyo").unwrap().host, "osaka");
        assert_eq!(topology.links["plain"].emulation, None);
        assert_eq!(topology.links["plain"].mtu, 9000);
    }

    #[test]
    fn routes_find_their_link_and_sysctls_become_text() {
        let topology = read(GOOD, "t.toml").unwrap();
        let tokyo = &topology.hosts["tokyo"];
        assert_eq!(tokyo.routes[0].link, "path1");
        assert_eq!(tokyo.routes[1].to.to_string(), "::/0");
        assert_eq!(tokyo.sysctls["net.ipv4.ip_forward"], "1");
        assert_eq!(tokyo.sysctls["net.ipv6.conf.all.forwarding"], "1");
    }

    #[test]
    fn emulated_link_may_be_perfect_at_first() {
        let text = GOOD.replace("mtu = 9000", "emulated = true");
        let topology = read(&text, "t.toml").unwrap();
        assert_eq!(
            topology.links["plain"].emulation,
            Some(Emulation::default())
        );
    }

    #[test]
    fn a_direction_replays_a_recording_beside_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let drive = directory.path().join("drive.csv");
        std::fs::write(drive, "second,lte,sat\n0,12,0\n1,0,0\n").unwrap();
        let file = directory.path().join("t.toml");
        let with = |from: &str, to: &str| {
            let text = GOOD.replace("\"1%\", loss_burst", "\"2%\", loss_burst");
            let text = text.replace(
                "loss = \"2%\", loss_burst = \"4 packets\", buffer = \"64KiB\"",
                "recording = \"drive.csv\", column = \"lte\", buffer = \"1s\"",
            );
            assert!(text.contains(from), "{from}");
            read(&text.replace(from, to), file.to_str().unwrap())
        };
        let topology = with("", "").unwrap();
        let emulation = topology.links["path1"].emulation.as_ref().unwrap();
        let [there, back] = &emulation.recordings;
        assert_eq!(there.as_ref().unwrap().period(), Duration::from_secs(2));
        assert_eq!(emulation.a_to_b.rate, None, "it replaces that of each_way");
        // A second at the mean of 6 Mbit/s.
        assert_eq!(
            emulation.a_to_b.buffer,
            Buffer::Bytes(ByteCount::new(750_000))
        );
        assert_eq!(emulation.a_to_b.delay, Duration::from_millis(2));
        assert_eq!(back, &None);
        for (from, to, what) in [
            ("\"drive.csv\"", "\"none.csv\"", "none.csv: no such file"),
            (", column = \"lte\"", "", "say which column, of lte, sat"),
            ("\"lte\"", "\"lta\"", "did you mean `lte`?"),
            ("\"lte\"", "\"sat\"", "carries nothing at any time"),
            (
                "recording = \"drive.csv\", ",
                "",
                "a column needs a recording",
            ),
            (
                "column = \"lte\"",
                "column = \"lte\", rate = \"1Mbit\"",
                "a rate or a recording, not both",
            ),
            (
                "buffer = \"1s\"",
                "buffer = \"2h\"",
                "a buffer of 2h is too long",
            ),
            (
                "column = \"lte\"",
                "column = \"lte\", packet_overhead = \"8B\"",
                "leave packet_overhead out",
            ),
        ] {
            let error = with(from, to).unwrap_err().problems()[0].to_string();
            let place = format!("{}:17:10: ", file.display());
            assert!(
                error.starts_with(&place) && error.contains(what),
                "{what}: {error}"
            );
        }
    }

    #[test]
    fn a_buffer_of_time_is_what_the_rate_carries_in_it() {
        let topology = read(&GOOD.replace("50 packets", "40ms"), "t.toml").unwrap();
        let emulation = topology.links["path1"].emulation.as_ref().unwrap();
        assert_eq!(
            emulation.b_to_a.buffer,
            Buffer::Bytes(ByteCount::new(500_000))
        );
        let text = GOOD
            .replace("rate = \"100Mbit\", ", "")
            .replace("50 packets", "40ms");
        let message = refused(&text);
        assert!(
            message.contains("a buffer of 40ms needs a rate or a recording"),
            "{message}"
        );
    }

    #[test]
    fn unknown_keys_are_refused_with_line_and_nearest() {
        assert_eq!(
            refused_with("delay = \"2ms\"", "dealy = \"2ms\""),
            "t.toml:16:32: unknown key `dealy`; did you mean `delay`?"
        );
        assert!(
            refused_with("mtu = 9000", "colour = 1")
                .contains("t.toml:22:1: unknown key `colour`; known keys are a, b")
        );
    }

    #[test]
    fn unknown_hosts_are_refused_with_line_and_nearest() {
        assert_eq!(
            refused_with(
                "b = { host = \"osaka\", addresses = [\"10",
                "b = { host = \"oskaa\", addresses = [\"10"
            ),
            "t.toml:21:14: there is no host `oskaa`; did you mean `osaka`?"
        );
    }

    #[test]
    fn wrong_units_are_refused_with_line() {
        let message = refused_with("\"100Mbit\"", "\"100MB\"");
        assert!(
            message.starts_with("t.toml:16:21: `MB` is not a unit of bandwidth"),
            "{message}"
        );
        let message = refused_with("\"50 packets\"", "\"50\"");
        assert!(
            message.starts_with("t.toml:16:56: `50` has no unit"),
            "{message}"
        );
        assert!(
            message.ends_with("\"50 packets\", \"1s\" or \"unlimited\""),
            "{message}"
        );
    }

    #[test]
    fn inconsistent_topologies_are_refused() {
        for (from, to, what) in [
            (
                "192.0.2.2/30",
                "192.0.2.1/30",
                "t.toml:15:36: 192.0.2.1 is already host `tokyo`'s on link `path1`",
            ),
            (
                "via = \"192.0.2.2\"",
                "via = \"192.0.2.3\"",
                "t.toml:6:37: 192.0.2.3 is no neighbour",
            ),
            (
                "198.51.100.0/24",
                "198.51.100.7/24",
                "t.toml:6:12: 198.51.100.7/24 is an address",
            ),
            (
                "198.51.100.0/24",
                "2001:db8::/64",
                "different address families",
            ),
            (
                "10.0.0.1/24",
                "10.0.0.1",
                "t.toml:20:35: `10.0.0.1` has no prefix length",
            ),
            ("10.0.0.1/24", "127.0.0.1/8", "cannot be a host's address"),
            (
                "net.ipv4.ip_forward",
                "kernel.panic",
                "is not a sysctl of a network namespace",
            ),
            (
                "net.ipv4.ip_forward",
                "net.ipv4./../x",
                "is not a sysctl of a network namespace",
            ),
            (
                "mtu = 9000",
                "mtu = 100",
                "t.toml:22:7: an mtu is a number from 1280 to 9000",
            ),
            (
                ", buffer = \"50 packets\"",
                "",
                "t.toml:16:12: a rate needs a buffer",
            ),
            (
                "delay = \"2ms\"",
                "delay = \"2h\"",
                "t.toml:16:12: 2h is too long",
            ),
            (
                "\"1%\"",
                "\"90%\"",
                "t.toml:17:10: a loss of 90% does not fit bursts of 4 packets",
            ),
            (
                "[host.osaka]",
                "[host.wire]",
                "no host may be called `wire`",
            ),
            (
                "[host.osaka]",
                "[host.Osaka]",
                "t.toml:11:7: `Osaka` cannot be the name of a host",
            ),
            (
                "[link.plain]",
                "[link.much-too-long-a-name]",
                "cannot be the name of a link",
            ),
            (
                "host = \"osaka\", addresses = [\"10",
                "host = \"tokyo\", addresses = [\"10",
                "both ends",
            ),
        ] {
            let message = refused_with(from, to);
            assert!(message.contains(what), "{from} -> {to}: {message}");
        }
        assert!(refused("").contains("no hosts"));
        assert!(refused("host = 3").starts_with("t.toml:1:"));
        assert!(refused("[host.a").starts_with("t.toml:1:"));
    }

    #[test]
    fn all_problems_come_in_one_report() {
        let text = GOOD
            .replace("delay = \"2ms\"", "dealy = \"2ms\"")
            .replace("mtu = 9000", "mtu = \"9000\"");
        let error = read(&text, "t.toml").unwrap_err();
        let lines: Vec<_> = error
            .problems()
            .iter()
            .map(|p| p.place.as_ref().unwrap().line)
            .collect();
        assert_eq!(lines, [16, 22], "{error}");
        let text = GOOD
            .replace(
                "\"100Mbit\", delay = \"2ms\"",
                "\"100Mbit\", delay = \"2h\"",
            )
            .replace("mtu = 9000", "mtu = 100");
        let error = read(&text, "t.toml").unwrap_err();
        assert_eq!(error.problems().len(), 2, "{error}");
    }
}
