//! Every query of the dashboards and alerts, run by a real Prometheus that reads a running pair of gateways. Run by
//! `make test-dashboards`, which installs Prometheus.

#[path = "harness/mod.rs"]
mod harness;

use std::{
    fs,
    net::{SocketAddr, TcpListener, UdpSocket},
    process::{Child, Command, Stdio},
};

use harness::{Ran, Site, eventually, finish, keiro, run, shown};
use keiro_dashboards::{alerts, dashboards, query::Query};

/// The program that [`harness`] runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_keiro");

/// What Grafana puts in: everything, and a window that holds some readings.
const VARIABLES: [(&str, &str); 8] = [
    ("__rate_interval", "10s"),
    ("instance", ".*"),
    ("tenant", ".*"),
    ("path", ".*"),
    ("peer", ".*"),
    ("app", ".*"),
    ("datasource", ""),
    ("__interval", "10s"),
];

/// Parts of queries that have results with two gateways and an application that sends.
const WITH_RESULTS: [&str; 6] = [
    "keiro_path_up{",
    "keiro_peer_up{",
    "keiro_app_target_met{",
    "keiro_path_srtt_seconds{",
    "rate(keiro_path_sent_bytes_total{",
    "histogram_quantile(0.99, sum by (app, le)",
];

/// Ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(command: &mut Command) -> Running {
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Running(command.spawn().expect("it starts"))
}

fn free_udp() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.local_addr().expect("its address")
}

fn free_tcp() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address")
}

/// A gateway with one path and one application, and where its metrics are read.
fn gateway(
    site: &Site,
    name: &str,
    peer: &str,
    key: &str,
    [own, other]: [SocketAddr; 2],
    metrics: SocketAddr,
) -> Running {
    let text = format!(
        "{}metrics = \"{metrics}\"\n[[path]]\nname = \"near\"\nlocal = \"{own}\"\nrate = \"50Mbit\"\n\
         [[peer]]\nname = \"{peer}\"\npublic_key = \"{key}\"\nendpoints = {{ near = \"{other}\" }}\n\
         [[app]]\nname = \"orders\"\npeer = \"{peer}\"\nclass = \"message\"\nlatency_target = \"100ms\"\n",
        site.gateway(name)
    );
    let file = shown(&site.write("gateway.toml", &text));
    start(&mut keiro(["gateway", "--user", "root", "--config", &file]))
}

fn promtool(url: &str, query: &str) -> Ran {
    let mut command = Command::new("promtool");
    finish(command.args(["query", "instant", url, query]), b"")
}

/// Prometheus with the alerts' rules, and where it answers.
fn prometheus(site: &Site, metrics: [SocketAddr; 2]) -> (Running, String) {
    let rules = site.write("keiro.rules.yml", &alerts::rules());
    let text = format!(
        "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nrule_files: [\"{}\"]\nscrape_configs:\n  \
         - job_name: keiro\n    static_configs: [{{ targets: [\"{}\", \"{}\"] }}]\n",
        shown(&rules),
        metrics[0],
        metrics[1]
    );
    let file = site.write("prometheus.yml", &text);
    let listen = free_tcp();
    let mut command = Command::new("prometheus");
    command
        .arg(format!("--config.file={}", shown(&file)))
        .arg(format!("--storage.tsdb.path={}", shown(&site.path("data"))))
        .arg(format!("--web.listen-address={listen}"));
    (start(&mut command), format!("http://{listen}"))
}

#[test]
#[ignore = "needs Prometheus, which make test-dashboards installs"]
fn every_query_is_run_by_a_real_prometheus_on_a_pair_of_gateways() {
    let sites = [Site::new(), Site::new()];
    let keys = [sites[0].public_key(), sites[1].public_key()];
    let (addresses, metrics) = ([free_udp(), free_udp()], [free_tcp(), free_tcp()]);
    let _tokyo = gateway(&sites[0], "tokyo", "osaka", &keys[1], addresses, metrics[0]);
    let [there, here] = addresses;
    let _osaka = gateway(
        &sites[1],
        "osaka",
        "tokyo",
        &keys[0],
        [here, there],
        metrics[1],
    );
    let socket = shown(&sites[0].path("control.sock"));
    eventually("the path is up", || {
        let status = run(["status", "--json", "--socket", &socket]);
        (status.code == Some(0) && status.json()["paths_up"] == 1).then_some(())
    });
    let [from, to] = [0, 1].map(|site: usize| shown(&sites[site].path("message.sock")));
    let _receiver = start(&mut keiro(["receive", "orders", "--socket", &to]));
    let message = shown(&sites[0].write("message", "hello"));
    let send = [
        "send",
        "orders",
        "--count",
        "100000",
        "--interval",
        "50ms",
        "--file",
        &message,
        "--socket",
        &from,
    ];
    let _sender = start(&mut keiro(send));
    let site = Site::without_key();
    let (_prometheus, url) = prometheus(&site, metrics);
    let has_result = |query: &str| {
        let ran = promtool(&url, query);
        ran.code == Some(0) && !ran.stdout.trim().is_empty()
    };
    eventually("delays of messages are there", || {
        has_result("max(rate(keiro_app_delay_seconds_count[10s])) > 0").then_some(())
    });
    let boards = dashboards::all();
    let mut queries: Vec<Query> = boards
        .iter()
        .flat_map(|board| board.queries().cloned())
        .collect();
    queries.extend(alerts::all().into_iter().map(|alert| alert.query));
    let mut without = Vec::new();
    for query in &queries {
        let text = query.with(&VARIABLES);
        assert!(!text.contains('$'), "a variable is left: {text}");
        let ran = promtool(&url, &text);
        assert_eq!(ran.code, Some(0), "{text}: {}", ran.stderr);
        if ran.stdout.trim().is_empty() {
            without.push(query.text());
        }
    }
    for part in WITH_RESULTS {
        let missing: Vec<_> = without
            .iter()
            .filter(|text| text.starts_with(part))
            .collect();
        assert!(missing.is_empty(), "no result: {missing:?}");
    }
    println!(
        "{} queries, {} of them with results",
        queries.len(),
        queries.len() - without.len()
    );
    assert!(fs::read_dir(site.path("data")).is_ok());
}
