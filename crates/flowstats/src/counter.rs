//! The kernel's program: loading it, attaching it to an interface, reading what it counts.
//!
//! The object beside its source is part of this crate, so that no compiler is needed to build it.

use std::{io, time::Duration};

use aya::{
    Btf, Ebpf, EbpfLoader,
    maps::{Map, MapData},
    programs::{ProgramError, SchedClassifier, TcAttachType, tc},
};
use keiro_linux::{bpf::MapReader, interface};

use crate::record::{Counts, KEY_BYTES, Key, VALUE_BYTES};

/// Counts what leaves one interface, until it is dropped.
#[derive(Debug)]
pub struct Counter {
    // Dropping it detaches the program.
    ebpf: Ebpf,
    flows: MapData,
    reader: MapReader<KEY_BYTES, VALUE_BYTES>,
    interface: String,
    program: &'static str,
    attached: Attached,
}

/// Which program counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program<'a> {
    This,
    /// That of another version's object (an ELF file). What it counts can be read where it has the
    /// same form.
    Other(&'a [u8]),
    /// One that does nothing, and whose cost is the measuring's.
    Nothing,
}

/// What the program has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// How often it ran: once for every packet that is given to the interface, which may be cut
    /// into many afterwards.
    pub runs: u64,
    /// For how long, all runs together.
    pub time: Duration,
}

/// What the kernel lets the program see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    WithTokens,
    /// Everything but MPTCP tokens, and why.
    WithoutTokens(String),
}

/// Why an interface's packets cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// There is no such interface, or it is of a kind whose headers are not known.
    #[error("cannot count on interface `{interface}`: {source}")]
    Interface {
        interface: String,
        source: io::Error,
    },
    /// The process may not.
    #[error(
        "not permitted to load or attach the counting program; root or the capabilities CAP_BPF \
         and CAP_NET_ADMIN are needed, and CAP_PERFMON for MPTCP tokens"
    )]
    NotPermitted,
    /// The kernel does not take the object.
    #[error("the kernel refuses the counting program: {0}")]
    Refused(String),
    /// It cannot be attached.
    #[error("cannot attach the counting program to interface `{interface}`: {reason}")]
    Attach { interface: String, reason: String },
    /// Its counts cannot be read.
    #[error("cannot read the counts of interface `{interface}`: {source}")]
    Read {
        interface: String,
        source: io::Error,
    },
}

static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/flowstats.bpf.o");

const WITH_TOKENS: &str = "count_mptcp";
const WITHOUT_TOKENS: &str = "count_plain";
const NOTHING: &str = "count_nothing";

impl Counter {
    /// Begins to count what leaves `interface` of the calling thread's network namespace, for up
    /// to 65,536 flows at once; further ones are counted together, by segment.
    ///
    /// # Errors
    /// Those of [`CounterError`]; nothing is attached then.
    pub fn attach(interface: &str) -> Result<Self, CounterError> {
        Self::attach_program(interface, Program::This)
    }

    /// The same by another program, to compare what they cost.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_program(interface: &str, program: Program<'_>) -> Result<Self, CounterError> {
        let header =
            interface::link_header_bytes(interface).map_err(|source| CounterError::Interface {
                interface: interface.into(),
                source,
            })?;
        let (object, [name, without]) = match program {
            Program::This => (OBJECT, [WITH_TOKENS, WITHOUT_TOKENS]),
            Program::Other(object) => (object, [WITH_TOKENS, WITHOUT_TOKENS]),
            Program::Nothing => (OBJECT, [NOTHING; 2]),
        };
        let (mut ebpf, name, attached) = match load(object, header, name) {
            Ok(ebpf) => (ebpf, name, Attached::WithTokens),
            // An older kernel, one without MPTCP, or a process without CAP_PERFMON.
            Err(reason) => {
                let ebpf = load(object, header, without).map_err(|error| match error {
                    Refusal::NotPermitted => CounterError::NotPermitted,
                    Refusal::Other(reason) => CounterError::Refused(reason),
                })?;
                let attached = Attached::WithoutTokens(reason.to_string());
                (ebpf, without, attached)
            }
        };
        let fail = |reason: String| CounterError::Attach {
            interface: interface.into(),
            reason,
        };
        let program = classifier(&mut ebpf, name).map_err(|refusal| fail(refusal.to_string()))?;
        if program.attach(interface, TcAttachType::Egress).is_err() {
            // Before Linux 6.6 a queueing discipline of its own is needed, which may be there.
            let _ = tc::qdisc_add_clsact(interface);
            let result = program.attach(interface, TcAttachType::Egress);
            result.map_err(|error| fail(chain(&error)))?;
        }
        let Some(Map::HashMap(flows)) = ebpf.take_map("flows") else {
            return Err(fail("it has no table of flows".into()));
        };
        Ok(Self {
            ebpf,
            flows,
            reader: MapReader::default(),
            interface: interface.into(),
            program: name,
            attached,
        })
    }

    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// What the kernel lets the program see.
    pub fn attached(&self) -> &Attached {
        &self.attached
    }

    /// Gives every flow with all that was counted of it so far.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn read(&mut self, mut each: impl FnMut(Key, Counts)) -> Result<(), CounterError> {
        let result = self.reader.read(self.flows.fd(), |key, value| {
            each(Key::new(*key), Counts::new(value));
        });
        result.map_err(|source| self.unreadable(source))
    }

    /// Lets go of a flow, so that there is room for others, and gives its last counts; `None` if
    /// it is not there.
    ///
    /// # Errors
    /// The kernel does not answer, or is older than 5.14.
    pub fn forget(&mut self, key: &Key) -> Result<Option<Counts>, CounterError> {
        let taken = self.reader.take(self.flows.fd(), key.as_bytes());
        let value = taken.map_err(|source| self.unreadable(source))?;
        Ok(value.map(|value| Counts::new(&value)))
    }

    /// What the program has cost so far, counted while the kernel measures programs
    /// (`sysctl kernel.bpf_stats_enabled=1`). `None`: the kernel does not report it.
    pub fn cost(&self) -> Option<Cost> {
        let program: &SchedClassifier = self.ebpf.program(self.program)?.try_into().ok()?;
        let info = program.info().ok()?;
        Some(Cost {
            runs: info.run_count(),
            time: info.run_time(),
        })
    }

    fn unreadable(&self, source: io::Error) -> CounterError {
        CounterError::Read {
            interface: self.interface.clone(),
            source,
        }
    }
}

/// Why the kernel does not take a program.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("not permitted")]
    NotPermitted,
    #[error("{0}")]
    Other(String),
}

/// The object in the kernel, with one of its programs loaded.
fn load(object: &[u8], header_bytes: u32, name: &str) -> Result<Ebpf, Refusal> {
    let btf = Btf::from_sys_fs().ok();
    let mut loader = EbpfLoader::new();
    loader.btf(btf.as_ref());
    loader.override_global("link_header_bytes", &header_bytes, true);
    let mut ebpf = loader.load(object).map_err(|error| refusal(&error))?;
    classifier(&mut ebpf, name)?
        .load()
        .map_err(|error| match &error {
            ProgramError::LoadError { io_error, .. }
                if io_error.kind() == io::ErrorKind::PermissionDenied =>
            {
                Refusal::NotPermitted
            }
            _ => refusal(&error),
        })?;
    Ok(ebpf)
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, Refusal> {
    let program = ebpf.program_mut(name);
    let program = program.ok_or_else(|| Refusal::Other(format!("it has no program {name}")))?;
    program.try_into().map_err(|error| refusal(&error))
}

fn refusal(error: &(dyn std::error::Error + 'static)) -> Refusal {
    let mut source = Some(error);
    while let Some(error) = source {
        let denied = error.downcast_ref::<io::Error>();
        if denied.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            return Refusal::NotPermitted;
        }
        source = error.source();
    }
    Refusal::Other(chain(error))
}

/// An error with what caused it, in one line, without the verifier's pages.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    let mut lines = text.lines();
    let first = lines.next().unwrap_or_default().to_owned();
    match lines.rfind(|line| !line.trim().is_empty()) {
        Some(last) => format!("{first} … {last}"),
        None => first,
    }
}
