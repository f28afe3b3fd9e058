//! VRF devices: a named routing table for bound sockets and interfaces.
//!
//! Devices that are created here carry an alias, by which they are recognised. Others' VRF devices are used
//! as they are, and other interfaces are never touched. The callers fill the tables.

use std::{fmt, io};

use crate::{
    netlink::{
        Attributes, Batch, CREATE, DUMP, EXCLUSIVE, Message, Refusal, Socket, attributes, u32_of,
    },
    rule::InterfaceName,
};

/// A device with its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vrf {
    pub name: InterfaceName,
    /// Its table, from 1.
    pub table: u32,
}

/// Creates and removes them in one namespace.
#[derive(Debug)]
pub struct Vrfs {
    socket: Socket,
}

/// Why a device could not be created.
#[derive(Debug, thiserror::Error)]
pub enum VrfError {
    /// The kernel does not support VRF.
    #[error(
        "cannot make the VRF device `{0}`: this kernel has none (CONFIG_NET_VRF; `modprobe vrf` where it is a module); \
         without `vrf` the table is the same"
    )]
    Missing(InterfaceName),
    /// Missing privilege.
    #[error("not permitted to make VRF devices; CAP_NET_ADMIN or root is needed")]
    NotPermitted,
    /// An interface that is not a VRF has its name, or another device its table.
    #[error("{there} is in the way of the VRF `{wanted}` of table {}; remove it or configure another", wanted.table)]
    InTheWay {
        there: Device,
        /// The desired device.
        wanted: Vrf,
    },
    /// The kernel refuses it.
    #[error("cannot {what}: {source}")]
    Refused { what: String, source: io::Error },
    /// There is no netlink socket, or the kernel does not answer.
    #[error("cannot talk to the kernel about devices: {0}")]
    Socket(io::Error),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub name: InterfaceName,
    /// Its table; `None` if it is not a VRF.
    pub table: Option<u32>,
    /// Whether Keiro has created it.
    pub ours: bool,
    up: bool,
}

impl Vrfs {
    /// For the calling thread's network namespace, permanently.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> Result<Self, VrfError> {
        let socket = Socket::open(libc::NETLINK_ROUTE).map_err(VrfError::Socket)?;
        Ok(Self { socket })
    }

    /// All devices.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn devices(&mut self) -> Result<Vec<Device>, VrfError> {
        let found = self.socket.list(
            GET,
            DUMP,
            |batch| batch.raw(&header(0)),
            |all: &mut Vec<Device>, message| all.extend(read(&message)),
        );
        found.map_err(|refusal| refused(refusal, || "list devices".to_owned()))
    }

    /// Creates a device if it does not exist, and sets it up. `false` if it existed.
    ///
    /// # Errors
    /// The kernel does not support VRF devices, or an interface is in the way.
    pub fn make(&mut self, wanted: Vrf) -> Result<bool, VrfError> {
        let devices = self.devices()?;
        let same =
            |device: &&Device| device.name == wanted.name || device.table == Some(wanted.table);
        if let Some(there) = devices.iter().find(same) {
            if (there.name, there.table) != (wanted.name, Some(wanted.table)) {
                let there = there.clone();
                return Err(VrfError::InTheWay { there, wanted });
            }
            if !there.up {
                self.change(
                    SET,
                    0,
                    |batch| write_up(batch, wanted.name),
                    || format!("set the VRF device `{}` up", wanted.name),
                )?;
            }
            return Ok(false);
        }
        let what = || format!("make the VRF device `{}`", wanted.name);
        let made = self.change(NEW, CREATE | EXCLUSIVE, |batch| wanted.write(batch), what);
        made.map_err(|error| match error {
            VrfError::Refused { source, .. } if is_unknown(&source) => {
                VrfError::Missing(wanted.name)
            }
            other => other,
        })?;
        // The kernel ignores it when the device is created.
        self.change(
            SET,
            0,
            |batch| write_alias(batch, wanted.name),
            || format!("mark the VRF device `{}`", wanted.name),
        )?;
        Ok(true)
    }

    /// Removes the devices that Keiro has created, except these; returns their number.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn remove_ours(&mut self, kept: &[Vrf]) -> Result<usize, VrfError> {
        let is_kept = |device: &Device| {
            let mut kept = kept.iter();
            kept.any(|vrf| (vrf.name, Some(vrf.table)) == (device.name, device.table))
        };
        let devices = self.devices()?;
        let ours = devices
            .iter()
            .filter(|device| device.ours && device.table.is_some());
        let mut removed = 0;
        for device in ours.filter(|device| !is_kept(device)) {
            self.change(
                DELETE,
                0,
                |batch| write_name(batch, device.name),
                || format!("remove the VRF device `{}`", device.name),
            )?;
            removed += 1;
        }
        Ok(removed)
    }

    fn change(
        &mut self,
        kind: u16,
        flags: u16,
        write: impl FnOnce(&mut Batch),
        what: impl FnOnce() -> String,
    ) -> Result<(), VrfError> {
        let done = self.socket.change(kind, flags, write);
        done.map_err(|refusal| refused(refusal, what))
    }
}

impl Vrf {
    /// The message body of [`NEW`].
    fn write(&self, batch: &mut Batch) {
        batch.raw(&header(UP));
        batch.attribute(IFLA_IFNAME, self.name.as_bytes());
        let about = batch.nest(IFLA_LINKINFO);
        batch.attribute(INFO_KIND, KIND);
        let data = batch.nest(INFO_DATA);
        batch.u32(VRF_TABLE, self.table);
        batch.end(data);
        batch.end(about);
    }
}

fn write_name(batch: &mut Batch, name: InterfaceName) {
    batch.raw(&header(0));
    batch.attribute(IFLA_IFNAME, name.as_bytes());
}

fn write_alias(batch: &mut Batch, name: InterfaceName) {
    write_name(batch, name);
    batch.attribute(IFLA_IFALIAS, ALIAS);
}

fn write_up(batch: &mut Batch, name: InterfaceName) {
    batch.raw(&header(UP));
    batch.attribute(IFLA_IFNAME, name.as_bytes());
}

/// `struct ifinfomsg`; `flags` are the flags to set.
fn header(flags: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

fn read(message: &Message<'_>) -> Option<Device> {
    if message.kind != NEW {
        return None;
    }
    let (header, all): (&[u8; 16], Attributes<'_>) = message.split()?;
    let (mut name, mut table, mut ours) = (None, None, false);
    for (attribute, value) in all {
        match attribute {
            IFLA_IFNAME => name = InterfaceName::read(value),
            IFLA_IFALIAS => ours = value.strip_suffix(&[0]).unwrap_or(value) == ALIAS,
            IFLA_LINKINFO => table = table_of(value),
            _ => {}
        }
    }
    Some(Device {
        name: name?,
        table,
        ours,
        up: u32_of(&header[8..])? & UP != 0,
    })
}

/// Parses `IFLA_LINKINFO`; `None` if it is not a VRF.
fn table_of(about: &[u8]) -> Option<u32> {
    let find = |of: &[u8], wanted: u16| -> Option<Vec<u8>> {
        let mut all = attributes(of);
        all.find_map(|(name, value)| (name == wanted).then(|| value.to_vec()))
    };
    let kind = find(about, INFO_KIND)?;
    let is_vrf = kind.strip_suffix(&[0]).unwrap_or(&kind) == KIND;
    let data = find(about, INFO_DATA).filter(|_| is_vrf)?;
    u32_of(&find(&data, VRF_TABLE)?)
}

/// The kernel's error for an unknown kind of device.
fn is_unknown(error: &io::Error) -> bool {
    // If the kernel explains, the error number is in the text only.
    let kind = io::Error::from_raw_os_error(libc::EOPNOTSUPP).kind();
    error.raw_os_error() == Some(libc::EOPNOTSUPP) || error.kind() == kind
}

fn refused(refusal: Refusal, what: impl FnOnce() -> String) -> VrfError {
    match refusal.error.raw_os_error() {
        Some(libc::EPERM) => VrfError::NotPermitted,
        Some(_) => VrfError::Refused {
            what: what(),
            source: refusal.into_io(),
        },
        None => VrfError::Socket(refusal.error),
    }
}

impl fmt::Display for Vrf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.name, f)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.table {
            Some(table) => write!(f, "the VRF device `{}` of table {table}", self.name),
            None => write!(f, "the device `{}`, which is no VRF,", self.name),
        }
    }
}

/// Alias of devices that Keiro has created. Ours.
const ALIAS: &[u8] = b"keiro egress";

// `include/uapi/linux/rtnetlink.h`, `if_link.h`, `if.h`
const NEW: u16 = 16;
const DELETE: u16 = 17;
const GET: u16 = 18;
const SET: u16 = 19;
const UP: u32 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_IFALIAS: u16 = 20;
const INFO_KIND: u16 = 1;
const INFO_DATA: u16 = 2;
const VRF_TABLE: u16 = 1;
const KIND: &[u8] = b"vrf";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Messages;

    fn vrf(name: &str, table: u32) -> Vrf {
        let name = InterfaceName::new(name).unwrap();
        Vrf { name, table }
    }

    /// As the kernel would list the written message.
    fn read_back(write: impl FnOnce(&mut Batch)) -> Option<Device> {
        let mut batch = Batch::default();
        batch.begin(NEW, 0, 1);
        write(&mut batch);
        batch.finish();
        let message = Messages::of(batch.bytes()).next().unwrap();
        read(&message)
    }

    #[test]
    fn a_device_is_written_as_ip_writes_it() {
        let mut batch = Batch::default();
        vrf("epe-a", 7600).write(&mut batch);
        // `ip link add epe-a up type vrf table 7600`, as strace shows it, little-endian.
        let wanted: &[&[u8]] = &[
            &[0; 8],
            &[1, 0, 0, 0, 1, 0, 0, 0],
            &[10, 0, 3, 0],
            b"epe-a\0\0\0",
            &[24, 0, 18, 0x80],
            &[7, 0, 1, 0],
            b"vrf\0",
            &[12, 0, 2, 0x80, 8, 0, 1, 0, 0xb0, 0x1d, 0, 0],
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(batch.bytes(), wanted.concat());
        }
    }

    #[test]
    fn encoded_values_round_trip() {
        let epe = vrf("epe-a", 7600);
        let found = read_back(|batch| epe.write(batch)).unwrap();
        let expected = Device {
            name: epe.name,
            table: Some(7600),
            ours: false,
            up: true,
        };
        assert_eq!(found, expected);
        let marked = read_back(|batch| write_alias(batch, epe.name)).unwrap();
        assert_eq!((marked.ours, marked.table, marked.up), (true, None, false));
        // Another kind, whose data has a first attribute as well.
        let other = read_back(|batch| {
            write_name(batch, epe.name);
            let about = batch.nest(IFLA_LINKINFO);
            batch.attribute(INFO_KIND, b"vlan\0");
            let data = batch.nest(INFO_DATA);
            batch.attribute(VRF_TABLE, &[7, 0]);
            batch.end(data);
            batch.end(about);
        });
        assert_eq!(other.unwrap().table, None);
        assert_eq!(read_back(|batch| batch.raw(&header(0))), None, "no name");
    }

    #[test]
    fn conflicting_vrf_device_is_named() {
        let there = read_back(|batch| vrf("red", 7600).write(batch)).unwrap();
        let wanted = vrf("epe-a", 7600);
        let error = VrfError::InTheWay { there, wanted }.to_string();
        assert_eq!(
            error,
            "the VRF device `red` of table 7600 is in the way of the VRF `epe-a` of table 7600; remove it or \
             configure another"
        );
    }
}
