//! The configuration that the data thread has, with the numbers of its names, and the steps to the
//! next configuration.
//!
//! A change has two halves. [`prepare`] does what can fail (sockets, key files, addresses) and
//! touches nothing in use; [`RunningConfig::apply`] only sends commands. A configuration that cannot be
//! prepared leaves everything as it is.

mod renamed;
mod spent;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use anyhow::Context;
use keiro_control::{
    config::{
        App, AppIndex, Class, Config, Destination, Local, Path, PathIndex, PathOrigin, PathTerms,
        PeerIndex, PeerOrigin, Transport,
    },
    key,
};
use keiro_core::{
    AppConfig, AppId, DeliveryClass, PathConfig, PeerConfig, PeerId, PresharedKey, PublicKey,
    SocketId, TenantId,
};
use keiro_linux::{
    interface,
    tcp::{Listener, Mode},
    udp::{BatchSocket, BindError, Purpose},
};
use keiro_units::Bandwidth;

use crate::{
    data::{
        command::{Command, DataHandle, DataThreadGone},
        destination::{TcpDestination, UdpDestination},
        route::{AppRoute, NewApp},
    },
    path_ids::PathIds,
    uplinks::{Binding, Network, Problem, Uplinks, interface_of},
};

pub(crate) use self::renamed::{Rename, Renamed};

/// The running configuration: sockets, peers, applications, listeners and forwards in use.
#[derive(Default)]
pub(crate) struct RunningConfig {
    /// The numbers of the paths' sockets. Where each is bound is known to `uplinks`.
    sockets: BTreeMap<Local, SocketId>,
    uplinks: Uplinks,
    /// What may leave each socket.
    rates: BTreeMap<SocketId, Option<Bandwidth>>,
    next_socket: u16,
    /// Where the budget of the month is used up.
    spent: BTreeSet<Local>,
    path_ids: PathIds,
    peers: BTreeMap<String, ActivePeer>,
    apps: BTreeMap<AppId, AppRoute>,
    listeners: BTreeMap<Address, ActiveListener>,
    forwards: BTreeMap<AppId, ActiveForward>,
}

/// Where a listener is: TCP and UDP may use the same address.
type Address = (Transport, SocketAddr);

/// Where traffic enters.
enum Entrance {
    Udp(BatchSocket),
    Tcp(Listener, Mode),
}

/// The application and interface of a listener.
#[derive(PartialEq, Eq)]
struct ActiveListener {
    app: AppId,
    interface: Option<String>,
}

/// Where traffic leaves, and by which interface alone.
#[derive(Clone, PartialEq, Eq)]
enum ActiveForward {
    Udp(UdpDestination),
    Tcp(TcpDestination, Option<String>),
}

struct ActivePeer {
    id: PeerId,
    identity: Identity,
    /// As the core has them.
    paths: Vec<PathConfig>,
}

/// A peer with another identity is another peer.
#[derive(Clone, PartialEq, Eq)]
struct Identity {
    public_key: [u8; 32],
    preshared_key: PresharedKey,
}

/// What a configuration needs beyond what is in use.
pub(crate) struct Prepared {
    /// Of paths that leave elsewhere than those in use.
    sockets: BTreeMap<Local, Result<(Binding, BatchSocket), Problem>>,
    /// What the machine had.
    network: Network,
    listeners: BTreeMap<Address, Entrance>,
    /// Largest IP packet per path, in the order of the file.
    mtu: Vec<u16>,
    /// In the order of the file.
    identities: Vec<Identity>,
}

/// What [`RunningConfig::apply`] has done to peers and applications.
#[derive(Debug)]
pub(crate) struct Applied {
    /// Peers that are gone.
    pub(crate) removed: Vec<String>,
    pub(crate) renamed: Renamed,
}

/// How an application is to leave.
#[derive(Clone, Debug)]
pub(crate) struct Preference {
    /// Best first.
    pub(crate) paths: Vec<PathIndex>,
    /// By all of the cheapest paths at once.
    pub(crate) is_spread: bool,
}

pub(crate) type Preferences = BTreeMap<AppIndex, Preference>;

/// A receive buffer should hold this much of the path's rate: longer than the data thread is
/// descheduled, other than by overload. Ours.
const BUFFER_MILLIS_MIN: u64 = 10;
/// Assumed where the interface has no MTU: Ethernet's.
const MTU_DEFAULT: u32 = 1500;

/// Opens what `config` needs and `running_config` does not have, on a machine that has `network`.
///
/// What cannot be opened, where the configuration asks for it, and what to try. A path whose interface or
/// address is missing is waited for.
pub(crate) fn prepare(
    config: &Config,
    running_config: &RunningConfig,
    network: Network,
) -> anyhow::Result<Prepared> {
    let own: Vec<IpAddr> = interface::addresses()
        .context("cannot list this machine's addresses")?
        .into_iter()
        .map(|entry| entry.address)
        .collect();
    config.refuse_own_addresses(&own)?;
    config.refuse_app_id_collisions(|name| AppId::of_name(name).0)?;
    let mut identities = Vec::new();
    for peer in &config.peers {
        let preshared_key = match (&peer.preshared_key, &peer.preshared_key_file) {
            (Some(key), _) => PresharedKey::from_bytes(*key.as_bytes()),
            (None, Some(file)) => {
                PresharedKey::from_bytes(*key::load_preshared_key(file)?.as_bytes())
            }
            (None, None) => PresharedKey::default(),
        };
        identities.push(Identity {
            public_key: *peer.public_key.as_bytes(),
            preshared_key,
        });
    }
    let mut sockets = BTreeMap::new();
    for path in &config.paths {
        if !running_config.sockets.contains_key(&path.local) && !sockets.contains_key(&path.local) {
            let opened = running_config
                .open_first(path, &network)
                .with_context(|| format!("{}: path `{}`", config.file(), path.name))?;
            sockets.insert(path.local.clone(), opened);
        }
    }
    let mut listeners = BTreeMap::new();
    for listener in &config.listeners {
        let address = (listener.transport, listener.local);
        let interface = config.interface_of(listener.member.as_ref());
        let name = &config[listener.app].name;
        let place = || format!("{}: listener of `{name}`", config.file());
        match running_config.listeners.get(&address) {
            None => {
                if let Some(other) = listener.transport.rival()
                    && running_config
                        .listeners
                        .contains_key(&(other, listener.local))
                {
                    let error = anyhow::anyhow!(
                        "{} is a `{}` listener until now, and cannot be both while it changes; reload \
                         without this listener first",
                        listener.local,
                        other.as_str()
                    );
                    return Err(error.context(place()));
                }
                let entrance = open(listener.transport, listener.local, interface);
                listeners.insert(address, entrance.with_context(place)?);
            }
            // A socket keeps its interface, and two sockets cannot share an address.
            Some(before) if before.interface.as_deref() != interface => {
                let error = anyhow::anyhow!(
                    "{} is now of another tenant's interface; reload without this listener first",
                    listener.local
                );
                return Err(error.context(place()));
            }
            Some(_) => {}
        }
    }
    let mtu = config.paths.iter().map(|path| mtu_max(path, &network));
    Ok(Prepared {
        sockets,
        listeners,
        mtu: mtu.collect(),
        network,
        identities,
    })
}

/// Opens a path's socket.
///
/// # Errors
/// What is missing at the machine, or what another program has.
pub(crate) fn open_uplink(path: &Path, binding: &Binding) -> Result<BatchSocket, OpenError> {
    let device = binding.device.as_deref();
    let socket = BatchSocket::bind_on(binding.local, Purpose::Path, device)?;
    // The name may be another interface's by now, and then the kernel reports that.
    let is_owner = |device| interface::index(device) == binding.owner;
    if let Some(device) = device.filter(|device| !is_owner(device)) {
        let interface = device.to_owned();
        return Err(OpenError::Missing(Problem::NoInterface { interface }));
    }
    warn_of_small_buffer(path, &socket);
    Ok(socket)
}

/// Why a path's socket cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The machine does not have what it needs.
    Missing(Problem),
    /// The port is another socket's, or not permitted.
    Refused(BindError),
}

impl From<BindError> for OpenError {
    fn from(error: BindError) -> Self {
        match error {
            BindError::NotHere { address, .. } => {
                Self::Missing(Problem::AddressNotHere { address })
            }
            // It has just gone.
            BindError::NoInterface { interface, .. } => {
                Self::Missing(Problem::NoInterface { interface })
            }
            refused => Self::Refused(refused),
        }
    }
}

impl RunningConfig {
    /// Applies `config`. Sockets, peers and applications that stay the same are not touched.
    pub(crate) fn apply(
        &mut self,
        config: &Config,
        prepared: Prepared,
        preferences: &Preferences,
        data: &DataHandle,
    ) -> Result<Applied, DataThreadGone> {
        let Prepared {
            sockets,
            listeners,
            mtu,
            network,
            identities,
        } = prepared;
        for (local, opened) in sockets {
            let id = self.socket_id();
            match opened {
                Ok((binding, socket)) => {
                    let socket = Box::new(socket);
                    data.send(Command::BindSocket { id, socket })?;
                    self.uplinks.on_bound(&local, binding, &network);
                }
                Err(problem) => {
                    data.unbind_socket(id)?;
                    self.uplinks.on_missing(&local, problem);
                }
            }
            self.sockets.insert(local, id);
        }
        for path in &config.paths {
            if let Some(&id) = self.sockets.get(&path.local)
                && self.rates.insert(id, path.rate).flatten() != path.rate
            {
                let rate = path.rate;
                data.send(Command::SetUplink { id, rate })?;
            }
        }
        // Before peers are added: their traffic may arrive at once.
        data.send(Command::OpenNetworkChannel(config.network.is_some()))?;
        self.apply_forwards(config, data)?;
        let apps = self.renamed_apps(config);
        let (removed, peers) = self.apply_peers(config, &mtu, &identities, preferences, data)?;
        self.apply_apps(config, preferences, data)?;
        self.apply_listeners(config, listeners, data)?;
        self.remove_unused_sockets(config, data)?;
        let renamed = Renamed { peers, apps };
        Ok(Applied { removed, renamed })
    }

    /// Sends applications that are new or changed, or take other paths, to the data thread.
    pub(crate) fn apply_apps(
        &mut self,
        config: &Config,
        preferences: &Preferences,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        for (number, app) in config.apps.iter().enumerate() {
            let index = AppIndex(number);
            let Some(peer) = self.peers.get(config[app.peer].name.as_str()) else {
                continue;
            };
            let route = AppRoute {
                name: app.name.to_string(),
                peer: peer.id,
                config: app_config(config, index, preferences, &self.path_ids),
                has_forward: config.forward_of(index).is_some(),
            };
            let id = route.config.id;
            if self.apps.get(&id) != Some(&route) {
                self.apps.insert(id, route.clone());
                data.send(Command::SetApp { route })?;
            }
        }
        Ok(())
    }

    /// Whether an application leaves by several paths at once.
    pub(crate) fn is_spread(&self, app: AppId) -> bool {
        let route = self.apps.get(&app);
        route.is_some_and(|route| route.config.is_spread)
    }

    /// The peer of this number.
    pub(crate) fn peer_name(&self, id: PeerId) -> Option<&str> {
        let found = self.peers.iter().find(|(_, peer)| peer.id == id);
        found.map(|(name, _)| name.as_str())
    }

    /// The number of a peer.
    pub(crate) fn peer_id(&self, name: &str) -> Option<PeerId> {
        self.peers.get(name).map(|peer| peer.id)
    }

    /// How many paths there are to a peer.
    pub(crate) fn paths_to(&self, name: &str) -> usize {
        self.peers.get(name).map_or(0, |peer| peer.paths.len())
    }

    /// The numbers of all peers.
    pub(crate) fn peer_ids(&self) -> impl Iterator<Item = PeerId> + '_ {
        self.peers.values().map(|peer| peer.id)
    }

    /// Identifiers of the paths of the configuration in use.
    pub(crate) fn path_ids(&self) -> &PathIds {
        &self.path_ids
    }

    /// Gives the paths of a configuration their identifiers. To be called before anything else is
    /// done with it.
    pub(crate) fn assign_path_ids(&mut self, config: &Config) {
        self.path_ids.apply_config(config);
    }

    /// The application of this number.
    pub(crate) fn app_name(&self, peer: PeerId, app: AppId) -> Option<&str> {
        let route = self.apps.get(&app).filter(|route| route.peer == peer)?;
        Some(route.name.as_str())
    }

    /// The name of an application of whatever peer.
    pub(crate) fn configured_name(&self, app: AppId) -> Option<&str> {
        self.apps.get(&app).map(|route| route.name.as_str())
    }

    /// The peer of an application.
    pub(crate) fn configured_peer(&self, app: AppId) -> Option<&str> {
        self.peer_name(self.apps.get(&app)?.peer)
    }

    pub(crate) fn configured_class(&self, app: AppId) -> Option<DeliveryClass> {
        self.apps.get(&app).map(|route| route.config.class)
    }

    /// The number of the socket of paths that leave by `local`.
    pub(crate) fn socket_of(&self, local: &Local) -> Option<SocketId> {
        self.sockets.get(local).copied()
    }

    /// Where the paths of a socket leave.
    pub(crate) fn local_of(&self, id: SocketId) -> Option<&Local> {
        let mut all = self.sockets.iter();
        all.find(|(_, socket)| **socket == id)
            .map(|(local, _)| local)
    }

    /// Where each path leaves.
    pub(crate) fn locals(&self) -> impl Iterator<Item = &Local> {
        self.sockets.keys()
    }

    pub(crate) fn uplinks(&self) -> &Uplinks {
        &self.uplinks
    }

    pub(crate) fn uplinks_mut(&mut self) -> &mut Uplinks {
        &mut self.uplinks
    }

    /// The interface of a path is new, and with it the largest packet.
    pub(crate) fn set_mtu(
        &mut self,
        path: &Path,
        network: &Network,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        let Some(socket) = self.socket_of(&path.local) else {
            return Ok(());
        };
        let mtu = mtu_max(path, network);
        for peer in self.peers.values_mut() {
            let paths = peer.paths.iter_mut();
            let mut is_changed = false;
            for path in paths.filter(|path| path.socket == socket && path.mtu_max != mtu) {
                path.mtu_max = mtu;
                is_changed = true;
            }
            if is_changed {
                let (peer, paths) = (peer.id, peer.paths.clone());
                data.send(Command::SetPaths { peer, paths })?;
            }
        }
        Ok(())
    }

    /// Opens the socket of a path that is new.
    ///
    /// # Errors
    /// Another program's socket is there, or the port needs a privilege.
    fn open_first(
        &self,
        path: &Path,
        network: &Network,
    ) -> Result<Result<(Binding, BatchSocket), Problem>, BindError> {
        let binding = match Uplinks::first(&path.local, network) {
            Ok(binding) => binding,
            Err(problem) => return Ok(Err(problem)),
        };
        match open_uplink(path, &binding) {
            Ok(socket) => Ok(Ok((binding, socket))),
            Err(OpenError::Missing(problem)) => Ok(Err(problem)),
            // A path that goes or leaves elsewhere has it until the new configuration is applied.
            Err(OpenError::Refused(error)) if self.has_socket_at(binding.local) => {
                let why = error.to_string();
                Ok(Err(Problem::CannotBind { why }))
            }
            Err(OpenError::Refused(error)) => Err(error),
        }
    }

    fn has_socket_at(&self, address: SocketAddr) -> bool {
        let mut bindings = self
            .locals()
            .filter_map(|local| self.uplinks.binding(local));
        bindings.any(|binding| {
            let ips = [binding.local.ip(), address.ip()];
            let is_one = ips[0] == ips[1] || ips.iter().any(IpAddr::is_unspecified);
            binding.local.port() == address.port() && is_one
        })
    }

    fn apply_peers(
        &mut self,
        config: &Config,
        mtu: &[u16],
        identities: &[Identity],
        preferences: &Preferences,
        data: &DataHandle,
    ) -> Result<(Vec<String>, Vec<Rename>), DataThreadGone> {
        let wanted: BTreeMap<[u8; 32], &Identity> = identities
            .iter()
            .map(|identity| (identity.public_key, identity))
            .collect();
        let gone = |(name, peer): (&String, &ActivePeer)| {
            let identity = &peer.identity;
            (wanted.get(&identity.public_key) != Some(&identity)).then(|| name.clone())
        };
        let removed: Vec<String> = self.peers.iter().filter_map(gone).collect();
        let ids: BTreeSet<AppId> = config.apps.iter().map(app_id).collect();
        for name in &removed {
            if let Some(peer) = self.peers.remove(name) {
                data.send(Command::RemovePeer { peer: peer.id })?;
                // Applications that stay are set again, with their new peer.
                self.apps
                    .retain(|app, route| route.peer != peer.id || !ids.contains(app));
            }
        }
        let renamed = self.rename_peers(config, identities);
        for (number, peer) in config.peers.iter().enumerate() {
            let index = PeerIndex(number);
            let name = peer.name.to_string();
            let entry = self.peers.remove(&name);
            let paths = self.path_configs(config, index, mtu);
            let (id, changed) = match &entry {
                Some(entry) => (entry.id, entry.paths != paths),
                None => {
                    let mut new =
                        PeerConfig::new(PublicKey::from_bytes(*peer.public_key.as_bytes()));
                    new.preshared_key = identities[number].preshared_key.clone();
                    new.paths.clone_from(&paths);
                    new.reassembly_bytes_max = peer.reassembly_max;
                    // Who joins has ended or asks again.
                    new.answers_only = peer.origin == PeerOrigin::Invitation;
                    let apps = self.new_apps(config, index, preferences);
                    (data.add_peer(new, apps)?, false)
                }
            };
            if changed {
                let paths = paths.clone();
                data.send(Command::SetPaths { peer: id, paths })?;
            }
            let entry = ActivePeer {
                id,
                identity: identities[number].clone(),
                paths,
            };
            self.peers.insert(name, entry);
        }
        // After the peers: an application that goes leaves its messages to a session that stays.
        let gone: Vec<AppId> = self
            .apps
            .keys()
            .filter(|app| !ids.contains(app))
            .copied()
            .collect();
        for app in gone {
            self.apps.remove(&app);
            data.send(Command::RemoveApp { app })?;
        }
        Ok((removed, renamed))
    }

    /// The applications of a peer that is added.
    fn new_apps(&self, config: &Config, peer: PeerIndex, preferences: &Preferences) -> Vec<NewApp> {
        let apps = config.apps.iter().enumerate();
        let apps = apps.filter(|(_, app)| app.peer == peer);
        let new = apps.map(|(number, app)| {
            let number = AppIndex(number);
            NewApp {
                name: app.name.to_string(),
                config: app_config(config, number, preferences, &self.path_ids),
                has_forward: config.forward_of(number).is_some(),
            }
        });
        new.collect()
    }

    fn path_configs(&self, config: &Config, peer: PeerIndex, mtu: &[u16]) -> Vec<PathConfig> {
        let path_config = |(number, path): (usize, &Path)| {
            let is_further = matches!(path.origin, PathOrigin::Further(_));
            if is_further && !config[peer].further_paths.contains(&PathIndex(number)) {
                return None;
            }
            Some(PathConfig {
                id: self.path_ids.id(PathIndex(number))?,
                socket: *self.sockets.get(&path.local)?,
                remote: config[peer].endpoints.get(&PathIndex(number)).copied(),
                rate: path.rate,
                mtu_max: *mtu.get(number)?,
                probe_limit: config.probe_limit(PathIndex(number)),
                terms: PathTerms {
                    is_spent: self.spent.contains(&path.local),
                    ..path.terms()
                },
            })
        };
        config
            .paths
            .iter()
            .enumerate()
            .filter_map(path_config)
            .collect()
    }

    fn apply_forwards(&mut self, config: &Config, data: &DataHandle) -> Result<(), DataThreadGone> {
        let wanted: BTreeMap<AppId, ActiveForward> = config
            .forwards
            .iter()
            .map(|forward| {
                let interface = config.interface_of(forward.member.as_ref());
                let interface = interface.map(str::to_owned);
                let to = match &forward.to {
                    Destination::Udp(to) => {
                        let destination = UdpDestination {
                            to: *to,
                            allow_local: forward.allow_local,
                            interface,
                        };
                        ActiveForward::Udp(destination)
                    }
                    Destination::Tcp(to) => {
                        let destination = TcpDestination::Server {
                            to: *to,
                            allow_local: forward.allow_local,
                        };
                        ActiveForward::Tcp(destination, interface)
                    }
                    Destination::Networks(networks) => {
                        let destination = TcpDestination::Networks {
                            networks: networks.clone(),
                            allow_local: forward.allow_local,
                        };
                        ActiveForward::Tcp(destination, interface)
                    }
                };
                (app_id(&config[forward.app]), to)
            })
            .collect();
        for (&app, before) in &self.forwards {
            match (before, wanted.get(&app)) {
                (ActiveForward::Udp(..), None | Some(ActiveForward::Tcp(..))) => {
                    data.send(Command::RemoveForward { app })?;
                }
                (ActiveForward::Tcp(..), None | Some(ActiveForward::Udp(..))) => {
                    data.send(Command::RemoveTcpForward { app })?;
                }
                _ => {}
            }
        }
        for (&app, to) in &wanted {
            if self.forwards.get(&app) != Some(to) {
                data.send(match to.clone() {
                    ActiveForward::Udp(destination) => Command::SetForward { app, destination },
                    ActiveForward::Tcp(destination, interface) => Command::SetTcpForward {
                        app,
                        destination,
                        interface,
                    },
                })?;
            }
        }
        self.forwards = wanted;
        Ok(())
    }

    fn apply_listeners(
        &mut self,
        config: &Config,
        mut opened: BTreeMap<Address, Entrance>,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        let wanted: BTreeMap<Address, ActiveListener> = config
            .listeners
            .iter()
            .map(|listener| {
                let app = app_id(&config[listener.app]);
                let interface = config.interface_of(listener.member.as_ref());
                let interface = interface.map(str::to_owned);
                let entry = ActiveListener { app, interface };
                ((listener.transport, listener.local), entry)
            })
            .collect();
        for &(transport, address) in self.listeners.keys() {
            if !wanted.contains_key(&(transport, address)) {
                data.send(match transport.is_tcp() {
                    false => Command::RemoveListener { address },
                    true => Command::RemoveTcpListener { address },
                })?;
            }
        }
        for (key, listener) in &wanted {
            let (transport, address) = *key;
            let app = listener.app;
            match opened.remove(key) {
                Some(Entrance::Udp(socket)) => {
                    let socket = Box::new(socket);
                    data.send(Command::AddListener { app, socket })?;
                }
                Some(Entrance::Tcp(listener, mode)) => {
                    data.send(Command::AddTcpListener {
                        app,
                        listener,
                        mode,
                    })?;
                }
                None if self.listeners.get(key) == Some(listener) => {}
                None => data.send(match transport.is_tcp() {
                    false => Command::MoveListener { address, app },
                    true => Command::MoveTcpListener { address, app },
                })?,
            }
        }
        self.listeners = wanted;
        Ok(())
    }

    fn remove_unused_sockets(
        &mut self,
        config: &Config,
        data: &DataHandle,
    ) -> Result<(), DataThreadGone> {
        let used: BTreeSet<&Local> = config.paths.iter().map(|path| &path.local).collect();
        let unused = |(local, id): (&Local, &SocketId)| {
            (!used.contains(local)).then(|| (local.clone(), *id))
        };
        let unused: Vec<_> = self.sockets.iter().filter_map(unused).collect();
        for (local, id) in unused {
            self.sockets.remove(&local);
            self.rates.remove(&id);
            data.send(Command::RemoveSocket { id })?;
        }
        self.uplinks.retain(&used);
        Ok(())
    }

    fn socket_id(&mut self) -> SocketId {
        // At most 10,000 of 65,536 are in use.
        while self.sockets.values().any(|id| id.0 == self.next_socket) {
            self.next_socket = self.next_socket.wrapping_add(1);
        }
        let id = SocketId(self.next_socket);
        self.next_socket = self.next_socket.wrapping_add(1);
        id
    }
}

/// The number of an application, here and at the peer.
pub(crate) fn app_id(app: &App) -> AppId {
    AppId::of_name(app.wire_name().as_str())
}

/// An application as the core has it.
fn app_config(
    config: &Config,
    index: AppIndex,
    preferences: &Preferences,
    path_ids: &PathIds,
) -> AppConfig {
    let app = &config[index];
    let preference = preferences.get(&index);
    let preferred = preference
        .into_iter()
        .flat_map(|preference| &preference.paths);
    AppConfig {
        id: app_id(app),
        class: match app.class {
            Class::Message => DeliveryClass::Message,
            Class::Datagram => DeliveryClass::Datagram,
            Class::Stream => DeliveryClass::Stream,
        },
        latency_target: app.latency_target,
        lifetime: app.lifetime,
        paths: preferred.filter_map(|path| path_ids.id(*path)).collect(),
        tenant: TenantId(config.tenant_of(index).map_or(0, |tenant| tenant.id)),
        is_spread: preference.is_some_and(|preference| preference.is_spread),
    }
}

fn open(
    transport: Transport,
    local: SocketAddr,
    interface: Option<&str>,
) -> anyhow::Result<Entrance> {
    let mode = match transport {
        Transport::Udp => {
            let socket = BatchSocket::bind_on(local, Purpose::Application, interface)?;
            return Ok(Entrance::Udp(socket));
        }
        Transport::Tcp => Mode::Plain,
        Transport::Tproxy => Mode::Transparent,
    };
    Ok(Entrance::Tcp(
        Listener::bind_on(local, mode, interface)?,
        mode,
    ))
}

/// Warns if a burst at the path's own rate would overflow the receive buffer.
fn warn_of_small_buffer(path: &Path, socket: &BatchSocket) {
    // The kernel counts its own overhead too, about as much again for full packets.
    let bits = socket.receive_buffer_bytes() as u64 / 2 * 8;
    let Some(rate) = path.rate else {
        return;
    };
    let needed = rate.as_bits_per_second() / 1000 * BUFFER_MILLIS_MIN;
    if bits < needed {
        tracing::warn!(
            path = path.name.as_str(),
            bytes = socket.receive_buffer_bytes(),
            "the receive buffer holds less than {BUFFER_MILLIS_MIN} ms at this path's rate; give keiro \
             CAP_NET_ADMIN, or raise net.core.rmem_max"
        );
    }
}

fn mtu_max(path: &Path, network: &Network) -> u16 {
    let interface = || {
        let found = interface_of(&path.local, &network.interfaces).map(|found| found.mtu);
        // Every address of 127.0.0.0/8 belongs to the loopback interface, listed or not.
        let of_address = || interface::mtu_of_address(path.local.address()?.ip()).ok()?;
        u64::from(found.or_else(of_address).unwrap_or(MTU_DEFAULT))
    };
    let bytes = path.mtu_max.map_or_else(interface, |bytes| bytes.get());
    u16::try_from(bytes).unwrap_or(u16::MAX)
}
