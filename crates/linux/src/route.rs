//! Addresses, routes and policy rules of a network namespace: added, recognised as ours, removed.
//!
//! Routes and rules carry a protocol number of our own ([`PROTOCOL`]), and so do addresses since Linux 5.18.
//! So entries of an earlier run are recognised, and those of others are never removed. [`Installed`]
//! maintains a desired set. Every call waits for the kernel's answer, so none belongs on a thread that
//! forwards packets.
//!
//! Tenants whose addresses overlap have routing tables of their own. Their routes name the table, and rules
//! select it by incoming interface or mark.

mod message;
mod netlink;
mod own;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io, mem,
    net::IpAddr,
};

use ipnet::IpNet;

pub use self::{own::is_own, watch::RouteWatch};

use self::netlink::Netlink;
use crate::{
    kernel,
    netns::{Netns, NetnsError},
};

/// Routing protocol number (`/etc/iproute2/rt_protos`) of Keiro's entries: ours, `K`, which no program listed
/// there uses.
pub const PROTOCOL: u8 = 75;

/// The main routing table (`RT_TABLE_MAIN`).
pub const TABLE_MAIN: u32 = 254;

/// First number of interface groups for removal in bulk. Ours.
const OWN_GROUPS: u32 = 1 << 30;

/// First Linux version that stores the owner of an address (`IFA_PROTO`).
const ADDRESS_OWNERS_SINCE: (u32, u32) = (5, 18);

/// An entry of a namespace's network configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    Address(Address),
    Route(Route),
    Rule(Rule),
}

/// An address of an interface, without the prefix route: [`Route`]s are added one by one, so that tables of
/// tenants stay separate. The kernel accepts packets for an IPv6 address some milliseconds after it was
/// added.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub interface: u32,
    /// The address with its prefix length.
    pub address: IpNet,
}

/// A route to a prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// The destination; bits beyond the prefix length are ignored.
    pub destination: IpNet,
    /// Its table, from 1; the main one is [`TABLE_MAIN`].
    pub table: u32,
    pub via: Via,
    /// Among routes to the same prefix, the smallest wins. The kernel takes 0 for 1,024 in IPv6.
    pub metric: u32,
}

/// Nexthop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Via {
    /// Out of an interface, by its index.
    Interface(u32),
    /// To a router on the link of an interface, given by its index.
    Gateway { address: IpAddr, interface: u32 },
    /// This machine takes the packets, whatever their destination: the loopback interface.
    Local,
    /// Unreachable; the sender gets an ICMP error. At the end of a tenant's table it prevents look-ups in
    /// other tables.
    Unreachable,
}

/// A rule that selects a table. Fields that are `None` match every packet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rule {
    /// Address family.
    pub version: RuleVersion,
    /// Rules are evaluated in ascending order; 0 is the kernel's own, 32,766 the main table's.
    pub priority: u32,
    /// The table to look up, from 1.
    pub table: u32,
    /// Packets that enter by the interface of this name.
    pub incoming: Option<String>,
    /// Packets of sockets that are bound to the interface of this name.
    pub outgoing: Option<String>,
    /// Packets with this mark (`SO_MARK`, firewall mark).
    pub mark: Option<Mark>,
    /// Packets from these addresses.
    pub source: Option<IpNet>,
    /// UDP packets from this port.
    pub udp_source_port: Option<u16>,
    /// Routes of the table to prefixes of at most this length do not count, and the next rule is tried.
    pub suppressed_prefix_length: Option<u8>,
}

/// Address family of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleVersion {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Value of the mark.
    pub value: u32,
    /// The bits of the mark that are compared.
    pub mask: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// It did not exist.
    New,
    /// It existed and is ours, from an earlier run.
    Ours,
    /// Another program had added exactly this; we must not remove it. Not for rules: newer kernels add ours
    /// beside another one.
    Foreign,
}

/// Why an entry could not be added, removed or listed.
#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    /// Missing privilege.
    #[error("not permitted to change {entry}; CAP_NET_ADMIN or root is needed")]
    NotPermitted { entry: String },
    /// Its interface does not exist.
    #[error("cannot change {entry}: there is no such interface")]
    NoInterface { entry: String },
    /// There is another one for the same prefix, table and metric.
    #[error(
        "{entry} would replace {present}, which is not this gateway's; remove that one or choose \
         another table"
    )]
    Taken { entry: String, present: String },
    /// The kernel refuses it.
    #[error("the kernel refuses {entry}: {source}")]
    Refused { entry: String, source: io::Error },
    /// There is no netlink socket, or the kernel does not answer.
    #[error("cannot talk to the kernel about routes: {0}")]
    Socket(io::Error),
    /// The kernel's answer is invalid.
    #[error("the kernel's answer about routes is not understood: {0}")]
    Answer(String),
    /// The namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
}

impl RouteError {
    /// Its interface is down; the kernel notifies when it is up.
    #[must_use]
    pub fn is_down(&self) -> bool {
        matches!(self, Self::Refused { source, .. } if source.raw_os_error() == Some(libc::ENETDOWN))
    }
}

/// Result of [`Installed::set`].
#[derive(Debug, Default)]
pub struct Outcome {
    /// Entries that another program had removed and that were restored.
    pub put_back: Vec<Entry>,
    /// Desired entries that another program had already added, and that will not be removed.
    pub foreign: Vec<Entry>,
    /// Entries that could not be added or removed.
    pub errors: Vec<(Entry, RouteError)>,
}

/// Adds, removes and lists entries of one network namespace.
#[derive(Debug)]
pub struct RouteSocket {
    netlink: Netlink,
    /// The kernel stores the owner of an address.
    keeps_owners: bool,
}

/// Entries that are installed as long as this value exists.
#[derive(Debug)]
pub struct Installed {
    socket: RouteSocket,
    entries: Vec<(Entry, Added)>,
}

impl Entry {
    /// Index of its interface.
    pub fn interface(&self) -> Option<u32> {
        match self {
            Self::Address(address) => Some(address.interface),
            Self::Route(route) => match route.via {
                Via::Interface(index)
                | Via::Gateway {
                    interface: index, ..
                } => Some(index),
                Via::Local | Via::Unreachable => None,
            },
            Self::Rule(_) => None,
        }
    }
}

impl RouteSocket {
    /// For the calling thread's network namespace, permanently.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> Result<Self, RouteError> {
        let netlink = Netlink::open().map_err(RouteError::Socket)?;
        let keeps_owners = kernel::version().is_none_or(|version| version >= ADDRESS_OWNERS_SINCE);
        Ok(Self {
            netlink,
            keeps_owners,
        })
    }

    /// For `netns`; the calling thread stays in its namespace, and may use the socket.
    ///
    /// # Errors
    /// The namespace cannot be entered, or no netlink socket is available.
    pub fn open_in(netns: &Netns) -> Result<Self, RouteError> {
        netns.run(Self::open)?
    }

    /// Adds an entry. An existing one is not an error; see [`Added`].
    ///
    /// # Errors
    /// Those of [`RouteError`]; nothing was changed.
    pub fn add(&mut self, entry: &Entry) -> Result<Added, RouteError> {
        match self.netlink.change(message::add(entry)) {
            Ok(()) => Ok(Added::New),
            Err(error) if is(&error, libc::EEXIST) => self.present(entry),
            Err(error) => Err(self.refused(entry, error)),
        }
    }

    /// Removes an entry of ours; `false` if it did not exist or is not ours. Before Linux 5.18 the kernel
    /// does not store the owner of an address, and any equal one is removed.
    ///
    /// # Errors
    /// Those of [`RouteError`].
    pub fn remove(&mut self, entry: &Entry) -> Result<bool, RouteError> {
        if let Entry::Address(address) = entry
            && self.keeps_owners
        {
            let all = self.addresses(address.interface)?;
            if !all.contains(&(address.clone(), Some(PROTOCOL))) {
                return Ok(false);
            }
        }
        // ESRCH is the error for a route, ENOENT for a rule, EADDRNOTAVAIL for an address. Addresses and
        // routes of a device disappear with it.
        const GONE: [i32; 4] = [libc::ESRCH, libc::ENOENT, libc::EADDRNOTAVAIL, libc::ENODEV];
        match self.netlink.change(message::remove(entry)) {
            Ok(()) => Ok(true),
            Err(error) if GONE.iter().any(|&number| is(&error, number)) => Ok(false),
            Err(error) => Err(self.refused(entry, error)),
        }
    }

    /// All entries with our protocol number, including those of an earlier run. Entries that this module
    /// cannot have made are left out.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn ours(&mut self) -> Result<Vec<Entry>, RouteError> {
        let mut all = Vec::new();
        for (address, owner) in self.addresses(0)? {
            if owner == Some(PROTOCOL) {
                all.push(Entry::Address(address));
            }
        }
        for version in [RuleVersion::V4, RuleVersion::V6] {
            let routes = self
                .netlink
                .dump(&message::list_routes(version, None, PROTOCOL))?;
            let routes = routes.iter().filter_map(message::route);
            all.extend(
                routes
                    .filter(|&(_, owner)| owner == PROTOCOL)
                    .map(|(route, _)| Entry::Route(route)),
            );
            for (rule, owner) in self.rules(version)? {
                if owner == PROTOCOL {
                    all.push(Entry::Rule(rule));
                }
            }
        }
        Ok(all)
    }

    /// Keeps the kernel from giving interface `index` an IPv6 link-local address when it is set up, from
    /// which it would send router solicitations into a tunnel.
    ///
    /// # Errors
    /// No such interface, IPv6 is off, or CAP_NET_ADMIN is missing.
    pub fn refuse_link_local(&mut self, index: u32) -> Result<(), RouteError> {
        let what = || format!("link-local addresses of interface {index}");
        let result = self.netlink.change(message::refuse_link_local(index));
        result.map_err(|error| by_kind(what(), error))
    }

    /// Removes TUN devices by their indices in bulk, and returns their number. One by one, as when they are
    /// closed, the kernel takes some 20 ms for each. Interfaces of other kinds are left alone.
    ///
    /// # Errors
    /// The kernel refuses; remaining devices are removed when they are closed.
    pub fn remove_tuns(&mut self, interfaces: &BTreeSet<u32>) -> Result<usize, RouteError> {
        let links = self.netlink.dump(&message::list_links())?;
        let tuns = links.iter().filter(|link| message::is_tun(link));
        let tuns = tuns.filter_map(message::link_index);
        let tuns: Vec<u32> = tuns.filter(|index| interfaces.contains(index)).collect();
        let Some(first) = tuns.first() else {
            return Ok(0);
        };
        // Only groups can be removed in bulk. The group's number is derived from an interface's index, so
        // that no other program has it, unless it uses the same scheme.
        let taken: BTreeSet<u32> = links.iter().filter_map(message::link_group).collect();
        let mut group = OWN_GROUPS | first;
        while taken.contains(&group) {
            group = OWN_GROUPS | group.wrapping_add(1);
        }
        for index in &tuns {
            match self.netlink.change(message::set_group(*index, group)) {
                Err(error) if !is(&error, libc::ENODEV) => {
                    return Err(by_kind(format!("the group of interface {index}"), error));
                }
                _ => {}
            }
        }
        match self.netlink.change(message::remove_group(group)) {
            Err(error) if !is(&error, libc::ENODEV) => {
                Err(by_kind(format!("{} TUN devices", tuns.len()), error))
            }
            _ => Ok(tuns.len()),
        }
    }

    /// An entry with its interface's name, if known.
    fn describe(&mut self, entry: &Entry) -> String {
        let interface = entry.interface();
        let link = interface.and_then(|index| self.netlink.one(message::link(index)).ok()?);
        let name = link.as_ref().and_then(message::link_name);
        Shown { entry, name }.to_string()
    }

    fn refused(&mut self, entry: &Entry, error: io::Error) -> RouteError {
        by_kind(self.describe(entry), error)
    }

    fn is_tun(&mut self, name: &str) -> Result<bool, RouteError> {
        match self.netlink.one(message::link_named(name)) {
            Ok(link) => Ok(link.as_ref().is_some_and(message::is_tun)),
            Err(error) if is(&error, libc::ENODEV) => Ok(false),
            Err(error) => Err(RouteError::Socket(error)),
        }
    }

    /// The existing entry that prevented an addition.
    fn present(&mut self, entry: &Entry) -> Result<Added, RouteError> {
        let mut other = None;
        let owner = match entry {
            Entry::Address(wanted) => {
                let all = self.addresses(wanted.interface)?;
                let found = all.into_iter().find(|(present, _)| present == wanted);
                found.map(|(_, owner)| owner.unwrap_or(0))
            }
            Entry::Route(wanted) => {
                let version = version_of(&wanted.destination);
                let list = message::list_routes(version, Some(wanted.table), 0);
                let all = self.netlink.dump(&list)?;
                let wanted = message::normal(wanted);
                let in_place = |route: &Route| {
                    (route.destination, route.metric) == (wanted.destination, wanted.metric)
                };
                let all = all.iter().filter_map(message::route);
                let all: Vec<_> = all.filter(|(route, _)| in_place(route)).collect();
                let same = all.iter().find(|(present, _)| *present == wanted);
                other = all.first().map(|(route, _)| Entry::Route(route.clone()));
                same.map(|(_, owner)| *owner)
            }
            Entry::Rule(wanted) => {
                let wanted = message::normal_rule(wanted);
                let all = self.rules(wanted.version)?;
                let found = all.into_iter().find(|(present, _)| *present == wanted);
                found.map(|(_, owner)| owner)
            }
        };
        match owner {
            Some(PROTOCOL) => Ok(Added::Ours),
            Some(_) => Ok(Added::Foreign),
            None => Err(RouteError::Taken {
                entry: self.describe(entry),
                present: other.map_or("another one".into(), |other| self.describe(&other)),
            }),
        }
    }

    /// Addresses of an interface (0 for all) with their owners, if the kernel stores them.
    fn addresses(&mut self, interface: u32) -> Result<Vec<(Address, Option<u8>)>, RouteError> {
        let all = self.netlink.dump(&message::list_addresses(interface))?;
        let all = all.iter().filter_map(message::address);
        Ok(all
            .filter(|(a, _)| interface == 0 || a.interface == interface)
            .collect())
    }

    fn rules(&mut self, version: RuleVersion) -> Result<Vec<(Rule, u8)>, RouteError> {
        let all = self.netlink.dump(&message::list_rules(version))?;
        Ok(all.iter().filter_map(message::rule).collect())
    }
}

impl Installed {
    pub fn new(socket: RouteSocket) -> Self {
        Self {
            socket,
            entries: Vec::new(),
        }
    }

    /// Replaces the set: removes entries that are no longer desired, adds those that are missing or were
    /// removed by others, and leaves the rest unchanged. A failed change does not prevent the others and is
    /// tried again at the next call.
    ///
    /// # Errors
    /// The kernel does not answer. Completed changes are recorded, so that this can be called again.
    pub fn set(&mut self, wanted: &[Entry]) -> Result<Outcome, RouteError> {
        let mut outcome = Outcome::default();
        let (through, others): (Vec<&Entry>, Vec<&Entry>) =
            wanted.iter().partition(|entry| entry.interface().is_some());
        // New rules and unreachable routes before old ones are removed, so that no packet takes another way in
        // between. They cannot be in conflict; a route into a device can be with an old one.
        self.add_missing(&others, &mut outcome)?;
        self.remove_all_but(wanted, &mut outcome.errors)?;
        self.add_missing(&through, &mut outcome)?;
        let foreign = self
            .entries
            .iter()
            .filter(|(_, added)| *added == Added::Foreign);
        outcome.foreign = foreign.map(|(entry, _)| entry.clone()).collect();
        Ok(outcome)
    }

    fn remove_all_but(
        &mut self,
        wanted: &[Entry],
        errors: &mut Vec<(Entry, RouteError)>,
    ) -> Result<(), RouteError> {
        let keep: BTreeSet<&Entry> = wanted.iter().collect();
        // In reverse order: rules before the routes that they select, routes before addresses.
        for index in (0..self.entries.len()).rev() {
            let (entry, added) = &self.entries[index];
            if keep.contains(entry) {
                continue;
            }
            if *added != Added::Foreign
                && let Err(error) = self.socket.remove(entry)
            {
                errors.push((entry.clone(), error.of_one()?));
                continue;
            }
            self.entries.remove(index);
        }
        Ok(())
    }

    fn add_missing(&mut self, wanted: &[&Entry], outcome: &mut Outcome) -> Result<(), RouteError> {
        let known = self.entries.iter().enumerate();
        let known: BTreeMap<Entry, usize> = known
            .map(|(index, (entry, _))| (entry.clone(), index))
            .collect();
        let present: BTreeSet<Entry> = match known.is_empty() {
            true => BTreeSet::new(),
            false => self.socket.ours()?.into_iter().collect(),
        };
        for &entry in wanted {
            let known = known.get(entry).copied();
            if known.is_some() && present.contains(&message::as_listed(entry)) {
                continue;
            }
            match (self.socket.add(entry), known) {
                // Restored after any removal. The kernel itself removes the routes of an interface that lost
                // its last address or was set down.
                (Ok(Added::New), Some(index)) => {
                    self.entries[index].1 = Added::New;
                    outcome.put_back.push(entry.clone());
                }
                // Another program's, or an address whose owner the kernel does not store.
                (Ok(Added::Ours | Added::Foreign), Some(_)) => {}
                (Ok(added), None) => self.entries.push((entry.clone(), added)),
                (Err(error), _) => outcome.errors.push((entry.clone(), error.of_one()?)),
            }
        }
        Ok(())
    }

    /// Keiro's entries that are not in this set: those of another gateway in this namespace, or those left
    /// behind by one that was killed. Devices take their addresses and routes with them; rules and
    /// unreachable routes stay.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn others(&mut self) -> Result<Vec<Entry>, RouteError> {
        let mut all = self.socket.ours()?;
        let listed: BTreeSet<Entry> = self.entries().map(message::as_listed).collect();
        all.retain(|entry| !listed.contains(entry));
        Ok(all)
    }

    /// Takes over an entry of [`Self::others`] that the caller recognises as its own: the next [`Self::set`]
    /// removes it unless it is desired.
    pub fn adopt(&mut self, entry: Entry) {
        if !self.entries().any(|known| *known == entry) {
            self.entries.push((entry, Added::Ours));
        }
    }

    /// Whether an interface of this name exists and belongs to a program (TUN or TAP). A gateway's exists as
    /// long as the gateway runs.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn is_tun(&mut self, name: &str) -> Result<bool, RouteError> {
        self.socket.is_tun(name)
    }

    /// An entry with its interface's name, for messages.
    pub fn describe(&mut self, entry: &Entry) -> String {
        self.socket.describe(entry)
    }

    /// Removes TUN devices with their addresses and routes; see [`RouteSocket::remove_tuns`].
    ///
    /// # Errors
    /// The kernel refuses; remaining devices are removed when they are closed.
    pub fn remove_tuns(&mut self, interfaces: &BTreeSet<u32>) -> Result<usize, RouteError> {
        self.socket.remove_tuns(interfaces)
    }

    /// Leaves entries for which `stays` holds in the kernel, for a later run to take over, and removes the
    /// others and the TUN devices. `stays` gets whether an earlier run had made the entry.
    ///
    /// # Errors
    /// Those of [`Self::remove_tuns`]; remaining devices are removed when they are closed.
    pub fn leave(
        mut self,
        stays: impl Fn(&Entry, bool) -> bool,
        interfaces: &BTreeSet<u32>,
    ) -> Result<(), RouteError> {
        self.entries
            .retain(|(entry, added)| !stays(entry, *added == Added::Ours));
        self.remove_all_with_tuns(interfaces)
    }

    /// Removes all entries and their TUN devices. Entries that would stay behind go first.
    ///
    /// # Errors
    /// Those of [`Self::remove_tuns`]; the rest is removed on drop.
    pub fn remove_all_with_tuns(&mut self, interfaces: &BTreeSet<u32>) -> Result<(), RouteError> {
        let is_of = |entry: &Entry| entry.interface().is_some_and(|i| interfaces.contains(&i));
        let all = mem::take(&mut self.entries).into_iter();
        let (with, others) = all.partition(|(entry, _)| is_of(entry));
        self.entries = others;
        self.remove_all();
        self.entries = with;
        self.socket.remove_tuns(interfaces)?;
        self.entries.clear();
        Ok(())
    }

    /// The installed entries.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().map(|(entry, _)| entry)
    }

    /// Removes all and returns the errors; on drop they are ignored.
    pub fn remove_all(&mut self) -> Vec<RouteError> {
        let mut errors = Vec::new();
        while let Some((entry, added)) = self.entries.pop() {
            if added != Added::Foreign
                && let Err(error) = self.socket.remove(&entry)
            {
                errors.push(error);
            }
        }
        errors
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        self.remove_all();
    }
}

fn version_of(prefix: &IpNet) -> RuleVersion {
    match prefix {
        IpNet::V4(_) => RuleVersion::V4,
        IpNet::V6(_) => RuleVersion::V6,
    }
}

fn is(error: &io::Error, number: i32) -> bool {
    error.raw_os_error() == Some(number)
}

fn by_kind(entry: String, source: io::Error) -> RouteError {
    match source.raw_os_error() {
        Some(libc::EPERM) => RouteError::NotPermitted { entry },
        Some(libc::ENODEV) => RouteError::NoInterface { entry },
        Some(_) => RouteError::Refused { entry, source },
        None => RouteError::Socket(source),
    }
}

impl RouteError {
    /// Keeps the error if it concerns one entry; `Err` if no other entry can succeed either.
    fn of_one(self) -> Result<Self, Self> {
        match self {
            Self::Socket(_) | Self::Answer(_) | Self::Namespace(_) => Err(self),
            _ => Ok(self),
        }
    }
}

impl fmt::Display for Entry {
    /// In the syntax of `ip`, but with the index of an interface.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Shown {
            entry: self,
            name: None,
        };
        write!(f, "{shown}")
    }
}

/// An entry with its interface's name, if known.
struct Shown<'a> {
    entry: &'a Entry,
    name: Option<&'a str>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = |index: u32| self.name.map_or(index.to_string(), str::to_owned);
        match self.entry {
            Entry::Address(address) => {
                let name = interface(address.interface);
                write!(f, "address {} dev {name}", address.address)
            }
            Entry::Route(route) => {
                match route.via {
                    Via::Interface(index) => {
                        write!(f, "route {} dev {}", route.destination, interface(index))?;
                    }
                    Via::Gateway {
                        address,
                        interface: index,
                    } => {
                        let (to, name) = (route.destination, interface(index));
                        write!(f, "route {to} via {address} dev {name}")?;
                    }
                    Via::Local => write!(f, "route local {} dev lo", route.destination)?,
                    Via::Unreachable => write!(f, "route unreachable {}", route.destination)?,
                }
                match route.table {
                    TABLE_MAIN => write!(f, " table main"),
                    table => write!(f, " table {table}"),
                }
            }
            Entry::Rule(rule) => {
                write!(f, "rule priority {}", rule.priority)?;
                if let Some(source) = rule.source {
                    write!(f, " from {source}")?;
                }
                if let Some(port) = rule.udp_source_port {
                    write!(f, " ipproto udp sport {port}")?;
                }
                if let Some(Mark { value, mask }) = rule.mark {
                    write!(f, " fwmark {value:#x}/{mask:#x}")?;
                }
                if let Some(name) = &rule.incoming {
                    write!(f, " iif {name}")?;
                }
                if let Some(name) = &rule.outgoing {
                    write!(f, " oif {name}")?;
                }
                write!(f, " lookup {}", rule.table)?;
                match rule.suppressed_prefix_length {
                    Some(length) => write!(f, " suppress_prefixlength {length}"),
                    None => Ok(()),
                }
            }
        }
    }
}
