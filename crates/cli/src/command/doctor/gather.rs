//! The facts about this machine, its configuration and the gateway that runs with it.

use std::{io::ErrorKind, path::Path};

use keiro_control::{Config, network::NetworkState};
use keiro_doctor::{
    Facts,
    facts::{Configuration, ConfigurationProblem, Endpoint, Peer},
};
use keiro_gateway::paths_now;

use super::{
    super::firewall,
    machine,
    network::{self, Network},
    running::{self, Running},
    tenants,
};

/// What is known, and what could not be looked at.
pub(super) struct Gathered {
    pub(super) facts: Facts,
    pub(super) not_checked: Vec<String>,
}

/// Looks at everything; what cannot be looked at is left out.
pub(super) fn gather(file: &Path) -> Gathered {
    let mut gathered = Gathered {
        facts: Facts {
            configuration: Configuration {
                file: file.display().to_string(),
                problem: None,
            },
            ..Facts::default()
        },
        not_checked: Vec::new(),
    };
    match std::fs::File::open(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            gathered.facts.configuration.problem = Some(ConfigurationProblem::Missing);
            return gathered;
        }
        Err(error) => {
            let file = file.display();
            gathered
                .not_checked
                .push(format!("{file} cannot be read: {error}; run it as root"));
            return gathered;
        }
        Ok(_) => {}
    }
    match Config::load(file) {
        Ok(config) => gathered.look(&config),
        Err(error) => {
            let problems = error.problems();
            let first = problems.first().map(ToString::to_string);
            gathered.facts.configuration.problem = Some(ConfigurationProblem::Invalid {
                first: first.unwrap_or_default(),
                count: problems.len(),
            });
        }
    }
    gathered
}

impl Gathered {
    fn look(&mut self, written: &Config) {
        let facts = &mut self.facts;
        facts.machine = machine::look(written);
        let resolved = paths_now(written).config;
        facts.peers = peers(written);
        let mut running = None;
        match running::ask(&written.gateway.control_socket) {
            Ok(answers) => running = answers,
            Err(why) => {
                facts.may_not_ask = true;
                self.not_checked.push(why);
            }
        }
        if let Some(running) = &running {
            facts.gateway = Some(running.gateway());
            running.add_sessions(&mut facts.peers);
        }
        let network = match Network::look() {
            Ok(network) => network,
            Err(error) => {
                self.not_checked
                    .push(format!("the kernel does not list its interfaces: {error}"));
                return;
            }
        };
        let locals = running.as_ref().map(Running::locals).unwrap_or_default();
        let remotes = running.as_ref().map(Running::remotes).unwrap_or_default();
        facts.uplinks = network::uplinks(&network, &resolved, &facts.peers, &locals, &remotes);
        // Its problems are those of the configuration, and were found before.
        let sites = NetworkState::load(written).unwrap_or_default();
        let with_sites = sites.applied_to(written);
        let withheld = paths_now(&with_sites).withheld;
        facts.tenants = tenants::look(&network, &with_sites, &withheld, running.as_ref());
        let is_needed = !facts.tenants.is_empty()
            || facts.peers.iter().any(|peer| {
                let session = peer.session.as_ref();
                session.map_or(peer.endpoints.is_empty(), |session| !session.is_up)
            });
        if is_needed {
            let (found, problem) = firewall::look();
            facts.firewall = found;
            self.not_checked.extend(problem);
        }
    }
}

/// The peers and their endpoints, of which names are resolved.
fn peers(config: &Config) -> Vec<Peer> {
    let of = |peer: &keiro_control::config::Peer| {
        let of_paths = peer.endpoints.values();
        let mut of_paths: Vec<_> = of_paths.copied().collect();
        of_paths.sort();
        of_paths.dedup();
        let of_paths = of_paths.into_iter().map(|address| Endpoint {
            text: address.to_string(),
            addresses: Ok(vec![address]),
        });
        let of_all = peer.endpoint.iter().map(network::resolve);
        Peer {
            name: peer.name.to_string(),
            endpoints: of_paths.chain(of_all).collect(),
            session: None,
        }
    };
    config.peers.iter().map(of).collect()
}
