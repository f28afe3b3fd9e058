//! What `keiro join` writes and starts, and what it takes back if a later step fails.

use std::{
    fs, io, mem,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ipnet::IpNet;
use keiro_control::{
    Config, PresharedKey, PrivateKey,
    config::{
        DEFAULT_CONFIG_FILE, DEFAULT_CONTROL_SOCKET, DEFAULT_PATH_PORT, NetworkTemplate, Template,
        TenantTemplate,
    },
    invitation::Token,
    network_channel::Enrolled,
    protocol::{PathState, PeerState, Request, Response},
};
use keiro_doctor::openings::Opening;

use super::{
    super::{
        init::key,
        installed_files::{
            give_to_the_daemon, make_directory, unwritable, write_secret, write_whole,
        },
        machine::Machine,
        openings::{self, FirewallNeeds},
        query,
        record::{ChangedSetting, Joined, Record},
    },
    Networks, beside,
};
use crate::{args, failure::Failure, output::message};

/// How long the gateway may take to reach the hub after its start.
const UP_TIME: Duration = Duration::from_secs(15);
const UP_POLL: Duration = Duration::from_millis(100);
/// There while systemd is the service manager (sd_booted(3)).
pub(in crate::command) const SYSTEMD: &str = "/run/systemd/system";
pub(in crate::command) const UNIT: &str = "keiro-gateway";

/// Where things are written.
pub(super) struct Files {
    configuration: PathBuf,
    private_key: PathBuf,
    forwarding: PathBuf,
}

/// What has been written so far. What is not kept goes when this is dropped.
#[derive(Default)]
pub(super) struct Installed {
    key: Option<PathBuf>,
    files: Vec<PathBuf>,
    /// Files that were there before, with their contents.
    replaced: Vec<(PathBuf, Vec<u8>)>,
    directories: Vec<PathBuf>,
    /// Settings of the kernel.
    settings: Vec<ChangedSetting>,
    openings: Vec<Opening>,
}

/// What was configured.
pub(super) struct Configured {
    /// The tenant's.
    pub(super) device: String,
    /// Of the configuration.
    text: String,
    preshared_key_file: PathBuf,
}

impl Files {
    /// Refuses to begin where there is a configuration.
    pub(super) fn new(args: &args::Join) -> Result<Self, Failure> {
        let failed = |e| Failure::new(format!("cannot use {}", args.output.display())).because(e);
        let configuration = std::path::absolute(&args.output).map_err(failed)?;
        if configuration.exists() {
            let shown = configuration.display();
            return Err(Failure::new(format!(
                "{shown} is there already, so this machine is a gateway or was one"
            ))
            .hint(format!(
                "move it away if it is not needed (`mv {shown} {shown}.old`), then join again"
            )));
        }
        Ok(Self {
            private_key: beside(&configuration, "private.key"),
            forwarding: args.sysctl_directory.join("60-keiro-join.conf"),
            configuration,
        })
    }

    /// Starts the gateway and waits for the hub, or says how to start it.
    pub(super) fn start(&self, enrolled: &Enrolled) -> Result<(), Failure> {
        let is_default = self.configuration == Path::new(DEFAULT_CONFIG_FILE);
        if !is_default || !Path::new(SYSTEMD).is_dir() {
            let command = match is_default {
                true => "keiro gateway".to_owned(),
                false => format!("keiro gateway --config {}", self.configuration.display()),
            };
            message!("next, start the gateway, and enable forwarding as soon as it runs:");
            message!("  {command}");
            message!("  sysctl -p {}", self.forwarding.display());
            return Ok(());
        }
        let status = Command::new("systemctl")
            .args(["enable", "--now", UNIT])
            .status();
        if !status.as_ref().is_ok_and(std::process::ExitStatus::success) {
            let why = match status {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            return Err(
                Failure::new("this machine has joined, but the gateway does not start")
                    .because(format!("systemctl enable --now {UNIT}: {why}"))
                    .hint(format!("`journalctl -u {UNIT}` says why")),
            );
        }
        let round_trip = await_hub(enrolled)?;
        message!("the hub answers after {round_trip:.1} ms");
        if let Some(address) = enrolled.hub_address {
            message!("`ping {address}` pings it through the tunnel");
        }
        Ok(())
    }
}

/// The round trip to the hub, in milliseconds, as soon as the gateway has reached it.
fn await_hub(enrolled: &Enrolled) -> Result<f64, Failure> {
    let until = Instant::now() + UP_TIME;
    let hub = enrolled.hub.as_str();
    while Instant::now() < until {
        if let Some(round_trip) = round_trip(hub) {
            return Ok(round_trip * 1e3);
        }
        thread::sleep(UP_POLL);
    }
    Err(Failure::new(format!(
        "this machine has joined and the gateway runs, but {hub} has not answered it within {} s",
        UP_TIME.as_secs()
    ))
    .hint(format!(
        "`keiro status` shows the paths, `journalctl -u {UNIT}` what happened"
    ))
    .hint("the hub's log says whether it has taken the site over (`site_joined`)"))
}

fn round_trip(hub: &str) -> Option<f64> {
    let mut client = query::connect(Path::new(DEFAULT_CONTROL_SOCKET)).ok()?;
    let name = Some(hub.to_owned());
    let Ok(Response::Peers { peers }) = client.request(&Request::ShowPeer { name }) else {
        return None;
    };
    let is_up = peers.iter().any(|peer| peer.state == PeerState::Up);
    let Ok(Response::Paths { paths }) = client.request(&Request::ShowPath { name: None }) else {
        return None;
    };
    let mut up = paths
        .iter()
        .filter(|path| path.state == PathState::Up && path.peer == hub);
    up.find_map(|path| path.stats.srtt)
        .map(|round_trip| round_trip.as_secs_f64())
        .filter(|_| is_up)
}

impl Installed {
    /// The key that is there, or a new one.
    pub(super) fn key(&mut self, files: &Files) -> Result<PrivateKey, Failure> {
        let file = &files.private_key;
        if let Some(directory) = file.parent() {
            self.directory(directory)?;
        }
        let (key, is_new) = key(file)?;
        if is_new {
            self.key = Some(file.clone());
        }
        Ok(key)
    }

    /// The hub has the key, or may have it.
    pub(super) fn keep_key(&mut self) {
        self.key = None;
        self.directories.clear();
    }

    /// All went well.
    pub(super) fn keep(&mut self) {
        self.keep_key();
        self.files.clear();
        self.replaced.clear();
        self.settings.clear();
        self.openings.clear();
    }

    /// Writes the configuration and all that it needs. The tenant's device.
    pub(super) fn configure(
        &mut self,
        files: &Files,
        token: &Token,
        enrolled: &Enrolled,
        machine: &Machine,
        networks: &Networks,
    ) -> Result<Configured, Failure> {
        let hub = &enrolled.hub;
        let preshared = beside(&files.configuration, &format!("{hub}.psk"));
        let network = NetworkTemplate::Member {
            hub: hub.clone(),
            is_second_hub: enrolled.is_second_hub,
            public_key: token.hub_key,
            preshared_key_file: preshared.clone(),
            endpoints: token.hub_endpoints.clone(),
            tenant: TenantTemplate {
                name: enrolled.tenant.clone(),
                id: enrolled.tenant_id,
                addresses: networks.device_addresses(machine),
                prefixes: enrolled.prefixes.clone(),
                map: networks.map.clone(),
            },
        };
        let template = Template {
            name: enrolled.name.clone(),
            private_key_file: files.private_key.clone(),
            uplinks: Vec::new(),
            auto: true,
            auto_port: DEFAULT_PATH_PORT,
        };
        let text = template.render_short() + &network.render();
        // What is written must be what the gateway reads.
        let config = Config::parse(&text, &files.configuration.display().to_string())?;
        let device = config
            .tenant_named(enrolled.tenant.as_str())
            .map(|tenant| tenant.device.clone());
        self.secret(&preshared, &enrolled.preshared_key)?;
        self.forwarding(
            &files.forwarding,
            machine,
            &networks.local,
            device.as_deref(),
        )?;
        write_whole(&files.configuration, text.as_bytes(), false)
            .map_err(|e| unwritable(&files.configuration, &e))?;
        self.files.push(files.configuration.clone());
        let replaced = self.replaced.iter().map(|(file, _)| file);
        for file in self.files.iter().chain(replaced) {
            message!("wrote {}", file.display());
        }
        Ok(Configured {
            device: device.unwrap_or_default(),
            text,
            preshared_key_file: preshared,
        })
    }

    /// Opens the firewall for what it drops of this.
    pub(super) fn open_firewall(&mut self, wanted: &FirewallNeeds<'_>) {
        let found = openings::find(wanted);
        self.openings = openings::open(&found.all);
        let still = openings::find(wanted);
        for place in still.dropping {
            message!(
                "keiro: warning: {place} still drops packets between networks and tunnel; `keiro doctor` says more"
            );
        }
    }

    /// Writes what `keiro leave` takes back.
    pub(super) fn record(
        &mut self,
        files: &Files,
        enrolled: &Enrolled,
        configured: Configured,
    ) -> Result<(), Failure> {
        let file = Record::file(&files.configuration);
        let record = Record {
            joined: Some(Joined {
                hub: enrolled.hub.to_string(),
                site: enrolled.name.to_string(),
                files: vec![
                    files.private_key.clone(),
                    configured.preshared_key_file,
                    files.forwarding.clone(),
                ],
                configuration: configured.text,
                settings: self.settings.clone(),
            }),
            openings: self.openings.clone(),
        };
        record.write(&file)?;
        self.files.push(file);
        Ok(())
    }

    fn secret(&mut self, file: &Path, key: &PresharedKey) -> Result<(), Failure> {
        match write_secret(file, &key.to_base64()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Failure::new(format!("{} is there already", file.display()))
                    .hint("it is of an earlier configuration: move it away, then join again"));
            }
            written => written.map_err(|e| unwritable(file, &e))?,
        }
        self.files.push(file.to_owned());
        give_to_the_daemon(file);
        Ok(())
    }

    /// Lets packets pass between the networks behind this machine and the tunnel: now, and after each start of the
    /// machine.
    fn forwarding(
        &mut self,
        file: &Path,
        machine: &Machine,
        prefixes: &[IpNet],
        device: Option<&str>,
    ) -> Result<(), Failure> {
        let settings = settings(machine, prefixes, device);
        let lines: String = settings
            .iter()
            .map(|(name, value)| format!("{name} = {value}\n"))
            .collect();
        let text = format!("{HEAD}{lines}");
        if let Some(directory) = file.parent() {
            self.directory(directory)?;
        }
        let before = match fs::read(file) {
            Ok(before) => Some(before),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(unwritable(file, &error)),
        };
        write_whole(file, text.as_bytes(), true).map_err(|e| unwritable(file, &e))?;
        match before {
            Some(before) => self.replaced.push((file.to_owned(), before)),
            None => self.files.push(file.to_owned()),
        }
        if settings.iter().any(|(name, _)| name == FORWARDING_V6) {
            message!(
                "IPv6 forwarding is enabled for the whole machine, between all its interfaces ({FORWARDING_V6})"
            );
        }
        for (name, value) in settings {
            let file = Path::new("/proc/sys").join(swapped(&name));
            // The device comes with the gateway's start, and udev sets it up then.
            let Ok(before) = fs::read_to_string(&file) else {
                continue;
            };
            if before.trim() == value {
                continue;
            }
            match fs::write(&file, value) {
                Ok(()) => self.settings.push(ChangedSetting {
                    file,
                    before,
                    after: value.to_owned(),
                }),
                Err(error) => message!(
                    "keiro: warning: cannot set {name} = {value}: {error}; packets are not forwarded until it is set"
                ),
            }
        }
        Ok(())
    }

    fn directory(&mut self, directory: &Path) -> Result<(), Failure> {
        let made = make_directory(directory).map_err(|e| unwritable(directory, &e))?;
        self.directories.extend(made);
        Ok(())
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        openings::close(&mem::take(&mut self.openings));
        for setting in self.settings.drain(..).rev() {
            // What it was before is what it has if this fails.
            let _ = fs::write(setting.file, setting.before);
        }
        for file in self.files.drain(..).chain(self.key.take()) {
            let _ = fs::remove_file(file);
        }
        for (file, before) in self.replaced.drain(..) {
            // After the removal of the others, which makes room on a full disk.
            let _ = write_whole(&file, &before, true);
        }
        for directory in self.directories.drain(..).rev() {
            let _ = fs::remove_dir(directory);
        }
    }
}

const HEAD: &str = "\
# Written by `keiro join`: lets packets pass between the networks behind this machine and the tunnel.
";

/// Names as sysctl(8) has them, and their values.
fn settings(
    machine: &Machine,
    prefixes: &[IpNet],
    device: Option<&str>,
) -> Vec<(String, &'static str)> {
    let is_claimed = |prefix: &IpNet| {
        let mut claimed = prefixes.iter();
        claimed.any(|of| of.contains(prefix) || prefix.contains(of))
    };
    let lans = machine.lans.iter().filter(|lan| is_claimed(&lan.prefix));
    let mut interfaces: Vec<&str> = lans.map(|lan| lan.interface.as_str()).collect();
    interfaces.extend(device);
    interfaces.dedup();
    // A dot in a name is written as a slash (sysctl.d(5)).
    let written = |name: &str| name.replace('.', "/");
    let is_v6 = |prefix: &IpNet| prefix.addr().is_ipv6();
    let has_v6 = prefixes.iter().any(is_v6);
    let mut settings = Vec::new();
    if has_v6 {
        // First: without it a machine that forwards loses the addresses and routes that it has from routers.
        let uplinks = machine.uplinks.iter().map(|uplink| &uplink.interface);
        let mut uplinks: Vec<&String> = uplinks.collect();
        uplinks.dedup();
        let accept = |name: &&String| (format!("net.ipv6.conf.{}.accept_ra", written(name)), "2");
        settings.extend(uplinks.iter().map(accept));
    }
    let forward = |name: &&str| (format!("net.ipv4.conf.{}.forwarding", written(name)), "1");
    settings.extend(interfaces.iter().map(forward));
    if has_v6 {
        settings.push((FORWARDING_V6.to_owned(), "1"));
    }
    settings
}

/// Linux forwards IPv6 on all interfaces or on none.
const FORWARDING_V6: &str = "net.ipv6.conf.all.forwarding";

/// The file of a setting: dots are slashes there, and slashes dots.
fn swapped(name: &str) -> String {
    let other = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    name.chars().map(other).collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::super::machine::{Lan, Uplink},
        *,
    };

    fn machine() -> Machine {
        Machine {
            uplinks: vec![Uplink {
                interface: "wan0.7".to_owned(),
                address: "192.0.2.2".parse().unwrap(),
                mtu: 1500,
            }],
            lans: [
                ("lan0", "10.1.0.1", "10.1.0.0/24"),
                ("lan1", "10.9.0.1", "10.9.0.0/24"),
            ]
            .map(|(interface, address, prefix)| Lan {
                interface: interface.to_owned(),
                address: address.parse().unwrap(),
                prefix: prefix.parse().unwrap(),
            })
            .to_vec(),
        }
    }

    fn networks(prefixes: &[&str]) -> Vec<IpNet> {
        prefixes.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn only_networks_that_are_claimed_are_forwarded() {
        let names = |prefixes: &[&str]| -> Vec<String> {
            let settings = settings(&machine(), &networks(prefixes), Some("keiro1"));
            settings
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect()
        };
        assert_eq!(
            names(&["10.1.0.0/16"]),
            [
                "net.ipv4.conf.lan0.forwarding=1",
                "net.ipv4.conf.keiro1.forwarding=1"
            ]
        );
        assert_eq!(
            names(&["10.9.0.0/25", "fd00::/64"]),
            [
                "net.ipv6.conf.wan0/7.accept_ra=2",
                "net.ipv4.conf.lan1.forwarding=1",
                "net.ipv4.conf.keiro1.forwarding=1",
                "net.ipv6.conf.all.forwarding=1",
            ]
        );
    }

    #[test]
    fn a_file_of_settings_that_was_there_is_restored() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("60-keiro-join.conf");
        fs::write(&file, "before").unwrap();
        let read = || fs::read_to_string(&file).unwrap();
        // No network that is claimed and no device: nothing is set on this machine.
        let write = |installed: &mut Installed| {
            installed
                .forwarding(&file, &machine(), &networks(&["10.77.0.0/24"]), None)
                .unwrap();
        };
        let mut installed = Installed::default();
        write(&mut installed);
        assert_eq!(read(), HEAD);
        drop(installed);
        assert_eq!(read(), "before");
        let mut installed = Installed::default();
        write(&mut installed);
        installed.keep();
        drop(installed);
        assert_eq!(read(), HEAD);
    }

    #[test]
    fn what_is_not_kept_is_taken_back() {
        let directory = tempfile::tempdir().unwrap();
        let files = Files {
            configuration: directory.path().join("keiro/gateway.toml"),
            private_key: directory.path().join("keiro/private.key"),
            forwarding: directory.path().join("sysctl/60-keiro-join.conf"),
        };
        let is_empty = || fs::read_dir(directory.path()).unwrap().next().is_none();
        let key = |installed: &mut Installed| *installed.key(&files).unwrap().as_bytes();
        let mut installed = Installed::default();
        let first = key(&mut installed);
        installed
            .secret(
                &directory.path().join("keiro/hub.psk"),
                &PresharedKey::from_bytes([1; 32]),
            )
            .unwrap();
        drop(installed);
        assert!(is_empty());
        // A key that the hub may have stays, and is used again.
        let mut installed = Installed::default();
        let second = key(&mut installed);
        assert_ne!(first, second);
        installed.keep_key();
        drop(installed);
        let mut installed = Installed::default();
        assert_eq!(key(&mut installed), second);
        drop(installed);
        assert!(files.private_key.exists());
    }
}
