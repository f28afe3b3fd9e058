//! Laboratories are made, and always removed: by dropping, by a panic, by a signal, and after their process
//! was killed.

mod support;

use std::{
    env,
    io::{BufRead, BufReader},
    net::UdpSocket,
    panic,
    process::{Child, Command, Stdio},
    time::Duration,
};

use keiro_lab::{Interrupts, Lab, LabError, Leftovers, Topology, lab};
use keiro_linux::{
    netns,
    process::{PidFd, SIGINT, SIGKILL, SIGTERM},
};
use keiro_testing::wait_until;
use support::{remains, topology, unique_name, up};

const TWO_HOSTS: &str = r#"
[host.tokyo]
sysctl = { "net.ipv4.ip_forward" = 1 }
routes = [{ to = "203.0.113.0/24", via = "192.0.2.2" }]
[host.osaka]
[link.path1]
a = { host = "tokyo", addresses = ["192.0.2.1/30", "2001:db8:1::1/64"] }
b = { host = "osaka", addresses = ["192.0.2.2/30", "2001:db8:1::2/64"] }
"#;

fn two_hosts() -> Topology {
    topology(TWO_HOSTS)
}

#[test]
fn lab_is_made_usable_at_once_and_removed() {
    let name = unique_name();
    let lab = up(&two_hosts(), &name);
    for (from, to) in [
        ("192.0.2.1:0", "192.0.2.2:7"),
        ("[2001:db8:1::1]:0", "[2001:db8:1::2]:7"),
    ] {
        let osaka = lab
            .host("osaka")
            .unwrap()
            .run(|| UdpSocket::bind(to))
            .unwrap()
            .unwrap();
        let tokyo = lab
            .host("tokyo")
            .unwrap()
            .run(|| UdpSocket::bind(from))
            .unwrap()
            .unwrap();
        tokyo.send_to(b"hello", to).unwrap();
        osaka
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        let mut buffer = [0; 16];
        assert_eq!(osaka.recv(&mut buffer).unwrap(), 5, "{to}");
    }
    let forwarding = "cat /proc/sys/net/ipv4/ip_forward; ip -4 route show 203.0.113.0/24";
    let output = lab
        .host("tokyo")
        .unwrap()
        .command("sh")
        .args(["-c", forwarding])
        .output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert_eq!(
        text.trim_end().replace(" \n", "\n"),
        "1\n203.0.113.0/24 via 192.0.2.2 dev path1"
    );
    lab.down().unwrap();
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn unknown_host_is_refused_with_the_nearest() {
    let name = unique_name();
    let lab = up(&two_hosts(), &name);
    let error = lab.host("tokio").unwrap_err().to_string();
    assert_eq!(
        error,
        "the laboratory has no host `tokio`; did you mean `tokyo`?"
    );
}

#[test]
fn lab_is_removed_after_a_panic() {
    let name = unique_name();
    let lab = up(&two_hosts(), &name);
    assert!(!remains(&name).is_empty());
    let result = panic::catch_unwind(panic::AssertUnwindSafe(move || {
        let _lab = lab;
        panic!("this panic is part of the test");
    }));
    assert!(result.is_err());
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn lab_that_cannot_be_made_leaves_nothing() {
    let name = unique_name();
    let wrong = TWO_HOSTS.replace("net.ipv4.ip_forward", "net.ipv4.there_is_none");
    let error = Lab::builder(&topology(&wrong))
        .name(&name)
        .up()
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cannot set sysctl `net.ipv4.there_is_none` to `1`"),
        "{error}"
    );
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn programs_and_strays_are_ended_with_the_lab() {
    let name = unique_name();
    let lab = up(&two_hosts(), &name);
    let tokyo = lab.host("tokyo").unwrap();
    // The first process is asked to end and refuses; the second was started without the lab's knowledge.
    let mut stubborn = tokyo.command("sh");
    stubborn
        .args(["-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
        .stdout(Stdio::piped());
    let stubborn = tokyo.spawn(stubborn).unwrap();
    let mut line = String::new();
    BufReader::new(stubborn.take_stdout().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    let mut stray = tokyo.command("sleep").arg("60").spawn().unwrap();
    let handles = [stubborn.id(), stray.id() as i32].map(|pid| PidFd::open(pid).unwrap());
    lab.down().unwrap();
    for handle in &handles {
        assert!(
            handle.wait(Duration::ZERO).unwrap(),
            "{} still runs",
            handle.pid()
        );
    }
    stray.wait().unwrap();
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn nothing_starts_in_a_removed_lab() {
    let lab = up(&two_hosts(), &unique_name());
    let tokyo = lab.host("tokyo").unwrap().clone();
    lab.down().unwrap();
    let mut command = tokyo.command("sleep");
    command.arg("60");
    let error = tokyo.spawn(command).unwrap_err().to_string();
    assert!(error.contains("removed meanwhile"), "{error}");
}

#[test]
fn missing_program_is_named() {
    let name = unique_name();
    let lab = up(&two_hosts(), &name);
    let tokyo = lab.host("tokyo").unwrap();
    let error = tokyo
        .spawn(tokyo.command("keiro-there-is-none"))
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("host `tokyo`: cannot start `keiro-there-is-none`"),
        "{error}"
    );
}

#[test]
fn lab_is_removed_after_sigint_and_sigterm() {
    for signal in [SIGINT, SIGTERM] {
        let holder = Holder::start();
        assert_eq!(
            remains(&holder.name).len(),
            3,
            "two namespaces and a record"
        );
        holder.handle.signal(signal).unwrap();
        let name = holder.name.clone();
        let status = holder.wait();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&status),
            Some(signal)
        );
        assert_eq!(remains(&name), Vec::<String>::new());
    }
}

#[test]
fn lab_in_use_is_refused_and_removed_by_asking_its_owner() {
    let holder = Holder::start();
    let name = holder.name.clone();
    let builder = || Lab::builder(Box::leak(Box::new(two_hosts()))).name(&name);
    // Not even by force.
    for builder in [builder(), builder().leftovers(Leftovers::Remove)] {
        let error = builder.up().unwrap_err();
        assert!(matches!(error, LabError::InUse { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("`keiro-lab down {name}`")),
            "{error}"
        );
    }
    let host = lab::attach(&name, "tokyo").unwrap();
    let output = host
        .command("ip")
        .args(["-o", "-4", "address"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("192.0.2.1/30"));
    assert!(
        lab::list()
            .iter()
            .any(|record| record.name == name && record.is_alive())
    );
    // The owner is this process's child: reap it, so that its end is visible.
    let reaper = std::thread::spawn(move || holder.wait());
    lab::remove(&name, Duration::from_secs(20)).unwrap();
    reaper.join().unwrap();
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn leftovers_of_a_killed_process_are_detected_and_removed() {
    for by_force in [false, true] {
        let holder = Holder::start();
        let name = holder.name.clone();
        holder.handle.signal(SIGKILL).unwrap();
        holder.wait();
        assert_eq!(remains(&name).len(), 3);
        let topology = two_hosts();
        let error = Lab::builder(&topology).name(&name).up().unwrap_err();
        let LabError::LeftOver { namespaces, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(namespaces.len(), 2);
        assert!(
            error.to_string().contains(&format!("`keiro-{name}-osaka`")),
            "{error}"
        );
        assert!(
            error
                .to_string()
                .contains(&format!("`keiro-lab down {name}`")),
            "{error}"
        );
        if by_force {
            let lab = Lab::builder(&topology)
                .name(&name)
                .leftovers(Leftovers::Remove)
                .up()
                .unwrap();
            drop(lab);
        } else {
            lab::remove(&name, Duration::from_secs(1)).unwrap();
        }
        assert_eq!(remains(&name), Vec::<String>::new());
    }
}

#[test]
fn namespaces_of_others_are_left_alone() {
    let name = unique_name();
    let foreign = format!("keiro-{name}-osaka");
    let ip = |arguments: [&str; 3]| Command::new("ip").args(arguments).status().unwrap();
    assert!(ip(["netns", "add", &foreign]).success());
    let error = Lab::builder(&two_hosts()).name(&name).up().unwrap_err();
    let still_there = netns::exists(&foreign);
    assert!(ip(["netns", "delete", &foreign]).success());
    assert!(matches!(error, LabError::NamespaceExists(_)), "{error}");
    assert!(error.to_string().contains(&foreign), "{error}");
    assert!(still_there);
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn unknown_labs_are_refused() {
    let error = lab::remove("there-is-none", Duration::ZERO).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("there is no laboratory `there-is-none`"),
        "{error}"
    );
    let error = lab::remove("../../etc/passwd", Duration::ZERO).unwrap_err();
    assert!(matches!(error, LabError::NoSuchLab { .. }), "{error}");
    let error = Lab::builder(&two_hosts())
        .name("Not A Name")
        .up()
        .unwrap_err();
    assert!(matches!(error, LabError::BadName(_)), "{error}");
}

#[test]
fn missing_iproute2_is_named_with_its_package() {
    let name = unique_name();
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "holder", "--nocapture"])
        .env(HOLD, &name)
        .env("PATH", "/keiro-there-is-none")
        .output()
        .unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(
        message.contains("`ip` is missing; install it, as in `apt-get install iproute2`"),
        "{message}"
    );
    assert_eq!(remains(&name), Vec::<String>::new());
}

#[test]
fn topologies_of_the_repository_are_valid() {
    let experiments = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments");
    let mut seen = 0;
    for folder in std::fs::read_dir(experiments).unwrap().flatten() {
        let file = folder.path().join("topology.toml");
        if file.exists() {
            Topology::load(&file).unwrap_or_else(|error| panic!("{error}"));
            seen += 1;
        }
    }
    assert!(seen > 0);
    let missing = Topology::load("there/is/none.toml".as_ref()).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("there/is/none.toml: no such file"),
        "{missing}"
    );
    // Files without end.
    for (file, what) in [
        ("/dev/zero", "not a regular file"),
        ("/", "not a regular file"),
    ] {
        let error = Topology::load(file.as_ref()).unwrap_err().to_string();
        assert!(
            error.contains(what) && error.contains("name a TOML file"),
            "{error}"
        );
    }
}

const HOLD: &str = "KEIRO_LAB_TEST_HOLD";

/// The other process of the tests above: this test binary once more, with the name of a laboratory to make.
/// In an ordinary run there is none, and this test does nothing.
#[test]
fn holder() {
    let Ok(name) = env::var(HOLD) else { return };
    let interrupts = Interrupts::install(Duration::ZERO).unwrap();
    let _lab = Lab::builder(&two_hosts())
        .name(name)
        .interrupts(&interrupts)
        .up()
        .unwrap_or_else(|error| panic!("{error}"));
    println!("\nholding");
    interrupts.wait(Duration::from_secs(60));
    interrupts.end_if_received();
}

struct Holder {
    name: String,
    child: Child,
    handle: PidFd,
}

impl Holder {
    fn start() -> Self {
        let name = unique_name();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "holder", "--nocapture"])
            .env(HOLD, &name)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let handle = PidFd::open(child.id() as i32).unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let holding = lines.map_while(Result::ok).any(|line| line == "holding");
        assert!(holding, "the other process could not make its laboratory");
        Self {
            name,
            child,
            handle,
        }
    }

    fn wait(mut self) -> std::process::ExitStatus {
        wait_until("the other process ends", || {
            self.handle.wait(Duration::ZERO).unwrap()
        });
        self.child.wait().unwrap()
    }
}
