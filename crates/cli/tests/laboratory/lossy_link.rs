//! A link that loses one packet in ten beside a clean one: a tenant's packets, which nothing repairs, leave it.

use std::{
    net::UdpSocket,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use keiro_link::Loss;
use keiro_units::Probability;

use crate::{
    harness::eventually,
    links::{FAR, HOSTS, NEAR},
    pair::{Pair, Setup},
};

/// Application of the tenant's packets.
const PACKETS: &str = "ip";

/// Of a minute, so that a failure ends too.
const PACKETS_MAX: u32 = 3000;

/// The tenant at tokyo (0) or osaka (1).
fn tenant(own: usize) -> String {
    let (here, there) = (own + 1, 2 - own);
    let peer = HOSTS[1 - own];
    format!(
        "[[app]]\nname = \"{PACKETS}\"\nclass = \"datagram\"\npeer = \"{peer}\"\n\
         [tenant.blue]\nid = 1\ndevice = \"t-blue\"\naddresses = [\"10.{here}.0.1/32\"]\n\
         prefixes = [\"10.{here}.0.0/24\"]\n\
         [tenant.blue.peer.{peer}]\nprefixes = [\"10.{there}.0.0/24\"]\napp = \"{PACKETS}\"\n"
    )
}

#[test]
fn packets_of_a_tenant_leave_a_link_that_loses_a_tenth_of_them() {
    let pair = Pair::start(&Setup {
        more: [tenant(0), tenant(1)],
        ..Setup::of(&[NEAR, FAR])
    });
    let tokyo = pair.lab.host("tokyo").expect("a host");
    let socket = eventually("the tenant's device is there", || {
        tokyo
            .run(|| UdpSocket::bind("10.1.0.1:0").ok())
            .expect("its namespace")
    });
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..PACKETS_MAX {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                // The network may refuse one; the next follows soon.
                let _ = socket.send_to(&[7; 200], "10.2.0.1:9");
                thread::sleep(Duration::from_millis(20));
            }
        });
        leave_the_lossy_link(&pair);
        ended.store(true, Ordering::Relaxed);
    });
}

fn leave_the_lossy_link(pair: &Pair) {
    let path = || pair.tokyo.app(PACKETS)["path"].as_str().map(str::to_owned);
    let sent = || pair.tokyo.app(PACKETS)["sent_messages"].as_u64();
    eventually("packets flow", || sent().filter(|sent| *sent > 100));
    let lossy = eventually("they are on a path", path);
    let clean = [NEAR, FAR].into_iter().find(|link| link.name != lossy);
    let clean = clean.expect("the other one").name;
    let loss = Loss::Bernoulli(Probability::new(0.1).expect("a share"));
    let link = pair.lab.link(&lossy).expect("a link");
    link.change(|config| config.loss = loss).expect("changed");
    eventually("they have left it", || (path()? == clean).then_some(()));
    let explained = pair.tokyo.ask(&["explain", PACKETS]).expect_code(0).stdout;
    for words in ["loses ", ", tolerates 1"] {
        assert!(explained.contains(words), "{words} in {explained}");
    }
    let app = pair.tokyo.app(PACKETS);
    assert_eq!(app["loss_tolerance_ratio"], 0.01, "{app:#}");
    assert!(app["excess_loss"].is_null(), "{app:#}");
}
