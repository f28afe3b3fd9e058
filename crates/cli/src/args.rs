//! The command line: what can be said, and its help. Man pages and completion are made from this.

mod init_egress;
mod measure;
mod messages;
mod network;

use std::{ffi::OsString, net::IpAddr, num::NonZeroU64, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use ipnet::IpNet;
use keiro_control::{
    config::{DEFAULT_CONFIG_FILE, DEFAULT_CONTROL_SOCKET, Mapping, Name, PeerEndpoint},
    protocol::{WhatIf, WhatIfError},
    units::{Text, UnitError},
};
use keiro_terminal::{VERSION, manual::Shell};

use crate::names;

pub(crate) use self::{
    init_egress::{InitAsbr, InitBgp, InitEgress, InitEpe, InitPeer, InitRole},
    measure::{
        MEASURE_PORT, Measure, MeasureCommand, MeasureCompare, MeasureFit, MeasureNet, MeasurePart,
    },
    messages::{MessageSocket, Receive, Send},
    network::{HubFile, Init, Invite, Join, Leave, Rename, Revoke, Sites},
};

const EXIT_STATUS: &str = "\
Exit status: 0 done, 1 failed, 64 the command line is wrong.
`keiro plan`: 0 nothing would change, 1 failed, 2 the plan changes something, 3 a latency target would be missed.
`keiro doctor`: 0 nothing found, 1 something found, 2 not all could be checked.";

/// Application-aware WAN edge: measures every path, predicts what each application will get,
/// chooses paths so that every latency target is met, and explains the choice in numbers.
#[derive(Debug, Parser)]
#[command(
    name = "keiro",
    version = VERSION,
    after_help = EXIT_STATUS,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = false,
    infer_subcommands = false
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a private key
    ///
    /// Prints 32 random bytes of the operating system in base64. Write it to a file that only
    /// keiro's user can read: `(umask 077; keiro genkey > private.key)`.
    Genkey,
    /// Make a token for a client on another host
    ///
    /// Prints 32 random bytes of the operating system in base64. Write it to a file that only keiro's
    /// user can read, `(umask 077; keiro gentoken > sensor.token)`, name that file in a
    /// [[message_client]] of the configuration, and give the client a copy.
    Gentoken,
    /// Make a certificate for clients on other hosts
    ///
    /// Writes a private key and a certificate that is signed with it, for `[message_tls]` of the
    /// configuration, and prints the certificate's SHA-256 fingerprint. Clients get a copy of the
    /// certificate and trust it alone.
    Gencert(Gencert),
    /// Print the public key of a private key
    ///
    /// Reads the private key from standard input: `keiro pubkey < private.key`.
    Pubkey,
    /// Write a first configuration and a private key for this machine
    ///
    /// Finds the uplinks: the interfaces with a default route, and their addresses. Prints the
    /// public key, which the peer needs. `keiro init asbr` and `keiro init egress` write those of the
    /// egress suite.
    Init(Init),
    /// Invite a branch into the network of this hub
    ///
    /// Prints a token, which is a secret: the machine that uses it first becomes the branch. `keiro join` takes it at the
    /// new site.
    Invite(Invite),
    /// Remove a branch, or the invitation of one, from the network of this hub
    ///
    /// The branch's key is refused from then on. It can be invited again.
    Revoke(Revoke),
    /// Give a branch or the second hub another name, everywhere in the network
    ///
    /// Its sessions, routes and history go on. No file of the branch changes.
    Rename(Rename),
    /// The branches of the network of this hub, and those that are invited
    Sites(Sites),
    /// Join a network with the token of an invitation
    ///
    /// Finds the uplinks and the networks behind this machine, asks the hub, writes the configuration and a
    /// private key, enables forwarding and starts the gateway. If it fails, the machine is as it was.
    Join(Join),
    /// Leave the network that this machine has joined
    ///
    /// Stops the gateway and removes what `keiro join` has written, set and opened. `keiro revoke` at the hub then removes
    /// the site.
    Leave(Leave),
    /// Look at configuration files
    #[command(subcommand)]
    Config(Config),
    /// Run the edge daemon
    ///
    /// SIGHUP reads the configuration again; SIGTERM and SIGINT deliver what is there and stop.
    Gateway(Gateway),
    /// Run the egress suite's border router
    ///
    /// Exchanges routes with egress peers, makes a segment for each, and announces every peer's
    /// routes with its segment to the route reflector. SIGTERM and SIGINT stop it: segments are
    /// removed first, then sessions end.
    Asbr(Asbr),
    /// Run the egress suite's Endpoint Manager on a content server
    ///
    /// Takes best paths and every egress peer's routes from the route reflector and keeps a table
    /// for each peer. What is in the kernel stays when it stops.
    Egress(Egress),
    /// The running gateway in a few lines
    Status(Query),
    /// The running gateway in a terminal, as it changes
    ///
    /// Applications that miss their latency target first, paths, tenants and events; `?` lists the keys. A gateway that
    /// is stopped or slow is reported, and shown again when it answers.
    Top(Top),
    /// What keeps a gateway from its work, and what corrects it
    ///
    /// Looks at the machine, the configuration, the kernel's network, firewalls and the running gateway, and prints
    /// what has a consequence, the most basic first. Watches for up to ten seconds what has just started. Run it as
    /// root: others may not read firewalls.
    #[command(
        after_help = "Exit status: 0 nothing found, 1 something found, 2 not all could be checked, 64 the command line is wrong."
    )]
    Doctor(Doctor),
    /// Write a file for a bug report: state, configuration, log and machine, without secrets
    ///
    /// Versions, all answers of the running gateway, explanations, histories, what `keiro doctor` finds, addresses,
    /// routes, rules, firewalls, the log. Private keys, preshared keys, tokens and passwords are removed; names,
    /// addresses and public keys are not. Works without a gateway. Run it as root: others may not read all of it.
    Support(Support),
    /// What paths, applications and peers of the running gateway do
    #[command(subcommand)]
    Show(Show),
    /// Print events of the running gateway as they happen, one line of JSON each
    Monitor(Monitor),
    /// Run a command or send a webhook for events of the running gateway
    ///
    /// Reads which ones from a file, and follows the gateway until it is stopped, also over restarts of the gateway. The
    /// gateway itself runs no programs.
    Hooks(Hooks),
    /// What the planner would do, without doing it
    ///
    /// Asks the running gateway, which knows what it measured. With --config it plans from a file
    /// alone; every path then needs `delay`, every application `length` and `interval`.
    ///
    /// Each application is shown with the terms of its prediction: T delay of the path and what its
    /// losses cost, L message length, W rate of the path, Q load by others, H mean delay (by the
    /// paper's equation 3, and by the model of the scheduler in use), F latency target.
    ///
    /// A latency target is met by a plan if the model's mean is at most F and the tolerance. `keiro status`
    /// and `keiro show app` hold the 99th percentile against it as soon as that is measured; the
    /// last column says what the model makes of that. Where the model gives no number the reason is
    /// given, and equation 3 stands in, under its name.
    #[command(
        after_help = "Exit status: 0 nothing would change, 1 failed, 2 the plan changes something, \
        3 a latency target would be missed on average or an application is overloaded or has no path, 64 the \
        command line is wrong."
    )]
    Plan(Plan),
    /// Why an application is on its path, with the numbers; or where a prefix leads, and why
    ///
    /// An application: by the paper's equation 3, which knows no headers, and by the model of the
    /// scheduler in use, which says whether the latency target is met; for every path to its peer. The planner
    /// goes by equation 3 with headers, and by the model where that leaves a latency target unmet.
    ///
    /// A prefix or an address: a daemon of the egress suite prints the paths that it knows and why
    /// the best one is it, what each egress peer's table has, and the same as the kernel has it.
    Explain(Explain),
    /// Plan now and take the result over
    ///
    /// The gateway plans by itself as soon as a path or an application comes or goes, or what is
    /// measured of one changes by more than noise. This plans at once, even if nothing has changed.
    #[command(
        after_help = "Exit status: 0 the plan is in force, also where it cannot meet every latency target, 1 \
        failed, 64 the command line is wrong."
    )]
    Apply(Apply),
    /// Make the running gateway read its configuration again
    ///
    /// Nothing in transit is lost. A file with problems is refused, and the old configuration
    /// stays. With --egress `keiro asbr` or `keiro egress` does so, and sessions stay with
    /// neighbours that are configured as before.
    Reload(Reload),
    /// Send messages as an application
    ///
    /// Each message is acknowledged when the peer gateway has it whole; this command ends when
    /// all are, and fails if one was given up or refused.
    Send(Send),
    /// Receive an application's messages
    ///
    /// Writes them to standard output one after the other.
    Receive(Receive),
    /// What a network does for transfers: time against size, delay, loss, capacity
    ///
    /// Towards another host that runs `keiro measure --serve`. Both prove who they are with the
    /// keys of gateways, or neither does (--open).
    Measure(Box<Measure>),
    /// Count what leaves interfaces, per inner flow and SRv6 segment
    ///
    /// Shows connections, their subflows, the egress peer that each leaves by, rate, round-trip
    /// time and loss, every second until interrupted. Needs CAP_BPF and CAP_NET_ADMIN, and
    /// CAP_PERFMON to find which subflows belong together.
    Flowstats(Flowstats),
    /// Pages for a browser: paths, applications, forecasts, events, what if
    ///
    /// Runs the program `keiro-web` with these arguments. `keiro web --help` lists them; without any the pages of the
    /// gateway on this machine are at http://127.0.0.1:7680/.
    #[command(disable_help_flag = true)]
    Web(Web),
    /// Print a shell's completion script
    ///
    /// For example: `keiro completion bash > /etc/bash_completion.d/keiro`.
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write man pages
    Man {
        /// Write one file per command to this directory; without it, keiro(1) goes to standard
        /// output
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        output: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct Flowstats {
    /// The interfaces
    #[arg(required = true, value_name = "INTERFACE")]
    pub(crate) interfaces: Vec<String>,
    /// Print one line of JSON for every flow that sent something, every interval
    #[arg(long)]
    pub(crate) json: bool,
    /// How often the counts are read
    #[arg(long, value_name = "TIME", default_value = "100ms")]
    pub(crate) interval: Text<Duration>,
    /// Stop after this time
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) time: Option<Text<Duration>>,
    /// What an egress peer is called, by its segment: transit-a=fd00:51d::a
    #[arg(long = "peer", value_name = "NAME=SEGMENT")]
    pub(crate) peers: Vec<keiro_flowstats::Peer>,
    /// Write totals per egress peer to this file every second, for Prometheus (node_exporter's
    /// textfile collector)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) metrics: Option<PathBuf>,
    /// Let Prometheus read the same totals at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics_listen: Option<std::net::SocketAddr>,
    /// Let others than this machine read them: ADDRESS need not be a loopback address
    #[arg(long, requires = "metrics_listen")]
    pub(crate) metrics_public: bool,
    #[command(flatten)]
    pub(crate) user: User,
    /// Send a collector every ten seconds what every flow has sent, as IPFIX over UDP:
    /// 192.0.2.1:4739
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) ipfix: Option<std::net::SocketAddr>,
}

#[derive(Args, Debug)]
pub(crate) struct Web {
    /// Arguments of keiro-web
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    pub(crate) arguments: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Gencert {
    /// Addresses and names at which clients reach the gateway
    #[arg(required = true, value_name = "ADDRESS")]
    pub(crate) names: Vec<String>,
    /// File for the certificate, which everyone may read
    #[arg(long, value_name = "FILE", default_value = "message-cert.pem", value_hint = ValueHint::FilePath)]
    pub(crate) cert: PathBuf,
    /// File for the private key, which only its owner may read
    #[arg(long, value_name = "FILE", default_value = "message-key.pem", value_hint = ValueHint::FilePath)]
    pub(crate) key: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Read a configuration and say everything that is wrong with it
    Check {
        /// The configuration
        #[arg(value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// First give keys of the release before their new names in the file; all else in it stays
        #[arg(long)]
        fix: bool,
        /// Print a JSON document instead of text
        #[arg(long)]
        json: bool,
    },
}

/// The user of a daemon.
#[derive(Args, Debug)]
pub(crate) struct User {
    /// Run as this user after the start, which only root can ask for; `root` stays root. As `keiro`
    /// unless given, where there is that user
    #[arg(long = "user", value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Gateway {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Log more; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Real-time priority of the thread that carries packets (SCHED_FIFO, 1 to 99); needs
    /// CAP_SYS_NICE
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub(crate) realtime: Option<u8>,
    /// Processor that the thread that carries packets keeps to, counted from 0
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
    /// How long before packets may leave to stop sleeping and wait awake, for example 30us
    #[arg(long, value_name = "TIME")]
    pub(crate) spin: Option<Text<Duration>>,
    #[command(flatten)]
    pub(crate) user: User,
    /// Remove the rules and routes that block tenants' packets after gateways stopped, and end; those of
    /// running gateways stay
    #[arg(long)]
    pub(crate) cleanup: bool,
    /// Block the packets of the configuration's tenants as a stopped gateway does, and end: for the time
    /// from the start of the machine to that of the gateway
    #[arg(long, conflicts_with = "cleanup")]
    pub(crate) block: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Asbr {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/keiro/asbr.toml", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) daemon: EgressDaemon,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Egress {
    #[command(subcommand)]
    pub(crate) command: Option<EgressCommand>,
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = "/etc/keiro/egress.toml", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) daemon: EgressDaemon,
}

#[derive(Subcommand, Debug)]
pub(crate) enum EgressCommand {
    /// Move everything away from an egress peer, before maintenance
    ///
    /// Asks the border router's daemon, `keiro asbr`. The peer's routes become the last choice, here and at every server,
    /// connections move to other peers, and the peer is asked to send elsewhere (GRACEFUL_SHUTDOWN, RFC 8326). Its
    /// session, routes and segment stay, so that nothing on its way is lost. Ends when all neighbours were sent
    /// everything, and prints the time that took. Lasts until `undrain`, or until the daemon ends: `drain = true` in its
    /// configuration lasts longer.
    Drain(Drain),
    /// Use an egress peer again that was drained
    Undrain(Drain),
}

#[derive(Args, Debug)]
pub(crate) struct Drain {
    /// The peer's name
    pub(crate) peer: String,
    /// Fail if not everything was sent in this time; draining goes on
    #[arg(long, value_name = "TIME", default_value = "30s")]
    pub(crate) wait: Text<Duration>,
    /// The border router's `control_socket`
    #[arg(long, value_name = "PATH", default_value = DEFAULT_BORDER_SOCKET, value_hint = ValueHint::FilePath)]
    pub(crate) socket: PathBuf,
    /// Print a JSON document instead of text; units are in the names of its fields
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct EgressDaemon {
    /// Exchange routes, but change nothing in the kernel
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Remove everything of this daemon's from the kernel, also what another run has left, and end;
    /// stop the daemon before
    #[arg(long, conflicts_with_all = ["dry_run", "record"])]
    pub(crate) cleanup: bool,
    #[command(flatten)]
    pub(crate) user: User,
    /// Write all that is heard to this file, so that it can be run again; it grows without bound
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) record: Option<PathBuf>,
    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
    /// Log more; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line
    Json,
}

/// The `control_socket` of a content server in its examples.
pub(crate) const DEFAULT_EGRESS_SOCKET: &str = "/run/keiro/egress.sock";
/// That of a border router.
pub(crate) const DEFAULT_BORDER_SOCKET: &str = "/run/keiro/asbr.sock";

/// Which gateway is asked.
#[derive(Args, Debug)]
pub(crate) struct Socket {
    /// The gateway's control socket
    #[arg(long, value_name = "PATH", default_value = DEFAULT_CONTROL_SOCKET, value_hint = ValueHint::FilePath)]
    pub(crate) socket: PathBuf,
}

/// Which gateway is asked, and how its answer is shown.
#[derive(Args, Debug)]
pub(crate) struct Query {
    #[command(flatten)]
    pub(crate) socket: Socket,
    /// Print a JSON document instead of text; units are in the names of its fields
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) socket: Socket,
    /// How often the gateway is asked, from 100ms to 1h
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = top_interval)]
    pub(crate) interval: Text<Duration>,
    /// No colours, as with NO_COLOR in the environment
    #[arg(long)]
    pub(crate) no_color: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Doctor {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Print a JSON document instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Support {
    /// The configuration
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG_FILE, value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// The gateway's control socket; that of the configuration unless given
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub(crate) socket: Option<PathBuf>,
    /// The file to write, which must not be there; keiro-support-TIME.tar.gz in this directory unless given
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Show {
    /// Paths to peers: state, round-trip time, loss, rate
    #[command(mut_arg("name", |name| name.add(names::paths())))]
    Path(ShowMeasured),
    /// Applications: path, prediction, measured delays, latency target
    #[command(mut_arg("name", |name| name.add(names::apps())))]
    App(ShowMeasured),
    /// Peers: state, keys, what was dropped
    #[command(mut_arg("name", |name| name.add(names::peers())))]
    Peer(ShowOne),
    /// Tenants: device, weight, windows per path, what was dropped
    #[command(mut_arg("name", |name| name.add(names::tenants())))]
    Tenant(ShowOne),
    /// What was sorted into built-in classes and why, and the largest flows of the last minute
    #[command(mut_arg("name", |name| name.add(names::tenants())))]
    Classes(ShowOne),
    /// At a branch, the other sites: direct or by the hub, and why
    Network(ShowAll),
    /// Clients of the message socket on other hosts: address, messages, what was refused
    Client(ShowOne),
    /// The egress suite's daemon: neighbours, egress peers, routes
    Egress(ShowEgress),
    /// Routes that the egress suite's daemon has received: where each is used, or why it is not
    Route(Box<ShowRoute>),
}

#[derive(Args, Debug)]
pub(crate) struct ShowRoute {
    /// Only routes to this prefix and to parts of it
    pub(crate) prefix: Option<IpNet>,
    /// Only those of this neighbour
    #[arg(long, value_name = "NAME")]
    pub(crate) neighbour: Option<String>,
    /// Only those with this route distinguisher, as 65000:1
    #[arg(long, value_name = "RD")]
    pub(crate) rd: Option<String>,
    /// Only those with this route target, as 65000:1
    #[arg(long, value_name = "RT")]
    pub(crate) rt: Option<String>,
    /// Only those with this community, as 65000:100, or a large one, as 65000:1:2
    #[arg(long, value_name = "COMMUNITY")]
    pub(crate) community: Option<String>,
    /// Only those that are not used
    #[arg(long)]
    pub(crate) unused: bool,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    pub(crate) limit: std::num::NonZeroUsize,
    /// The daemon's `control_socket`
    #[arg(long, value_name = "PATH", default_value = DEFAULT_EGRESS_SOCKET, value_hint = ValueHint::FilePath)]
    pub(crate) socket: PathBuf,
    /// Print a JSON document per line and route instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowEgress {
    /// The daemon's `control_socket`
    #[arg(long, value_name = "PATH", default_value = DEFAULT_EGRESS_SOCKET, value_hint = ValueHint::FilePath)]
    pub(crate) socket: PathBuf,
    /// Print a JSON document instead of text; units are in the names of its fields
    #[arg(long)]
    pub(crate) json: bool,
    /// Print metrics in the OpenMetrics text format instead
    #[arg(long, conflicts_with = "json")]
    pub(crate) metrics: bool,
    /// Read the kernel's state for it, which takes seconds with full tables; otherwise it is what the
    /// daemon has put there
    #[arg(long)]
    pub(crate) verify: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowAll {
    #[command(flatten)]
    pub(crate) query: Query,
}

#[derive(Args, Debug)]
pub(crate) struct ShowMeasured {
    #[command(flatten)]
    pub(crate) one: ShowOne,
    /// What was measured over so long a time [default: 1h]; a row per minute up to 24h, per hour
    /// beyond
    #[arg(
        long,
        value_name = "DURATION",
        num_args = 0..=1,
        default_missing_value = "1h",
        requires = "name",
        value_parser = at_least_a_minute
    )]
    pub(crate) history: Option<Text<Duration>>,
    /// Print the history as CSV; units are in the names of its columns
    #[arg(long, requires = "history", conflicts_with = "json")]
    pub(crate) csv: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowOne {
    /// Only this one, in full; all unless given
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) query: Query,
}

#[derive(Args, Debug)]
pub(crate) struct Reload {
    #[command(flatten)]
    pub(crate) query: Query,
    /// Of `keiro asbr` or `keiro egress` instead of the gateway; without --socket at its usual place
    #[arg(long)]
    pub(crate) egress: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Monitor {
    #[command(flatten)]
    pub(crate) socket: Socket,
    /// Of `keiro asbr` or `keiro egress` instead of the gateway; without --socket at its usual place
    #[arg(long)]
    pub(crate) egress: bool,
    /// Print the packets on the paths to this peer as qlog (JSON-SEQ), for qvis and similar tools
    ///
    /// Packets sent, received, acknowledged and lost, round-trip times, MTU and changes of paths. A
    /// busy gateway makes some MB/s of it; events that it has no room for are counted in the trace
    #[arg(long, value_name = "PEER", conflicts_with = "egress", add = names::peers())]
    pub(crate) qlog: Option<String>,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = count)]
    pub(crate) count: Option<NonZeroU64>,
}

#[derive(Args, Debug)]
pub(crate) struct Hooks {
    /// The file of hooks
    #[arg(long, value_name = "FILE", default_value = "/etc/keiro/hooks.toml", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    #[command(flatten)]
    pub(crate) socket: Socket,
    /// Read the file, say what is wrong with it, and end
    #[arg(long)]
    pub(crate) check: bool,
    /// Give every hook an event called `test`, say what becomes of it, and end
    #[arg(long, conflicts_with = "check")]
    pub(crate) test: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Plan {
    /// Plan from this file instead of asking the running gateway
    #[arg(long, value_name = "FILE", conflicts_with = "socket", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<PathBuf>,
    /// Suppose a change, and plan with it; may be given several times
    ///
    /// "lose PATH"; "add APP" or "add 5 APP", applications like this one; "set PATH rate=50Mbit
    /// delay=80ms loss=5% role=backup cost=3.5 budget=spent", one of them is enough; "latency-target APP 20ms" or "latency-target APP none".
    /// Each thing can be supposed once. What changes nothing is reported
    #[arg(long, value_name = "CHANGE", value_parser = what_if)]
    pub(crate) what_if: Vec<WhatIf>,
    /// From scratch, however many moves it takes; else only what is worth moving for
    #[arg(long)]
    pub(crate) anew: bool,
    #[command(flatten)]
    pub(crate) query: Query,
}

#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// From scratch, however many moves it takes; else only what is worth moving for
    #[arg(long)]
    pub(crate) anew: bool,
    #[command(flatten)]
    pub(crate) query: Query,
}

fn what_if(text: &str) -> Result<WhatIf, WhatIfError> {
    WhatIf::parse(text)
}

#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// The application; or a prefix or an address, which a daemon of the egress suite is asked for
    /// (--socket names its `control_socket` [default: /run/keiro/egress.sock])
    #[arg(value_name = "APP|PREFIX", add = names::apps())]
    pub(crate) app: String,
    #[command(flatten)]
    pub(crate) query: Query,
    /// Of a prefix: read the kernel's routes for it, which takes seconds with full tables; otherwise
    /// they are those that the daemon has put there
    #[arg(long)]
    pub(crate) verify: bool,
}

fn name(text: &str) -> Result<Name, String> {
    Name::new(text).map_err(|e| e.to_string())
}

fn some_time(text: &str) -> Result<Text<Duration>, String> {
    let time: Text<Duration> = text.parse().map_err(|e: UnitError| e.to_string())?;
    match time.0.is_zero() {
        true => Err("nothing can be done in no time".to_owned()),
        false => Ok(time),
    }
}

fn top_interval(text: &str) -> Result<Text<Duration>, String> {
    let time = some_time(text)?;
    match (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&time.0) {
        true => Ok(time),
        false => Err("ask for 100ms to 1h".to_owned()),
    }
}

fn at_least_a_minute(text: &str) -> Result<Text<Duration>, String> {
    let time = some_time(text)?;
    match time.0 < Duration::from_secs(60) {
        true => Err("there is a row per minute, not less: ask for 1min or more".to_owned()),
        false => Ok(time),
    }
}

/// How many events or messages.
fn count(text: &str) -> Result<NonZeroU64, String> {
    let number = text.parse().ok().and_then(NonZeroU64::new);
    number.ok_or_else(|| format!("write a number from 1 to {}", u64::MAX))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::{measure::host_and_port, *};

    #[test]
    fn a_drain_is_asked_of_the_border_router_whose_file_init_has_written() {
        let parsed = Cli::try_parse_from(["keiro", "egress", "drain", "transit-a"]).unwrap();
        let Command::Egress(Egress {
            command: Some(EgressCommand::Drain(drain)),
            ..
        }) = parsed.command
        else {
            panic!("{parsed:?}");
        };
        assert_eq!(drain.socket, PathBuf::from(DEFAULT_BORDER_SOCKET));
    }

    #[test]
    fn a_target_is_a_host_and_a_port_or_the_usual_one() {
        for good in ["192.0.2.1:7610", "[2001:db8::1]:7610", "osaka.example:1"] {
            assert_eq!(host_and_port(good).as_deref(), Ok(good));
        }
        for host in ["osaka", "192.0.2.1", "[2001:db8::1]"] {
            assert_eq!(host_and_port(host), Ok(format!("{host}:7610")));
        }
        for bad in [
            "",
            "[]",
            "no port",
            "::1",
            ":7610",
            "osaka:",
            "osaka:0",
            "osaka:65536",
            "osaka:http",
            "2001:db8::1]:7610",
        ] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_is_documented() {
        let page = include_str!("../../../docs/cli.md");
        keiro_terminal::manual::check_documented("keiro", &Cli::command(), page);
    }

    #[test]
    fn every_answer_can_be_json() {
        let answers = [
            "status", "show", "plan", "explain", "apply", "reload", "measure", "sites",
        ];
        fn json(command: &clap::Command) -> bool {
            command.get_arguments().any(|a| a.get_id() == "json")
                || command.get_subcommands().any(json)
        }
        let cli = Cli::command();
        for answer in answers {
            let command = cli.find_subcommand(answer).expect(answer);
            assert!(json(command), "{answer} has no --json");
        }
    }
}
