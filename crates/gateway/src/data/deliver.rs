//! Hands out what the core has received from peers, and acts on its events.

use keiro_core::{
    AppId, DelaySample, Delivery, Event, FlowId, Instant, MessageId, MessageOutcome, PeerId,
    RefusalReason,
};

use super::{
    DataThread,
    forward::{DATAGRAM_BYTES_MAX, From},
    messages::{
        MessageResult, MessageServer, PendingMessage,
        tag::{TAG_BYTES, untagged_body},
    },
    network_channel::NetworkChannel,
    now,
    report::Report,
    tunnels::PacketFromPeer,
};

/// Held messages of one application that its forward is given in a tick. Ours: less than a millisecond of work.
pub(super) const FORWARDED_PER_TICK: usize = 128;
impl DataThread {
    /// Gives out what came from peers.
    pub(super) fn deliver(&mut self) {
        let began = now();
        loop {
            let (peer, app, id, body) = match self.endpoint.poll_delivery() {
                None => {
                    self.tunnels.flush(&mut self.reporter);
                    self.tunnels.send_transit(now(), &mut self.endpoint);
                    return;
                }
                Some(Delivery::Datagram {
                    peer,
                    app,
                    flow,
                    reply,
                    data,
                }) => {
                    let now = now();
                    if reply {
                        if self.routes.of_peer(peer, app).is_some() {
                            self.listeners.reply(now, app, flow, data);
                        }
                    } else if self.routes.of_peer(peer, app).is_some() {
                        let from = From {
                            peer,
                            app,
                            flow,
                            replies: true,
                        };
                        self.forwards.send(now, &self.epoll, from, data);
                    }
                    continue;
                }
                Some(Delivery::Message {
                    peer,
                    app,
                    id,
                    body,
                }) => (peer, app, id, body),
                Some(Delivery::Packet {
                    peer,
                    tenant,
                    ecn,
                    data,
                }) => {
                    let packet = PacketFromPeer {
                        now: began,
                        peer,
                        tenant,
                        ecn,
                        data,
                    };
                    self.tunnels.deliver(&packet, &mut self.reporter);
                    if self.tunnels.must_send_transit() {
                        self.tunnels.send_transit(now(), &mut self.endpoint);
                    }
                    continue;
                }
                Some(Delivery::Stream {
                    peer,
                    app,
                    stream,
                    signal,
                }) => {
                    let endpoint = &mut self.endpoint;
                    if self
                        .tunnels
                        .on_stream_signal(now(), peer, stream, signal, endpoint)
                    {
                        continue;
                    }
                    self.with_streams(|streams, context| {
                        streams.on_signal(context, peer, app, stream, signal);
                    });
                    continue;
                }
            };
            if let Some(finished) = self.deliver_message(peer, app, id, body) {
                let MessageResult { peer, id, refused } = finished;
                self.endpoint.finish_message(peer, id, refused);
            }
        }
    }

    pub(super) fn deliver_message(
        &mut self,
        peer: PeerId,
        app: AppId,
        id: MessageId,
        bytes: Vec<u8>,
    ) -> Option<MessageResult> {
        if NetworkChannel::is_its(app) {
            return self.network.on_message(peer, id, bytes, &mut self.reporter);
        }
        let finished = |refused| Some(MessageResult { peer, id, refused });
        if self.routes.of_peer(peer, app).is_none() {
            return finished(Some(RefusalReason::UnknownApplication));
        }
        if !self.forwards.has(app) {
            let held = PendingMessage { peer, id, bytes };
            return self.with_messages(|messages, context| messages.deliver(context, app, held));
        }
        let body = untagged_body(&bytes).filter(|body| body.len() <= DATAGRAM_BYTES_MAX);
        let Some(body) = body else {
            return finished(Some(RefusalReason::Other));
        };
        // UDP has no acknowledgement: losses behind the forward are not repaired.
        if !self.messages.holds(app) && self.forward_message(peer, app, body) {
            self.messages.on_forward_open(app);
            return finished(None);
        }
        let held = PendingMessage { peer, id, bytes };
        self.messages.hold_for_absent(now(), app, held)
    }

    /// Gives a message to the kernel for the forward's destination; `false`: it takes none now.
    fn forward_message(&mut self, peer: PeerId, app: AppId, body: &[u8]) -> bool {
        let from = From {
            peer,
            app,
            flow: FlowId(0),
            replies: false,
        };
        self.forwards.send(now(), &self.epoll, from, body)
    }

    /// Tries again what forwards did not take, of each application [`FORWARDED_PER_TICK`] messages so that other traffic
    /// goes on.
    pub(super) fn retry_forwards(&mut self) {
        for app in self.messages.held_apps() {
            if !self.forwards.has(app) {
                continue;
            }
            for _ in 0..FORWARDED_PER_TICK {
                let Some(held) = self.messages.first_held(app) else {
                    break;
                };
                let (peer, id) = (held.peer, held.id);
                let body = untagged_body(&held.bytes).unwrap_or_default().to_vec();
                if !self.forward_message(peer, app, &body) {
                    break;
                }
                self.messages.on_forwarded(app);
                self.endpoint.finish_message(peer, id, None);
            }
        }
    }

    /// Acts on the core's events and passes them on.
    pub(super) fn handle_events(&mut self) {
        let mut ended = false;
        while let Some(event) = self.endpoint.poll_event() {
            let at = now();
            self.tunnels.on_event(&event);
            if NetworkChannel::on_message_done(&event, &mut self.reporter) {
                continue;
            }
            if matches!(event, Event::MessageDone { .. }) {
                ended = true;
                self.on_message_done(at, &event);
            } else {
                self.reporter.report(Report::Core { at, event });
            }
        }
        self.record_delay_samples();
        self.tunnels.update_peers(now(), &self.endpoint);
        self.tunnels.close_lost(&self.epoll);
        if ended {
            self.with_messages(MessageServer::retry_stalled);
        }
    }

    /// Delays of IP packets and streams.
    fn record_delay_samples(&mut self) {
        while let Some(DelaySample { peer, app, delay }) = self.endpoint.poll_delay_sample() {
            if self.routes.of_peer(peer, app).is_some()
                && let Some(meter) = self.delays.get_mut(&app)
            {
                meter.record_shown(now(), delay);
            }
        }
    }

    fn on_message_done(&mut self, at: Instant, done: &Event) {
        let Event::MessageDone {
            peer,
            app,
            id,
            len,
            outcome,
            after,
            arrived_after,
        } = *done
        else {
            return;
        };
        let ended = self.with_messages(|messages, context| {
            messages.on_message_done(context, peer, id, outcome, after)
        });
        match outcome {
            MessageOutcome::Delivered => {
                if self.routes.of_peer(peer, app).is_some()
                    && let Some(meter) = self.delays.get_mut(&app)
                    && let Some(delay) = arrived_after
                {
                    meter.record(at, delay);
                }
            }
            MessageOutcome::Expired => {
                let known = self.routes.of_peer(peer, app).map(|_| app);
                if let Some(app) = ended.or(known) {
                    self.reporter.report(Report::Expired {
                        app,
                        age: after,
                        length_bytes: len.saturating_sub(TAG_BYTES) as u64,
                    });
                }
            }
            MessageOutcome::Refused(_) | MessageOutcome::Unknown(_) => {}
        }
    }
}
