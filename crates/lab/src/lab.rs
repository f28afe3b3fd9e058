//! Laboratories: making one from a topology, using it, and always removing it.
//!
//! Every host is a network namespace `keiro-LAB-HOST`. A plain link is a veth pair between two of
//! them. An emulated link is two veth pairs whose outer ends lie in `keiro-LAB-wire`, where one
//! thread of this process carries the packets from one to the other.
//!
//! A [`Lab`] removes everything when it is dropped: its programs and any other process inside, the emulator,
//! the namespaces, its record. With [`Interrupts`] it does so on SIGINT, SIGTERM and SIGHUP too, and in
//! builds where a panic aborts. The remains of a killed process are found by its record and removed by
//! [`remove`].
//!
//! | file | contents |
//! |---|---|
//! | `make` | turns the topology into commands |
//! | `teardown` | what must be removed, and in which order |
//! | `record` | owners and namespaces of laboratories, on disk |
//! | `host`, `children` | running things inside |
//! | `links` | changing links |
//! | `interrupts` | signals |

mod children;
mod error;
mod host;
mod interrupts;
pub(crate) mod iproute;
mod links;
mod make;
mod record;
mod teardown;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use keiro_linux::{
    netns::{self, Netns},
    process::SIGTERM,
};

use crate::topology::{Emulation, Topology, WIRE, is_name};

pub use children::Process;
pub(crate) use children::lock;
pub use error::LabError;
pub use host::Host;
pub use interrupts::Interrupts;
pub use links::Link;
pub use record::{RECORD_DIRECTORY, Record, RecordedNamespace};

use record::Record as LabRecord;
use teardown::Teardown;

/// Time for programs to end after SIGTERM, by default.
const GRACE_DEFAULT: Duration = Duration::from_secs(2);

/// What to do with the remains of an earlier laboratory of the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftovers {
    /// Make nothing, and report the remains.
    #[default]
    Refuse,
    /// Remove them first: namespaces of exactly the needed names, also foreign ones. The laboratory of a
    /// running process is never removed this way.
    Remove,
}

/// Options for making a laboratory.
#[derive(Debug)]
pub struct Builder<'a> {
    topology: &'a Topology,
    name: Option<String>,
    leftovers: Leftovers,
    grace: Duration,
    seed: u64,
    interrupts: Option<&'a Interrupts>,
    cpus: Cpus,
}

/// Use of the machine's CPUs.
#[derive(Clone, Copy, Debug, Default)]
struct Cpus {
    awake: bool,
    /// The CPU of the emulator; `None` for any.
    emulator: Option<usize>,
}

impl<'a> Builder<'a> {
    /// The laboratory's name instead of the topology's.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What to do with leftovers; refuse by default.
    pub fn leftovers(mut self, leftovers: Leftovers) -> Self {
        self.leftovers = leftovers;
        self
    }

    /// Time for programs to end after SIGTERM before they are killed; 2 s by default.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// Seed of all randomness on the emulated links; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Keeps the machine's CPUs from halting while links are emulated, so that a thread woken by a packet
    /// runs at once; off by default. For measurements: it uses the CPUs completely.
    pub fn keep_cpus_awake(mut self) -> Self {
        self.cpus.awake = true;
        self
    }

    /// Binds the link emulator to one CPU, counted from zero; any by default. For measurements: the emulator
    /// then does not delay threads that are bound to another CPU.
    pub fn emulator_cpu(mut self, cpu: usize) -> Self {
        self.cpus.emulator = Some(cpu);
        self
    }

    /// Removes the laboratory on signals too.
    pub fn interrupts(mut self, interrupts: &'a Interrupts) -> Self {
        self.interrupts = Some(interrupts);
        self
    }

    /// Makes the laboratory and waits until its links are usable.
    ///
    /// # Errors
    /// What is missing or in the way, see [`LabError`]. Nothing is left behind.
    pub fn up(self) -> Result<Lab, LabError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(LabError::NotRoot);
        }
        let name = self
            .name
            .or_else(|| self.topology.name.clone())
            .unwrap_or_default();
        if !is_name(&name, crate::topology::LAB_NAME_BYTES_MAX) {
            return Err(LabError::BadName(name));
        }
        let begin = || {
            let record = reserve(&name, self.topology, self.leftovers)?;
            Ok(Arc::new(Teardown::new(record, self.grace)))
        };
        let teardown = match self.interrupts {
            Some(interrupts) => interrupts.admit(&name, begin)?,
            None => begin()?,
        };
        // From here on the laboratory exists, and an error drops it.
        let mut lab = Lab {
            name,
            topology: self.topology.clone(),
            hosts: BTreeMap::new(),
            emulations: BTreeMap::new(),
            teardown,
        };
        make::make(&mut lab, self.seed, self.cpus)?;
        Ok(lab)
    }
}

/// A running laboratory. Dropping it removes it.
#[derive(Debug)]
pub struct Lab {
    name: String,
    topology: Topology,
    hosts: BTreeMap<String, Host>,
    /// The configurations in force on the emulated links, by name.
    emulations: BTreeMap<String, Mutex<Emulation>>,
    teardown: Arc<Teardown>,
}

impl Lab {
    /// Begins a laboratory of `topology`.
    pub fn builder(topology: &Topology) -> Builder<'_> {
        Builder {
            topology,
            name: None,
            leftovers: Leftovers::Refuse,
            grace: GRACE_DEFAULT,
            seed: 0,
            interrupts: None,
            cpus: Cpus::default(),
        }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The host called `name`.
    ///
    /// # Errors
    /// [`LabError::Unknown`], with the nearest existing name.
    pub fn host(&self, name: &str) -> Result<&Host, LabError> {
        self.hosts
            .get(name)
            .ok_or_else(|| LabError::unknown("host", name, self.hosts.keys()))
    }

    /// All hosts, by name.
    pub fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hosts.values()
    }

    /// Removes it, and reports what could not be removed.
    ///
    /// # Errors
    /// The first failure; the rest has been removed.
    pub fn down(self) -> Result<(), LabError> {
        self.teardown.close()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Err(error) = self.teardown.close() {
            tracing::warn!(lab = self.name, %error, "not everything could be removed");
        }
    }
}

/// Every laboratory on record, by name.
pub fn list() -> Vec<Record> {
    record::read_all()
}

/// The host of a laboratory that another process owns, to run something in it.
///
/// Processes that are started there are stopped with the laboratory.
///
/// # Errors
/// [`LabError::NoSuchLab`] and [`LabError::Unknown`], with the nearest names.
pub fn attach(lab: &str, host: &str) -> Result<Host, LabError> {
    let record = find(lab)?;
    let of_host = |recorded: &&RecordedNamespace| recorded.host.as_deref() == Some(host);
    let Some(recorded) = record.namespaces.iter().find(of_host) else {
        let hosts = record.namespaces.iter().filter_map(|ns| ns.host.as_ref());
        return Err(LabError::unknown("host", host, hosts));
    };
    Ok(Host::new(
        host,
        Netns::open(&recorded.name)?,
        Arc::default(),
    ))
}

/// Removes laboratory `name`, also one of another process.
///
/// A process that still owns it is asked to end (SIGTERM) and waited for, at most `timeout`. The remains of
/// an ended process are removed.
///
/// # Errors
/// [`LabError::NoSuchLab`], [`LabError::OwnLab`], [`LabError::OwnerStays`], or what could not be removed.
pub fn remove(name: &str, timeout: Duration) -> Result<(), LabError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(LabError::NotRoot);
    }
    let record = find(name)?;
    if record.pid == std::process::id().cast_signed() && record.is_alive() {
        return Err(LabError::OwnLab(name.to_owned()));
    }
    if let Some(owner) = record.owner() {
        // It may end meanwhile, which has the same effect.
        let _ = owner.signal(SIGTERM);
        if !matches!(owner.wait(timeout), Ok(true)) {
            return Err(LabError::OwnerStays {
                name: name.to_owned(),
                pid: record.pid,
                waited: timeout,
            });
        }
    }
    // Read again: the owner may have removed all, or recorded more.
    match record::read(name)? {
        Some(record) => Teardown::new(record, GRACE_DEFAULT).close(),
        None => Ok(()),
    }
}

fn find(name: &str) -> Result<Record, LabError> {
    // An invalid name must not become a path.
    let record = match is_name(name, crate::topology::LAB_NAME_BYTES_MAX) {
        true => record::read(name)?,
        false => None,
    };
    record.ok_or_else(|| LabError::NoSuchLab {
        name: name.to_owned(),
        known: list().into_iter().map(|record| record.name).collect(),
    })
}

/// The name of a namespace; `part` is a host's name or [`WIRE`].
fn namespace_name(lab: &str, part: &str) -> String {
    format!("keiro-{lab}-{part}")
}

/// Reserves the laboratory's name, and checks that the names of its namespaces are free.
fn reserve(name: &str, topology: &Topology, leftovers: Leftovers) -> Result<LabRecord, LabError> {
    let namespaces: Vec<_> = planned_namespaces(name, topology);
    let names = namespaces.iter().map(|ns| ns.name.clone());
    let record = LabRecord::of_this_process(name, namespaces.clone())?;
    let occupied = || {
        names
            .clone()
            .filter(|ns| netns::exists(ns))
            .collect::<Vec<_>>()
    };
    // Each round removes one obstacle, so this ends. Ours: there can be two; a third means that another
    // process makes them as fast.
    for _ in 0..3 {
        if let Some(old) = record::read(name)? {
            if old.is_alive() {
                return Err(LabError::InUse {
                    name: name.to_owned(),
                    pid: old.pid,
                });
            }
            if leftovers == Leftovers::Refuse {
                let remaining = old.remaining();
                return Err(LabError::LeftOver {
                    name: name.to_owned(),
                    pid: old.pid,
                    namespaces: remaining.iter().map(|ns| ns.name().to_owned()).collect(),
                });
            }
            Teardown::new(old, GRACE_DEFAULT).close()?;
            continue;
        }
        let occupied = occupied();
        if !occupied.is_empty() {
            if leftovers == Leftovers::Refuse {
                return Err(LabError::NamespaceExists(occupied));
            }
            for namespace in &occupied {
                teardown::remove_namespace(&Netns::open(namespace)?, GRACE_DEFAULT)?;
            }
            continue;
        }
        if record.create()? {
            return Ok(record);
        }
    }
    Err(LabError::NamespaceExists(occupied()))
}

fn planned_namespaces(lab: &str, topology: &Topology) -> Vec<RecordedNamespace> {
    let hosts = topology.hosts.keys().map(|host| RecordedNamespace {
        name: namespace_name(lab, host),
        host: Some(host.clone()),
        id: None,
    });
    let has_wire = topology.links.values().any(|link| link.emulation.is_some());
    let wire = has_wire.then(|| RecordedNamespace {
        name: namespace_name(lab, WIRE),
        host: None,
        id: None,
    });
    hosts.chain(wire).collect()
}
