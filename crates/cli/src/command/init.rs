//! `keiro init`: a first configuration for this machine.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, BufRead, IsTerminal, Write},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use ipnet::IpNet;
use keiro_control::{
    Config, PrivateKey,
    config::{
        InterfaceLocal, Local, Name, NetworkTemplate, PeerEndpoint, Template, TenantTemplate,
        Uplink,
    },
    invitation::TOKEN_ENDPOINTS_MAX,
    key::{KeyFileError, load_private_key},
    network::{EditError, RegistryEdit},
};
use keiro_linux::interface::{self, InterfaceAddress};

use super::{
    keys,
    machine::{Machine, is_public},
    openings::{self, FirewallNeeds},
    record::Record,
};
use crate::{args, failure::Failure, output};

/// How long links that were just set up may take to get a carrier. Ours: Ethernet negotiates for up
/// to two seconds.
const CARRIER_WAIT_MAX: Duration = Duration::from_secs(2);
const CARRIER_POLL: Duration = Duration::from_millis(20);

pub(crate) fn init(args: &args::Init) -> Result<(), Failure> {
    let file = std::path::absolute(&args.output)
        .map_err(|e| Failure::new(format!("cannot use {}", args.output.display())).because(e))?;
    if file.exists() && !args.force {
        return Err(
            Failure::new(format!("{} is there already", file.display())).hint(format!(
                "another name with --output, or --force to replace it; `keiro config check {}` looks at it",
                file.display()
            )),
        );
    }
    let key_file = file.with_file_name("private.key");
    let template = Template {
        name: args.name.clone().unwrap_or_else(machine_name),
        private_key_file: key_file.clone(),
        uplinks: uplinks(args.port)?,
        auto: true,
        auto_port: args.port,
    };
    let hub = match args.hub {
        true => Some(hub(args, &file)?),
        false => None,
    };
    let text = match &hub {
        Some((network, _)) => template.render_short() + &network.render(),
        None => template.render(),
    };
    // What is written must be what the gateway reads; a failure here is ours.
    Config::parse(&text, &file.display().to_string())?;

    if let Some(directory) = file.parent() {
        make_directory(directory).map_err(|e| unwritable(directory, &e))?;
    }
    let (key, made) = key(&key_file)?;
    if let Some((_, registry)) = &hub {
        make_registry(registry, &args.network.tenant)?;
    }
    write_whole(&file, text.as_bytes(), args.force).map_err(|e| unwritable(&file, &e))?;

    let said = if made { "wrote" } else { "kept" };
    crate::output::message!("{said} {}", key_file.display());
    crate::output::message!("wrote {}", file.display());
    for uplink in &template.uplinks {
        crate::output::message!(
            "  {}: {} ({})",
            uplink.name,
            uplink.local,
            uplink.remark.as_deref().unwrap_or("")
        );
    }
    if let Some((network, _)) = &hub {
        say_what_a_hub_does(network, args.port)?;
        open_firewall(args, network, &file)?;
        say_what_is_next();
        return output::text(format_args!("{}\n", keys::public_key(&key)));
    }
    crate::output::message!("next: write the peers and applications, then");
    crate::output::message!("  keiro config check {}", file.display());
    crate::output::message!("the peer needs this gateway's public key:");
    output::text(format_args!("{}\n", keys::public_key(&key)))
}

/// The tables of a hub, and the file of its registry.
fn hub(args: &args::Init, file: &Path) -> Result<(NetworkTemplate, PathBuf), Failure> {
    let machine = Machine::look()?;
    let given = &args.network;
    let endpoints = match given.endpoints[..] {
        [] => public_endpoints(&machine, args.port)?,
        _ => given.endpoints.clone(),
    };
    if endpoints.len() > TOKEN_ENDPOINTS_MAX {
        let what = format!(
            "{} endpoints, more than {TOKEN_ENDPOINTS_MAX}",
            endpoints.len()
        );
        return Err(Failure::usage(what, "keep those that branches reach best"));
    }
    let mut prefixes = match given.prefixes[..] {
        [] => machine.prefixes(),
        _ => given.prefixes.clone(),
    };
    let mut addresses = machine.device_addresses(&prefixes);
    if prefixes.is_empty() {
        // So that branches can ping it.
        prefixes.push(LONE_HUB);
        addresses.push(LONE_HUB);
        crate::output::message!(
            "no network is behind this machine; branches reach it at {}",
            LONE_HUB.addr()
        );
    }
    let registry = file.with_file_name("network").join("registry.toml");
    let network = NetworkTemplate::Hub {
        registry: registry.clone(),
        endpoints,
        tenant: TenantTemplate {
            name: given.tenant.clone(),
            id: NETWORK_TENANT,
            addresses,
            prefixes,
            map: Vec::new(),
        },
    };
    Ok((network, registry))
}

/// The wire number of the network's tenant.
const NETWORK_TENANT: u32 = 1;

/// The address of a hub without a network of its own. Ours: at the end of what is rarely used.
const LONE_HUB: IpNet = IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(10, 255, 255, 254)), 32);

/// Where branches reach this machine if it has public addresses.
fn public_endpoints(machine: &Machine, port: u16) -> Result<Vec<PeerEndpoint>, Failure> {
    let public = machine
        .uplinks
        .iter()
        .map(|uplink| uplink.address)
        .filter(is_public);
    let endpoints: Vec<PeerEndpoint> = public
        .take(TOKEN_ENDPOINTS_MAX)
        .map(|address| PeerEndpoint::Address(SocketAddr::new(address, port)))
        .collect();
    match endpoints.is_empty() {
        false => Ok(endpoints),
        true => Err(Failure::new(
            "no uplink of this machine has a public address, so where branches reach it is not known",
        )
        .hint(format!(
            "add --endpoint HOST:{port} with its public address or name; a router in front of it has to forward \
             UDP port {port}"
        ))),
    }
}

/// A registry without sites, in a directory that the daemon may write to. One that is there stays.
fn make_registry(registry: &Path, tenant: &Name) -> Result<(), Failure> {
    let directory = registry.parent().unwrap_or(Path::new("/"));
    if !directory.exists() {
        let made = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory);
        made.map_err(|e| unwritable(directory, &e))?;
        give_to_the_daemon(directory);
    }
    match RegistryEdit::create(registry, tenant) {
        Ok(()) => crate::output::message!("wrote {}", registry.display()),
        Err(EditError::Exists(_)) => crate::output::message!("kept {}", registry.display()),
        Err(error) => return Err(Failure::new("cannot make the registry").because(error)),
    }
    Ok(())
}

fn say_what_a_hub_does(network: &NetworkTemplate, port: u16) -> Result<(), Failure> {
    if let NetworkTemplate::Hub {
        endpoints, tenant, ..
    } = network
    {
        let list = |texts: Vec<String>| texts.join(", ");
        let endpoints = list(endpoints.iter().map(ToString::to_string).collect());
        let prefixes = list(tenant.prefixes.iter().map(ToString::to_string).collect());
        crate::output::message!("branches reach this hub at {endpoints}: let UDP port {port} in");
        crate::output::message!("networks behind it: {prefixes}");
        let lans = Machine::look()?.lans;
        if !lans.is_empty() {
            crate::output::message!(
                "Linux has to forward packets to them, now and after a restart:"
            );
            crate::output::message!(
                "  echo net.ipv4.ip_forward=1 > /etc/sysctl.d/60-keiro-hub.conf && sysctl --system"
            );
        }
    }
    Ok(())
}

fn say_what_is_next() {
    crate::output::message!("next:");
    crate::output::message!("  systemctl enable --now keiro-gateway");
    crate::output::message!("  keiro invite NAME");
}

/// Opens the machine's firewall for branches, where it drops what they send. Without a terminal and `--yes` it names the
/// commands alone.
fn open_firewall(args: &args::Init, network: &NetworkTemplate, file: &Path) -> Result<(), Failure> {
    let NetworkTemplate::Hub { tenant, .. } = network else {
        return Ok(());
    };
    if args.network.no_firewall {
        return Ok(());
    }
    let machine = Machine::look()?;
    let device = format!("keiro{}", tenant.id);
    let wanted = FirewallNeeds {
        machine: &machine,
        prefixes: &tenant.prefixes,
        device: &device,
        port: args.port,
        is_hub: true,
    };
    let found = openings::find(&wanted);
    openings::show(&found);
    if found.all.is_empty() {
        return Ok(());
    }
    let is_terminal = io::stdin().is_terminal();
    let is_right = args.network.yes || is_terminal && is_confirmed("Open it?");
    if !is_right {
        let how = match is_terminal {
            true => "the firewall stays as it is",
            false => "nothing was opened, since --yes is missing: run these commands yourself",
        };
        crate::output::message!("{how}; branches are not heard until it is open");
        return Ok(());
    }
    let place = Record::file(file);
    let mut record = Record::read(&place)?.unwrap_or_default();
    record.openings.extend(openings::open(&found.all));
    record.write(&place)
}

/// Asks a person; no answer is a no.
fn is_confirmed(question: &str) -> bool {
    crate::output::message!("{question} [y/N]");
    let mut answer = String::new();
    // An unreadable answer is none.
    let _ = io::stdin().lock().read_line(&mut answer);
    matches!(answer.trim(), "y" | "Y" | "yes")
}

pub(super) fn unwritable(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::new(format!("cannot write {}", path.display())).because(error);
    match error.kind() {
        io::ErrorKind::PermissionDenied => failure.hint("as root, or another place with --output"),
        _ => failure.hint("another place with --output"),
    }
}

/// The key that is there, or a new one in a file that only its owner reads, and whether it is new.
pub(super) fn key(file: &Path) -> Result<(PrivateKey, bool), Failure> {
    match load_private_key(file) {
        Ok(key) => return Ok((key, false)),
        Err(KeyFileError::Missing(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let key = keys::random_key()?;
    write_secret(file, &key.to_base64()).map_err(|e| unwritable(file, &e))?;
    give_to_the_daemon(file);
    Ok((key, true))
}

/// Writes a key into a new file that only its owner reads. A failure leaves no file, except one that was there before.
pub(super) fn write_secret(file: &Path, key: &str) -> io::Result<()> {
    let mut out = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)?;
    let mut write = || {
        out.write_all(key.as_bytes())?;
        out.write_all(b"\n")?;
        out.sync_all()
    };
    write().inspect_err(|_| {
        // The failure of writing is what is reported.
        let _ = fs::remove_file(file);
    })
}

/// Makes a directory that all users may read, whatever the umask. Those that were made, the outermost first.
pub(super) fn make_directory(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let is_missing = |at: &&Path| !at.as_os_str().is_empty() && !at.exists();
    let mut missing: Vec<PathBuf> = directory
        .ancestors()
        .take_while(is_missing)
        .map(Path::to_owned)
        .collect();
    missing.reverse();
    for (made, at) in missing.iter().enumerate() {
        let make = || {
            fs::create_dir(at)?;
            fs::set_permissions(at, Permissions::from_mode(0o755))
        };
        make().inspect_err(|_| {
            for made in missing[..made].iter().rev() {
                let _ = fs::remove_dir(made);
            }
        })?;
    }
    Ok(missing)
}

/// The service's unit runs the daemon as a user of its own, who must be able to read the key.
///
/// Fails silently for anybody but root, who then run the daemon as themselves.
pub(super) fn give_to_the_daemon(key: &Path) {
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    if let Some((user, group)) = user_ids(&users, DAEMON_USER)
        && chown(key, Some(user), Some(group)).is_ok()
    {
        crate::output::message!(
            "{} belongs to user {DAEMON_USER}, as the daemon does",
            key.display()
        );
    }
}

/// As packaging/sysusers.d/keiro.conf makes it.
const DAEMON_USER: &str = "keiro";

/// User and group of a line of passwd(5).
fn user_ids(users: &str, name: &str) -> Option<(u32, u32)> {
    let mut lines = users
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let fields = lines.find(|fields| fields[0] == name)?;
    Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
}

/// Writes the file whole or not at all. All users may read it, whatever the umask.
pub(super) fn write_whole(file: &Path, text: &[u8], replace: bool) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let beside = file.with_file_name(name);
    let write = || {
        let mut out = File::create_new(&beside)?;
        out.set_permissions(Permissions::from_mode(0o644))?;
        out.write_all(text)?;
        out.sync_all()?;
        match replace {
            true => fs::rename(&beside, file),
            // Unlike a rename this fails if the file has been made meanwhile.
            false => fs::hard_link(&beside, file),
        }
    };
    let result = write();
    // After a rename it is gone already.
    let _ = fs::remove_file(&beside);
    result
}

/// This machine's name, as far as it can be a gateway's.
pub(super) fn machine_name() -> Name {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let short = host.trim().split('.').next().unwrap_or_default();
    Name::new(short)
        .or_else(|_| Name::new("gateway"))
        .expect("`gateway` is a name")
}

/// This machine's uplinks, in the order of their interfaces' names.
fn uplinks(port: u16) -> Result<Vec<Uplink>, Failure> {
    let addresses = running_addresses(interface::addresses, thread::sleep)
        .map_err(|e| Failure::new("cannot list this machine's addresses").because(e))?;
    let routes = default_routes();
    let found = choose(&addresses, &routes);
    if found.is_empty() {
        return Err(no_uplink(&addresses));
    }
    Ok(found
        .iter()
        .enumerate()
        .map(|(i, address)| uplink(i, address, &routes, port))
        .collect())
}

/// Reads the addresses again while a link with a usable one has no carrier: after `ip link set up`
/// the kernel needs some milliseconds to report it.
fn running_addresses(
    mut read: impl FnMut() -> io::Result<Vec<InterfaceAddress>>,
    mut sleep: impl FnMut(Duration),
) -> io::Result<Vec<InterfaceAddress>> {
    let mut waited = Duration::ZERO;
    loop {
        let addresses = read()?;
        let all_run = addresses
            .iter()
            .all(|address| address.running || !is_global(&address.address));
        if all_run || waited >= CARRIER_WAIT_MAX {
            return Ok(addresses);
        }
        sleep(CARRIER_POLL);
        waited += CARRIER_POLL;
    }
}

fn no_uplink(addresses: &[InterfaceAddress]) -> Failure {
    let without_carrier = addresses.iter().find(|a| is_global(&a.address));
    match without_carrier {
        Some(InterfaceAddress {
            interface, address, ..
        }) => Failure::new(format!(
            "{interface} has the address {address}, but no carrier"
        ))
        .hint(
            "connect the link or set it up (`ip link set DEVICE up`), then run `keiro init` again",
        ),
        None => Failure::new("no interface of this machine has an address that peers could reach")
            .hint(
                "set up the uplinks with their addresses first; `ip address` lists what there is",
            ),
    }
}

fn uplink(index: usize, address: &InterfaceAddress, routes: &[DefaultRoute], port: u16) -> Uplink {
    let interface = &address.interface;
    let mut remark = address.address.to_string();
    match routes.iter().find(|route| route.is_of(address)) {
        Some(DefaultRoute { via: Some(via), .. }) => {
            remark.push_str(&format!(", default route via {via}"));
        }
        Some(_) => remark.push_str(", default route"),
        None => remark.push_str(", no default route"),
    }
    Uplink {
        name: Name::new(interface)
            .or_else(|_| Name::new(&format!("path{}", index + 1)))
            .expect("`path` and a number are a name"),
        local: Local::Interface(InterfaceLocal {
            interface: interface.clone(),
            port,
            family: None,
        }),
        rate: None,
        remark: Some(remark),
    }
}

/// One address of every interface that has a default route, else of every interface that has an
/// address others can reach. IPv4 first: more of the ways in between carry it.
fn choose(addresses: &[InterfaceAddress], routes: &[DefaultRoute]) -> Vec<InterfaceAddress> {
    let usable = |a: &&InterfaceAddress| a.running && is_global(&a.address);
    let routed = |a: &&InterfaceAddress| routes.iter().any(|route| route.is_of(a));
    let mut chosen: Vec<InterfaceAddress> = addresses
        .iter()
        .filter(usable)
        .filter(routed)
        .cloned()
        .collect();
    if chosen.is_empty() {
        chosen = addresses.iter().filter(usable).cloned().collect();
    }
    chosen.sort_by(|a, b| {
        (&a.interface, a.address.is_ipv6()).cmp(&(&b.interface, b.address.is_ipv6()))
    });
    chosen.dedup_by(|later, first| later.interface == first.interface);
    chosen
}

/// Whether peers elsewhere may reach it: private addresses too, since they may be in one network.
pub(super) fn is_global(address: &IpAddr) -> bool {
    let local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// A route to everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DefaultRoute {
    interface: String,
    /// The next hop; `None`: the interface leads to one neighbour only.
    via: Option<IpAddr>,
    v6: bool,
}

/// Those of the main table.
pub(super) fn default_routes() -> Vec<DefaultRoute> {
    // Absent without IPv4 or IPv6.
    let read = |file| fs::read_to_string(file).unwrap_or_default();
    let mut routes = default_routes_v4(&read("/proc/net/route"));
    routes.extend(default_routes_v6(&read("/proc/net/ipv6_route")));
    routes
}

impl DefaultRoute {
    #[cfg(test)]
    pub(super) fn new(interface: &str, via: Option<IpAddr>, v6: bool) -> Self {
        Self {
            interface: interface.to_owned(),
            via,
            v6,
        }
    }

    /// Whether it leaves by an interface, in IPv6 or in IPv4.
    pub(super) fn leads(&self, interface: &str, v6: bool) -> bool {
        self.interface == interface && self.v6 == v6
    }

    fn is_of(&self, address: &InterfaceAddress) -> bool {
        self.leads(&address.interface, address.address.is_ipv6())
    }
}

/// RTF_UP and RTF_GATEWAY of `linux/route.h`.
const RTF_UP: u32 = 1;
const RTF_GATEWAY: u32 = 2;

/// Default routes of `/proc/net/route`: addresses are hexadecimal in the machine's byte order.
fn default_routes_v4(text: &str) -> Vec<DefaultRoute> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [interface, destination, gateway, flags, _, _, _, mask, ..] = fields[..] else {
            return None;
        };
        let number = |text| u32::from_str_radix(text, 16).ok();
        let flags = number(flags)?;
        let default = number(destination)? == 0 && number(mask)? == 0 && flags & RTF_UP != 0;
        let gateway = IpAddr::from(number(gateway)?.to_ne_bytes());
        default.then(|| DefaultRoute {
            interface: interface.to_owned(),
            via: (flags & RTF_GATEWAY != 0).then_some(gateway),
            v6: false,
        })
    };
    text.lines().skip(1).filter_map(route).collect()
}

/// Default routes of `/proc/net/ipv6_route`, which has no header. The kernel keeps one on `lo`
/// that refuses everything.
fn default_routes_v6(text: &str) -> Vec<DefaultRoute> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [
            destination,
            length,
            _,
            _,
            gateway,
            _,
            _,
            _,
            flags,
            interface,
        ] = fields[..]
        else {
            return None;
        };
        let flags = u32::from_str_radix(flags, 16).ok()?;
        let default = length == "00" && destination.bytes().all(|b| b == b'0');
        let gateway = IpAddr::from(u128::from_str_radix(gateway, 16).ok()?.to_be_bytes());
        (default && flags & RTF_UP != 0 && interface != "lo").then(|| DefaultRoute {
            interface: interface.to_owned(),
            via: (flags & RTF_GATEWAY != 0).then_some(gateway),
            v6: true,
        })
    };
    text.lines().filter_map(route).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(interface: &str, address: &str) -> InterfaceAddress {
        InterfaceAddress {
            interface: interface.to_owned(),
            address: address.parse().expect("an address"),
            running: true,
        }
    }

    fn route(interface: &str, via: Option<&str>) -> DefaultRoute {
        let via = via.map(|via| via.parse::<IpAddr>().expect("an address"));
        DefaultRoute {
            interface: interface.to_owned(),
            via,
            v6: via.is_some_and(|via| via.is_ipv6()),
        }
    }

    // The bytes of 192.0.2.254 as a little-endian machine prints them.
    #[cfg(target_endian = "little")]
    #[test]
    fn default_routes_are_found_in_the_kernels_table() {
        let text = "\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\tFE0200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
ppp0\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0
eth9\t00000000\tFE0200C0\t0002\t0\t0\t0\t00000000\t0\t0\t0
broken\tline
";
        let expected = [route("eth0", Some("192.0.2.254")), route("ppp0", None)];
        assert_eq!(default_routes_v4(text), expected);
    }

    #[test]
    fn ipv6_default_routes_are_found_and_the_refusing_one_is_not() {
        let zero = "0".repeat(32);
        let gateway = "fe800000000000000000000000000001";
        let text = format!(
            "{zero} 00 {zero} 00 {gateway} 00000400 00000001 00000000 00000003 eth0\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200201 lo\n\
             fe80{} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 eth0\n",
            "0".repeat(28)
        );
        assert_eq!(default_routes_v6(&text), [route("eth0", Some("fe80::1"))]);
    }

    #[test]
    fn what_is_written_has_the_mode_that_the_daemon_needs() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let inner = directory.path().join("a/b");
        let made = make_directory(&inner).unwrap();
        assert_eq!(made, [directory.path().join("a"), inner.clone()]);
        assert_eq!(mode(&inner), 0o755);
        assert!(make_directory(&inner).unwrap().is_empty());
        let file = inner.join("gateway.toml");
        write_whole(&file, b"text", false).unwrap();
        assert_eq!(mode(&file), 0o644);
        let secret = inner.join("hub.psk");
        write_secret(&secret, "key").unwrap();
        assert_eq!(mode(&secret), 0o600);
        // What was there before stays.
        assert!(write_secret(&secret, "other").is_err());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "key\n");
    }

    #[test]
    fn a_secret_that_cannot_be_written_leaves_no_file() {
        assert!(write_secret(Path::new("/proc/self/keiro.psk"), "key").is_err());
        let directory = tempfile::tempdir().unwrap();
        let blocked = directory.path().join("file");
        fs::write(&blocked, "").unwrap();
        assert!(make_directory(&blocked.join("a")).is_err());
        assert!(write_secret(&blocked.join("a"), "key").is_err());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_daemons_user_is_found_by_its_whole_name() {
        let users = "root:x:0:0::/:/bin/sh\nkeiro2:x:5:6::/:/bin/false\nkeiro:x:998:997::/:\n";
        assert_eq!(user_ids(users, "keiro"), Some((998, 997)));
        assert_eq!(user_ids(users, "keir"), None);
        assert_eq!(user_ids("keiro:x:broken", "keiro"), None);
        assert_eq!(user_ids("", "keiro"), None);
    }

    #[test]
    fn uplinks_are_the_interfaces_with_a_default_route() {
        let addresses = [
            address("lo", "127.0.0.1"),
            address("wan1", "2001:db8::1"),
            address("wan1", "198.51.100.1"),
            address("lan", "10.0.0.1"),
            address("wan0", "192.0.2.1"),
            address("wan0", "fe80::1"),
        ];
        let routes = [
            route("wan0", Some("192.0.2.254")),
            route("wan1", Some("198.51.100.254")),
        ];
        let chosen = choose(&addresses, &routes);
        assert_eq!(
            chosen,
            [
                address("wan0", "192.0.2.1"),
                address("wan1", "198.51.100.1")
            ]
        );
    }

    #[test]
    fn without_default_routes_every_reachable_address_is_an_uplink() {
        let addresses = [
            address("lo", "127.0.0.1"),
            address("lan", "10.0.0.1"),
            address("bad", "169.254.1.1"),
            InterfaceAddress {
                running: false,
                ..address("off", "10.1.0.1")
            },
        ];
        assert_eq!(choose(&addresses, &[]), [address("lan", "10.0.0.1")]);
    }

    #[test]
    fn links_that_were_just_set_up_are_waited_for() {
        let down = InterfaceAddress {
            running: false,
            ..address("wan0", "192.0.2.1")
        };
        let up = address("wan0", "192.0.2.1");
        let mut answers = vec![vec![up.clone()], vec![down.clone()], vec![down.clone()]];
        let read = || Ok(answers.pop().expect("no further question"));
        assert_eq!(running_addresses(read, |_| {}).unwrap(), [up]);

        let mut waited = Duration::ZERO;
        let found = running_addresses(|| Ok(vec![down.clone()]), |pause| waited += pause).unwrap();
        assert_eq!((&found[..], waited), (&[down][..], CARRIER_WAIT_MAX));
        let failure = no_uplink(&found).message("keiro").to_string();
        assert!(
            failure.contains("wan0") && failure.contains("no carrier"),
            "{failure}"
        );

        // A link-local address is no uplink, so nothing waits for its link.
        let unused = InterfaceAddress {
            running: false,
            ..address("lan", "fe80::1")
        };
        let never = |_| panic!("it waits");
        assert_eq!(
            running_addresses(|| Ok(vec![unused.clone()]), never)
                .unwrap()
                .len(),
            1
        );
    }

    #[test]
    fn an_uplink_says_by_which_route_it_leaves() {
        let routes = [route("wan0", Some("192.0.2.254"))];
        let at = address("wan0", "192.0.2.1");
        let routed = uplink(0, &at, &routes, 7600);
        assert_eq!(routed.local.to_string(), "wan0:7600");
        let remark = routed.remark.expect("a remark");
        assert_eq!(remark, "192.0.2.1, default route via 192.0.2.254");
        let other = uplink(0, &at, &[], 7600);
        assert_eq!(
            other.remark.expect("a remark"),
            "192.0.2.1, no default route"
        );
    }
}
