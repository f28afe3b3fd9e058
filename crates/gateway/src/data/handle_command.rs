//! Carries out the control thread's commands.

use std::{io, sync::mpsc::TryRecvError};

use keiro_core::{AppId, Instant, PeerConfig, PeerId};

use super::{
    DataThread, Draining, Next,
    command::{Command, PacketTrace},
    measure::DelayMeter,
    network_channel::NetworkChannel,
    now,
    route::{AppRoute, NewApp},
    streams::StreamServer,
};

const COMMANDS_PER_TURN: usize = 64;

impl DataThread {
    pub(super) fn handle_commands(&mut self) -> Next {
        self.wake.reset();
        for _ in 0..COMMANDS_PER_TURN {
            match self.commands.try_recv() {
                Ok(Command::Close) => return Next::End,
                Ok(command) => self.handle_command(command),
                Err(TryRecvError::Empty) => return Next::Turn,
                Err(TryRecvError::Disconnected) => return Next::End,
            }
        }
        // There may be more.
        self.wake.wake();
        Next::Turn
    }

    pub(super) fn handle_command(&mut self, command: Command) {
        let now = now();
        match command {
            Command::AddPeer {
                config,
                apps,
                reply,
            } => {
                let peer = self.add_peer(now, *config, apps);
                // The control thread waits for it, unless it has given up.
                let _ = reply.try_send(peer);
            }
            Command::RemovePeer { peer } => self.remove_peer(now, peer),
            Command::SetPaths { peer, paths } => self.endpoint.set_paths(now, peer, &paths),
            Command::SetApp { route } => self.set_app(now, route),
            Command::RemoveApp { app } => self.remove_app(app),
            Command::SetProbeShare(share) => self.endpoint.set_probe_share(share),
            Command::SetAggregation(config) => self.endpoint.set_aggregation(*config),
            Command::SetScheduler(scheduler) => self.endpoint.set_scheduler(scheduler),
            Command::AddMessageListener(listener) => {
                let added = self.messages.listen(&self.epoll, listener);
                log_epoll_error("message socket", added);
            }
            Command::ForgetDelays { apps } => self.forget_delays(now, &apps),
            Command::StopTrace { peer } => self.endpoint.stop_trace(peer),
            Command::Drain => self.start_draining(),
            // Handled by the caller.
            Command::Close => {}
            command @ (Command::BindSocket { .. }
            | Command::UnbindSocket { .. }
            | Command::BindToDevice { .. }
            | Command::ChallengePaths { .. }
            | Command::SetUplink { .. }
            | Command::RemoveSocket { .. }) => self.handle_socket_command(now, command),
            command @ (Command::AddListener { .. }
            | Command::MoveListener { .. }
            | Command::RemoveListener { .. }
            | Command::SetForward { .. }
            | Command::RemoveForward { .. }
            | Command::AddTcpListener { .. }
            | Command::MoveTcpListener { .. }
            | Command::RemoveTcpListener { .. }
            | Command::SetTcpForward { .. }
            | Command::RemoveTcpForward { .. }) => self.handle_listener_command(command),
            command @ (Command::AddDevice { .. }
            | Command::RemoveDevice { .. }
            | Command::SetTenant { .. }
            | Command::RemoveTenant { .. }
            | Command::SetSplitSockets { .. }
            | Command::AddSplitListeners { .. }
            | Command::RemoveSplitListeners { .. }) => self.handle_tenant_command(now, command),
            command @ (Command::OpenNetworkChannel(_)
            | Command::SendNetworkDocument { .. }
            | Command::FinishNetworkDocument { .. }) => self.handle_network_command(now, command),
            query @ (Command::Tenants { .. }
            | Command::TakeDelayWindows { .. }
            | Command::Paths { .. }
            | Command::Snapshot { .. }
            | Command::TakeTrace { .. }) => self.handle_query(now, query),
        }
    }

    fn handle_socket_command(&mut self, now: Instant, command: Command) {
        match command {
            Command::BindSocket { id, socket } => {
                // What came to the address of before is still of use.
                self.receive_wan(id);
                log_epoll_error("path", self.wan.bind(&self.epoll, id, *socket));
                self.endpoint.on_socket_bound(now, id);
                self.send();
            }
            Command::UnbindSocket { id, reply } => {
                self.receive_wan(id);
                self.wan.unbind(id);
                self.endpoint.on_socket_unbound(now, id);
                self.send();
                // The control thread waits for it, unless it has given up.
                let _ = reply.try_send(());
            }
            Command::BindToDevice { id, device, reply } => {
                let bound = self.wan.bind_to_device(id, &device);
                if bound.is_ok() {
                    self.endpoint.on_route_added(now, id);
                }
                let _ = reply.try_send(bound);
            }
            Command::ChallengePaths { id } => self.endpoint.on_route_added(now, id),
            Command::SetUplink { id, rate } => self.endpoint.set_uplink(id, rate),
            Command::RemoveSocket { id } => {
                // Notices about the changed paths leave first.
                self.send();
                self.wan.remove(id);
                self.endpoint.forget_socket(id);
            }
            _ => unreachable!("a command about sockets of paths"),
        }
    }

    /// Listeners and forwards of UDP and TCP.
    fn handle_listener_command(&mut self, command: Command) {
        match command {
            Command::AddListener { app, socket } => {
                log_epoll_error("listener", self.listeners.add(&self.epoll, app, *socket));
            }
            Command::MoveListener { address, app } => self.listeners.set_app(address, app),
            Command::RemoveListener { address } => self.listeners.remove(address),
            Command::SetForward { app, destination } => self.forwards.set(app, destination),
            Command::RemoveForward { app } => self.forwards.remove(app),
            Command::AddTcpListener {
                app,
                listener,
                mode,
            } => {
                let added = self.streams.listen(&self.epoll, app, listener, mode);
                log_epoll_error("listener", added);
            }
            Command::MoveTcpListener { address, app } => self.streams.move_listener(address, app),
            Command::RemoveTcpListener { address } => self.streams.remove_listener(address),
            Command::SetTcpForward {
                app,
                destination,
                interface,
            } => self.streams.set_forward(app, destination, interface),
            Command::RemoveTcpForward { app } => self.streams.remove_forward(app),
            _ => unreachable!("a command about listeners and forwards"),
        }
    }

    fn handle_tenant_command(&mut self, now: Instant, command: Command) {
        match command {
            Command::AddDevice {
                number,
                queues,
                offloads,
            } => {
                let added = self
                    .tunnels
                    .add_device(&self.epoll, number, queues, offloads);
                log_epoll_error("TUN device", added);
            }
            Command::RemoveDevice { number } => self.tunnels.remove_device(&self.epoll, number),
            Command::SetTenant { setup } => {
                let id = setup.config.id;
                self.tunnels.set(now, *setup, &mut self.endpoint);
                self.with_streams(|streams, context| streams.end_inadmissible(context, id));
            }
            Command::RemoveTenant { id } => {
                self.tunnels.remove(id, &mut self.endpoint);
                self.with_streams(|streams, context| streams.end_inadmissible(context, id));
            }
            Command::SetSplitSockets { sockets } => self.streams.set_split_sockets(sockets),
            Command::AddSplitListeners { opened } => {
                self.tunnels.add_split_listeners(&self.epoll, opened);
            }
            Command::RemoveSplitListeners { tenant } => self.tunnels.remove_split_listeners(tenant),
            _ => unreachable!("a command about devices and tenants"),
        }
    }

    fn handle_network_command(&mut self, now: Instant, command: Command) {
        let endpoint = &mut self.endpoint;
        match command {
            Command::OpenNetworkChannel(is_open) => {
                self.network.set_open(is_open, &self.peers, endpoint);
            }
            Command::SendNetworkDocument { peer, bytes } => {
                NetworkChannel::send(now, peer, bytes, endpoint, &mut self.reporter);
                self.send();
            }
            Command::FinishNetworkDocument {
                peer,
                id,
                length_bytes,
                refused,
            } => {
                self.network.on_taken(peer, length_bytes);
                endpoint.finish_message(peer, id, refused);
                self.send();
            }
            _ => unreachable!("a command about the network channel"),
        }
    }

    /// Answers what the control thread asks, which may have given up.
    fn handle_query(&mut self, now: Instant, command: Command) {
        match command {
            Command::Tenants { flows_of, reply } => {
                let mut figures = self.tunnels.figures(now, &self.endpoint, flows_of);
                for of in &mut figures {
                    self.streams.add_split_counts(of.id, &mut of.counts.stats);
                }
                let _ = reply.try_send(figures);
            }
            Command::TakeDelayWindows { reply } => {
                let windows = self.delays.iter_mut();
                let windows = windows
                    .filter_map(|(app, meter)| Some((*app, meter.take_window(now)?)))
                    .collect();
                let _ = reply.try_send(windows);
            }
            Command::Paths { reply } => {
                let paths = |peer: &PeerId| (*peer, self.endpoint.paths(*peer));
                let _ = reply.try_send(self.peers.iter().map(paths).collect());
            }
            Command::Snapshot { reply } => {
                let _ = reply.try_send(Box::new(self.snapshot(now)));
            }
            Command::TakeTrace { peer, reply } => {
                let batch = self.endpoint.take_trace(peer);
                let _ = reply.try_send(PacketTrace { at: now, batch });
            }
            _ => unreachable!("a command with a reply"),
        }
    }

    pub(super) fn add_peer(
        &mut self,
        now: Instant,
        mut config: PeerConfig,
        apps: Vec<NewApp>,
    ) -> PeerId {
        config.apps.extend(self.network.app());
        let peer = self.endpoint.add_peer(now, config);
        self.peers.insert(peer);
        for NewApp {
            name,
            config,
            has_forward,
        } in apps
        {
            let route = AppRoute {
                name,
                peer,
                config,
                has_forward,
            };
            self.set_app(now, route);
        }
        peer
    }

    fn remove_peer(&mut self, now: Instant, peer: PeerId) {
        self.endpoint.remove_peer(now, peer);
        self.peers.remove(&peer);
        self.forwards.forget_peer(peer);
        self.streams.forget_peer(peer);
        self.messages.forget_peer(peer);
        self.network.forget_peer(peer);
        self.tunnels.forget_peer(peer);
    }

    fn forget_delays(&mut self, now: Instant, apps: &[AppId]) {
        for app in apps {
            if let Some(meter) = self.delays.get_mut(app) {
                meter.forget(now);
            }
        }
    }

    fn start_draining(&mut self) {
        self.listeners.clear();
        self.tunnels.drain();
        self.with_streams(StreamServer::drain);
        self.messages.drain();
        self.draining = Draining::Yes;
        self.check_drained();
    }

    fn set_app(&mut self, now: Instant, route: AppRoute) {
        let app = route.config.id;
        if let Some(old) = self.routes.get(app)
            && old.peer != route.peer
        {
            // Another peer; local clients stay attached.
            self.endpoint.remove_app(old.peer, app);
        }
        self.endpoint.set_app(route.peer, route.config.clone());
        self.delays
            .entry(app)
            .or_insert_with(|| DelayMeter::new(now));
        self.routes.insert(route);
    }

    fn remove_app(&mut self, app: AppId) {
        let Some(route) = self.routes.remove(app) else {
            return;
        };
        self.endpoint.remove_app(route.peer, app);
        self.delays.remove(&app);
        self.with_messages(|messages, context| messages.forget_app(context, app));
        self.with_streams(|streams, context| streams.forget_app(context, app));
    }
}

fn log_epoll_error(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::error!(%error, "{what}: cannot wait for the socket");
    }
}
