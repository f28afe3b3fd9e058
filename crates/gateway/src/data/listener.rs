//! UDP listeners: local clients' datagrams go to the peer, replies come back to the client.
//!
//! An application of class `datagram` keeps its clients apart as flows. For one of class `message`
//! every datagram is one message: it is repaired when lost, but has no flow and no reply.

use std::{collections::HashMap, io, net::SocketAddr};

use keiro_core::{AppId, DeliveryClass, Endpoint, FlowId, Instant, NewDatagram};
use keiro_linux::{
    epoll::{Epoll, Interest},
    udp::{BatchSocket, DatagramBatch, ReceiveBuffers, Sent},
};
use keiro_stats::UdpListenerStats;

use super::{
    figures::ListenerFigures,
    flow::{Client, FlowTable},
    messages::tag::tagged_body,
    route::Routes,
    token,
};

pub(crate) struct Listeners {
    listeners: HashMap<u64, Listener>,
    /// Per application of class `datagram`.
    flows: HashMap<AppId, FlowTable>,
    next: u64,
    first_flow: u32,
}

struct Listener {
    app: AppId,
    socket: BatchSocket,
    figures: ListenerFigures,
    /// Numbers the messages of a class `message` listener.
    next_message: u64,
}

/// Batches taken from one listener before others have their turn.
const BATCHES_PER_TURN: usize = 4;

impl Listeners {
    pub(crate) fn new(first_flow: u32) -> Self {
        Self {
            listeners: HashMap::new(),
            flows: HashMap::new(),
            next: 0,
            first_flow,
        }
    }

    pub(crate) fn add(&mut self, epoll: &Epoll, app: AppId, socket: BatchSocket) -> io::Result<()> {
        let number = self.next;
        self.next += 1;
        epoll.add(&socket, token::listener(number), Interest::Read)?;
        let figures = ListenerFigures {
            address: socket.local(),
            stats: UdpListenerStats::default(),
        };
        let listener = Listener {
            app,
            socket,
            figures,
            next_message: 0,
        };
        self.listeners.insert(number, listener);
        Ok(())
    }

    /// Gives the listener at `address` to another application; its clients get new flows.
    pub(crate) fn set_app(&mut self, address: SocketAddr, app: AppId) {
        for (number, listener) in &mut self.listeners {
            if listener.socket.local() == address {
                listener.app = app;
                for flows in self.flows.values_mut() {
                    flows.forget_listener(*number);
                }
            }
        }
    }

    pub(crate) fn remove(&mut self, address: SocketAddr) {
        let found = self
            .listeners
            .iter()
            .find(|(_, i)| i.socket.local() == address);
        let Some(number) = found.map(|(number, _)| *number) else {
            return;
        };
        // Dropping the socket takes it out of the epoll set.
        self.listeners.remove(&number);
        for flows in self.flows.values_mut() {
            flows.forget_listener(number);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.listeners.clear();
        self.flows.clear();
    }

    /// Takes what waits at listener `number` over for its application.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        number: u64,
        buffers: &mut ReceiveBuffers,
        routes: &Routes,
        endpoint: &mut Endpoint,
    ) -> io::Result<()> {
        let Some(listener) = self.listeners.get_mut(&number) else {
            return Ok(());
        };
        let Listener {
            app,
            socket,
            figures,
            next_message,
        } = listener;
        let route = routes.get(*app);
        let first_flow = self.first_flow;
        let mut flows = route.map(|route| {
            let key = route.config.id;
            self.flows
                .entry(key)
                .or_insert_with(|| FlowTable::new(first_flow))
        });
        for _ in 0..BATCHES_PER_TURN {
            let count = socket.receive(buffers, |received| {
                let client = Client {
                    listener: number,
                    remote: received.remote,
                    local: received.local,
                };
                // It may have waited while the gateway was kept from running.
                let made = Instant::from_nanos(received.received_at_nanos);
                // An empty datagram is one, too, and has no chunk.
                let empty = received.data.is_empty().then_some(&[][..]);
                for datagram in received.data.chunks(received.stride).chain(empty) {
                    figures.stats.received_packets += 1;
                    figures.stats.received_bytes += datagram.len() as u64;
                    let (Some(route), Some(flows)) = (route, flows.as_mut()) else {
                        figures.stats.refused_packets += 1;
                        continue;
                    };
                    let (peer, app) = (route.peer, route.config.id);
                    let taken = match route.config.class {
                        DeliveryClass::Datagram => match flows.flow_of(now, client) {
                            Some(flow) => endpoint
                                .send_datagram(
                                    now,
                                    peer,
                                    NewDatagram::new(app, flow, made, datagram),
                                )
                                .is_ok(),
                            None => false,
                        },
                        DeliveryClass::Message => {
                            *next_message += 1;
                            let body = tagged_body(*next_message, datagram);
                            !datagram.is_empty()
                                && endpoint.send_message(now, made, peer, app, body).is_ok()
                        }
                        DeliveryClass::Stream => false,
                    };
                    figures.stats.refused_packets += u64::from(!taken);
                }
            })?;
            if count == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Gives a reply to the client of its flow; whether that was possible.
    pub(crate) fn reply(&mut self, now: Instant, app: AppId, flow: FlowId, data: &[u8]) -> bool {
        let client = self
            .flows
            .get_mut(&app)
            .and_then(|flows| flows.client_of(now, flow));
        let Some(client) = client else {
            return false;
        };
        let Some(listener) = self.listeners.get_mut(&client.listener) else {
            return false;
        };
        let outgoing = DatagramBatch {
            remote: client.remote,
            source: client.local,
            ecn: 0,
            data,
            segment_size: 0,
        };
        matches!(listener.socket.send(&outgoing), Sent::All)
    }

    /// Forgets idle clients, and the flows of applications that are gone.
    pub(crate) fn sweep(&mut self, now: Instant, routes: &Routes) {
        self.flows.retain(|key, flows| {
            flows.forget_idle(now);
            routes.get(*key).is_some()
        });
    }

    /// The listeners of an application, by address.
    pub(crate) fn figures(&self, app: AppId) -> Vec<ListenerFigures> {
        let of_app = self
            .listeners
            .values()
            .filter(|listener| listener.app == app);
        let mut figures: Vec<ListenerFigures> = of_app.map(|i| i.figures.clone()).collect();
        figures.sort_by_key(|figures| figures.address);
        figures
    }
}
