//! The plan store in a real etcd of Debian's etcd-server, which the tests start and end.

mod support;

use std::{
    fs::{self, Permissions},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use keiro_store::{
    Connection, EtcdStore, Notice, OfferOutcome, PlanStore, PublishOutcome, SitePlan, SiteView,
    StoreError, Update,
    etcd::{
        ClientFiles, Endpoint, EtcdOptions, TIME_TO_LIVE_DEFAULT, TIMEOUT_DEFAULT, TlsFiles,
        UserFile,
    },
};
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use support::{Control, Etcd, inputs};

/// What the figures ask for.
const SAME_PLAN: Duration = Duration::from_secs(1);

fn plan(made_by: &str, sequence: u64) -> SitePlan {
    SitePlan {
        made_by: made_by.into(),
        made_from: [(made_by.to_owned(), sequence)].into(),
        ..SitePlan::default()
    }
}

fn plain(address: SocketAddr) -> Endpoint {
    Endpoint {
        is_secure: false,
        address,
    }
}

fn at(address: &str) -> Endpoint {
    plain(address.parse().unwrap())
}

/// Writes any value under any key, past everything that checks.
fn put(etcd: &Etcd, key: &str, value: &[u8]) {
    let body = format!(
        r#"{{"key":"{}","value":"{}"}}"#,
        BASE64_STANDARD.encode(key),
        BASE64_STANDARD.encode(value)
    );
    post(etcd, "kv/put", &body);
}

#[test]
fn a_store_keeps_inputs_and_one_plan() {
    let etcd = Etcd::start();
    let (mut a, mut b) = (etcd.store("a"), etcd.store("b"));
    a.publish(&inputs("a", 1)).unwrap();
    b.publish(&inputs("b", 7)).unwrap();
    let view = a.load().unwrap();
    assert_eq!(view.gateways["a"].inputs.sequence, 1);
    assert_eq!(view.gateways["b"].inputs.sequence, 7);
    assert_eq!((view.plan, view.plan_revision), (None, 0));

    let OfferOutcome::Accepted { revision } = a.offer(&plan("a", 1), 0).unwrap() else {
        panic!("no other has offered");
    };
    assert_eq!(
        b.offer(&plan("b", 1), 0).unwrap(),
        OfferOutcome::Refused { revision }
    );
    // The same again is what a repeated request looks like.
    assert_eq!(
        a.offer(&plan("a", 1), 0).unwrap(),
        OfferOutcome::Accepted { revision }
    );
    let stored = b.load().unwrap();
    assert_eq!(stored.plan_revision, revision);
    assert_eq!(stored.plan.unwrap().made_by, "a");
    assert!(matches!(
        b.offer(&plan("b", 1), revision).unwrap(),
        OfferOutcome::Accepted { revision: next } if next > revision
    ));

    b.publish(&inputs("b", 8)).unwrap();
    assert_eq!(a.load().unwrap().gateways["b"].inputs.sequence, 8);
    assert!(b.keep_alive().unwrap());
    b.withdraw().unwrap();
    assert!(!a.load().unwrap().gateways.contains_key("b"));
    assert!(!b.keep_alive().unwrap());
    b.publish(&inputs("b", 9)).unwrap();
    assert_eq!(a.load().unwrap().gateways["b"].inputs.sequence, 9);
}

#[test]
fn inputs_of_a_crashed_gateway_expire() {
    let etcd = Etcd::start();
    let mut options = etcd.options("b");
    options.time_to_live = Duration::from_secs(1);
    let a = Control::start(etcd.store("a"));
    EtcdStore::new(options)
        .unwrap()
        .publish(&inputs("b", 1))
        .unwrap();
    a.wait_for_view("gateway b", |view| view.gateways.contains_key("b"));
    a.wait_for_view("end of gateway b", |view| !view.gateways.contains_key("b"));
}

#[test]
fn two_workers_have_the_same_plan_within_a_second() {
    let etcd = Etcd::start();
    let (a, b) = (
        Control::start(etcd.store("a")),
        Control::start(etcd.store("b")),
    );
    a.wait_for_connection();
    b.wait_for_connection();
    let mut based_on = 0;
    let mut slowest = Duration::ZERO;
    for sequence in 1..=10 {
        // Something changes at the gateway that does not lead, …
        let began = Instant::now();
        b.worker.publish(inputs("b", sequence));
        // … the leader sees it and plans anew, …
        let seen = |view: &SiteView| {
            let member = view.gateways.get("b");
            member.is_some_and(|member| member.inputs.sequence == sequence)
        };
        a.wait_for_view("new inputs of b", seen);
        a.worker.offer(plan("a", sequence), based_on);
        // … and both have that plan.
        let is_new = |view: &SiteView| {
            let plan = view.plan.as_ref();
            plan.is_some_and(|plan| plan.made_from["a"] == sequence)
        };
        let at_b = b.wait_for_view("the plan at b", is_new);
        let at_a = a.wait_for_view("the plan at a", is_new);
        slowest = slowest.max(began.elapsed());
        assert_eq!(at_a.plan, at_b.plan);
        based_on = at_a.plan_revision;
    }
    println!("from a change at one gateway to the new plan at both: {slowest:?} at most");
    assert!(slowest < SAME_PLAN, "{slowest:?}");
}

#[test]
fn of_two_plans_the_first_is_kept() {
    let etcd = Etcd::start();
    let (a, b) = (
        Control::start(etcd.store("a")),
        Control::start(etcd.store("b")),
    );
    a.worker.offer(plan("a", 1), 0);
    let accepted = a.wait("answer", |update| match update {
        Update::Accepted { revision } => Some(*revision),
        _ => None,
    });
    b.worker.offer(plan("b", 1), 0);
    let refused = b.wait("answer", |update| match update {
        Update::Refused { revision } => Some(*revision),
        _ => None,
    });
    assert_eq!(accepted, refused);
    let view = b.wait_for_view("the plan of a", |view| view.plan.is_some());
    assert_eq!(view.plan.as_ref().unwrap().made_by, "a");
}

/// Two gateways of one site, and a plan that the second has seen.
fn two_with_a_plan(etcd: &Etcd) -> (Control, Control) {
    let (a, b) = (
        Control::start(etcd.store("a")),
        Control::start(etcd.store("b")),
    );
    a.worker.publish(inputs("a", 1));
    b.worker.publish(inputs("b", 1));
    a.worker.offer(plan("a", 1), 0);
    b.wait_for_view("plan and both", |view| {
        view.plan.is_some() && view.gateways.len() == 2
    });
    (a, b)
}

#[test]
fn etcd_that_is_killed_and_comes_back_loses_nothing() {
    let mut etcd = Etcd::start();
    let (a, b) = two_with_a_plan(&etcd);
    etcd.kill();
    let reason = a.wait_for_loss();
    assert!(reason.contains("does not answer"), "{reason}");
    assert!(matches!(
        a.worker.status().connection,
        Connection::Lost { .. }
    ));
    b.wait_for_loss();
    // What happens meanwhile is kept, the newest of it.
    for sequence in 2..=5 {
        b.worker.publish(inputs("b", sequence));
    }
    etcd.restart();
    let began = Instant::now();
    assert!(a.wait_for_connection().is_some());
    assert!(b.wait_for_connection().is_some());
    let is_newest = |view: &SiteView| {
        let member = view.gateways.get("b");
        view.plan.is_some() && member.is_some_and(|member| member.inputs.sequence == 5)
    };
    a.wait_for_view("newest inputs of b", is_newest);
    let took = began.elapsed();
    println!("from etcd serving again to the newest inputs at the other gateway: {took:?}");
    assert!(took < SAME_PLAN, "{took:?}");
    assert_eq!(a.worker.status().connection, Connection::Connected);
}

#[test]
fn etcd_that_comes_back_empty_is_filled_again() {
    let mut etcd = Etcd::start();
    let (a, b) = two_with_a_plan(&etcd);
    let view = a.wait_for_view("the plan", |view| view.plan.is_some());
    etcd.forget();
    a.wait_for_loss();
    etcd.restart();
    let empty = a.wait_for_view("both without a plan", |view| {
        view.plan.is_none() && view.gateways.len() == 2
    });
    assert_eq!(empty.plan_revision, 0);
    // On what was: refused. On what is: taken.
    a.worker.offer(plan("a", 2), view.plan_revision);
    a.wait("refusal", |update| {
        matches!(update, Update::Refused { revision: 0 }).then_some(())
    });
    a.worker.offer(plan("a", 2), 0);
    b.wait_for_view("the plan", |view| view.plan.is_some());
}

#[test]
fn garbage_under_the_keys_is_reported_and_harms_nothing() {
    let etcd = Etcd::start();
    put(&etcd, "/keiro/site/plan", b"\xff\x00not json");
    put(&etcd, "/keiro/site/inputs/b", b"{\"layout\":1}");
    put(&etcd, "/keiro/site/inputs/é/..", b"");
    put(&etcd, "/keiro/site/other", b"7");
    let mut a = etcd.store("a");
    a.publish(&inputs("a", 1)).unwrap();
    let view = a.load().unwrap();
    assert_eq!(view.gateways.keys().collect::<Vec<_>>(), ["a"]);
    assert_eq!(view.plan, None);
    let notices = a.take_notices();
    assert_eq!(notices.len(), 3, "{notices:?}");
    assert!(
        notices
            .iter()
            .all(|notice| matches!(notice, Notice::Ignored { .. }))
    );
    // The unreadable plan does not get in the way.
    let offer = a.offer(&plan("a", 1), view.plan_revision).unwrap();
    assert!(matches!(offer, OfferOutcome::Accepted { .. }));
    assert!(a.load().unwrap().plan.is_some());
    // Reported once only, not at every look.
    assert_eq!(a.take_notices(), []);
}

#[test]
fn more_gateways_than_there_may_be_are_reported() {
    let etcd = Etcd::start();
    let mut last = etcd.store("zz");
    for number in 0..keiro_store::site::GATEWAYS_MAX {
        let name = format!("g{number:03}");
        let layout = format!(r#"{{"layout":1,"gateway":"{name}","made_at_unix_seconds":0}}"#);
        put(
            &etcd,
            &format!("/keiro/site/inputs/{name}"),
            layout.as_bytes(),
        );
    }
    last.publish(&inputs("zz", 1)).unwrap();
    let view = last.load().unwrap();
    assert_eq!(view.gateways.len(), keiro_store::site::GATEWAYS_MAX);
    assert!(matches!(
        last.take_notices()[..],
        [Notice::TooManyGateways { count: 65 }]
    ));
}

#[test]
fn of_two_gateways_of_one_name_the_first_keeps_it() {
    let etcd = Etcd::start();
    let (mut first, mut second) = (etcd.store("a"), etcd.store("a"));
    assert_eq!(
        first.publish(&inputs("a", 1)).unwrap(),
        PublishOutcome::Stored
    );
    assert_eq!(
        second.publish(&inputs("a", 2)).unwrap(),
        PublishOutcome::NameTaken
    );
    assert_eq!(
        first.publish(&inputs("a", 3)).unwrap(),
        PublishOutcome::Stored
    );
    assert!(first.keep_alive().unwrap());
    assert!(!second.keep_alive().unwrap());
    for (store, is_taken) in [(&mut first, false), (&mut second, true)] {
        let view = store.load().unwrap();
        assert_eq!(view.gateways["a"].inputs.sequence, 3);
        assert_eq!(view.is_name_taken, is_taken);
    }
    // It takes nothing of the other with it.
    second.withdraw().unwrap();
    assert_eq!(first.load().unwrap().gateways["a"].inputs.sequence, 3);
    first.withdraw().unwrap();
    assert_eq!(
        second.publish(&inputs("a", 4)).unwrap(),
        PublishOutcome::Stored
    );
    assert!(!second.load().unwrap().is_name_taken);
    assert_eq!(
        first.publish(&inputs("a", 5)).unwrap(),
        PublishOutcome::NameTaken
    );
}

#[test]
fn inputs_that_others_wrote_over_are_found_out() {
    let etcd = Etcd::start();
    let mut a = etcd.store("a");
    a.publish(&inputs("a", 1)).unwrap();
    // By hand, without a lease: no gateway's, so it is put right.
    put(&etcd, "/keiro/site/inputs/a", b"7");
    assert!(!a.load().unwrap().is_name_taken);
    assert_eq!(a.publish(&inputs("a", 2)).unwrap(), PublishOutcome::Stored);
    assert_eq!(a.load().unwrap().gateways["a"].inputs.sequence, 2);
    // By a gateway that does not look first.
    let lease = 4711;
    post(
        &etcd,
        "lease/grant",
        &format!(r#"{{"TTL":60,"ID":{lease}}}"#),
    );
    let body = format!(
        r#"{{"key":"{}","value":"Nw==","lease":{lease}}}"#,
        BASE64_STANDARD.encode("/keiro/site/inputs/a")
    );
    post(&etcd, "kv/put", &body);
    assert!(a.load().unwrap().is_name_taken);
    assert!(!a.keep_alive().unwrap());
    assert_eq!(
        a.publish(&inputs("a", 3)).unwrap(),
        PublishOutcome::NameTaken
    );
}

#[test]
fn the_second_of_one_name_says_so_and_takes_over_when_the_first_ends() {
    let etcd = Etcd::start();
    let start = || {
        let mut options = etcd.options("a");
        options.time_to_live = Duration::from_secs(1);
        Control::start(EtcdStore::new(options).unwrap())
    };
    let notice = |control: &Control, wanted: fn(&Notice) -> bool| {
        control.wait("notice", |update| match update {
            Update::Notice(notice) if wanted(notice) => Some(notice.to_string()),
            _ => None,
        })
    };
    let first = start();
    first.worker.publish(inputs("a", 1));
    first.wait_for_view("itself", |view| view.gateways.contains_key("a"));
    let second = start();
    second.worker.publish(inputs("a", 2));
    let text = notice(&second, |n| matches!(n, Notice::NameTaken { .. }));
    println!("{text}");
    assert!(text.contains("etcd at http://"), "{text}");
    drop(first);
    notice(&second, |n| matches!(n, Notice::NameFree { .. }));
    second.wait_for_view("itself", |view| {
        let own = view.gateways.get("a");
        own.is_some_and(|own| own.inputs.sequence == 2) && !view.is_name_taken
    });
}

#[test]
fn sites_do_not_see_each_other() {
    let etcd = Etcd::start();
    let mut options = etcd.options("a");
    options.site = "site2".into();
    let mut other = EtcdStore::new(options).unwrap();
    other.publish(&inputs("a", 9)).unwrap();
    other.offer(&plan("a", 9), 0).unwrap();
    let mut here = etcd.store("a");
    let view = here.load().unwrap();
    assert!(view.gateways.is_empty() && view.plan.is_none());
}

#[test]
fn the_largest_inputs_fit_into_etcd() {
    let etcd = Etcd::start();
    let app = |number| keiro_store::AppInputs {
        name: format!("application-{number}"),
        peer: "osaka".into(),
        length_bytes: 1200.5,
        interval_seconds: 0.02,
        latency_target_seconds: Some(0.03),
        ..keiro_store::AppInputs::default()
    };
    let many = keiro_store::Inputs {
        apps: (0..keiro_store::site::APPS_MAX).map(app).collect(),
        ..inputs("a", 1)
    };
    let mut a = etcd.store("a");
    a.publish(&many).unwrap();
    assert_eq!(a.load().unwrap().gateways["a"].inputs, many);
}

#[test]
fn an_endpoint_that_is_down_is_passed_over() {
    let etcd = Etcd::start();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = closed.local_addr().unwrap();
    drop(closed);
    let mut options = etcd.options("a");
    options.endpoints.insert(0, plain(refused));
    let mut store = EtcdStore::new(options).unwrap();
    store.publish(&inputs("a", 1)).unwrap();
    assert_eq!(store.load().unwrap().gateways.len(), 1);
}

#[test]
fn a_server_that_never_answers_delays_no_other() {
    // Connections are accepted by the kernel and not read.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let etcd = Etcd::start();
    let mut options = etcd.options("a");
    options.endpoints = vec![plain(silent.local_addr().unwrap())];
    options.timeout = Duration::from_millis(300);
    let mut store = EtcdStore::new(options.clone()).unwrap();
    let began = Instant::now();
    let error = store.load().unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("no answer in time"), "{error}");
    let took = began.elapsed();
    assert!(
        (Duration::from_millis(300)..Duration::from_secs(2)).contains(&took),
        "{took:?}"
    );

    let control = Control::start(EtcdStore::new(options.clone()).unwrap());
    control.worker.publish(inputs("a", 1));
    control.wait_for_loss();
    let began = Instant::now();
    drop(control);
    assert!(began.elapsed() < Duration::from_secs(2));

    // Beside one that works it costs its time-out, once.
    options.endpoints.push(etcd.endpoint());
    let mut store = EtcdStore::new(options).unwrap();
    store.publish(&inputs("a", 1)).unwrap();
    store.load().unwrap();
}

#[test]
fn a_server_that_is_no_etcd_is_named_as_such() {
    use std::io::{Read, Write};
    let answers: [&[u8]; 5] = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\n[1]",
        b"HTTP/1.1 200 OK\r\ncontent-length: 32\r\n\r\n{\"header\":{},\"responses\":[{},{}]}",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    ];
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        for answer in answers {
            let (mut connection, _) = listener.accept().unwrap();
            let mut request = [0; 65536];
            let _ = connection.read(&mut request).unwrap();
            connection.write_all(answer).unwrap();
        }
    });
    for answer in answers {
        let mut store = EtcdStore::new(EtcdOptions {
            endpoints: vec![plain(address)],
            site: "site".into(),
            gateway: "a".into(),
            time_to_live: Duration::from_secs(5),
            timeout: Duration::from_secs(5),
            tls: None,
            user: None,
        })
        .unwrap();
        let error = store.load().unwrap_err();
        println!("{error}");
        assert!(
            matches!(
                error,
                StoreError::NotUnderstood { .. } | StoreError::Refused { .. }
            ),
            "{error:?} to {:?}",
            String::from_utf8_lossy(answer)
        );
    }
    server.join().unwrap();
}

fn post(etcd: &Etcd, method: &str, body: &str) {
    let config = ureq::Agent::config_builder().proxy(None).build();
    let sent = ureq::Agent::new_with_config(config)
        .post(format!("{}/v3/{method}", etcd.url()))
        .send(body);
    sent.unwrap_or_else(|error| panic!("{method}: {error}"));
}

fn secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_user_with_a_password_is_let_in_and_others_are_not() {
    let mut etcd = Etcd::start_with(|_| vec!["--auth-token-ttl=1".into()]);
    post(
        &etcd,
        "auth/user/add",
        r#"{"name":"root","password":"secret"}"#,
    );
    post(&etcd, "auth/role/add", r#"{"name":"root"}"#);
    post(&etcd, "auth/user/grant", r#"{"user":"root","role":"root"}"#);
    post(&etcd, "auth/enable", "{}");
    let error = etcd.store("a").load().unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");

    let password_file = etcd.path("password");
    let mut options = etcd.options("a");
    options.user = Some(UserFile {
        name: "root".into(),
        password_file: password_file.clone(),
    });
    secret(&password_file, "wrong\n");
    let error = EtcdStore::new(options.clone()).unwrap().load().unwrap_err();
    assert!(matches!(error, StoreError::Refused { .. }), "{error}");
    println!("{error}");

    secret(&password_file, "secret\n");
    let mut store = EtcdStore::new(options.clone()).unwrap();
    store.publish(&inputs("a", 1)).unwrap();
    assert_eq!(store.load().unwrap().gateways.len(), 1);
    // Tokens do not survive etcd; a new one is asked for.
    etcd.restart();
    assert_eq!(store.load().unwrap().gateways.len(), 1);
    let control = Control::start(EtcdStore::new(options).unwrap());
    control.wait_for_view("itself", |view| view.gateways.len() == 1);
}

#[test]
fn over_tls_the_authority_has_to_be_the_right_one() {
    let etcd = Etcd::start_with(|_| vec!["--auto-tls".into()]);
    let other = Etcd::start_with(|_| vec!["--auto-tls".into()]);
    let certificate = |etcd: &Etcd| etcd.path("data/fixtures/client/cert.pem");
    let with = |authorities: PathBuf| {
        let mut options = etcd.options("a");
        options.tls = Some(TlsFiles {
            authorities,
            client: None,
        });
        EtcdStore::new(options).unwrap()
    };
    let mut store = with(certificate(&etcd));
    store.publish(&inputs("a", 1)).unwrap();
    assert_eq!(store.load().unwrap().gateways.len(), 1);
    let error = with(certificate(&other)).load().unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

/// An authority, and what it has signed.
struct Certificates {
    authority: PathBuf,
    etcd: ClientFiles,
    gateway: ClientFiles,
}

fn certificates(directory: &Path) -> Certificates {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = directory.join("authority.pem");
    fs::write(&authority, params.self_signed(&key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(params, key);
    let signed = |name: &str, usages: &[ExtendedKeyUsagePurpose]| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = usages.to_vec();
        let files = ClientFiles {
            certificate: directory.join(format!("{name}.pem")),
            key: directory.join(format!("{name}.key")),
        };
        let certificate = params.signed_by(&key, &issuer).unwrap();
        fs::write(&files.certificate, certificate.pem()).unwrap();
        secret(&files.key, &key.serialize_pem());
        files
    };
    Certificates {
        // Its JSON gateway is a client of etcd itself, with etcd's certificate.
        etcd: signed("etcd", &[ServerAuth, ClientAuth]),
        gateway: signed("gateway", &[ClientAuth]),
        authority,
    }
}

#[test]
fn etcd_may_ask_for_the_gateways_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let files = certificates(directory.path());
    let etcd = Etcd::start_with(|_| {
        vec![
            format!("--cert-file={}", files.etcd.certificate.display()),
            format!("--key-file={}", files.etcd.key.display()),
            format!("--trusted-ca-file={}", files.authority.display()),
            "--client-cert-auth".into(),
        ]
    });
    let with = |client: Option<ClientFiles>| {
        let mut options = etcd.options("a");
        options.tls = Some(TlsFiles {
            authorities: files.authority.clone(),
            client,
        });
        EtcdStore::new(options)
    };
    let mut store = with(Some(files.gateway.clone())).unwrap();
    store.publish(&inputs("a", 1)).unwrap();
    assert_eq!(store.load().unwrap().gateways.len(), 1);
    let error = with(None).unwrap().load().unwrap_err();
    println!("{error}");

    let mixed = ClientFiles {
        key: files.etcd.key.clone(),
        ..files.gateway.clone()
    };
    let error = with(Some(mixed)).err().unwrap().to_string();
    assert!(error.contains("does not fit"), "{error}");
    let no_key = ClientFiles {
        key: files.gateway.key.clone(),
        ..files.gateway.clone()
    };
    secret(&no_key.key, "no key");
    let error = with(Some(no_key)).err().unwrap().to_string();
    assert!(error.contains("no private key"), "{error}");
}

#[test]
fn options_that_cannot_work_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let good = EtcdOptions {
        endpoints: vec![at("127.0.0.1:2379")],
        site: "site".into(),
        gateway: "a".into(),
        time_to_live: TIME_TO_LIVE_DEFAULT,
        timeout: TIMEOUT_DEFAULT,
        tls: None,
        user: None,
    };
    assert!(EtcdStore::new(good.clone()).is_ok());
    let user = UserFile {
        name: "keiro".into(),
        password_file: file("password"),
    };
    secret(&file("password"), "secret");
    fs::write(file("open"), "secret").unwrap();
    fs::set_permissions(file("open"), Permissions::from_mode(0o644)).unwrap();
    secret(&file("empty"), "\n");
    let tls = |authorities: PathBuf| {
        Some(TlsFiles {
            authorities,
            client: None,
        })
    };
    let https = vec![Endpoint {
        is_secure: true,
        ..at("10.0.0.1:2379")
    }];
    let endpoints = |address: &str| EtcdOptions {
        endpoints: vec![at(address)],
        ..good.clone()
    };
    let with_user = |endpoint: &str, password: &str| EtcdOptions {
        user: Some(UserFile {
            password_file: file(password),
            ..user.clone()
        }),
        ..endpoints(endpoint)
    };
    let cases = [
        (
            EtcdOptions {
                site: "a/b".into(),
                ..good.clone()
            },
            "site \"a/b\" is not a name",
        ),
        (
            EtcdOptions {
                gateway: String::new(),
                ..good.clone()
            },
            "is not a name",
        ),
        (
            EtcdOptions {
                endpoints: vec![],
                ..good.clone()
            },
            "0 endpoints",
        ),
        (
            EtcdOptions {
                endpoints: https.clone(),
                ..good.clone()
            },
            "certificate authority",
        ),
        (
            EtcdOptions {
                tls: tls(file("x")),
                ..good.clone()
            },
            "should be https",
        ),
        (
            EtcdOptions {
                endpoints: https.clone(),
                tls: tls(file("x")),
                ..good.clone()
            },
            "cannot read",
        ),
        (
            EtcdOptions {
                endpoints: https,
                tls: tls(file("open")),
                ..good.clone()
            },
            "no certificate",
        ),
        (with_user("10.0.0.1:2379", "password"), "in the clear"),
        (with_user("127.0.0.1:2379", "open"), "chmod 600"),
        (with_user("127.0.0.1:2379", "empty"), "no password"),
    ];
    for (options, reason) in cases {
        let error = EtcdStore::new(options).err().expect(reason).to_string();
        assert!(error.contains(reason), "{error}");
    }
}
