//! The command line of `keiro measure`.

use super::*;

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Measure {
    #[command(subcommand)]
    pub(crate) command: Option<MeasureCommand>,
    #[command(flatten)]
    pub(crate) net: MeasureNet,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MeasureCommand {
    /// Bandwidth, overhead and breaks of measured transfer times
    ///
    /// Fits T(n) = 8n/B + oh in as many pieces as the data ask for. The file is what
    /// `keiro measure` writes, or anybody's CSV with the columns `bytes` and `seconds`, one line
    /// per transfer.
    Fit(MeasureFit),
    /// Which of two networks is faster for which sizes, and how sure that is
    Compare(MeasureCompare),
}

#[derive(Args, Debug)]
pub(crate) struct MeasureFit {
    /// Transfer times, CSV or JSON; - is standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Print a JSON document instead of text; units are in the names of its fields
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw time, residuals and throughput against size to this SVG file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) figure: Option<PathBuf>,
    /// Show the lines also in the paper's units, MB and seconds
    #[arg(long)]
    pub(crate) paper_units: bool,
}

#[derive(Args, Debug)]
pub(crate) struct MeasureCompare {
    /// Transfer times of the first network, CSV or JSON
    #[arg(value_name = "A", value_hint = ValueHint::FilePath)]
    pub(crate) a: PathBuf,
    /// Transfer times of the second network, CSV or JSON
    #[arg(value_name = "B", value_hint = ValueHint::FilePath)]
    pub(crate) b: PathBuf,
    /// Compare these sizes; those that were measured in both unless given
    #[arg(long, value_name = "FROM-TO", value_parser = sizes)]
    pub(crate) sizes: Option<Sizes>,
    /// Decides the draws that intervals and probabilities come from
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print a JSON document instead of text; units are in the names of its fields
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measuring between two hosts.
#[derive(Args, Debug)]
pub(crate) struct MeasureNet {
    /// The other host, at port 7610 unless given, for example osaka, 192.0.2.2:7610 or [2001:db8::2]
    #[arg(
        value_name = "HOST[:PORT]",
        required_unless_present = "serve",
        value_parser = host_and_port
    )]
    pub(crate) target: Option<String>,
    /// Be the other host, at this address, until Ctrl-C; at port 7610 of all addresses unless given
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        num_args = 0..=1,
        conflicts_with = "target"
    )]
    pub(crate) serve: Option<Option<std::net::SocketAddr>>,
    /// This host's private key
    #[arg(long, value_name = "FILE", conflicts_with = "open", value_hint = ValueHint::FilePath)]
    pub(crate) key: Option<PathBuf>,
    /// The server's public key
    #[arg(long, value_name = "PUBKEY", conflicts_with_all = ["open", "serve"])]
    pub(crate) peer: Option<keiro_control::PublicKey>,
    /// With --serve: whose key may measure; may be given several times
    #[arg(long, value_name = "PUBKEY", num_args = 1.., conflicts_with_all = ["open", "target"])]
    pub(crate) allow: Vec<keiro_control::PublicKey>,
    #[command(flatten)]
    pub(crate) user: User,
    /// No authentication; for laboratories
    #[arg(long)]
    pub(crate) open: bool,
    /// With --serve: how many may measure at once, at each address
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) clients: u8,
    /// Measure only this part; may be given several times
    #[arg(long, value_enum, value_name = "PART")]
    pub(crate) only: Vec<MeasurePart>,
    /// Sizes of transfers, from the smallest to the largest
    #[arg(long, value_name = "FROM-TO", default_value = "1kB-100MB", value_parser = sizes)]
    pub(crate) sizes: Sizes,
    /// Sizes for each factor of ten
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=50))]
    pub(crate) per_decade: u8,
    /// Repeat each size until half of its median's 95 % interval is at most this share of it
    #[arg(long, value_name = "RATIO", default_value = "2%", value_parser = above_nothing)]
    pub(crate) precision: Text<keiro_units::Probability>,
    /// End the transfers after this time even if that is not reached
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = some_time)]
    pub(crate) time: Text<Duration>,
    /// The most transfers of one size
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(6..=1000))]
    pub(crate) repeats: u16,
    /// Transfers from the server to here
    #[arg(long)]
    pub(crate) reverse: bool,
    /// A new connection for each transfer, its opening included
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Silence before each transfer, up to 60s
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = pause)]
    pub(crate) pause: Text<Duration>,
    /// Decides the order of sizes and the pauses between trains
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// How many probes over UDP; all of them take 60s at most
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(2..=60_000))]
    pub(crate) probes: u32,
    /// From one probe to the next, from 1ms
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    pub(crate) probe_interval: Text<Duration>,
    /// How many trains of packets for the capacity
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(10..=1000))]
    pub(crate) trains: u32,
    /// Write every transfer to this file: bytes,seconds
    #[arg(long, value_name = "FILE", conflicts_with = "serve", value_hint = ValueHint::FilePath)]
    pub(crate) csv: Option<PathBuf>,
    /// Draw time, residuals and throughput against size to this SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "serve", value_hint = ValueHint::FilePath)]
    pub(crate) figure: Option<PathBuf>,
    /// Show the fit also in the paper's units, MB and seconds
    #[arg(long)]
    pub(crate) paper_units: bool,
    /// Print a JSON document instead of text; units are in the names of its fields
    #[arg(long)]
    pub(crate) json: bool,
}

/// A part of what is measured between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasurePart {
    /// Transfer time against size
    Tcp,
    /// Round trip, delay variation, loss and order
    Udp,
    /// Capacity, by trains of packets
    Capacity,
}

impl MeasureNet {
    /// Whether this part is wanted; all are unless some are named.
    pub(crate) fn measures(&self, part: MeasurePart) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Sizes of transfers as the command line has them: `1kB-100MB`, or one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) first: keiro_units::ByteCount,
    pub(crate) last: keiro_units::ByteCount,
}

fn sizes(text: &str) -> Result<Sizes, String> {
    let size = |text: &str| {
        let size: Result<Text<keiro_units::ByteCount>, _> = text.parse();
        size.map(|size| size.0).map_err(|error| error.to_string())
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let sizes = Sizes {
        first: size(first)?,
        last: size(last)?,
    };
    match (sizes.first.is_zero(), sizes.first <= sizes.last) {
        (true, _) => Err("the smallest size is 1 byte, as in 1kB-100MB".to_owned()),
        (false, false) => Err("begin with the smaller size, as in 1kB-100MB".to_owned()),
        (false, true) => Ok(sizes),
    }
}

/// TCP and UDP, unless another is given; ours, beside the gateways' 7600.
pub(crate) const MEASURE_PORT: u16 = 7610;

/// Does not resolve the name: the connection does, so that its error names the host.
pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    // All after the first colon is an IPv6 address unless it is in brackets.
    let is_bracketed = |host: &str| host.len() > 2 && host.starts_with('[') && host.ends_with(']');
    let is_name = |host: &str| !host.is_empty() && !host.contains([':', ' ', '[', ']']);
    let is_host = |host: &str| is_bracketed(host) || is_name(host);
    if is_host(text) {
        return Ok(format!("{text}:{MEASURE_PORT}"));
    }
    let port = text.rsplit_once(':').and_then(|(host, port)| {
        let port = is_host(host).then(|| port.parse::<u16>().ok());
        port.flatten()
    });
    match port {
        Some(1..) => Ok(text.to_owned()),
        Some(0) | None => Err(format!(
            "write HOST:PORT, or HOST for port {MEASURE_PORT}, as in osaka or [2001:db8::1]:7610"
        )),
    }
}

fn pause(text: &str) -> Result<Text<Duration>, String> {
    let time: Text<Duration> = text.parse().map_err(|e: UnitError| e.to_string())?;
    match time.0 > PAUSE_MAX {
        true => Err("60s at most".to_owned()),
        false => Ok(time),
    }
}

/// Longest silence before a transfer. Ours: half of what a server waits for the next request.
const PAUSE_MAX: Duration = Duration::from_secs(60);

fn above_nothing(text: &str) -> Result<Text<keiro_units::Probability>, String> {
    let share: Text<keiro_units::Probability> =
        text.parse().map_err(|e: UnitError| e.to_string())?;
    match share.0.get() > 0.0 {
        true => Ok(share),
        false => Err("no measurement is exact: a share above 0%, as in 2%".to_owned()),
    }
}
