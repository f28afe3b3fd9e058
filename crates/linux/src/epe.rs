//! Egress peer engineering in the kernel: a table per egress peer, segments, and the rules that select them,
//! maintained by a [`Reconciler`].
//!
//! The desired state is a [`State`]. All entries carry the routing protocol number of their [`Owner`], so
//! that those of an earlier run are taken over or removed, and those of others are never touched. Entries of
//! others that collide with desired ones are reported as [`Obstacle`]s. The daemons of border router and
//! content server decide the desired state. Calls block until the kernel has answered.

mod kernel;
mod lookup;
mod numbers;
mod state;

use std::{
    collections::BTreeSet,
    fmt, io,
    net::IpAddr,
    ops::RangeInclusive,
    os::fd::{AsFd, BorrowedFd},
    thread,
    time::Duration,
};

use self::{kernel::Kernel, state::Effect};
pub use self::{
    lookup::resolve_excluding,
    numbers::{Exhausted, Numbers, RouteUpdate},
    state::{Change, OwnAddress, RouteKey, State, Table},
};
use crate::{
    netlink::{Refusal, Socket},
    netns::{Netns, NetnsError},
    nexthop, rule,
    seg6::{Behaviour, Sid},
};

/// Routing protocol number (`/etc/iproute2/rt_protos`) of the content server's Endpoint Manager. Ours, one
/// more than the gateway's ([`crate::route::PROTOCOL`]).
pub const PROTOCOL_EGRESS: u8 = 76;

/// Routing protocol number of the border router: ours.
pub const PROTOCOL_ASBR: u8 = 77;

/// Delays between retries after ENOMEM: the kernel refills per-CPU memory asynchronously. Their sum is about
/// 0.25 s.
const NO_MEMORY_PAUSES: [Duration; 6] = [
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(15),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(120),
];

/// Failures are described up to this number, and only counted beyond it.
const DESCRIBED_MAX: usize = 100;

/// The kernel's resolution of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResolvedRoute {
    /// The first router; `None` if the address is on-link.
    pub gateway: Option<IpAddr>,
    /// The index of the outgoing interface.
    pub interface: u32,
    /// The routing protocol number of the route.
    pub protocol: u8,
}

/// The owner of the entries of a [`Reconciler`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Routing protocol number that they carry.
    pub protocol: u8,
    /// Priorities that are reserved for its rules.
    pub priorities: RangeInclusive<u32>,
}

/// Maintains a [`State`] in the kernel.
#[derive(Debug)]
pub struct Reconciler {
    kernel: Kernel,
    owner: Owner,
    wanted: State,
    others: Others,
    in_step: bool,
}

/// Result of changes.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of changes that the kernel has carried out.
    pub carried_out: usize,
    /// Of these, removals of entries that are not made now.
    pub strays: usize,
    /// Number of retries because the kernel had no memory.
    pub tried_again: usize,
    /// Refused changes, the first hundred of them.
    pub failures: Vec<Failure>,
    /// Number of further failures.
    pub failures_more: usize,
    /// Entries of others that are in the way; what would collide with them was left out.
    pub obstacles: Vec<Obstacle>,
}

/// A change that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {change}: {source}")]
pub struct Failure {
    pub change: Change,
    pub source: io::Error,
}

/// An entry that is not ours and collides with a desired one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// A nexthop object with a desired number.
    #[error(
        "nexthop {id} is there already, made by routing protocol {protocol}; remove it \
         (`ip nexthop del id {id}`) or configure other numbers"
    )]
    Nexthop {
        id: u32,
        /// The routing protocol number of its owner.
        protocol: u8,
    },
    /// A route in one of our tables.
    #[error(
        "table {table} has a route to {destination} by routing protocol {protocol} (see \
         /etc/iproute2/rt_protos); remove it or configure another table"
    )]
    Route {
        table: u32,
        destination: ipnet::IpNet,
        /// The routing protocol number of its owner.
        protocol: u8,
    },
    /// A rule with a priority of ours, or an earlier one that catches the packets of one of ours.
    #[error("{description} is in the way of {wanted}; remove it or configure other priorities")]
    Rule {
        /// The existing rule.
        description: String,
        wanted: String,
    },
}

/// Why the kernel's state could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum EpeError {
    /// The process may not.
    #[error("not permitted to change routes; CAP_NET_ADMIN or root is needed")]
    NotPermitted,
    /// There is no socket, or the kernel does not answer.
    #[error("cannot talk to the kernel about routes: {0}")]
    Kernel(io::Error),
    /// The namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
}

impl Reconciler {
    /// For the calling thread's network namespace, permanently. Nothing is desired yet, and nothing is
    /// changed.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open(owner: Owner) -> Result<Self, EpeError> {
        Ok(Self {
            kernel: Kernel::open().map_err(EpeError::Kernel)?,
            owner,
            wanted: State::default(),
            others: Others::default(),
            in_step: false,
        })
    }

    /// For `netns`; the calling thread stays in its namespace, and may use the reconciler.
    ///
    /// # Errors
    /// The namespace cannot be entered, or no netlink socket is available.
    pub fn open_in(netns: &Netns, owner: Owner) -> Result<Self, EpeError> {
        netns.run(|| Self::open(owner))?
    }

    pub fn wanted(&self) -> &State {
        &self.wanted
    }

    /// Whether the kernel is known to have the desired state: [`Self::reconcile`] succeeded and no change has
    /// failed since.
    pub fn in_step(&self) -> bool {
        self.in_step
    }

    /// The owner's entries in the kernel.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn present(&mut self) -> Result<State, EpeError> {
        Ok(self.kernel.read(&self.owner, &State::default())?.state)
    }

    /// Replaces the desired state and applies it: takes over existing entries, removes those of ours that are
    /// not desired, adds missing ones. Entries that collide with others' are left out and reported.
    ///
    /// # Errors
    /// The kernel's state cannot be read or changed. Refused changes are in the report.
    pub fn replace(&mut self, wanted: State) -> Result<Report, EpeError> {
        self.wanted = wanted;
        self.reconcile()
    }

    /// Compares the kernel with the desired state and corrects differences, for example after interfaces were
    /// replaced or changes failed.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub fn reconcile(&mut self) -> Result<Report, EpeError> {
        self.in_step = false;
        let mut found = self.kernel.read(&self.owner, &self.wanted)?;
        let mut report = Report::default();
        self.kernel
            .remove_strays(&self.owner, &found.strays, &mut report)?;
        let changes = match found.obstacles.is_empty() {
            true => found.state.difference(&self.wanted),
            false => found.state.difference(&without(&self.wanted, &found)),
        };
        self.others = found.others;
        self.kernel.carry_out(
            &self.owner,
            &mut found.state,
            &mut self.others,
            &changes,
            &mut report,
        )?;
        report.obstacles = found.obstacles;
        self.in_step = report.is_clean();
        Ok(report)
    }

    /// Changes the desired state and the kernel, without reading the kernel's state. A refused change stays
    /// desired; [`Self::reconcile`] tries it again.
    ///
    /// # Errors
    /// The kernel does not answer. Refused changes are in the report.
    pub fn apply(&mut self, changes: &[Change]) -> Result<Report, EpeError> {
        let mut report = Report::default();
        let result = self.kernel.carry_out(
            &self.owner,
            &mut self.wanted,
            &mut self.others,
            changes,
            &mut report,
        );
        self.in_step &= result.is_ok() && report.is_clean();
        result.map(|()| report)
    }

    /// Clears the desired state, and removes all entries of the owner, including those that this value has
    /// not made.
    ///
    /// # Errors
    /// As [`Self::replace`].
    pub fn cleanup(&mut self) -> Result<Report, EpeError> {
        self.replace(State::default())
    }
}

/// Desired entries that exist but are not ours; they are neither changed nor removed.
#[derive(Clone, Debug, Default)]
struct Others {
    /// Numbers of nexthop objects.
    nexthops: BTreeSet<u32>,
    /// Addresses that the operator has added.
    addresses: BTreeSet<OwnAddress>,
}

impl Others {
    fn concerns(&self, change: &Change) -> bool {
        match change {
            Change::SetNexthop(id, _) | Change::RemoveNexthop(id) | Change::SetRoute(_, id) => {
                self.nexthops.contains(id)
            }
            Change::RemoveAddress(own) => self.addresses.contains(own),
            _ => false,
        }
    }
}

/// The part of `wanted` that does not collide. Left out are nexthop numbers of others with their routes,
/// rules that would not be reached or would select a table with others' routes, and the addresses of such
/// rules, whose packets would otherwise take the best path. If a rule of a mark is left out or would not be
/// reached, all segments for IPv4 are left out.
fn without(wanted: &State, found: &kernel::KernelState) -> State {
    let mut rest = wanted.clone();
    let mut tables = BTreeSet::new();
    for obstacle in &found.obstacles {
        match *obstacle {
            Obstacle::Nexthop { id, .. } => {
                rest.carry_out(&Change::RemoveNexthop(id));
            }
            Obstacle::Route {
                table, destination, ..
            } => {
                tables.insert(table);
                rest.carry_out(&Change::RemoveRoute(RouteKey { table, destination }));
                if table == Sid::TABLE
                    && let IpAddr::V6(address) = destination.addr()
                {
                    rest.sids.remove(&address);
                }
            }
            Obstacle::Rule { .. } => {}
        }
    }
    rest.marks.retain(|rule| !tables.contains(&rule.table));
    let hidden = &found.hidden_marks;
    let marks_stay = rest.marks == wanted.marks && hidden.iter().all(|rule| rule.ipv6);
    for rule in &wanted.rules {
        if tables.contains(&rule.table) || found.hidden.contains(rule) {
            rest.rules.remove(rule);
            rest.addresses.retain(|own| own.address != rule.source);
        }
    }
    rest.sids.retain(|_, sid| match sid.behaviour() {
        Behaviour::EndDt6 { table } => !tables.contains(&table),
        Behaviour::EndDx6 { .. } => true,
        // Which rule is whose is not known here. Without its rule a packet takes the best path.
        Behaviour::EndDx4 => marks_stay,
    });
    rest
}

impl Report {
    /// Everything is as desired.
    pub fn is_clean(&self) -> bool {
        self.failures.is_empty() && self.obstacles.is_empty()
    }

    fn fail(&mut self, change: Change, source: io::Error) {
        if self.failures.len() < DESCRIBED_MAX {
            self.failures.push(Failure { change, source });
        } else {
            self.failures_more += 1;
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} changes", self.carried_out)?;
        let failures = self.failures.len() + self.failures_more;
        if failures > 0 {
            write!(f, ", {failures} failed")?;
        }
        if !self.obstacles.is_empty() {
            write!(f, ", {} obstacles", self.obstacles.len())?;
        }
        Ok(())
    }
}

impl From<Refusal> for EpeError {
    fn from(refusal: Refusal) -> Self {
        match refusal.is(libc::EPERM) {
            true => Self::NotPermitted,
            false => Self::Kernel(refusal.into_io()),
        }
    }
}

impl From<io::Error> for EpeError {
    fn from(error: io::Error) -> Self {
        Refusal::from(error).into()
    }
}

/// Reports when others change interfaces, nexthop objects or rules, so that it is time to
/// [`Reconciler::reconcile`]. Nexthop objects and their routes disappear with their interface.
#[derive(Debug)]
pub struct Watch {
    socket: Socket,
}

/// `RTNLGRP_LINK`.
const LINKS: u32 = 1;

impl Watch {
    /// For the calling thread's network namespace, from now on.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> Result<Self, EpeError> {
        let socket = Socket::open(libc::NETLINK_ROUTE)?;
        socket.join(LINKS)?;
        socket.join(nexthop::GROUP)?;
        for group in rule::GROUPS {
            socket.join(group)?;
        }
        Ok(Self { socket })
    }

    /// For `netns`; the calling thread stays in its namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered, or no netlink socket is available.
    pub fn open_in(netns: &Netns) -> Result<Self, EpeError> {
        netns.run(Self::open)?
    }

    /// Whether something has changed since the last call, not counting changes by `reconciler`. Does not
    /// block.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn changed(&mut self, reconciler: &Reconciler) -> Result<bool, EpeError> {
        let own = reconciler.kernel.port()?;
        let mut changed = false;
        loop {
            match self.socket.receive(true) {
                Ok(messages) => {
                    let mut any = false;
                    for message in messages {
                        any = true;
                        changed |= message.port != own;
                    }
                    if !any {
                        return Ok(changed);
                    }
                }
                // Notifications were lost: the buffer was full.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => changed = true,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn pause(attempt: usize) -> bool {
    match NO_MEMORY_PAUSES.get(attempt) {
        Some(&pause) => {
            thread::sleep(pause);
            true
        }
        None => false,
    }
}

fn is_vain(effect: Effect) -> bool {
    effect == Effect::Nothing
}

#[cfg(test)]
mod tests {
    use super::{kernel::KernelState, *};
    use crate::rule::MarkRule;

    fn of_asbr() -> State {
        let mut state = State::default();
        for (number, table) in [(1, 7800), (2, 7801)] {
            let v6 = |bits: u128| std::net::Ipv6Addr::from((0xfd << 120) | bits | number);
            for (address, behaviour) in [
                (v6(0), Behaviour::EndDt6 { table }),
                (v6(0x8000), Behaviour::EndDx4),
            ] {
                let sid = Sid::new(address, behaviour, 2).unwrap();
                state.carry_out(&Change::SetSid(sid));
            }
            state.carry_out(&Change::SetMark(MarkRule {
                priority: 1000,
                mark: number as u32,
                table,
                ipv6: false,
            }));
        }
        state
    }

    fn behaviours(state: &State) -> Vec<Behaviour> {
        state.sids.values().map(Sid::behaviour).collect()
    }

    #[test]
    fn an_ipv4_segment_is_not_kept_without_the_rule_of_its_mark() {
        let wanted = of_asbr();
        assert_eq!(without(&wanted, &KernelState::default()), wanted);
        let obstacle = Obstacle::Route {
            table: 7800,
            destination: "203.0.113.0/24".parse().unwrap(),
            protocol: 3,
        };
        let found = KernelState {
            obstacles: vec![obstacle],
            ..KernelState::default()
        };
        let rest = without(&wanted, &found);
        assert_eq!(behaviours(&rest), [Behaviour::EndDt6 { table: 7801 }]);
        // Another program's rule catches the packets.
        let found = KernelState {
            hidden_marks: wanted.marks.clone(),
            ..KernelState::default()
        };
        let rest = without(&wanted, &found);
        let left = behaviours(&rest);
        assert!(!left.contains(&Behaviour::EndDx4), "{left:?}");
        assert_eq!(left.len(), 2);
    }
}
