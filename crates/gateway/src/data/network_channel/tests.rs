use std::sync::{Arc, mpsc::Receiver};

use keiro_core::{
    DatagramMeta, Delivery, EndpointConfig, FlowId, IpPacket, NewDatagram, PathConfig, PathId,
    PeerConfig, PrivateKey, PublicKey, ResetReason, SocketId, StreamSignal, TenantConfig,
    TransmitBuf,
};
use keiro_linux::epoll::Waker;
use keiro_testing::eventually;

use super::{
    super::{DataThread, command::Command, now, route::AppRoute, tests::data_thread},
    *,
};

fn endpoint() -> Endpoint {
    let config = EndpointConfig::new(PrivateKey::from_bytes([1; 32]));
    Endpoint::new(now(), config, [2; 32])
}

fn reason(result: Option<MessageResult>) -> Option<RefusalReason> {
    result.expect("it is finished").refused
}

#[test]
fn documents_wait_within_bounds_and_nothing_is_taken_while_it_is_closed() {
    let (mut reporter, reports) = Reporter::new(Arc::new(Waker::new().unwrap()));
    let mut channel = NetworkChannel::default();
    let mut endpoint = endpoint();
    let peers: BTreeSet<PeerId> = (0..40).map(PeerId).collect();
    let mut take = |channel: &mut NetworkChannel, peer, length| {
        let taken = channel.on_message(PeerId(peer), MessageId(0), vec![0; length], &mut reporter);
        channel.check_invariants();
        taken
    };
    let closed = take(&mut channel, 0, 1);
    assert_eq!(reason(closed), Some(RefusalReason::UnknownApplication));
    channel.set_open(true, &peers, &mut endpoint);
    let long = take(&mut channel, 0, DOCUMENT_BYTES_MAX + 1);
    assert_eq!(reason(long), Some(RefusalReason::Other));
    for _ in 0..WAITING_PER_PEER_MAX {
        assert!(take(&mut channel, 0, 1).is_none());
    }
    let many = take(&mut channel, 0, 1);
    assert_eq!(reason(many), Some(RefusalReason::ReceiverFull));
    channel.on_taken(PeerId(0), 1);
    assert!(take(&mut channel, 0, 1).is_none());
    // All peers together.
    let mut peer = 1;
    while take(&mut channel, peer, DOCUMENT_BYTES_MAX).is_none() {
        peer += 1;
    }
    let most = (WAITING_BYTES_MAX - WAITING_PER_PEER_MAX) / DOCUMENT_BYTES_MAX;
    assert_eq!(peer as usize, 1 + most, "with four short ones");
    channel.forget_peer(PeerId(1));
    assert!(take(&mut channel, 30, DOCUMENT_BYTES_MAX).is_none());
    assert_eq!(reports.try_iter().count(), 4 + 1 + most + 1);
}

#[test]
fn network_channel_exists_for_every_peer_while_it_is_open() {
    let (mut reporter, reports) = Reporter::new(Arc::new(Waker::new().unwrap()));
    let mut endpoint = endpoint();
    let peer = PeerConfig::new(PublicKey::from_bytes([3; 32]));
    let peer = endpoint.add_peer(now(), peer);
    let mut channel = NetworkChannel::default();
    let mut is_refused = |endpoint: &mut Endpoint| {
        NetworkChannel::send(now(), peer, b"{}".to_vec(), endpoint, &mut reporter);
        reports.try_iter().count() == 1
    };
    assert!(channel.app().is_none());
    assert!(is_refused(&mut endpoint));
    channel.set_open(true, &[peer].into(), &mut endpoint);
    assert!(channel.app().is_some());
    assert!(!is_refused(&mut endpoint));
    channel.set_open(false, &[peer].into(), &mut endpoint);
    assert!(is_refused(&mut endpoint));
}

/// A hub's data thread and a gateway that holds a token, with a wire between them.
struct Joining {
    hub: DataThread,
    reports: Receiver<Report>,
    joiner: Endpoint,
    /// The hub's peer at the joiner.
    peer: PeerId,
    ended: Vec<(AppId, MessageOutcome)>,
    reset: Vec<ResetReason>,
    refused_tenants: usize,
    delivered: usize,
}

const HUB: &str = "192.0.2.1:7600";
const JOINER: &str = "192.0.2.2:7600";

fn app(name: &str, class: DeliveryClass) -> AppConfig {
    AppConfig {
        id: AppId::of_name(name),
        class,
        ..app_config()
    }
}

fn apps() -> [AppConfig; 3] {
    [
        app("M", DeliveryClass::Message),
        app("D", DeliveryClass::Datagram),
        app("S", DeliveryClass::Stream),
    ]
}

impl Joining {
    /// The hub has applications and a tenant with a partner, and nothing but the channel with the joiner, which
    /// has all of them.
    fn new() -> Self {
        let [hub_key, key, partner_key] =
            [1, 3, 4].map(|number| PrivateKey::from_bytes([number; 32]));
        let (reporter, reports) = Reporter::new(Arc::new(Waker::new().unwrap()));
        let mut hub = data_thread(reporter);
        hub.handle_command(Command::OpenNetworkChannel(true));
        let partner = PeerConfig::new(partner_key.public_key());
        let partner = hub.add_peer(now(), partner, Vec::new());
        for config in apps() {
            let name = format!("{:?}", config.id);
            let route = AppRoute {
                name,
                peer: partner,
                config,
                has_forward: false,
            };
            hub.handle_command(Command::SetApp { route });
        }
        let tenant = TenantConfig::new(TenantId(1));
        hub.endpoint.set_tenant(now(), partner, tenant).unwrap();
        let path = |remote: Option<&str>| PathConfig {
            id: PathId(0),
            socket: SocketId(0),
            remote: remote.map(|text| text.parse().unwrap()),
            rate: None,
            mtu_max: 1500,
            probe_limit: None,
            terms: keiro_core::PathTerms::FREE,
        };
        let mut provisional = PeerConfig::new(key.public_key());
        provisional.paths = vec![path(None)];
        hub.add_peer(now(), provisional, Vec::new());
        let mut joiner = Endpoint::new(now(), EndpointConfig::new(key), [5; 32]);
        let mut to_hub = PeerConfig::new(hub_key.public_key());
        to_hub.paths = vec![path(Some(HUB))];
        to_hub.apps = apps().to_vec();
        to_hub.apps.push(app_config());
        let peer = joiner.add_peer(now(), to_hub);
        let tenant = TenantConfig::new(TenantId(1));
        joiner.set_tenant(now(), peer, tenant).unwrap();
        Self {
            hub,
            reports,
            joiner,
            peer,
            ended: Vec::new(),
            reset: Vec::new(),
            refused_tenants: 0,
            delivered: 0,
        }
    }

    /// Carries what both have to send, and takes what arrives.
    fn turn(&mut self) {
        carry(&mut self.joiner, &mut self.hub.endpoint, JOINER);
        self.hub.deliver();
        self.hub.handle_events();
        carry(&mut self.hub.endpoint, &mut self.joiner, HUB);
        while let Some(event) = self.joiner.poll_event() {
            match event {
                Event::MessageDone { app, outcome, .. } => self.ended.push((app, outcome)),
                Event::TenantRefused { .. } => self.refused_tenants += 1,
                _ => {}
            }
        }
        while let Some(delivery) = self.joiner.poll_delivery() {
            match delivery {
                Delivery::Stream {
                    signal: StreamSignal::Reset(reason),
                    ..
                } => self.reset.push(reason),
                _ => self.delivered += 1,
            }
        }
    }
}

fn carry(from: &mut Endpoint, to: &mut Endpoint, source: &str) {
    let mut buffer = TransmitBuf::new(1);
    from.handle_timeout(now());
    while let Some(transmit) = from.poll_transmit(now(), &mut buffer) {
        let meta = DatagramMeta {
            socket: SocketId(0),
            remote: source.parse().unwrap(),
            ecn: 0,
            received_at: now(),
        };
        let mut packet = buffer.filled()[..transmit.len].to_vec();
        to.handle_datagram(now(), meta, &mut packet);
    }
}

#[test]
fn a_provisional_peer_reaches_no_application_and_no_tenant() {
    let mut joining = Joining::new();
    eventually("the session is up", || {
        joining.turn();
        joining.joiner.is_up(joining.peer).then_some(())
    });
    let (peer, joiner) = (joining.peer, &mut joining.joiner);
    let id = |name| AppId::of_name(name);
    let tagged = super::super::messages::tag::tagged_body(1, b"body");
    joiner
        .send_message(now(), now(), peer, id("M"), tagged)
        .unwrap();
    joiner.open_stream(now(), peer, id("S"), None).unwrap();
    let datagram = NewDatagram::new(id("D"), FlowId(1), now(), b"datagram");
    joiner.send_datagram(now(), peer, datagram).unwrap();
    let packet = IpPacket {
        flow_hash: 0,
        ecn: 0,
        needs_order: false,
        data: vec![0x45; 100],
    };
    joiner
        .send_packet(now(), peer, TenantId(1), id("D"), packet)
        .unwrap();
    let document = b"{\"type\": \"weather\"}".to_vec();
    joiner
        .send_message(now(), now(), peer, id(NETWORK_APP), document.clone())
        .unwrap();

    let refused = MessageOutcome::Refused(RefusalReason::UnknownApplication);
    eventually("all but the document is refused", || {
        joining.turn();
        let is_refused = joining.ended.contains(&(id("M"), refused))
            && joining.reset == [ResetReason::UnknownApplication]
            && joining.refused_tenants == 1;
        is_refused.then_some(())
    });
    let mut documents = Vec::new();
    eventually("the document is there", || {
        joining.turn();
        documents.extend(
            joining
                .reports
                .try_iter()
                .filter_map(|report| match report {
                    Report::NetworkDocument { peer, id, bytes } => Some((peer, id, bytes)),
                    _ => None,
                }),
        );
        (documents.len() == 1).then_some(())
    });
    let (from, number, bytes) = documents.pop().unwrap();
    assert_eq!(bytes, document);
    assert_eq!(joining.delivered, 0);
    // It has not ended before it was taken.
    assert!(joining.ended.iter().all(|(app, _)| *app != id(NETWORK_APP)));
    joining.hub.handle_command(Command::FinishNetworkDocument {
        peer: from,
        id: number,
        length_bytes: bytes.len(),
        refused: None,
    });
    eventually("the document has ended", || {
        joining.turn();
        let done = (id(NETWORK_APP), MessageOutcome::Delivered);
        joining.ended.contains(&done).then_some(())
    });
    joining.hub.network.check_invariants();
}
