//! Openings in the machine's firewall: what is needed is found as `keiro doctor` finds it, made by the program that owns the
//! chain, and taken back when the gateway leaves.

use std::{collections::BTreeMap, process::Command};

use ipnet::IpNet;
use keiro_doctor::{
    firewall::{Firewall, Owner},
    openings::{Need, Opening, Openings, Sample, Setting, Zones, decide, dropping},
};

use super::{
    firewall,
    machine::{Lan, Machine},
    program::{Output, output},
};
use crate::output::message;

/// What a gateway needs of the firewall.
pub(super) struct FirewallNeeds<'a> {
    pub(super) machine: &'a Machine,
    /// Networks behind it that take part.
    pub(super) prefixes: &'a [IpNet],
    /// The tenant's device.
    pub(super) device: &'a str,
    /// UDP port of the paths.
    pub(super) port: u16,
    /// Peers come by themselves.
    pub(super) is_hub: bool,
}

/// What the firewall surely drops of it, and how to open that. The firewall's state is read now.
pub(super) fn find(wanted: &FirewallNeeds<'_>) -> Openings {
    let (rules, problem) = firewall::look();
    if let Some(problem) = problem {
        message!("keiro: warning: {problem}");
    }
    let samples = wanted.samples();
    let setting = Setting {
        device: wanted.device.to_owned(),
        uplinks: wanted.uplinks(),
        zones: match is_firewalld(&rules, &samples) {
            true => zones(),
            false => Zones::default(),
        },
    };
    decide(&rules, &samples, &setting)
}

/// Says what the firewall drops, and what is to be done.
pub(super) fn show(openings: &Openings) {
    if openings.dropping.is_empty() {
        return;
    }
    let dropping = openings.dropping.join(", ");
    message!("  the firewall drops packets that are needed: {dropping}");
    if !openings.all.is_empty() {
        message!("  it will be opened by (--no-firewall leaves it as it is)");
    }
    for opening in &openings.all {
        message!("    {opening}");
    }
    for why in &openings.not_opened {
        message!("  not opened: {why}");
    }
}

/// Names what is still dropped that a hub needs, which was not confirmed.
pub(super) fn say_what_a_hub_needs(wanted: &FirewallNeeds<'_>) {
    let found = find(wanted);
    if found.all.is_empty() {
        return;
    }
    message!("the firewall drops what branches send to a hub; run");
    for opening in &found.all {
        message!("  {opening}");
    }
}

/// Makes them, and says so. Those that were made; the others stay closed, and are named.
pub(super) fn open(openings: &[Opening]) -> Vec<Opening> {
    let mut made = Vec::new();
    for opening in openings {
        match run_all(&opening.commands()) {
            Ok(()) => {
                message!("opened the firewall: {opening}");
                if let Some(what) = opening.lasting() {
                    message!("  {what}");
                }
                made.push(opening.clone());
            }
            Err(why) => {
                // What of it was made is taken back.
                close(std::slice::from_ref(opening));
                message!("keiro: warning: `{opening}` fails, so packets are dropped there: {why}");
            }
        }
    }
    made
}

/// Takes them back, in the reverse order. What has gone already is no failure.
pub(super) fn close(openings: &[Opening]) {
    for opening in openings.iter().rev() {
        let commands = match opening.is_sound() {
            true => undo_commands(opening),
            false => continue,
        };
        for command in commands {
            if let Err(why) = run_one(&command) {
                message!("`{}`: {why}", command.join(" "));
            }
        }
    }
}

fn undo_commands(opening: &Opening) -> Vec<Vec<String>> {
    let Opening::Nft {
        family,
        table,
        chain,
        ..
    } = opening
    else {
        return opening.undo_commands();
    };
    let place = [family.as_str(), table, chain];
    let mut list = Command::new("nft");
    list.args(["-j", "-a", "list", "chain"]).args(place);
    let Output::Text(listed) = run(&mut list) else {
        // The chain has gone, and the rule with it.
        return Vec::new();
    };
    let handles = opening.nft_handles(&listed).unwrap_or_default();
    let delete = |handle: u64| {
        let words = ["nft", "delete", "rule"].into_iter().chain(place);
        let number = handle.to_string();
        let words = words.chain(["handle", &number]);
        words.map(str::to_owned).collect()
    };
    handles.into_iter().map(delete).collect()
}

/// Runs a program, whose messages are for people in the language of its manual.
fn run(command: &mut Command) -> Output {
    output(command.env("LC_ALL", "C"), OUTPUT_BYTES_MAX)
}

/// What is read of one program's output. Ours: a chain of 10,000 rules.
const OUTPUT_BYTES_MAX: u64 = 8 << 20;

fn run_all(commands: &[Vec<String>]) -> Result<(), String> {
    commands.iter().try_for_each(|command| run_one(command))
}

fn run_one(command: &[String]) -> Result<(), String> {
    let Some((program, arguments)) = command.split_first() else {
        return Ok(());
    };
    match run(Command::new(program).args(arguments)) {
        Output::Text(_) => Ok(()),
        Output::Failed(why) => Err(why),
        Output::NoTool => Err(format!("there is no program {program}")),
    }
}

fn is_firewalld(firewall: &Firewall, samples: &[Sample]) -> bool {
    let mut all = dropping(firewall, samples).into_iter();
    all.any(|(_, place)| firewall.owner(place) == Owner::Firewalld)
}

/// What firewalld says of its zones.
fn zones() -> Zones {
    let ask = |arguments: &[&str]| match run(Command::new("firewall-cmd").args(arguments)) {
        Output::Text(text) => Some(text),
        Output::Failed(_) | Output::NoTool => None,
    };
    let default = ask(&["--get-default-zone"]).unwrap_or_default();
    let mut zones = Zones {
        default: default.trim().to_owned(),
        of_interface: of_interfaces(&ask(&["--get-active-zones"]).unwrap_or_default()),
        forwarding: Vec::new(),
    };
    let mut names: Vec<&String> = zones
        .of_interface
        .values()
        .chain([&zones.default])
        .collect();
    names.sort();
    names.dedup();
    let forwards = |zone: &&&String| ask(&[&format!("--zone={zone}"), "--query-forward"]).is_some();
    let forwarding = names.iter().filter(forwards).map(|zone| (*zone).clone());
    zones.forwarding = forwarding.collect();
    zones
}

/// The zone of each interface, of what `firewall-cmd --get-active-zones` prints: a zone in a line, and what is in it in
/// further lines with space before.
fn of_interfaces(text: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut zone = "";
    for line in text.lines() {
        match line.trim_start().strip_prefix("interfaces:") {
            Some(interfaces) => {
                let of_zone = interfaces.split_whitespace();
                found.extend(of_zone.map(|name| (name.to_owned(), zone.to_owned())));
            }
            None if !line.starts_with(char::is_whitespace) => {
                zone = line.split_whitespace().next().unwrap_or_default();
            }
            None => {}
        }
    }
    found
}

impl FirewallNeeds<'_> {
    fn uplinks(&self) -> Vec<String> {
        let all = self.machine.uplinks.iter();
        let mut names: Vec<String> = all.map(|uplink| uplink.interface.clone()).collect();
        names.dedup();
        names
    }

    fn samples(&self) -> Vec<Sample> {
        let is_behind = |lan: &&Lan| {
            let mut prefixes = self.prefixes.iter();
            prefixes.any(|of| of.contains(&lan.prefix) || lan.prefix.contains(of))
        };
        let lans = self.machine.lans.iter().filter(is_behind);
        let between = lans.flat_map(|lan| self.between(lan));
        self.ports().into_iter().chain(between).collect()
    }

    /// A packet of a peer to each uplink.
    fn ports(&self) -> Vec<Sample> {
        let uplinks = self.machine.uplinks.iter();
        let sample = uplinks.map(|uplink| Sample {
            need: Need::Port {
                interface: uplink.interface.clone(),
                port: self.port,
            },
            source: None,
            destination: Some(uplink.address.into()),
            is_ipv6: uplink.address.is_ipv6(),
            is_reply: !self.is_hub,
        });
        sample.collect()
    }

    /// A connection from a host of the network to another site, and one from there.
    fn between(&self, lan: &Lan) -> [Sample; 2] {
        let is_ipv6 = lan.address.is_ipv6();
        let far = if is_ipv6 { FAR_V6 } else { FAR_V4 };
        let far: Option<IpNet> = far.parse().ok();
        let sample = |incoming: &str, outgoing: &str, source, destination| Sample {
            need: Need::Forward {
                incoming: incoming.to_owned(),
                outgoing: outgoing.to_owned(),
            },
            source,
            destination,
            is_ipv6,
            is_reply: false,
        };
        let near = Some(lan.prefix);
        [
            sample(&lan.interface, self.device, near, far),
            sample(self.device, &lan.interface, far, near),
        ]
    }
}

/// For networks of other sites, which are not known yet: addresses for benchmarks (RFC 2544, RFC 5180), which rules do not
/// name.
const FAR_V4: &str = "198.18.0.1/32";
const FAR_V6: &str = "2001:2::1/128";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_interfaces_are_read() {
        let text = "internal (active)\n  interfaces: lan0 lan1\n  sources: 10.9.0.0/16\npublic (default)\n  interfaces: wan0\n";
        let zones = of_interfaces(text);
        let zone = |name: &str| zones.get(name).map(String::as_str);
        assert_eq!(
            [zone("lan1"), zone("wan0"), zone("10.9.0.0/16")],
            [Some("internal"), Some("public"), None]
        );
        assert!(of_interfaces("").is_empty());
    }
}
