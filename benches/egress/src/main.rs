//! Full tables of routes into `keiro egress`, BIRD and FRR, in turn, in one run. README.md says
//! what is measured and how the programs are set.

mod announcer;
mod figures;
mod program;
mod stream;

use std::{
    fs::File,
    net::Ipv6Addr,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use clap::Parser;
use keiro_lab::{Host, Interrupts, Lab, Topology};

use crate::{
    announcer::Announcer,
    figures::{Case, Figures},
    program::{Kind, Program, Setup},
    stream::Table,
};

#[derive(Parser)]
#[command(about, version)]
pub(crate) struct Args {
    /// Keiro, built with `--release`
    #[arg(long, default_value = "target/release/keiro")]
    keiro: PathBuf,
    /// Which programs, in this order; all unless given
    #[arg(long, value_enum)]
    only: Vec<Kind>,
    /// Which cases, by the beginning of their names; all unless given
    #[arg(long)]
    case: Vec<String>,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=50))]
    rounds: u16,
    /// Routes of each neighbour, in twenties
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(20..=2_000_000))]
    routes: u32,
    /// Waits so many seconds before each program hears anything, for a profiler to be attached
    #[arg(long, default_value_t = 0)]
    wait: u64,
}

const TOPOLOGY: &str = r#"
[host.server]
sysctl = { "net.mptcp.enabled" = 1 }

[host.borders]

[link.wan]
a = { host = "server", addresses = ["2001:db8:a:1::20/64"] }
b = { host = "borders", addresses = ["2001:db8:a:1::1/64", "2001:db8:a:1::2/64", "2001:db8:a:1::3/64"] }
"#;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let interrupts = Interrupts::install(Duration::from_secs(5)).context("signals")?;
    let kinds = match args.only.as_slice() {
        [] => Kind::ALL.to_vec(),
        only => only.to_vec(),
    };
    let wanted = |case: &Case| {
        args.case.is_empty()
            || args
                .case
                .iter()
                .any(|name| case.to_string().starts_with(name))
    };
    let all = Case::ALL.into_iter().filter(wanted);
    let all = all.flat_map(|case| {
        let kinds = kinds.iter().filter(move |kind| case.is_for(**kind));
        kinds.map(move |kind| (case, *kind, Vec::new()))
    });
    let mut all: Vec<(Case, Kind, Vec<Figures>)> = all.collect();
    println!("{}", Figures::HEAD);
    for round in 0..args.rounds {
        for (at, (case, kind, found)) in all.iter_mut().enumerate() {
            interrupts.end_if_received();
            let name = format!("egress-{}-{round}-{at}", std::process::id());
            let figures = measure(&args, *case, *kind, &name, &interrupts)
                .with_context(|| format!("{case} {kind} in round {}", round + 1))?;
            println!("{}", figures.row(*case, *kind));
            found.push(figures);
        }
    }
    println!("\nmedians of {}\n{}", args.rounds, Figures::HEAD);
    for (case, kind, found) in &all {
        println!("{}", Figures::median(found).row(*case, *kind));
    }
    println!();
    for line in figures::asked(&all, args.routes) {
        println!("{line}");
    }
    Ok(())
}

fn measure(
    args: &Args,
    case: Case,
    kind: Kind,
    name: &str,
    interrupts: &Interrupts,
) -> anyhow::Result<Figures> {
    let topology = Topology::parse(TOPOLOGY, "the benchmark").context("the topology")?;
    let lab = Lab::builder(&topology)
        .name(name)
        .interrupts(interrupts)
        .up()
        .context("namespaces")?;
    let files = tempfile::tempdir()?;
    let measured = in_lab(args, case, kind, &lab, files.path());
    measured.with_context(|| program::log(files.path()))
}

fn in_lab(args: &Args, case: Case, kind: Kind, lab: &Lab, files: &Path) -> anyhow::Result<Figures> {
    let neighbours: Vec<Ipv6Addr> = (1..=case.neighbours).map(border).collect();
    let tables: Vec<Table> = (1..=case.neighbours)
        .map(|number| Table {
            family: case.family,
            number,
            next_hop: border(number),
            routes: args.routes,
        })
        .collect();
    let announced: Vec<Vec<u8>> = tables.iter().map(Table::announced).collect();
    let last = neighbours.len() - 1;
    let withdrawn = tables[last].withdrawn();

    let (server, borders) = (lab.host("server")?, lab.host("borders")?);
    let setup = Setup {
        family: case.family,
        kernel: case.kernel,
        own: SERVER,
        neighbours: &neighbours,
    };
    let program = kind.start(&setup, server, &args.keiro, files)?;
    let session = |from: &Ipv6Addr| Announcer::connect(borders, *from, SERVER, case.family);
    let mut sessions: Vec<Announcer> = neighbours.iter().map(session).collect::<Result<_, _>>()?;
    thread::sleep(Duration::from_secs(args.wait).max(SETTLED));
    let kernel = match case.kernel {
        true => Some(RouteCount::open(server)?),
        false => None,
    };
    let mut watched = Watched { program, kernel };

    let each = u64::from(args.routes / 20 * 20);
    let full = each * u64::from(case.neighbours);
    let rest = full - each;
    let announced_in = watched.time(full, || {
        thread::scope(|scope| {
            let all = sessions.iter().zip(&announced);
            let said: Vec<_> = all
                .map(|(to, octets)| scope.spawn(|| to.say(octets)))
                .collect();
            let mut said = said.into_iter().map(|one| one.join());
            said.try_for_each(|one| one.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })
    })?;
    thread::sleep(SETTLED);
    let memory = watched.program.memory()?;
    let withdrawn_in = watched.time(rest, || sessions[last].say(&withdrawn))?;
    watched.time(full, || sessions[last].say(&announced[last]))?;
    thread::sleep(SETTLED);
    let vanishes = sessions.pop().context("there is one at least")?;
    let lost_in = watched.time(rest, || vanishes.vanish())?;
    Ok(Figures {
        announced_in,
        withdrawn_in,
        lost_in,
        memory,
    })
}

/// A program, and what has come of its routes.
struct Watched {
    program: Program,
    /// `None`: nothing is put there.
    kernel: Option<RouteCount>,
}

/// Until what was asked for was so; `None`: it does not say, or nothing is put there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub(crate) table: Option<Duration>,
    pub(crate) kernel: Option<Duration>,
}

impl Watched {
    /// How long it takes, from the first octet, until there are so many routes.
    fn time(
        &mut self,
        routes: u64,
        act: impl FnOnce() -> anyhow::Result<()> + Send,
    ) -> anyhow::Result<Times> {
        let begun = Instant::now();
        thread::scope(|scope| {
            let acting = scope.spawn(act);
            let mut times = Times::default();
            loop {
                let in_table = self.program.routes()?;
                if times.table.is_none() && in_table == Some(routes) {
                    times.table = Some(begun.elapsed());
                }
                let in_kernel = self.kernel.as_ref().map(RouteCount::added).transpose()?;
                if times.kernel.is_none() && in_kernel == Some(routes) {
                    times.kernel = Some(begun.elapsed());
                }
                let whole = (in_table.is_none() || times.table.is_some())
                    && (in_kernel.is_none() || times.kernel.is_some());
                if whole {
                    let acted = acting.join();
                    acted.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                    return Ok(times);
                }
                if begun.elapsed() > PATIENCE {
                    bail!(
                        "{in_table:?} routes in its table and {in_kernel:?} in the kernel instead of {routes}"
                    );
                }
                thread::sleep(LOOK);
            }
        })
    }
}

/// How many IPv6 routes a host's kernel has, of all tables; reading it costs the kernel nothing.
struct RouteCount {
    file: File,
    before: u64,
}

impl RouteCount {
    fn open(host: &Host) -> anyhow::Result<Self> {
        let file = host.run(|| File::open("/proc/thread-self/net/rt6_stats"))??;
        let mut count = Self { file, before: 0 };
        count.before = count.read()?;
        Ok(count)
    }

    /// Since it was opened.
    fn added(&self) -> anyhow::Result<u64> {
        Ok(self.read()?.saturating_sub(self.before))
    }

    /// Seven numbers in hexadecimal, the fourth of them that of routes (`rt6_stats_seq_show`).
    fn read(&self) -> anyhow::Result<u64> {
        let mut text = [0; 128];
        let length = self.file.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..length]);
        let number = text.split_whitespace().nth(3).context("rt6_stats")?;
        Ok(u64::from_str_radix(number, 16)?)
    }
}

/// A border router's address.
fn border(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0xa, 1, 0, 0, 0, number.into())
}

const SERVER: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0xa, 1, 0, 0, 0, 0x20);
/// After this time a program has handled all its input.
const SETTLED: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(4);
const PATIENCE: Duration = Duration::from_secs(120);
