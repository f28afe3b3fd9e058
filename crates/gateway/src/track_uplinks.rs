//! Lets the paths' sockets follow the machine's interfaces and addresses.
//!
//! What is to change is decided by [`Uplinks`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant as Stopwatch,
};

use keiro_control::{
    config::{Config, Found, Local, Path, PathOrigin, Withheld},
    protocol::EventKind,
};
use keiro_core::{PeerId, SocketId};
use keiro_linux::{interface, realtime::thread_cpu_time};

use crate::{
    data::command::{Command, DataThreadGone},
    gateway::Gateway,
    running_config::{OpenError, open_uplink},
    uplinks::{
        Binding, Network, NetworkWatch, Problem, SocketAction, UplinkChange, Uplinks,
        found_interfaces, withheld,
    },
};

impl Gateway {
    /// When [`Self::track_network`] is to be called; `None`: nothing has changed.
    pub(crate) fn network_due(&self) -> Option<Stopwatch> {
        self.network.as_ref()?.due()
    }

    /// Something may have changed at the machine.
    pub(crate) fn on_network_event(&mut self) {
        if let Some(network) = &mut self.network {
            network.on_readable();
        }
    }

    /// Looks again where something failed that may succeed by now.
    pub(crate) fn retry_uplinks(&mut self) {
        if let Some(network) = &mut self.network
            && (network.is_deaf()
                || network.has_unreported_change()
                || self.running_config.uplinks().may_retry())
        {
            network.request();
        }
    }

    /// Looks at the machine if that is due, and lets the paths' sockets follow.
    pub(crate) fn track_network(&mut self) -> Result<(), DataThreadGone> {
        if self.network.is_none() && self.found != self.followed {
            self.apply_found(&Network::default())?;
        }
        let is_due = |due: Stopwatch| due <= Stopwatch::now();
        if !self.network_due().is_some_and(is_due) {
            return Ok(());
        }
        let network = match look(self.network.as_mut(), &self.written) {
            Ok(network) => network,
            // It is looked at again soon.
            Err(problem) => {
                tracing::debug!("{problem}");
                return Ok(());
            }
        };
        let before = &self.found.interfaces;
        self.found.interfaces = found_interfaces(&self.written, &network, before);
        self.found.withheld = withheld(&self.written, &network, &self.found.hosts);
        if self.found != self.followed {
            let before = thread_cpu_time();
            self.apply_found(&network)?;
            if let Some(watch) = &mut self.network {
                watch.on_followed(thread_cpu_time().saturating_sub(before));
            }
        }
        for change in self.running_config.uplinks_mut().on_network(&network) {
            self.change_uplink(change, &network)?;
        }
        let bindings = self.running_config.uplinks().bindings();
        self.uplink_routes.update(bindings, &network);
        Ok(())
    }

    /// A peer has several uplinks that all come to one of ours.
    pub(crate) fn on_paths_wanted(&mut self, peer: PeerId, socket: SocketId, paths: usize) {
        let peer = self.running_config.peer_name(peer).map(str::to_owned);
        let local = self.running_config.local_of(socket).cloned();
        if let Some(of) = peer.zip(local) {
            let wanted = self.found.wanted.entry(of).or_default();
            *wanted = paths.max(*wanted);
            if let Some(network) = &mut self.network {
                network.request();
            }
        }
    }

    fn change_uplink(
        &mut self,
        change: UplinkChange,
        network: &Network,
    ) -> Result<(), DataThreadGone> {
        let UplinkChange { local, action } = change;
        let mut paths = self.config.paths.iter();
        let path = paths.find(|path| path.local == local).cloned();
        let (Some(path), Some(id)) = (path, self.running_config.socket_of(&local)) else {
            return Ok(());
        };
        match action {
            SocketAction::Bind(binding) => self.bind_uplink(&path, id, binding, network),
            SocketAction::BindToDevice(binding) => self.bind_to_device(&path, id, binding, network),
            SocketAction::Unbind(problem) => self.unbind_uplink(&path, id, problem),
            SocketAction::Challenge => {
                self.publish_route(&path);
                self.data.send(Command::ChallengePaths { id })
            }
            SocketAction::Report => {
                self.publish_route(&path);
                Ok(())
            }
        }
    }

    fn bind_uplink(
        &mut self,
        path: &Path,
        id: SocketId,
        binding: Binding,
        network: &Network,
    ) -> Result<(), DataThreadGone> {
        let from = self.local_address(path);
        let mut opened = open_uplink(path, &binding);
        // The present socket may be what has the port.
        if matches!(opened, Err(OpenError::Refused(_))) && from.is_some() {
            self.data.unbind_socket(id)?;
            opened = open_uplink(path, &binding);
        }
        let socket = match opened {
            Ok(socket) => Box::new(socket),
            Err(OpenError::Missing(problem)) => return self.unbind_uplink(path, id, problem),
            Err(OpenError::Refused(error)) => {
                let why = error.to_string();
                return self.unbind_uplink(path, id, Problem::CannotBind { why });
            }
        };
        self.data.send(Command::BindSocket { id, socket })?;
        self.running_config.set_mtu(path, network, &self.data)?;
        let uplinks = self.running_config.uplinks_mut();
        uplinks.on_bound(&path.local, binding, network);
        self.publish_local(path, from);
        Ok(())
    }

    /// The socket stays, and with it the path.
    fn bind_to_device(
        &mut self,
        path: &Path,
        id: SocketId,
        binding: Binding,
        network: &Network,
    ) -> Result<(), DataThreadGone> {
        let device = binding.device.as_deref().unwrap_or_default();
        let bound = self.data.bind_to_device(id, device)?;
        // The name may be another interface's by now.
        let is_owner = interface::index(device) == binding.owner;
        if let Err(error) = &bound {
            tracing::debug!(path = path.name.as_str(), device, %error, "the socket stays unbound");
        }
        if bound.is_err() || !is_owner {
            return self.bind_uplink(path, id, binding, network);
        }
        self.running_config.set_mtu(path, network, &self.data)?;
        let uplinks = self.running_config.uplinks_mut();
        uplinks.on_bound(&path.local, binding, network);
        self.publish_route(path);
        Ok(())
    }

    fn unbind_uplink(
        &mut self,
        path: &Path,
        id: SocketId,
        problem: Problem,
    ) -> Result<(), DataThreadGone> {
        let from = self.local_address(path);
        let uplinks = self.running_config.uplinks_mut();
        // A failure that is repeated is no news.
        let is_news = uplinks.problem(&path.local).as_ref() != Some(&problem);
        uplinks.on_missing(&path.local, problem);
        self.data.unbind_socket(id)?;
        if is_news || from.is_some() {
            self.publish_local(path, from);
        }
        Ok(())
    }

    /// Reports paths that leave elsewhere than those of before, `known`, and cannot now.
    pub(crate) fn publish_missing_uplinks(&mut self, known: &BTreeSet<Local>) {
        let missing = |path: &&Path| {
            !matches!(path.origin, PathOrigin::Further(_))
                && !known.contains(&path.local)
                && self.running_config.uplinks().problem(&path.local).is_some()
        };
        let missing: Vec<Path> = self.config.paths.iter().filter(missing).cloned().collect();
        for path in missing {
            self.publish_local(&path, None);
        }
    }

    /// The address has stayed, and a default route has come or gone.
    fn publish_route(&mut self, path: &Path) {
        let local = self.local_address(path);
        self.publish_local(path, local);
    }

    fn publish_local(&mut self, path: &Path, from: Option<String>) {
        let problem = self.running_config.uplinks().problem(&path.local);
        self.publish(EventKind::LocalChanged {
            path: path.name.to_string(),
            from,
            to: self.local_address(path),
            problem: problem.map(|problem| problem.to_string()),
        });
    }

    /// The address from which a path leaves now; `None`: it has none.
    pub(crate) fn local_address(&self, path: &Path) -> Option<String> {
        let binding = self.running_config.uplinks().binding(&path.local)?;
        Some(binding.local.to_string())
    }
}

/// The paths that a gateway would have on this machine now, with a configuration that none runs with.
#[derive(Debug)]
pub struct PathsNow {
    /// The configuration with the paths that there are now.
    pub config: Config,
    /// By `uplinks = "auto"`: name and where it leaves.
    pub auto: Vec<String>,
    /// What this machine lacks for the paths, one line each. A gateway starts without it, and uses the paths when
    /// it appears.
    pub problems: Vec<String>,
    /// Prefixes of the network that are not routed here.
    pub withheld: Vec<Withheld>,
}

/// See [`PathsNow`].
pub fn paths_now(written: &Config) -> PathsNow {
    let mut watch = NetworkWatch::open().ok();
    let Ok(network) = look(watch.as_mut(), written) else {
        return PathsNow {
            config: written.resolved(&Found::default()),
            auto: Vec::new(),
            problems: Vec::new(),
            withheld: Vec::new(),
        };
    };
    let found = Found {
        interfaces: found_interfaces(written, &network, &[]),
        withheld: withheld(written, &network, &BTreeMap::new()),
        ..Found::default()
    };
    let config = written.resolved(&found);
    let is_further = |path: &&Path| matches!(path.origin, PathOrigin::Further(_));
    let problem = |path: &Path| {
        let problem = Uplinks::problem_of(&path.local, &network)?;
        Some(format!("path {}: {problem}", path.name))
    };
    let auto = config
        .paths
        .iter()
        .filter(|path| path.origin == PathOrigin::Auto);
    let address = |path: &Path| match Uplinks::first(&path.local, &network) {
        Ok(binding) => format!("{} from {}", path.name, binding.local),
        Err(_) => format!("{} from {}", path.name, path.local),
    };
    let auto = auto.map(address).collect();
    let problems = config.paths.iter().filter(|path| !is_further(path));
    let problems = problems.filter_map(problem).collect();
    PathsNow {
        auto,
        problems,
        config,
        withheld: found.withheld,
    }
}

/// What the machine has now, as far as the paths of a configuration depend on it, which is as in its file.
pub(crate) fn look(watch: Option<&mut NetworkWatch>, written: &Config) -> Result<Network, Problem> {
    let Some(watch) = watch else {
        return Ok(Network::default());
    };
    watch.look(written).map_err(|error| Problem::NotKnown {
        why: error.to_string(),
    })
}
