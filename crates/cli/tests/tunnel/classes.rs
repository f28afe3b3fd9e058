//! Packets that no rule matches, sorted by themselves.

use std::{
    io::{Read, Write},
    net::{SocketAddr, UdpSocket},
    thread,
};

use serde_json::Value;

use crate::{
    MIB,
    gateways::{Gateways, tenant},
    harness::{LIMIT, eventually},
};

/// A query for the address of `eu.zoom.us`, and what comes behind its question in the answer: 10.2.0.1.
const QUESTION: &[u8] = b"\x02eu\x04zoom\x02us\0\0\x01\0\x01";
const RECORD: &[u8] = b"\xc0\x0c\0\x01\0\x01\0\0\0\x3c\0\x04\x0a\x02\0\x01";

fn message(flags: [u8; 2], answers: u8, rest: &[&[u8]]) -> Vec<u8> {
    let head = [0, 7, flags[0], flags[1], 0, 1, 0, answers, 0, 0, 0, 0];
    rest.iter().fold(head.to_vec(), |mut message, part| {
        message.extend_from_slice(part);
        message
    })
}

/// A datagram from gateway a to `to` at gateway b, which answers with `answer`.
fn exchange(gateways: &Gateways, to: &str, request: &[u8], answer: &[u8]) {
    let to: SocketAddr = to.parse().expect("an address");
    let socket = |host: &str, address: SocketAddr| {
        let host = gateways.lab.host(host).expect("a host");
        let socket = host.run(move || UdpSocket::bind(address).expect("bound"));
        let socket = socket.expect("entered");
        socket.set_read_timeout(Some(LIMIT)).expect("set");
        socket
    };
    let server = socket("b", to);
    let client = socket("a", "10.1.0.1:0".parse().expect("an address"));
    let mut buffer = [0; 2000];
    client.send_to(request, to).expect("sent");
    let (length, from) = server.recv_from(&mut buffer).expect("received");
    assert_eq!(&buffer[..length], request);
    server.send_to(answer, from).expect("sent");
    client.recv_from(&mut buffer).expect("answered");
}

fn sorted<'a>(tenant: &'a Value, class: &str, by: &str) -> Option<&'a Value> {
    let rows = tenant["classes"]["sorted"].as_array()?;
    rows.iter()
        .find(|row| row["class"] == class && row["by"] == by)
}

#[test]
fn traffic_without_rules_is_sorted_into_applications_of_its_classes() {
    // The other gateway sorts nothing, and need not.
    let gateways = Gateways::start(|own| match own {
        0 => tenant(own, "blue", 1, "classes = \"auto\"\n"),
        _ => tenant(own, "blue", 1, ""),
    });
    gateways.ping(0, "10.2.0.1", None);
    let query = message([1, 0], 0, &[QUESTION]);
    let answer = message([0x81, 0x80], 1, &[QUESTION, RECORD]);
    exchange(&gateways, "10.2.0.1:53", &query, &answer);
    exchange(&gateways, "10.2.0.1:9000", &[7; 300], &[8; 300]);
    let (mut stream, mut accepted) = gateways.connect(0, "10.2.0.1", None);
    thread::scope(|scope| {
        // By a name whose traffic is voice it is a download all the same.
        scope.spawn(move || stream.write_all(&vec![0; 12 * MIB]).expect("sent"));
        accepted.set_read_timeout(Some(LIMIT)).expect("set");
        let mut received = vec![0; 12 * MIB];
        accepted.read_exact(&mut received).expect("received");
    });
    let tenant = eventually("all is sorted", || {
        let tenant = gateways.tenant(0, "blue");
        let is_seen = |class, by| sorted(&tenant, class, by).is_some();
        let is_complete = is_seen("interactive", "protocol")
            && is_seen("interactive", "port")
            && is_seen("voice", "dns")
            && is_seen("bulk", "volume");
        is_complete.then(|| tenant.clone())
    });
    let voice = sorted(&tenant, "voice", "dns").expect("a row");
    assert!(voice["carried_packets"].as_u64() >= Some(2), "{voice}");
    let flows = tenant["classes"]["flows"].as_array().expect("flows");
    assert_eq!(flows[0]["class"], "bulk");
    assert_eq!(gateways.tenant(1, "blue")["classes"], Value::Null);

    for (name, least) in [("voice@ip", 1), ("bulk@ip", 1000), ("interactive@ip", 2)] {
        eventually("the application has sent it", || {
            let app = gateways.ask(0, &["show", "app", name])?[0].clone();
            let sent = app["sent_messages"].as_u64()?;
            (sent >= least).then_some(())
        });
    }
    let app = gateways.ask(0, &["show", "app", "voice@ip"]).expect("json")[0].clone();
    assert_eq!(app["latency_target_seconds"], 0.1, "{app}");
}
