//! A branch whose hosts reach the Internet by its hub.
//!
//! ```text
//!  desk --- kyoto === isp === hub --- server
//!                      |       |
//!                     web  backroom
//! ```

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket},
    thread,
};

use keiro_linux::process::SIGTERM;
use keiro_testing::wait_until;
use serde_json::Value;

use crate::{
    harness::{LIMIT, Ran, Site, eventually, finish, run, shown},
    join::{World, ask, make_local},
};

const TOPOLOGY: &str = r#"
[host.hub]
routes = [{ to = "default", via = "203.0.113.1" }, { to = "default", via = "2001:db8:1::1" }]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv6.conf.all.forwarding" = 1 }
[host.isp]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv6.conf.all.forwarding" = 1 }
[host.kyoto]
routes = [{ to = "default", via = "203.0.113.17" }, { to = "default", via = "2001:db8:2::1" }]
sysctl = { "net.ipv4.ip_forward" = 1, "net.ipv6.conf.all.forwarding" = 1 }
[host.desk]
routes = [{ to = "default", via = "10.2.0.1" }, { to = "default", via = "fd02::1" }]
[host.web]
routes = [{ to = "default", via = "198.51.100.1" }, { to = "default", via = "2001:db8:5::1" }]
[host.server]
[host.backroom]
routes = [{ to = "default", via = "192.0.2.1" }]
[link.core]
a = { host = "isp", addresses = ["203.0.113.1/28", "2001:db8:1::1/64"] }
b = { host = "hub", addresses = ["203.0.113.2/28", "2001:db8:1::2/64"] }
each_way = { rate = "50Mbit", delay = "5ms", buffer = "128KiB" }
[link.out]
a = { host = "isp", addresses = ["203.0.113.17/28", "2001:db8:2::1/64"] }
b = { host = "kyoto", addresses = ["203.0.113.18/28", "2001:db8:2::2/64"] }
[link.dmz]
a = { host = "isp", addresses = ["198.51.100.1/28", "2001:db8:5::1/64"] }
b = { host = "web", addresses = ["198.51.100.10/28", "2001:db8:5::10/64"] }
[link.lan]
a = { host = "kyoto", addresses = ["10.2.0.1/24", "fd02::1/64"] }
b = { host = "desk", addresses = ["10.2.0.10/24", "fd02::10/64"] }
[link.lanh]
a = { host = "hub", addresses = ["10.0.0.1/24"] }
b = { host = "server", addresses = ["10.0.0.10/24"] }
[link.back]
a = { host = "hub", addresses = ["192.0.2.1/28"] }
b = { host = "backroom", addresses = ["192.0.2.10/28"] }
"#;

const WEB: &str = "http://198.51.100.10:8000/";
const WEB_V6: &str = "http://[2001:db8:5::10]:8000/";
const HUB: &str = "203.0.113.2";
const HUB_V6: &str = "2001:db8:1::2";
const KYOTO: &str = "203.0.113.18";

/// A branch whose default route would serve its hosts too, so that what the tunnel loses is seen.
fn joined() -> (World, Site) {
    let mut world = World::new(TOPOLOGY);
    let masquerade = "nft 'table inet own { chain post { type nat hook postrouting priority srcnat; \
                      oifname \"out\" masquerade; }; }'";
    world.sh("kyoto", masquerade);
    // A network that the hub does not offer, although its addresses are public.
    world.sh("hub", "ip address flush dev back");
    world.start_hub();
    world.sh("hub", "ip address add 192.0.2.1/28 dev back");
    for server in ["hub", "web", "backroom", "desk"] {
        serve(&world, server);
    }
    let file = world.hub.path("gateway.toml");
    let text = fs::read_to_string(&file).expect("a configuration");
    let header = text
        .lines()
        .find(|line| line.starts_with("[tenant."))
        .expect("a tenant");
    let forward = format!(
        "\n{}.port_forward.desk]\nport = 8080\nto = \"10.2.0.10:8000\"\n",
        header.trim_end_matches(']')
    );
    let exit = text.replacen(header, &format!("{header}\nexit = true"), 1) + &forward;
    fs::write(&file, exit).expect("written");
    let _ = reload(&world.hub).expect_code(0);

    let site = Site::without_key();
    let token = world.invite(&["kyoto"]);
    let _ = world.join("kyoto", &site, &token, &[]).expect_code(0);
    make_local(&site);
    set_when_down(&site, "block");
    world.spawn("kyoto", &site.path("keiro/gateway.toml"));
    (world, site)
}

fn set_when_down(site: &Site, when_down: &str) {
    let file = site.path("keiro/gateway.toml");
    let text = fs::read_to_string(&file).expect("a configuration");
    let header = text
        .lines()
        .find(|line| line.starts_with("[tenant."))
        .expect("a tenant");
    let internet = format!("\n{}.internet]\n", header.trim_end_matches(']'));
    let rest = text.split(&internet).next().unwrap_or_default();
    let text = format!("{rest}{internet}via = \"hub\"\nwhen_down = \"{when_down}\"\n");
    fs::write(&file, text).expect("written");
}

fn reload(site: &Site) -> Ran {
    run(["reload", "--socket", &shown(&site.path("control.sock"))])
}

/// Answers HTTP with the client's address, as long as the test runs.
fn serve(world: &World, host: &str) {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 8000));
    let host = world.lab.host(host).expect("a host");
    let listener = host.run(|| TcpListener::bind(any).expect("bound"));
    let listener = listener.expect("entered");
    thread::spawn(move || {
        while let Ok((mut client, address)) = listener.accept() {
            let address = address.ip().to_canonical();
            let mut request = [0; 1000];
            let _ = client.read(&mut request);
            let _ = write!(client, "HTTP/1.0 200 OK\r\n\r\n{address}");
        }
    });
}

/// What curl prints; `None`: it got no answer.
fn curl(world: &World, host: &str, url: &str) -> Option<String> {
    let mut command = world.lab.host(host).expect("a host").command("curl");
    command.args(["--silent", "--noproxy", "*", "--max-time", "5", url]);
    let ran = finish(&mut command, b"");
    (ran.code == Some(0)).then_some(ran.stdout)
}

#[track_caller]
fn seen(world: &World, host: &str, url: &str, address: &str) {
    let what = format!("{url} sees {address}");
    eventually(&what, || (curl(world, host, url)? == address).then_some(()));
}

/// Refused at once, by an ICMP error.
#[track_caller]
fn is_refused(world: &World, url: &str) {
    const COULD_NOT_CONNECT: i32 = 7;
    let mut command = world.lab.host("desk").expect("a host").command("curl");
    command.args(["--silent", "--noproxy", "*", "--max-time", "5", url]);
    let ran = finish(&mut command, b"");
    assert_eq!(ran.code, Some(COULD_NOT_CONNECT), "{url}: {}", ran.stdout);
}

fn tenant(site: &Site) -> Value {
    let shown = eventually("the tenant is shown", || ask(site, &["show", "tenant"]));
    shown[0].clone()
}

fn tables(world: &World, host: &str) -> usize {
    world
        .sh(host, "nft list tables")
        .matches("keiro-exit-")
        .count()
}

/// A resolver in the Internet, asked by the branch's host.
fn asks_a_resolver(world: &World) {
    let web = world.lab.host("web").expect("a host");
    let server = web.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 53)).expect("bound"));
    let server = server.expect("entered");
    server.set_read_timeout(Some(LIMIT)).expect("set");
    let answers = thread::spawn(move || {
        let mut query = [0; 512];
        let (length, client) = server.recv_from(&mut query).expect("a query");
        // Its own question, as an answer without records.
        query[2] |= 0x80;
        server.send_to(&query[..length], client).expect("sent");
        client.ip()
    });
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    query.extend(b"\x07example\x03net\x00\x00\x01\x00\x01");
    let desk = world.lab.host("desk").expect("a host");
    let answer = desk.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("bound");
        socket.set_read_timeout(Some(LIMIT)).expect("set");
        socket.send_to(&query, "198.51.100.10:53").expect("sent");
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).expect("an answer");
        answer[..length].to_vec()
    });
    let answer = answer.expect("entered");
    assert_eq!(
        (answer[..2].to_vec(), answer[2] & 0x80),
        (vec![0x12, 0x34], 0x80)
    );
    let client = answers.join().expect("it has answered");
    assert_eq!(client, HUB.parse::<IpAddr>().expect("an address"));
}

#[test]
fn hosts_of_a_branch_reach_the_internet_by_the_hub_or_not_at_all() {
    let (mut world, kyoto) = joined();
    seen(&world, "desk", WEB, HUB);
    seen(&world, "desk", WEB_V6, HUB_V6);
    asks_a_resolver(&world);
    // What the gateway sends itself leaves as before.
    assert_eq!(curl(&world, "kyoto", WEB).as_deref(), Some(KYOTO));
    // A port of the exit leads to the host, which sees the hub's address in the tenant.
    let forwarded = format!("http://{HUB}:8080/");
    assert_eq!(curl(&world, "web", &forwarded).as_deref(), Some("10.0.0.1"));
    // Nothing else comes in from there, whatever routes the neighbours have.
    world.sh("isp", "ip route add 10.2.0.0/24 via 203.0.113.2");
    world.sh("isp", "ip route add fd02::/64 via 2001:db8:1::2");
    for url in ["http://10.2.0.10:8000/", "http://[fd02::10]:8000/"] {
        assert_eq!(curl(&world, "web", url), None, "{url}");
    }
    for family in ["ip", "ip6"] {
        let list = format!("nft list table {family} keiro-exit-1");
        let rules = world.sh("hub", &list);
        let mut drops = rules
            .lines()
            .filter(|line| line.contains("oifname \"keiro1\" counter"));
        let drop = drops.next().expect("a rule");
        assert!(!drop.contains(" packets 0 "), "{rules}");
    }

    // A private network, one beside the hub, and the hub's own address.
    is_refused(&world, "http://172.16.0.1:8000/");
    for url in ["http://192.0.2.10:8000/", "http://203.0.113.2:8000/"] {
        // Both have a server.
        let refused = || tenant(&world.hub)["dropped_packets"]["exit_refused"].as_u64();
        let before = refused();
        is_refused(&world, url);
        assert!(refused() > before, "{url}");
    }
    let at_hub = tenant(&world.hub);
    assert_eq!(at_hub["exit"]["ipv4"], true, "{at_hub}");
    assert!(
        at_hub["dropped_packets"]["exit_refused"].as_u64() >= Some(3),
        "{at_hub}"
    );
    let at_kyoto = tenant(&kyoto);
    for of in [&at_hub, &at_kyoto] {
        for direction in ["to_internet_packets", "from_internet_packets"] {
            assert!(of[direction].as_u64() > Some(0), "{direction}: {of}");
        }
    }
    assert_eq!(at_kyoto["internet"]["state"], "exit", "{at_kyoto}");
    assert_eq!(at_kyoto["internet"]["exit"], "hub", "{at_kyoto}");

    let socket = shown(&kyoto.path("control.sock"));
    let name = at_kyoto["name"].as_str().expect("a name");
    let ran = run(["show", "tenant", name, "--socket", &socket]).expect_code(0);
    let line = "by the exit of hub; from 10.2.0.0/24, fd02::/64, to 0.0.0.0/0, ::/0";
    assert!(ran.stdout.contains(line), "{}", ran.stdout);
    let app = at_kyoto["peers"][0]["app"]
        .as_str()
        .expect("an application");
    let ran = run(["explain", app, "--socket", &socket]).expect_code(0);
    let sentence = "leave by the exit of hub.";
    assert!(ran.stdout.contains(sentence), "{}", ran.stdout);

    // Without IPv6 at the exit there is an answer at once.
    world.sh("hub", "ip -6 route del default");
    eventually("the exit has no IPv6", || {
        (tenant(&world.hub)["exit"]["ipv6"] == false).then_some(())
    });
    is_refused(&world, WEB_V6);
    world.sh("hub", "ip -6 route add default via 2001:db8:1::1");
    seen(&world, "desk", WEB_V6, HUB_V6);

    // After a crash its rules are there once, and in stop not at all.
    assert_eq!(tables(&world, "hub"), 2);
    let file = world.hub.path("gateway.toml");
    world.restart(0, "hub", &file);
    seen(&world, "desk", WEB, HUB);
    assert_eq!(tables(&world, "hub"), 2);
    let rules = world.sh("hub", "nft list table ip keiro-exit-1");
    assert_eq!(rules.matches(" dnat to ").count(), 1, "{rules}");
    world.processes[0].signal(SIGTERM).expect("sent");
    let ended = world.processes.remove(0).wait(LIMIT).expect("its status");
    assert!(ended.is_some(), "it ends");
    assert_eq!(tables(&world, "hub"), 0);

    // Nothing leaves in the clear, until that is asked for.
    eventually("the branch knows", || {
        (tenant(&kyoto)["internet"]["state"] == "blocked").then_some(())
    });
    is_refused(&world, WEB);
    is_refused(&world, WEB_V6);
    set_when_down(&kyoto, "local");
    let _ = reload(&kyoto).expect_code(0);
    seen(&world, "desk", WEB, KYOTO);
    assert_eq!(tenant(&kyoto)["internet"]["state"], "local");
    set_when_down(&kyoto, "block");
    let _ = reload(&kyoto).expect_code(0);
    wait_until("it is blocked again", || {
        curl(&world, "desk", WEB).is_none()
    });
    world.processes[0].signal(SIGTERM).expect("sent");
    let ended = world.processes.remove(0).wait(LIMIT).expect("its status");
    assert!(ended.is_some(), "it ends");
    is_refused(&world, WEB);
}
