//! `keiro init`: a first configuration for this machine.

mod egress;

use std::{
    fs::{self, DirBuilder},
    io::{self, BufRead, IsTerminal},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::DirBuilderExt,
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
    default_route::{DefaultRoute, default_routes, is_global},
    installed_files::{give_to_the_daemon, make_directory, unwritable, write_secret, write_whole},
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
    match &args.role {
        Some(args::InitRole::Asbr(args)) => return egress::asbr(args),
        Some(args::InitRole::Egress(args)) => return egress::egress(args),
        None => {}
    }
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
        DefaultRoute::new(interface, via, via.is_some_and(|via| via.is_ipv6()))
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
