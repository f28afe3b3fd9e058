//! The MPTCP path manager (generic netlink `mptcp_pm`): the local addresses announced on a connection, and
//! its subflows.
//!
//! The kernel's own path manager announces every endpoint to every connection. With the userspace path
//! manager (Linux 5.19) nothing happens automatically: [`Events`] report connections, and [`PathManager`]
//! announces to one connection the addresses that lead to it. The Endpoint Manager decides.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU8,
    os::fd::{AsFd, BorrowedFd},
};

use crate::{
    netlink::{
        Attributes, Batch, DUMP, Message, Refusal, Socket, attributes, u8_of, u16_of, u32_of,
    },
    netns::{Netns, NetnsError},
    seg6::octets,
};

/// Manages subflows of connections that begin from now on in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// The kernel, by its endpoints and limits.
    Kernel,
    /// A program, through [`PathManager`].
    UserSpace,
}

/// A connection, by the local token that the kernel assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);

/// A local address in the kernel's own path manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub address: IpAddr,
    /// Its address ID; `None` leaves it to the kernel.
    pub id: Option<NonZeroU8>,
    /// It is announced to peers (`signal`).
    pub signal: bool,
    /// Used if no other subflow works (`backup`).
    pub backup: bool,
    /// It has other flags, an interface or a port. Set only by [`PathManager::endpoints`].
    pub more: bool,
}

/// The previous path manager of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviousManager {
    file: &'static str,
    value: String,
}

/// Limits of addresses and subflows of connections of a namespace, in addition to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Addresses of the peer to which subflows are opened.
    pub accepted_addresses: u32,
    pub subflows: u32,
}

/// Both ends of a subflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ends {
    pub local: SocketAddr,
    pub remote: SocketAddr,
}

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Created; it is not known yet whether it stays with MPTCP.
    Created(Token, Ends),
    /// Both sides have confirmed MPTCP: addresses may be announced.
    Established(Token, Ends),
    Closed(Token),
    /// The peer announced an address with this ID.
    Announced(Token, u8),
    /// The peer withdrew the address with this ID.
    Removed(Token, u8),
    /// A further subflow is established.
    SubflowEstablished(Token, Ends),
    /// A subflow is closed.
    SubflowClosed(Token, Ends),
    /// The peer set or cleared the backup flag of this subflow.
    SubflowPriority(Token, Ends, bool),
}

/// Errors of the path manager.
#[derive(Debug, thiserror::Error)]
pub enum PathManagerError {
    /// The kernel has no path manager.
    #[error("this kernel has no MPTCP path manager; Linux 5.6 or newer with MPTCP is needed")]
    Missing,
    /// Missing privilege.
    #[error("not permitted to manage MPTCP connections; CAP_NET_ADMIN or root is needed")]
    NotPermitted,
    /// There is no such connection or subflow; it may have just closed.
    #[error("cannot {what}: it is gone")]
    Gone {
        /// The attempted operation.
        what: String,
    },
    /// The kernel refuses it.
    #[error("cannot {what}: {source}")]
    Refused {
        /// The attempted operation.
        what: String,
        source: io::Error,
    },
    /// There is no socket, or the kernel does not answer.
    #[error("cannot talk to the MPTCP path manager: {0}")]
    Socket(io::Error),
    /// The namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
}

/// Controls connections of one namespace.
#[derive(Debug)]
pub struct PathManager {
    socket: Socket,
    family: u16,
}

/// Receives the MPTCP events of one namespace.
#[derive(Debug)]
pub struct Events {
    socket: Socket,
    family: u16,
}

impl PathManager {
    /// For the calling thread's network namespace, permanently.
    ///
    /// # Errors
    /// The kernel has no path manager, or no netlink socket is available.
    pub fn open() -> Result<Self, PathManagerError> {
        let mut socket = Socket::open(libc::NETLINK_GENERIC).map_err(PathManagerError::Socket)?;
        let Family { id: family, .. } = family(&mut socket)?;
        Ok(Self { socket, family })
    }

    /// For `netns`; the calling thread stays in its namespace, and may use the path manager.
    ///
    /// # Errors
    /// As [`Self::open`], or the namespace cannot be entered.
    pub fn open_in(netns: &Netns) -> Result<Self, PathManagerError> {
        netns.run(Self::open)?
    }

    /// Announces a local address on a connection, so that the peer may join it.
    ///
    /// # Errors
    /// [`PathManagerError::Gone`] if the connection is; others of that type.
    pub fn announce(
        &mut self,
        token: Token,
        address: IpAddr,
        id: NonZeroU8,
    ) -> Result<(), PathManagerError> {
        let what = || format!("announce {address}");
        self.command(ANNOUNCE, what, |batch| {
            batch.u32(ATTR_TOKEN, token.0);
            let nest = batch.nest(ATTR_ADDR);
            write_address(batch, address, None);
            batch.attribute(ADDR_ID, &[id.get()]);
            batch.u32(ADDR_FLAGS, FLAG_SIGNAL);
            batch.end(nest);
        })
    }

    /// Withdraws an announced address: the peer closes its subflows to it.
    ///
    /// # Errors
    /// As [`Self::announce`].
    pub fn remove(&mut self, token: Token, id: NonZeroU8) -> Result<(), PathManagerError> {
        let what = || format!("take back address {id}");
        self.command(REMOVE, what, |batch| {
            batch.u32(ATTR_TOKEN, token.0);
            batch.attribute(ATTR_LOC_ID, &[id.get()]);
        })
    }

    /// Makes a subflow a backup, to be used if no other works, or an ordinary one again; locally and, by
    /// MP_PRIO, at the peer.
    ///
    /// # Errors
    /// As [`Self::announce`].
    pub fn set_backup(
        &mut self,
        token: Token,
        ends: Ends,
        backup: bool,
    ) -> Result<(), PathManagerError> {
        let flags = if backup { FLAG_BACKUP } else { 0 };
        let what = || format!("make the subflow {ends} a backup");
        self.command(SET_FLAGS, what, |batch| {
            batch.u32(ATTR_TOKEN, token.0);
            let nest = batch.nest(ATTR_ADDR);
            write_address(batch, ends.local.ip(), Some(ends.local.port()));
            batch.u32(ADDR_FLAGS, flags);
            batch.end(nest);
            write_remote(batch, ends.remote);
        })
    }

    /// Closes a subflow with a reset; the connection goes on over the others.
    ///
    /// # Errors
    /// As [`Self::announce`].
    pub fn destroy(&mut self, token: Token, ends: Ends) -> Result<(), PathManagerError> {
        let what = || format!("end the subflow {ends}");
        self.command(SUBFLOW_DESTROY, what, |batch| {
            batch.u32(ATTR_TOKEN, token.0);
            let nest = batch.nest(ATTR_ADDR);
            write_address(batch, ends.local.ip(), Some(ends.local.port()));
            batch.end(nest);
            write_remote(batch, ends.remote);
        })
    }

    /// Endpoints of the kernel's own path manager.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn endpoints(&mut self) -> Result<Vec<Endpoint>, PathManagerError> {
        let all = self.socket.list(
            self.family,
            DUMP,
            |batch| batch.raw(&header(GET_ADDR)),
            |all: &mut Vec<Endpoint>, message| all.extend(read_endpoint(&message)),
        );
        all.map_err(|refusal| refused(refusal, "list endpoints".into()))
    }

    /// Adds an endpoint to the kernel's own path manager.
    ///
    /// # Errors
    /// There is one with this address already (`EEXIST`), or those of [`Self::announce`].
    pub fn add_endpoint(&mut self, endpoint: &Endpoint) -> Result<(), PathManagerError> {
        let what = || format!("add endpoint {}", endpoint.address);
        self.command(ADD_ADDR, what, |batch| write_endpoint(batch, endpoint))
    }

    /// Makes an endpoint with all its subflows a backup or an ordinary one.
    ///
    /// # Errors
    /// There is none with this address, or those of [`Self::announce`].
    pub fn change_endpoint(&mut self, endpoint: &Endpoint) -> Result<(), PathManagerError> {
        let what = || format!("change endpoint {}", endpoint.address);
        self.command(SET_FLAGS, what, |batch| write_endpoint(batch, endpoint))
    }

    /// Removes the endpoint of an address with its subflows; `false` if there is none.
    ///
    /// # Errors
    /// Those of [`Self::announce`].
    pub fn remove_endpoint(&mut self, address: IpAddr) -> Result<bool, PathManagerError> {
        let all = self.endpoints()?;
        let Some(endpoint) = all.into_iter().find(|e| e.address == address) else {
            return Ok(false);
        };
        let what = || format!("remove endpoint {address}");
        let result = self.command(DEL_ADDR, what, |batch| write_endpoint(batch, &endpoint));
        match result {
            Err(PathManagerError::Gone { .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Limits of this namespace's connections.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn limits(&mut self) -> Result<Limits, PathManagerError> {
        let found = self.socket.list(
            self.family,
            0,
            |batch| batch.raw(&header(GET_LIMITS)),
            |found: &mut Option<Limits>, message| *found = read_limits(&message),
        );
        let found = found.map_err(|refusal| refused(refusal, "read limits".into()))?;
        found.ok_or_else(|| PathManagerError::Socket(io::ErrorKind::InvalidData.into()))
    }

    /// Sets them.
    ///
    /// # Errors
    /// More than eight, or those of [`Self::announce`].
    pub fn set_limits(&mut self, limits: Limits) -> Result<(), PathManagerError> {
        let what = || "set limits".to_owned();
        self.command(SET_LIMITS, what, |batch| {
            batch.u32(ATTR_ACCEPTED, limits.accepted_addresses);
            batch.u32(ATTR_SUBFLOWS, limits.subflows);
        })
    }

    fn command(
        &mut self,
        command: u8,
        what: impl FnOnce() -> String,
        write: impl FnOnce(&mut Batch),
    ) -> Result<(), PathManagerError> {
        let result = self.socket.change(self.family, 0, |batch| {
            batch.raw(&header(command));
            write(batch);
        });
        result.map_err(|refusal| refused(refusal, what()))
    }
}

impl Events {
    /// For the calling thread's network namespace, from now on.
    ///
    /// # Errors
    /// The kernel has no path manager, no netlink socket is available, or CAP_NET_ADMIN is missing.
    pub fn open() -> Result<Self, PathManagerError> {
        let mut socket = Socket::open(libc::NETLINK_GENERIC).map_err(PathManagerError::Socket)?;
        let Family { id: family, events } = family(&mut socket)?;
        socket
            .join(events)
            .map_err(|error| match error.raw_os_error() {
                Some(libc::EPERM) => PathManagerError::NotPermitted,
                _ => PathManagerError::Socket(error),
            })?;
        Ok(Self { socket, family })
    }

    /// For `netns`; the calling thread stays in its namespace.
    ///
    /// # Errors
    /// As [`Self::open`], or the namespace cannot be entered.
    pub fn open_in(netns: &Netns) -> Result<Self, PathManagerError> {
        netns.run(Self::open)?
    }

    /// Passes all events since the last call to `each`, in order. Does not block. `false` if the kernel's
    /// buffer was full, so that events were lost.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn take(&mut self, mut each: impl FnMut(Event)) -> Result<bool, PathManagerError> {
        let mut whole = true;
        loop {
            match self.socket.receive(true) {
                Ok(messages) => {
                    let mut any = false;
                    for message in messages {
                        any = true;
                        if message.kind == self.family
                            && let Some(event) = read_event(&message)
                        {
                            each(event);
                        }
                    }
                    if !any {
                        return Ok(whole);
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => whole = false,
                Err(error) => return Err(PathManagerError::Socket(error)),
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sets the path manager of future connections of the calling thread's namespace, and returns the previous
/// one.
///
/// # Errors
/// The process has no privilege, or the kernel has no MPTCP.
pub fn set_manager(manager: Manager) -> io::Result<PreviousManager> {
    let (name, number) = match manager {
        Manager::Kernel => ("kernel", "0"),
        Manager::UserSpace => ("userspace", "1"),
    };
    let (before, new) = match now_managed() {
        Ok(before) if before.file == BY_NAME => (before, name),
        Ok(before) => (before, number),
        Err(error) => return Err(error),
    };
    fs::write(before.file, new)?;
    Ok(before)
}

/// The path manager of connections of the calling thread's namespace that begin now.
///
/// # Errors
/// The kernel has no MPTCP.
pub fn now_managed() -> io::Result<PreviousManager> {
    let read = |file: &'static str| -> io::Result<PreviousManager> {
        let value = fs::read_to_string(file)?.trim().to_owned();
        Ok(PreviousManager { file, value })
    };
    match read(BY_NAME) {
        Err(error) if io::ErrorKind::NotFound == error.kind() => read(BY_NUMBER),
        other => other,
    }
}

impl PreviousManager {
    /// Whether it was a program.
    pub fn is_user_space(&self) -> bool {
        self.value == "userspace" || self.value == "1"
    }

    /// Restores it for connections that begin from now on.
    ///
    /// # Errors
    /// The process has no privilege.
    pub fn restore(&self) -> io::Result<()> {
        fs::write(self.file, &self.value)
    }
}

/// Exists since Linux 6.15.
const BY_NAME: &str = "/proc/sys/net/mptcp/path_manager";
/// Exists before Linux 6.15.
const BY_NUMBER: &str = "/proc/sys/net/mptcp/pm_type";

/// IDs of the generic netlink family in this kernel.
#[derive(Clone, Copy, Debug, Default)]
struct Family {
    id: u16,
    events: u32,
}

fn family(socket: &mut Socket) -> Result<Family, PathManagerError> {
    let found = socket.list(
        CONTROLLER,
        0,
        |batch| {
            batch.raw(&[GET_FAMILY, 1, 0, 0]);
            batch.attribute(FAMILY_NAME, b"mptcp_pm\0");
        },
        |found: &mut Family, message| {
            let Some((_, all)) = message.split::<4>() else {
                return;
            };
            for (name, value) in all {
                match name {
                    FAMILY_ID => found.id = u16_of(value).unwrap_or_default(),
                    GROUPS => found.events = events_group(value).unwrap_or_default(),
                    _ => {}
                }
            }
        },
    );
    match found {
        Ok(found) if found.id != 0 => Ok(found),
        Ok(_) => Err(PathManagerError::Missing),
        Err(refusal) if refusal.is(libc::ENOENT) => Err(PathManagerError::Missing),
        Err(refusal) => Err(PathManagerError::Socket(refusal.into_io())),
    }
}

fn events_group(groups: &[u8]) -> Option<u32> {
    attributes(groups).find_map(|(_, group)| {
        let mut parts = attributes(group);
        let is_it = parts
            .clone()
            .any(|(n, v)| n == GROUP_NAME && v == b"mptcp_pm_events\0");
        let number = parts.find_map(|(n, v)| (n == GROUP_ID).then(|| u32_of(v))?);
        number.filter(|_| is_it)
    })
}

fn refused(refusal: Refusal, what: String) -> PathManagerError {
    match refusal.error.raw_os_error() {
        Some(libc::EPERM) => PathManagerError::NotPermitted,
        Some(libc::ENOENT | libc::ESRCH | libc::ENOTCONN) => PathManagerError::Gone { what },
        // The kernel's error for an unknown token.
        Some(libc::EINVAL) if refusal.words.as_deref() == Some("invalid token") => {
            PathManagerError::Gone { what }
        }
        Some(_) => PathManagerError::Refused {
            what,
            source: refusal.into_io(),
        },
        None => PathManagerError::Socket(refusal.error),
    }
}

/// `struct genlmsghdr`.
fn header(command: u8) -> [u8; 4] {
    [command, VERSION, 0, 0]
}

fn write_address(batch: &mut Batch, address: IpAddr, port: Option<u16>) {
    match address {
        IpAddr::V4(address) => {
            batch.attribute(ADDR_FAMILY, &(libc::AF_INET as u16).to_ne_bytes());
            batch.attribute(ADDR_4, &address.octets());
        }
        IpAddr::V6(address) => {
            batch.attribute(ADDR_FAMILY, &(libc::AF_INET6 as u16).to_ne_bytes());
            batch.attribute(ADDR_6, &address.octets());
        }
    }
    if let Some(port) = port {
        batch.attribute(ADDR_PORT, &port.to_ne_bytes());
    }
}

fn write_remote(batch: &mut Batch, remote: SocketAddr) {
    let nest = batch.nest(ATTR_ADDR_REMOTE);
    write_address(batch, remote.ip(), Some(remote.port()));
    batch.end(nest);
}

fn write_endpoint(batch: &mut Batch, endpoint: &Endpoint) {
    let nest = batch.nest(ATTR_ADDR);
    write_address(batch, endpoint.address, None);
    if let Some(id) = endpoint.id {
        batch.attribute(ADDR_ID, &[id.get()]);
    }
    let mut flags = 0;
    if endpoint.signal {
        flags |= FLAG_SIGNAL;
    }
    if endpoint.backup {
        flags |= FLAG_BACKUP;
    }
    batch.u32(ADDR_FLAGS, flags);
    batch.end(nest);
}

fn read_endpoint(message: &Message<'_>) -> Option<Endpoint> {
    let (_, mut all) = message.split::<4>()?;
    let (_, nested) = all.find(|&(name, _)| name == ATTR_ADDR)?;
    let (mut found, mut id, mut flags, mut more) = (None, None, 0, false);
    for (name, value) in attributes(nested) {
        match name {
            ADDR_ID => id = u8_of(value).and_then(NonZeroU8::new),
            ADDR_4 | ADDR_6 => found = address(value),
            ADDR_FLAGS => flags = u32_of(value)?,
            ADDR_PORT | ADDR_INTERFACE => more |= value.iter().any(|octet| *octet != 0),
            _ => {}
        }
    }
    more |= flags & !(FLAG_SIGNAL | FLAG_BACKUP) != 0;
    Some(Endpoint {
        address: found?,
        id,
        more,
        signal: flags & FLAG_SIGNAL != 0,
        backup: flags & FLAG_BACKUP != 0,
    })
}

fn read_limits(message: &Message<'_>) -> Option<Limits> {
    let (_, all) = message.split::<4>()?;
    let (mut accepted, mut subflows) = (None, None);
    for (name, value) in all {
        match name {
            ATTR_ACCEPTED => accepted = u32_of(value),
            ATTR_SUBFLOWS => subflows = u32_of(value),
            _ => {}
        }
    }
    Some(Limits {
        accepted_addresses: accepted?,
        subflows: subflows?,
    })
}

fn read_event(message: &Message<'_>) -> Option<Event> {
    let (&[kind, ..], all) = message.split::<4>()?;
    let details = Details::read(all);
    let token = Token(details.token?);
    Some(match kind {
        EVENT_CREATED => Event::Created(token, details.ends()?),
        EVENT_ESTABLISHED => Event::Established(token, details.ends()?),
        EVENT_CLOSED => Event::Closed(token),
        EVENT_ANNOUNCED => Event::Announced(token, details.remote_id?),
        EVENT_REMOVED => Event::Removed(token, details.remote_id?),
        EVENT_SUB_ESTABLISHED => Event::SubflowEstablished(token, details.ends()?),
        EVENT_SUB_CLOSED => Event::SubflowClosed(token, details.ends()?),
        EVENT_SUB_PRIORITY => Event::SubflowPriority(token, details.ends()?, details.backup),
        _ => return None,
    })
}

/// Attributes of an event.
#[derive(Default)]
struct Details {
    token: Option<u32>,
    remote_id: Option<u8>,
    local: Option<IpAddr>,
    remote: Option<IpAddr>,
    local_port: Option<u16>,
    remote_port: Option<u16>,
    backup: bool,
}

impl Details {
    fn read(all: Attributes<'_>) -> Self {
        let mut details = Self::default();
        let port = |value: &[u8]| value.first_chunk().map(|c| u16::from_be_bytes(*c));
        for (name, value) in all {
            match name {
                EV_TOKEN => details.token = u32_of(value),
                EV_REM_ID => details.remote_id = u8_of(value),
                EV_SADDR4 | EV_SADDR6 => details.local = address(value),
                EV_DADDR4 | EV_DADDR6 => details.remote = address(value),
                EV_SPORT => details.local_port = port(value),
                EV_DPORT => details.remote_port = port(value),
                EV_BACKUP => details.backup = u8_of(value) == Some(1),
                _ => {}
            }
        }
        details
    }

    fn ends(&self) -> Option<Ends> {
        Some(Ends {
            local: SocketAddr::new(self.local?, self.local_port?),
            remote: SocketAddr::new(self.remote?, self.remote_port?),
        })
    }
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(*value.first_chunk::<4>()?).into()),
        16 => octets(value).map(|address| IpAddr::from(address).to_canonical()),
        _ => None,
    }
}

impl std::fmt::Display for Ends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.local, self.remote)
    }
}

// `include/uapi/linux/genetlink.h`
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GROUPS: u16 = 7;
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;

// `include/uapi/linux/mptcp_pm.h`, `include/uapi/linux/mptcp.h`
const VERSION: u8 = 1;
const ADD_ADDR: u8 = 1;
const DEL_ADDR: u8 = 2;
const GET_ADDR: u8 = 3;
const SET_LIMITS: u8 = 5;
const GET_LIMITS: u8 = 6;
const SET_FLAGS: u8 = 7;
const ANNOUNCE: u8 = 8;
const REMOVE: u8 = 9;
const SUBFLOW_DESTROY: u8 = 11;
const ATTR_ADDR: u16 = 1;
const ATTR_ACCEPTED: u16 = 2;
const ATTR_SUBFLOWS: u16 = 3;
const ATTR_TOKEN: u16 = 4;
const ATTR_LOC_ID: u16 = 5;
const ATTR_ADDR_REMOTE: u16 = 6;
const ADDR_FAMILY: u16 = 1;
const ADDR_ID: u16 = 2;
const ADDR_4: u16 = 3;
const ADDR_6: u16 = 4;
const ADDR_PORT: u16 = 5;
const ADDR_FLAGS: u16 = 6;
const ADDR_INTERFACE: u16 = 7;
const FLAG_SIGNAL: u32 = 1;
const FLAG_BACKUP: u32 = 4;
const EVENT_CREATED: u8 = 1;
const EVENT_ESTABLISHED: u8 = 2;
const EVENT_CLOSED: u8 = 3;
const EVENT_ANNOUNCED: u8 = 6;
const EVENT_REMOVED: u8 = 7;
const EVENT_SUB_ESTABLISHED: u8 = 10;
const EVENT_SUB_CLOSED: u8 = 11;
const EVENT_SUB_PRIORITY: u8 = 13;
const EV_TOKEN: u16 = 1;
const EV_REM_ID: u16 = 4;
const EV_SADDR4: u16 = 5;
const EV_SADDR6: u16 = 6;
const EV_DADDR4: u16 = 7;
const EV_DADDR6: u16 = 8;
const EV_SPORT: u16 = 9;
const EV_DPORT: u16 = 10;
const EV_BACKUP: u16 = 11;
