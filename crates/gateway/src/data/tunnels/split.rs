//! Split TCP connections of all tenants at their clients' gateway, and which ones of peers are taken.

use std::net::TcpStream;

use keiro_core::{AppId, Endpoint, Instant, PeerId, ResetReason, StreamId, StreamSignal, TenantId};
use keiro_linux::{acceptor::Acceptor, epoll::Epoll, tcp, tcp::Listener};

use super::{
    super::{
        quota::QuotaGuard,
        split::{FlowAddresses, SplitFlows, app_of},
        token,
    },
    Tunnels,
    held_syns::{Answer, HeldSyn, reason_of},
    tenant::{IngressContext, Tenant, TenantSetup},
};

/// A client whose connection the kernel has accepted, and the stream to its server.
#[derive(Debug)]
pub(crate) struct AcceptedClient {
    pub(crate) socket: TcpStream,
    pub(crate) tenant: TenantId,
    pub(crate) peer: PeerId,
    pub(crate) stream: StreamId,
    pub(crate) flow: FlowAddresses,
    /// Its descriptor.
    pub(crate) share: QuotaGuard,
}

/// Where the kernel gives the clients of a tenant to us.
pub(super) struct SplitListener {
    tenant: TenantId,
    acceptor: Acceptor<Listener>,
}

/// Listeners of a tenant, to which rules of nftables lead its clients.
#[derive(Debug)]
pub(crate) struct SplitListeners {
    pub(crate) tenant: TenantId,
    /// Of IPv4 and IPv6.
    pub(crate) listeners: Vec<Listener>,
    /// Handshakes that each may have at once.
    pub(crate) handshakes_max: usize,
}

impl Tunnels {
    /// Takes over the listeners of a tenant.
    pub(crate) fn add_split_listeners(&mut self, epoll: &Epoll, opened: SplitListeners) {
        let SplitListeners {
            tenant,
            listeners,
            handshakes_max,
        } = opened;
        self.held_syns.add_tenant(tenant, handshakes_max);
        for listener in listeners {
            let number = self.next_split_listener;
            self.next_split_listener += 1;
            let name = format!("tcp = \"split\", listener {}", listener.local());
            match Acceptor::new(epoll, listener, token::split_listener(number), name) {
                Ok(acceptor) => {
                    let listener = SplitListener { tenant, acceptor };
                    self.split_listeners.insert(number, listener);
                }
                Err(error) => tracing::error!(%error, "tcp = \"split\": cannot wait for clients"),
            }
        }
    }

    /// Closes the listeners of a tenant.
    pub(crate) fn remove_split_listeners(&mut self, tenant: TenantId) {
        self.held_syns.remove_tenant(tenant);
        self.split_listeners.retain(|_, of| of.tenant != tenant);
    }

    /// The next client that waits at listener `number`. `None`: none does.
    pub(crate) fn accept_client(
        &mut self,
        now: Instant,
        epoll: &Epoll,
        number: u64,
    ) -> Option<AcceptedClient> {
        let SplitListener { tenant, acceptor } = self.split_listeners.get_mut(&number)?;
        loop {
            let (socket, client) = acceptor.accept(epoll, Listener::accept)?;
            let server = socket.local_addr();
            let flow = server.ok().map(|destination| FlowAddresses {
                source: client,
                destination,
            });
            let held = flow.and_then(|flow| {
                let held = self.held_syns.take_accepted(now, *tenant, flow)?;
                Some((flow, held))
            });
            let Some((flow, held)) = held else {
                // Its stream has ended meanwhile, or a local program has found the port.
                tcp::reset(socket);
                continue;
            };
            return Some(AcceptedClient {
                socket,
                tenant: held.tenant,
                peer: held.peer,
                stream: held.stream,
                flow,
                share: held.share,
            });
        }
    }

    /// Handles a signal of the core if the stream is one whose client is not accepted yet.
    pub(crate) fn on_stream_signal(
        &mut self,
        now: Instant,
        peer: PeerId,
        stream: StreamId,
        signal: StreamSignal,
        endpoint: &mut Endpoint,
    ) -> bool {
        if !self.held_syns.has(peer, stream) {
            return false;
        }
        match self
            .held_syns
            .on_signal(now, peer, stream, signal, endpoint)
        {
            Answer::Wait => {}
            Answer::Connected(tenant, packet) => {
                let tenant = self.tenants.get(&tenant);
                let device = tenant.and_then(|of| self.devices.get(&of.setup.device));
                // What the device does not take the client sends again.
                if let Some(device) = device {
                    device.write_one(&packet);
                }
            }
            Answer::Refused(held, reason) => {
                let Some(tenant) = self.tenants.get_mut(&held.tenant) else {
                    return true;
                };
                *reason_of(reason)(&mut tenant.counts.not_split) += 1;
                let Some(device) = self.devices.get(&tenant.setup.device) else {
                    return true;
                };
                let mut context = IngressContext {
                    now,
                    device,
                    seed: &self.seed,
                    next_hops: &self.next_hops,
                    held_syns: &mut self.held_syns,
                    split_flows: &SplitFlows::new(),
                    unreachable: &mut self.unreachable,
                    endpoint,
                };
                let HeldSyn {
                    peer,
                    header,
                    sorted,
                    packet,
                    ..
                } = &*held;
                tenant.send_whole(&mut context, *peer, header, *sorted, packet);
            }
        }
        true
    }

    /// Begins no more split connections: the gateway stops.
    pub(crate) fn drain(&mut self) {
        self.held_syns.drain();
    }

    /// Numbers of connections whose servers cannot be reached, as the packets have said that were received last.
    pub(crate) fn take_unreachable(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.unreachable)
    }

    /// Gives up what has waited for too long.
    pub(crate) fn tick(&mut self, now: Instant, epoll: &Epoll, endpoint: &mut Endpoint) {
        for listener in self.split_listeners.values_mut() {
            listener.acceptor.rearm(epoll);
        }
        self.held_syns.tick(now, endpoint);
        if cfg!(debug_assertions) {
            self.held_syns.check_invariants();
        }
    }

    /// The tenant whose split connections an application of a peer carries.
    pub(crate) fn split_tenant(&self, peer: PeerId, app: AppId) -> Option<TenantId> {
        let id = *self.split_apps.get(&app)?;
        let tenant = self.tenants.get(&id)?;
        tenant.setup.peers.contains_key(&peer).then_some(id)
    }

    /// Whether a peer may have a connection of a tenant made here.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn check_connection(
        &self,
        tenant: TenantId,
        peer: PeerId,
        flow: &FlowAddresses,
    ) -> Result<(), ResetReason> {
        let tenant = self
            .tenants
            .get(&tenant)
            .ok_or(ResetReason::UnknownApplication)?;
        if !tenant.setup.splits_tcp {
            // The rules are not in place.
            return Err(ResetReason::Gateway);
        }
        match tenant.admits_connection(peer, flow) {
            true => Ok(()),
            false => Err(ResetReason::Forbidden),
        }
    }

    /// Gives up connections of a tenant that wait for servers where none may have them any more.
    pub(super) fn end_inadmissible_holds(&mut self, id: TenantId, endpoint: &mut Endpoint) {
        let tenant = self.tenants.get(&id).filter(|of| of.setup.splits_tcp);
        self.held_syns.forget_where(endpoint, |flow, held| {
            let is_admitted = |of: &Tenant| of.admits_connection(held.peer, &flow.reversed());
            held.tenant == id && !tenant.is_some_and(is_admitted)
        });
    }

    /// Gives the core the applications of a tenant that is set.
    pub(super) fn set_split_apps(
        &mut self,
        before: Option<&TenantSetup>,
        setup: &TenantSetup,
        endpoint: &mut Endpoint,
    ) {
        let id = setup.config.id;
        let app_before = |peer: &PeerId| {
            let of = before?.peers.get(peer)?;
            of.split_app.as_ref()
        };
        match setup.peers.values().any(|of| of.split_app.is_some()) {
            true => self.split_apps.insert(app_of(id), id),
            false => self.split_apps.remove(&app_of(id)),
        };
        for (peer, of) in &setup.peers {
            match (&of.split_app, app_before(peer)) {
                (Some(app), before) if before != Some(app) => endpoint.set_app(*peer, app.clone()),
                (None, Some(_)) => endpoint.remove_app(*peer, app_of(id)),
                _ => {}
            }
        }
        let gone = before.iter().flat_map(|before| &before.peers);
        let gone = gone.filter(|(peer, _)| !setup.peers.contains_key(peer));
        for (peer, of) in gone {
            if of.split_app.is_some() {
                endpoint.remove_app(*peer, app_of(id));
            }
        }
    }

    /// A tenant is removed.
    pub(super) fn end_splitting(&mut self, setup: &TenantSetup, endpoint: &mut Endpoint) {
        let id = setup.config.id;
        self.end_inadmissible_holds(id, endpoint);
        self.split_apps.remove(&app_of(id));
        for (peer, of) in &setup.peers {
            if of.split_app.is_some() {
                endpoint.remove_app(*peer, app_of(id));
            }
        }
    }
}
