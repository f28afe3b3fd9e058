//! `keiro join`: a new site, from the token of an invitation to the running gateway.

mod enrol;
mod install;

pub(super) use self::install::{SYSTEMD, UNIT};

use std::{
    fs::File,
    io::{self, BufRead, IsTerminal, Read},
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use ipnet::IpNet;
use keiro_control::{
    config::{DEFAULT_PATH_PORT, Mapping, Name},
    enrolment,
    invitation::{TOKEN_TEXT_MAX, Token},
    network_channel::{Enrol, SITE_PREFIXES_MAX},
};
use keiro_doctor::openings::Openings;
use zeroize::Zeroizing;

use self::{
    enrol::Joining,
    install::{Files, Installed},
};
use super::{
    keys,
    machine::Machine,
    openings::{self, FirewallNeeds},
    program::{Output, output},
};
use crate::{args, failure::Failure, output::message};

/// The tenant's device unless the hub's tenant has another number.
const USUAL_DEVICE: &str = "keiro1";
/// What is read of a program's version. Ours.
const VERSION_BYTES_MAX: u64 = 4096;
/// How long the hub may take to answer.
const DEADLINE: Duration = Duration::from_secs(15);

pub(super) fn join(args: &args::Join) -> Result<(), Failure> {
    let files = Files::new(args)?;
    let token = token(args)?;
    let name = args.name.clone().unwrap_or_else(|| token.site.clone());
    let machine = Machine::look()?;
    if machine.uplinks.is_empty() {
        return Err(Failure::new(
            "no interface of this machine has an address and a default route",
        )
        .hint("connect an uplink first; `ip route` lists the routes"));
    }
    let networks = Networks::choose(args, &machine)?;
    let wanted = |device| FirewallNeeds {
        machine: &machine,
        prefixes: &networks.local,
        device,
        port: DEFAULT_PATH_PORT,
        is_hub: false,
    };
    let openings = match args.no_firewall {
        true => Openings::default(),
        false => openings::find(&wanted(USUAL_DEVICE)),
    };
    confirm(args, &token, &name, &networks, &machine, &openings)?;
    if token.is_expired(SystemTime::now()) {
        message!(
            "keiro: warning: by this machine's clock the invitation expired at {}; the hub's clock decides",
            enrolment::time(token.expires())
        );
    }
    let mut installed = Installed::default();
    let key = installed.key(&files)?;
    let request = Enrol {
        public_key: keys::public_key(&key),
        name,
        prefixes: networks.claimed(),
    };
    let joining = Joining::start(&token, &machine, request, DEADLINE)?;
    let enrolled = joining.run().map_err(|error| {
        if error.may_be_enrolled {
            // The same key gets the same answer, and another one none.
            installed.keep_key();
        }
        error.failure
    })?;
    // From here on the hub has this key, and a further try needs it.
    installed.keep_key();
    let configured = installed.configure(&files, &token, &enrolled, &machine, &networks)?;
    if !openings.all.is_empty() {
        installed.open_firewall(&FirewallNeeds {
            device: &configured.device,
            ..wanted(USUAL_DEVICE)
        });
    }
    installed.record(&files, &enrolled, configured)?;
    installed.keep();
    message!(
        "joined the network of {} as {} with {}",
        enrolled.hub,
        enrolled.name,
        list(&enrolled.prefixes)
    );
    if enrolled.is_second_hub {
        message!(
            "this gateway is the network's second hub; {} stays the one that invites",
            enrolled.hub
        );
        if !args.no_firewall {
            openings::say_what_a_hub_needs(&FirewallNeeds {
                is_hub: true,
                ..wanted(USUAL_DEVICE)
            });
        }
    }
    files.start(&enrolled)
}

/// The token of the command line, a file or standard input.
fn token(args: &args::Join) -> Result<Token, Failure> {
    let failed = |what: String, error: io::Error| Failure::new(what).because(error);
    let text = match (&args.token, &args.file) {
        (Some(dash), _) if dash == "-" => read(&mut io::stdin().lock())
            .map_err(|error| failed("cannot read a token from standard input".to_owned(), error))?,
        (Some(token), _) => Zeroizing::new(token.clone()),
        (None, Some(file)) => File::open(file)
            .and_then(|mut file| read(&mut file))
            .map_err(|error| failed(format!("cannot read {}", file.display()), error))?,
        (None, None) => {
            return Err(Failure::usage(
                "no token",
                "`keiro invite NAME` at the hub prints one",
            ));
        }
    };
    text.parse().map_err(|error| {
        Failure::new("the token cannot be used")
            .because(error)
            .hint("`keiro invite NAME` at the hub prints one, in one line")
    })
}

/// As much as a token has at most, and a little more, so that a longer text is refused.
fn read(from: &mut impl Read) -> io::Result<Zeroizing<String>> {
    let mut text = Zeroizing::new(String::new());
    from.take(TOKEN_TEXT_MAX as u64 + 1)
        .read_to_string(&mut text)?;
    Ok(text)
}

/// Networks behind this machine that become part of the network.
#[derive(Debug)]
pub(super) struct Networks {
    /// As their hosts have them.
    local: Vec<IpNet>,
    /// Of some of them, what other sites have instead.
    map: Vec<Mapping>,
}

impl Networks {
    fn choose(args: &args::Join, machine: &Machine) -> Result<Self, Failure> {
        let local = match args.prefixes[..] {
            [] => machine.prefixes(),
            _ => args.prefixes.iter().map(IpNet::trunc).collect(),
        };
        match local.len() {
            0 => {
                return Err(Failure::new(
                    "no network is behind this machine: all its interfaces with addresses are uplinks",
                )
                .hint("name one with --prefix, for example --prefix 10.1.0.0/24"));
            }
            1..=SITE_PREFIXES_MAX => {}
            count => {
                return Err(Failure::new(format!(
                    "{count} networks are behind this machine, more than {SITE_PREFIXES_MAX}"
                ))
                .hint("name those that other sites are to reach with --prefix"));
            }
        }
        let is_behind = |of: &&Mapping| !local.contains(&of.local);
        if let Some(of) = args.map.iter().find(is_behind) {
            let what = format!(
                "--map {of}: {} is not a network behind this machine",
                of.local
            );
            let try_this = format!("the networks are {}", list(&local));
            return Err(Failure::usage(what, try_this));
        }
        if !args.map.is_empty()
            && let Output::NoTool = output(Command::new("nft").arg("--version"), VERSION_BYTES_MAX)
        {
            return Err(
                Failure::new("a mapping needs the program nft, which is not here")
                    .hint("install the package nftables"),
            );
        }
        Ok(Self {
            local,
            map: args.map.clone(),
        })
    }

    /// As other sites have it.
    fn mapped(&self, local: IpNet) -> IpNet {
        let mut map = self.map.iter();
        map.find_map(|of| of.mapped(local)).unwrap_or(local)
    }

    fn claimed(&self) -> Vec<IpNet> {
        self.local
            .iter()
            .map(|prefix| self.mapped(*prefix))
            .collect()
    }

    fn has_ipv6(&self) -> bool {
        self.local.iter().any(|prefix| prefix.addr().is_ipv6())
    }

    /// Addresses of the device, by which this machine is known to other sites.
    fn device_addresses(&self, machine: &Machine) -> Vec<IpNet> {
        let own = machine.device_addresses(&self.local).into_iter();
        own.map(|address| self.mapped(address)).collect()
    }
}

/// Asks a person whether name and networks are right.
fn confirm(
    args: &args::Join,
    token: &Token,
    name: &Name,
    networks: &Networks,
    machine: &Machine,
    openings: &Openings,
) -> Result<(), Failure> {
    let endpoints: Vec<String> = token
        .hub_endpoints
        .iter()
        .map(ToString::to_string)
        .collect();
    message!("hub: {}", endpoints.join(", "));
    message!("this site: {name}");
    for prefix in &networks.local {
        let lan = machine.lans.iter().find(|lan| lan.prefix == *prefix);
        let on = lan.map_or(String::new(), |lan| format!(" (on {})", lan.interface));
        let mapped = match networks.mapped(*prefix) {
            mapped if mapped == *prefix => String::new(),
            mapped => format!(", which other sites reach as {mapped}"),
        };
        message!("  network behind it: {prefix}{on}{mapped}");
    }
    for uplink in &machine.uplinks {
        message!("  uplink: {} with {}", uplink.interface, uplink.address);
    }
    if networks.has_ipv6() {
        message!("  this machine will forward IPv6 on all its interfaces");
    }
    openings::show(openings);
    if args.yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is no terminal, so name and networks cannot be confirmed",
            "add --yes if they are right, or --name and --prefix",
        ));
    }
    message!("Other sites will reach these networks. Is that right? [y/N]");
    let mut answer = String::new();
    // An unreadable answer is none.
    let _ = io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new("nothing was done").hint("name others with --name and --prefix")),
    }
}

fn list(prefixes: &[IpNet]) -> String {
    let texts: Vec<String> = prefixes.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

/// A file beside another one.
fn beside(file: &Path, name: &str) -> std::path::PathBuf {
    file.with_file_name(name)
}
