//! The command line and its help. Man pages and completion are made from this.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use keiro_control::units::{Text, UnitError};
use keiro_experiment::{campaign::REPEATS_MAX, parameters::TABLE2_PRINTED, vary::Setting};
use keiro_model::aggregation::CustomController;
use keiro_terminal::{VERSION, manual::Shell};
use keiro_units::ByteCount;

const EXIT_STATUS: &str = "\
Exit status: 0 done, 1 failed, 64 the command line is wrong.
`keiro-lab run`, `exec`: that of the command, 128 + N if signal N ended it.
`keiro-lab experiment run`: 2 a target is missed, or a measurement does not count.";

/// Keiro's laboratory: network namespaces with emulated links on this machine, experiments that
/// reproduce papers' tables and figures, and a demonstration.
///
/// Experiments run the `keiro` program: that of --keiro, else of the environment variable
/// KEIRO_BIN, else the one in keiro-lab's own directory, else the one in PATH. It must be of
/// keiro-lab's version.
#[derive(Debug, Parser)]
#[command(
    name = "keiro-lab",
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
    /// Make a laboratory and keep it until Ctrl-C or `keiro-lab down`
    Up {
        #[command(flatten)]
        topology: TopologyFile,
    },
    /// Remove a laboratory, also one that was left over
    Down {
        /// The laboratory
        name: String,
    },
    /// Make a laboratory, run a command in one of its hosts, and remove the laboratory
    Run {
        #[command(flatten)]
        topology: TopologyFile,
        /// The host
        #[arg(long)]
        host: String,
        /// The command and its arguments
        #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },
    /// Run a command in a host of a laboratory that is there
    Exec {
        /// The laboratory
        name: String,
        /// The host
        host: String,
        /// The command and its arguments
        #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
        command: Vec<OsString>,
    },
    /// Laboratories that are there
    List {
        /// Print a JSON document instead of text
        #[arg(long)]
        json: bool,
    },
    /// Send back every message of an experiment's clients, until a signal
    #[command(hide = true)]
    Echo {
        /// Where clients connect
        #[arg(long)]
        listen: SocketAddr,
        /// Bytes of a message
        #[arg(long)]
        message: Text<ByteCount>,
    },
    /// Run an experiment's gateway, whose aggregates a controller adapts that `keiro gateway` does not know
    #[command(hide = true)]
    Gateway(Gateway),
    /// Experiments: a paper's tables and figures, measured here
    #[command(subcommand)]
    Experiment(Experiment),
    /// Print the max-min fair rates of flows over links, by weights and demands
    MaxMin(MaxMin),
    /// Five applications over two paths, before and after, in about a minute
    ///
    /// As root it runs real gateways in a laboratory, otherwise the same protocol in the
    /// simulator.
    Demo(Demo),
    /// Print a shell's completion script
    ///
    /// For example: `keiro-lab completion bash > /etc/bash_completion.d/keiro-lab`.
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write man pages
    Man {
        /// Write one file per command to this directory; without it, keiro-lab(1) goes to standard
        /// output
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        output: Option<PathBuf>,
    },
}

#[derive(Args, Debug)]
pub(crate) struct TopologyFile {
    /// The topology
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) topology: PathBuf,
    /// The laboratory's name; the topology's unless given
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Remove first what an earlier laboratory of this name left
    #[arg(long)]
    pub(crate) force: bool,
    /// Decides all that is random on the links
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

#[derive(Args, Debug)]
pub(crate) struct Gateway {
    /// The configuration
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: PathBuf,
    /// Adapts aggregates instead of the controller that the configuration names
    #[arg(long, value_name = "NAME", value_parser = controller)]
    pub(crate) controller: &'static CustomController,
    /// As of `keiro gateway`
    #[arg(long, value_name = "PRIORITY", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub(crate) realtime: Option<u8>,
    /// As of `keiro gateway`
    #[arg(long, value_name = "N")]
    pub(crate) cpu: Option<usize>,
}

fn controller(name: &str) -> Result<&'static CustomController, String> {
    match name == TABLE2_PRINTED.name {
        true => Ok(&TABLE2_PRINTED),
        false => Err(format!("there is only {}", TABLE2_PRINTED.name)),
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Experiment {
    /// Experiments that there are
    List {
        /// Print a JSON document instead of text
        #[arg(long)]
        json: bool,
    },
    /// Run experiments and hold them against the paper
    ///
    /// Measures in the laboratory, where this is root, and in the simulator.
    #[command(
        after_help = "Exit status: 0 every target is reached, 1 failed, 2 a target is missed \
        or a measurement does not count, 64 the command line is wrong."
    )]
    Run(ExperimentRun),
    /// Print the plan of an experiment, to be edited for `experiment run --plan`
    Show(ExperimentShow),
}

#[derive(Args, Debug)]
pub(crate) struct ExperimentShow {
    #[command(flatten)]
    pub(crate) plan: PlanSource,
    /// Print a JSON document instead of TOML
    #[arg(long)]
    pub(crate) json: bool,
}

/// One plan, and values that replace those in it.
#[derive(Args, Debug)]
pub(crate) struct PlanSource {
    /// The experiment, for example path-selection/table6
    #[arg(
        value_name = "ID",
        required_unless_present = "plan",
        conflicts_with = "plan"
    )]
    pub(crate) id: Option<String>,
    /// Read the plan from this file instead
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) plan: Option<PathBuf>,
    /// Replace a value of the plan, as in run.rounds=3; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
}

#[derive(Args, Debug)]
pub(crate) struct ExperimentRun {
    /// The experiments, for example path-selection/table6; those with one setup share its
    /// measurement
    #[arg(
        value_name = "ID",
        required_unless_present_any = ["all", "plan"],
        conflicts_with = "all"
    )]
    pub(crate) ids: Vec<String>,
    /// Run all experiments
    #[arg(long, conflicts_with_all = ["run_time", "pause_repeats", "plan", "set"])]
    pub(crate) all: bool,
    /// Run the plan in this file, such as an edited one of `experiment show` or the plan.toml of a
    /// run; may be given several times
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) plan: Vec<PathBuf>,
    /// Replace a value of every plan, as in run.rounds=3 or setup.applications.A3.length=50kB; may
    /// be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<Setting>,
    /// Measure less; not for publication, and not judged by targets
    #[arg(long)]
    pub(crate) quick: bool,
    /// How long every run takes, instead of what the plan says, where clients make transactions
    #[arg(long, value_name = "TIME", value_parser = run_time, allow_hyphen_values = true)]
    pub(crate) run_time: Option<Text<Duration>>,
    /// How often a run of transactions is repeated at most because the machine stood still in it, 3 if not given; 0
    /// saves time where it does so in every run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(REPEATS_MAX)))]
    pub(crate) pause_repeats: Option<u32>,
    /// Run only this variant or way; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) variant: Vec<String>,
    /// Run only in the laboratory (lab) or the simulator (sim)
    #[arg(long, value_enum)]
    pub(crate) only: Option<Source>,
    /// The `keiro` program that the laboratory runs
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    pub(crate) keiro: Option<PathBuf>,
    /// Compare with KCP and QUIC too, by this program, which benches/transaction-peers builds
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    pub(crate) peers: Option<PathBuf>,
    /// Replay the recorded lines in this directory; KEIRO_TRACES if not given
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) traces: Option<PathBuf>,
    /// Print rows and manifest as a JSON document instead of text; an array if there are several
    /// experiments
    #[arg(long)]
    pub(crate) json: bool,
    /// Write rows, figures and every message's delay below this directory, as ID/TIME
    #[arg(long, value_name = "DIR", default_value = "out/experiments", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,
}

/// What measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Source {
    /// Real processes in network namespaces; needs root
    Lab,
    /// The simulator
    Sim,
}

#[derive(Args, Debug)]
pub(crate) struct MaxMin {
    /// Links with their capacities, and flows with weights, demands and the links that they take
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Print a JSON document instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Write the figures to this directory
    #[arg(long, value_name = "DIR", default_value = "out/demo", value_hint = ValueHint::DirPath)]
    pub(crate) output: PathBuf,
    /// Run in the simulator, also as root
    #[arg(long)]
    pub(crate) simulate: bool,
    /// The `keiro` program that the laboratory runs
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::ExecutablePath)]
    pub(crate) keiro: Option<PathBuf>,
}

/// What every transaction of a run took is kept until its end.
const RUN_TIME_MAX: Duration = Duration::from_secs(3600);

fn run_time(text: &str) -> Result<Text<Duration>, String> {
    let time: Text<Duration> = text.parse().map_err(|e: UnitError| e.to_string())?;
    match time.0 {
        Duration::ZERO => Err("nothing can be measured in no time".to_owned()),
        time if time > RUN_TIME_MAX => Err("1h at most".to_owned()),
        _ => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_is_documented() {
        let page = include_str!("../../../docs/cli.md");
        keiro_terminal::manual::check_documented("keiro-lab", &Cli::command(), page);
    }

    #[test]
    fn every_answer_can_be_json() {
        let cli = Cli::command();
        let experiment = cli.find_subcommand("experiment").expect("experiment");
        for command in [
            cli.find_subcommand("list"),
            experiment.find_subcommand("list"),
            experiment.find_subcommand("run"),
            experiment.find_subcommand("show"),
            cli.find_subcommand("max-min"),
        ] {
            let command = command.expect("a command");
            assert!(
                command.get_arguments().any(|a| a.get_id() == "json"),
                "{command} has no --json"
            );
        }
    }
}
