//! What names are asked, and what answers do: without a resolver, at given times.

use std::{io, sync::Arc};

use keiro_linux::epoll::Waker;
use keiro_testing::wait_until;

use super::{kept::parse, resolver::Resolve, *};

fn name(text: &str) -> HostName {
    HostName::new(text).unwrap_or_else(|| panic!("{text} is a name"))
}

fn ips(text: &str) -> Vec<IpAddr> {
    text.split_whitespace()
        .map(|ip| ip.parse().unwrap())
        .collect()
}

/// The names `hub`, and what was kept of it.
fn endpoints(kept: &str) -> Endpoints {
    let mut endpoints = Endpoints::default();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut file = KeptEndpoints::load(directory.path());
    file.replace(parse(kept));
    let read = KeptEndpoints::load(directory.path());
    endpoints.set_names(&[name("hub")].into(), &read);
    endpoints
}

fn hub(endpoints: &Endpoints) -> Vec<IpAddr> {
    endpoints
        .addresses()
        .remove(&name("hub"))
        .unwrap_or_default()
}

fn answer(endpoints: &mut Endpoints, answer: &str) -> AnswerEffect {
    let own = ips("192.0.2.99");
    endpoints.on_answer(&name("hub"), Ok(ips(answer)), &own)
}

fn reach(endpoints: &mut Endpoints, up: &str) {
    let up: BTreeSet<IpAddr> = ips(up).into_iter().collect();
    endpoints.on_reached(&name("hub"), !up.is_empty(), &up);
}

#[test]
fn useless_dns_answers_are_refused_with_a_reason() {
    let many: Vec<String> = (1..=40).map(|host| format!("198.51.100.{host}")).collect();
    for (text, expected, why) in [
        ("192.0.2.1", "192.0.2.1", ""),
        ("2001:db8::1 192.0.2.1", "2001:db8::1 192.0.2.1", ""),
        ("192.0.2.1 192.0.2.1", "192.0.2.1", ""),
        ("::ffff:192.0.2.1", "192.0.2.1", ""),
        ("127.0.0.1 192.0.2.1", "192.0.2.1", ""),
        ("", "", "it has no address"),
        ("127.0.0.1", "", "127.0.0.1 is a loopback address"),
        ("127.8.9.1 ::1", "", "127.8.9.1 is a loopback address"),
        ("::ffff:127.0.0.1", "", "127.0.0.1 is a loopback address"),
        ("0.0.0.0", "", "0.0.0.0 is no machine's address"),
        ("0.1.2.3", "", "0.1.2.3 is no machine's address"),
        ("::", "", ":: is no machine's address"),
        ("224.0.0.1", "", "224.0.0.1 is a multicast address"),
        ("ff02::1", "", "ff02::1 is a multicast address"),
        (
            "255.255.255.255",
            "",
            "255.255.255.255 is a broadcast address",
        ),
        ("169.254.1.1", "", "169.254.1.1 is a link-local address"),
        ("fe80::1", "", "fe80::1 is a link-local address"),
        ("192.0.2.99", "", "192.0.2.99 is this gateway's own address"),
        (&many.join(" "), &many[..8].join(" "), ""),
    ] {
        let mut endpoints = endpoints("");
        let effect = answer(&mut endpoints, text);
        assert_eq!(hub(&endpoints), ips(expected), "{text}");
        assert_eq!(effect.is_changed, !expected.is_empty(), "{text}");
        assert_eq!(effect.report.is_some(), !why.is_empty(), "{text}");
        let problems = endpoints.problems().join("\n");
        assert_eq!(problems.is_empty(), why.is_empty(), "{text}: {problems}");
        assert!(problems.contains(why), "{text}: {problems}");
    }
}

#[test]
fn host_names_are_resolved_often_only_while_their_peer_is_down() {
    let start = Stopwatch::now();
    let at = |seconds: u64| start + Duration::from_secs(seconds);
    let mut endpoints = endpoints("");
    assert_eq!(endpoints.poll_questions(at(0)), [name("hub")]);
    assert_eq!(
        endpoints.poll_questions(at(1000)),
        [],
        "one question at a time"
    );
    answer(&mut endpoints, "192.0.2.1");
    assert_eq!(endpoints.poll_questions(at(4)), []);
    assert_eq!(endpoints.poll_questions(at(5)), [name("hub")]);
    answer(&mut endpoints, "192.0.2.1");
    reach(&mut endpoints, "192.0.2.1");
    assert_eq!(endpoints.poll_questions(at(304)), []);
    assert_eq!(endpoints.poll_questions(at(305)), [name("hub")]);
    answer(&mut endpoints, "192.0.2.1");
    reach(&mut endpoints, "");
    assert_eq!(endpoints.poll_questions(at(311)), [name("hub")]);
}

#[test]
fn failed_resolution_is_reported_once_and_keeps_the_addresses() {
    let fail = |endpoints: &mut Endpoints| {
        let failure = Err("its addresses are not known: no server".to_owned());
        endpoints.on_answer(&name("hub"), failure, &[])
    };
    let mut endpoints = endpoints("");
    assert_eq!(endpoints.problems().len(), 1, "it is being asked");
    let report = fail(&mut endpoints).report.expect("it is news");
    assert!(
        report.contains("no server") && report.contains("check DNS"),
        "{report}"
    );
    assert_eq!(fail(&mut endpoints), AnswerEffect::default());
    let found = answer(&mut endpoints, "192.0.2.1");
    assert!(found.is_changed && found.report.is_some());
    assert_eq!(endpoints.problems(), [] as [&str; 0]);
    let report = fail(&mut endpoints).report.expect("it is news");
    assert!(
        report.contains("the previous addresses are used"),
        "{report}"
    );
    assert_eq!(hub(&endpoints), ips("192.0.2.1"));
    assert_eq!(
        endpoints.on_answer(&name("other"), Ok(ips("192.0.2.1")), &[]),
        AnswerEffect::default()
    );
}

#[test]
fn peer_that_has_not_moved_is_reached_by_what_was_kept() {
    let mut endpoints = endpoints("hub 192.0.2.7 2001:db8::7\n");
    assert_eq!(hub(&endpoints), ips("192.0.2.7 2001:db8::7"));
    assert_eq!(endpoints.problems(), [] as [&str; 0]);
    // What was kept is tried beside an answer until one of them works.
    answer(&mut endpoints, "192.0.2.1");
    assert_eq!(hub(&endpoints), ips("192.0.2.1 192.0.2.7 2001:db8::7"));
    reach(&mut endpoints, "192.0.2.1");
    answer(&mut endpoints, "192.0.2.1");
    assert_eq!(hub(&endpoints), ips("192.0.2.1"));
    assert_eq!(endpoints.good()[&name("hub")], ips("192.0.2.1"));
}

#[test]
fn false_dns_answers_do_not_replace_working_addresses() {
    let mut endpoints = endpoints("");
    answer(&mut endpoints, "192.0.2.1 192.0.2.2");
    reach(&mut endpoints, "192.0.2.2");
    answer(&mut endpoints, "203.0.113.66");
    assert_eq!(hub(&endpoints), ips("192.0.2.2 203.0.113.66"));
    // It goes down: what worked last is tried beside what a server answers.
    reach(&mut endpoints, "");
    let many: Vec<String> = (1..=7).map(|host| format!("203.0.113.{host}")).collect();
    answer(&mut endpoints, &many.join(" "));
    assert!(hub(&endpoints).contains(&ips("192.0.2.2")[0]));
    assert_eq!(endpoints.good()[&name("hub")], ips("192.0.2.2"));
}

#[test]
fn order_of_dns_answers_is_irrelevant() {
    let mut endpoints = endpoints("");
    answer(&mut endpoints, "192.0.2.1 192.0.2.2 192.0.2.3");
    for order in [
        "192.0.2.3 192.0.2.1 192.0.2.2",
        "192.0.2.2 192.0.2.3 192.0.2.1",
    ] {
        assert_eq!(answer(&mut endpoints, order), AnswerEffect::default());
    }
}

#[test]
fn damaged_address_files_are_ignored() {
    for (text, expected) in [
        ("", 0),
        ("hub", 0),
        ("hub nonsense", 0),
        ("-hub- 192.0.2.1", 0),
        ("\u{0}\u{fffd} 192.0.2.1", 0),
        ("hub 192.0.2.1 nonsense 192.0.2.1\nother 192.0.2.2", 2),
    ] {
        assert_eq!(parse(text).len(), expected, "{text:?}");
    }
    let long: Vec<String> = (0..100).map(|host| format!("192.0.2.{host}")).collect();
    let parsed = parse(&format!("hub {}", long.join(" ")));
    assert_eq!(parsed[&name("hub")].len(), ADDRESSES_MAX);
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("endpoints"), vec![b'x'; 2 << 20]).expect("written");
    assert_eq!(
        KeptEndpoints::load(directory.path()).addresses(&name("hub")),
        [] as [IpAddr; 0]
    );
}

#[test]
fn resolver_threads_answer_every_query() {
    struct Table;
    impl Resolve for Table {
        fn addresses(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
            match host.as_str() {
                "missing" => Err(io::Error::other("no such name")),
                _ => Ok(vec![IpAddr::from([192, 0, 2, 1])]),
            }
        }
    }
    let wake = Arc::new(Waker::new().expect("an eventfd"));
    let resolver = Resolver::start(Table, &wake, || {}).expect("threads start");
    for number in 0..20 {
        resolver.ask(name(&format!("host{number}")));
    }
    resolver.ask(name("missing"));
    let mut answers = BTreeMap::new();
    wait_until("all are answered", || {
        answers.extend(resolver.poll_answer());
        answers.len() == 21
    });
    assert!(
        answers[&name("missing")]
            .as_ref()
            .unwrap_err()
            .contains("no such name")
    );
    assert!(answers[&name("host7")].is_ok());
}
