//! A tenant's messages, streams and datagrams share and are bounded as its IP packets are.

use keiro_core::{AggregationMode, AppConfig, AppId, DeliveryClass, FlowId, NewDatagram, StreamId};

use super::{
    BTreeMap, Bottleneck, ControllerConfig, Duration, MS, Net, ONE, TWO, TenantId, backlog, keiro,
    narrow, tenant,
};
use crate::pair::aggregates::fixed_copies;

const STREAMS: &str = "streams of one";
const MESSAGES: &str = "messages of one";
const THIN: &str = "datagrams of one";

fn id(name: &str) -> AppId {
    AppId::of_name(name)
}

/// A net whose applications are tenant 1's.
fn net(rate: u64, bottleneck: Bottleneck) -> Net {
    let mut net = Net::new(rate, bottleneck);
    for (name, class) in [
        (STREAMS, DeliveryClass::Stream),
        (MESSAGES, DeliveryClass::Message),
        (THIN, DeliveryClass::Datagram),
    ] {
        belong(&mut net, (name, class), ONE);
    }
    net
}

fn belong(net: &mut Net, (name, class): (&str, DeliveryClass), tenant: TenantId) {
    for side in 0..2 {
        let app = AppConfig {
            id: id(name),
            class,
            latency_target: None,
            lifetime: None,
            paths: Vec::new(),
            tenant,
            is_spread: false,
        };
        net.ends[side].set_app(net.peers[side], app);
    }
}

/// What gateway 1 has taken of an application, bytes.
fn sent(net: &Net, name: &str) -> u64 {
    let session = net.ends[0].session(net.peers[0]).expect("a peer");
    let app = session.apps.into_iter().find(|app| app.id == id(name));
    app.map_or(0, |app| app.stats.sent_bytes)
}

fn arrived(net: &Net, name: &str) -> u64 {
    net.arrived_units.get(&id(name)).copied().unwrap_or(0)
}

/// Has messages wait, and as many bytes of tenant 2's IP packets.
fn messages(net: &mut Net) {
    while sent(net, MESSAGES) < arrived(net, MESSAGES) + 100_000 {
        let body = vec![7; 5000];
        net.ends[0]
            .send_message(net.now, net.now, net.peers[0], id(MESSAGES), body)
            .expect("accepted");
    }
    packets(net, TWO, 1200);
}

fn packets(net: &mut Net, of: TenantId, len: usize) {
    while net.snapshot(of).stats.queued_bytes < 60_000 {
        net.send(of, 1, len).expect("accepted");
    }
}

/// What tenant 2's packets got for each byte of `name`.
fn ratio(
    net: &mut Net,
    name: &str,
    (warm, seconds): (u64, u64),
    each: impl FnMut(&mut Net),
) -> f64 {
    let mut each = each;
    net.run(Duration::from_secs(warm), &mut each);
    let before = arrived(net, name);
    net.arrived.clear();
    net.run(Duration::from_secs(seconds), &mut each);
    net.arrived[&TWO] as f64 / (arrived(net, name) - before) as f64
}

#[test]
fn messages_of_a_tenant_have_its_share() {
    let mut net = net(10, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    net.set(tenant(TWO, 3.0, ControllerConfig::Open));
    let ratio = ratio(&mut net, MESSAGES, (1, 3), messages);
    assert!((2.85..3.15).contains(&ratio), "{ratio}");
}

#[test]
fn application_without_its_tenant_uses_tenant_0_and_loses_nothing() {
    let mut net = net(10, narrow());
    net.set(tenant(ONE, 9.0, ControllerConfig::Open));
    net.set(tenant(TWO, 3.0, ControllerConfig::Open));
    net.run(Duration::from_secs(1), messages);
    // Tenant 0 has the weight 1.
    for side in 0..2 {
        net.ends[side].remove_tenant(net.peers[side], ONE);
    }
    let without_tenant = ratio(&mut net, MESSAGES, (1, 2), messages);
    assert!((2.85..3.15).contains(&without_tenant), "{without_tenant}");
    net.set(tenant(ONE, 9.0, ControllerConfig::Open));
    let again = ratio(&mut net, MESSAGES, (1, 2), messages);
    assert!((0.31..0.35).contains(&again), "{again}");
    belong(&mut net, (MESSAGES, DeliveryClass::Message), TWO);
    net.run(Duration::from_secs(5), |_| {});
    assert_eq!(arrived(&net, MESSAGES), sent(&net, MESSAGES));
}

#[test]
fn messages_and_packets_of_one_tenant_take_turns() {
    let mut net = net(10, narrow());
    net.set(tenant(ONE, 1.0, ControllerConfig::Open));
    net.set(tenant(TWO, 2.0, ControllerConfig::Open));
    let each = |net: &mut Net| {
        messages(net);
        packets(net, ONE, 1200);
    };
    net.run(Duration::from_secs(1), each);
    let before = arrived(&net, MESSAGES);
    net.arrived.clear();
    net.run(Duration::from_secs(3), each);
    let (messages, one, two) = (
        (arrived(&net, MESSAGES) - before) as f64,
        net.arrived[&ONE] as f64,
        net.arrived[&TWO] as f64,
    );
    let ratio = two / (messages + one);
    assert!((1.85..2.15).contains(&ratio), "{ratio}");
    // A datagram of 1500 bytes by turns with one that has a packet of 1200.
    let turns = messages / one;
    assert!((1.05..1.35).contains(&turns), "{turns}");
}

/// Keeps a stream and tenant 2's packets coming.
fn stream(net: &mut Net, stream: StreamId) {
    let bytes = [3; 10_000];
    while net.ends[0].write_stream(net.now, net.peers[0], stream, &bytes) == Some(bytes.len()) {}
    // As long as a stream's: what a packet itself takes at the bottleneck counts as its queue.
    packets(net, TWO, 1400);
}

#[test]
fn streams_keep_to_their_tenants_window_at_a_bottleneck_on_the_way() {
    let mut net = net(100, narrow());
    net.set(tenant(ONE, 1.0, keiro()));
    net.set(tenant(TWO, 3.0, keiro()));
    let id = net.ends[0]
        .open_stream(net.now, net.peers[0], id(STREAMS), None)
        .expect("up");
    let ratio = ratio(&mut net, STREAMS, (15, 15), |net| stream(net, id));
    assert!((2.7..3.3).contains(&ratio), "{ratio}");
    assert_eq!(net.over_window, 0);
    let [path] = &net.snapshot(ONE).paths[..] else {
        panic!("one path");
    };
    assert!(path.stats.window_bytes.is_some() && path.stats.sent_bytes > arrived(&net, STREAMS));
    assert!(path.stats.acked_packets > 0 && path.stats.srtt >= Some(20 * MS));
}

/// Thin datagrams are gathered with those of their tenant alone, and each copy counts.
#[test]
fn copies_of_a_tenants_aggregates_count_as_its_own() {
    let mut net = net(100, narrow());
    for side in 0..2 {
        net.ends[side].set_aggregation(fixed_copies(AggregationMode::Eager, 2));
    }
    net.set(tenant(ONE, 1.0, keiro()));
    net.set(tenant(TWO, 1.0, keiro()));
    let mut tick = 0;
    let mut each = |net: &mut Net| {
        tick += 1;
        let flow = FlowId(tick);
        net.ends[0]
            .send_datagram(
                net.now,
                net.peers[0],
                NewDatagram::new(id(THIN), flow, net.now, &[5; 100]),
            )
            .expect("accepted");
        let own = net.ends[0].send_datagram(
            net.now,
            net.peers[0],
            NewDatagram::new(super::app(), flow, net.now, &[6; 100]),
        );
        own.expect("accepted");
    };
    net.run(Duration::from_secs(1), &mut each);
    // The window of a start becomes smaller where a queue is seen, and a second copy does not ask.
    assert!(net.over_window < 1500, "{}", net.over_window);
    net.over_window = 0;
    net.run(Duration::from_secs(4), &mut each);
    net.run(Duration::from_secs(1), |_| {});
    assert_eq!(arrived(&net, THIN), sent(&net, THIN));
    let app = super::app();
    assert_eq!(net.arrived_units[&app], arrived(&net, THIN));
    let path = &net.snapshot(ONE).paths[0];
    let (bytes, packets) = (path.stats.sent_bytes, path.stats.sent_packets);
    // 5000 datagrams, twice, in packets of their own or together.
    assert!(bytes > 2 * arrived(&net, THIN), "{bytes} in {packets}");
    assert!(bytes < 4 * arrived(&net, THIN), "{bytes} in {packets}");
    assert_eq!(
        (path.stats.in_flight_bytes, path.stats.acked_packets),
        (0, packets)
    );
    assert_eq!(net.over_window, 0);
}

#[test]
fn an_application_of_a_tenant_leaves_a_path_that_fails() {
    let mut all = BTreeMap::new();
    for id in [ONE, TWO] {
        all.insert(id, tenant(id, 1.0, ControllerConfig::Open));
    }
    let mut net = net(10, narrow());
    all.into_values().for_each(|config| net.set(config));
    net.run(Duration::from_secs(1), messages);
    net.bottleneck.delay = Duration::from_secs(5);
    net.run(Duration::from_secs(4), |_| {});
    net.bottleneck.delay = 10 * MS;
    net.run(Duration::from_secs(20), |_| {});
    assert_eq!(arrived(&net, MESSAGES), sent(&net, MESSAGES));
    backlog(&mut net);
}
