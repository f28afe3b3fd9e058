//! `keiro asbr` and `keiro egress` from the command line: the examples as they are shipped, errors,
//! a daemon that is asked and stopped.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/examples");

fn keiro(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keiro"));
    command.args(arguments).output().expect("keiro runs")
}

#[test]
fn the_examples_are_understood() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("missing/recording");
    let nowhere = nowhere.display().to_string();
    for (role, file) in [("asbr", "asbr.toml"), ("egress", "egress.toml")] {
        let path = format!("{EXAMPLES}/{file}");
        let output = keiro(&[role, "--dry-run", "--record", &nowhere, "--config", &path]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        // It gets past the configuration, and fails at the port or at the recording.
        let past = said.contains("cannot listen") || said.contains(&nowhere);
        assert!(past && !said.contains(file), "{role}: {said}");
    }
}

#[test]
fn both_files_are_checked_as_what_they_are() {
    for (file, said) in [
        (
            "asbr.toml",
            "border router of AS 65000, locator 2001:db8:a:1::/64, 2 egress peers, 1 reflector",
        ),
        (
            "egress.toml",
            "content server of AS 65000, 2 egress peers, 1 reflector",
        ),
    ] {
        let path = format!("{EXAMPLES}/{file}");
        let output = keiro(&["config", "check", &path]);
        let reported = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && reported.contains(said),
            "{output:?}"
        );
    }
    let directory = tempfile::tempdir().unwrap();
    // An editor may begin a file with a byte order mark.
    for file in ["asbr.toml", "egress.toml"] {
        let marked = directory.path().join(file);
        let text = fs::read_to_string(format!("{EXAMPLES}/{file}")).unwrap();
        fs::write(&marked, format!("\u{feff}{text}")).unwrap();
        let output = keiro(&["config", "check", &marked.display().to_string()]);
        let said = String::from_utf8_lossy(&output.stdout);
        let ok = output.status.success() && said.contains("2 egress peers");
        assert!(ok, "{output:?}");
    }
    let path = directory.path().join("egress.toml");
    fs::write(
        &path,
        "# A server.\n[egress]\nasn = 0\nrouter_id = \"192.0.2.1\"\n",
    )
    .unwrap();
    let path = path.display().to_string();
    let output = keiro(&["config", "check", "--json", &path]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["problems"][0]["place"]["line"], 3, "{report}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&format!("{path}:3:7: asn: 0 is not the number of an AS")),
        "{said}"
    );
}

#[test]
fn the_kernel_is_asked_in_a_namespace_of_its_own() {
    let own = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--net", env!("CARGO_BIN_EXE_keiro")]);
        command.args(arguments).output().expect("unshare runs")
    };
    let output = own(&["--version"]);
    if !output.status.success() {
        eprintln!("no namespaces may be made, so they are left out");
        return;
    }
    for role in ["asbr", "egress"] {
        let output = own(&[role, "--cleanup"]);
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(said, "nothing was there to remove\n");
    }
    let path = format!("{EXAMPLES}/egress.toml");
    let output = own(&["egress", "--config", &path]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let wanted = [
        "no route leads to 2001:db8:a:ff::1",
        "`interface`",
        "--dry-run",
    ];
    assert!(wanted.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn what_is_no_file_is_refused_and_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = Command::new("mkfifo")
        .args(["-m", "600"])
        .arg(&pipe)
        .status();
    assert!(made.unwrap().success());
    let pipe = pipe.display().to_string();
    for file in [pipe.as_str(), "/dev/zero", "/dev"] {
        let output = keiro(&["egress", "--dry-run", "--config", file]);
        assert_eq!(output.status.code(), Some(1));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("not a regular file"), "{said}");
    }
    // Nor where a file names it, which a reload would wait for.
    for key in ["rpki_file", "md5_file"] {
        let path = directory.path().join("asbr.toml");
        let peer = "[[peer]]\nname = \"a\"\naddress = \"192.0.2.2\"\nasn = 65001\n";
        let [of_asbr, of_peer] = [key == "rpki_file", key == "md5_file"].map(|named| {
            if named {
                format!("{key} = {pipe:?}\n")
            } else {
                String::new()
            }
        });
        let text = format!(
            "[asbr]\nasn = 65000\nrouter_id = \"192.0.2.1\"\nlocator = \"2001:db8:a:1::/64\"\n\
             {of_asbr}{peer}{of_peer}"
        );
        fs::write(&path, text).unwrap();
        let output = keiro(&["config", "check", &path.display().to_string()]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("not a regular file"), "{key}: {said}");
    }
}

#[test]
fn a_recording_does_not_take_the_configurations_place() {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), TRANSIT);
    let path = directory.path().join("asbr.toml");
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let [path, link] = [path, link].map(|path| path.display().to_string());
    let before = fs::read(&path).unwrap();
    let output = keiro(&["asbr", "--dry-run", "--record", &link, "--config", &path]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("would overwrite the configuration"), "{said}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn what_is_no_prefix_is_no_application_either() {
    for asked in ["2001:db8::/129", "fe80::1%eth0", "10.0.0.0/33"] {
        let output = keiro(&["explain", asked, "--socket", "/nowhere"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(64), "{said}");
        assert!(said.contains("neither a prefix nor an address"), "{said}");
    }
}

#[test]
fn a_mistake_is_reported_with_its_position() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("egress.toml");
    fs::write(&path, "[egress]\nasn = 65000\nrouter-id = \"192.0.2.1\"\n").unwrap();
    let path = path.display().to_string();
    let output = keiro(&["egress", "--config", &path]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.contains(&format!(
            "{path}:3:1: unknown key `router-id`; did you mean `router_id`?"
        )),
        "{said}"
    );
    assert!(said.contains("`router_id`"), "{said}");
}

/// A border router with these peers, that answers.
fn started(directory: &Path, peers: &str) -> (Child, String) {
    write(directory, peers);
    let mut command = Command::new(env!("CARGO_BIN_EXE_keiro"));
    command.args(["asbr", "--dry-run", "--config"]);
    command.arg(directory.join("asbr.toml"));
    let daemon = command.stderr(Stdio::null()).spawn().unwrap();
    let socket = directory.join("s").display().to_string();
    wait_for(&socket, |_| true);
    (daemon, socket)
}

fn write(directory: &Path, peers: &str) {
    let text = format!(
        "[asbr]\nasn = 65000\nrouter_id = \"192.0.2.1\"\nlocator = \"2001:db8:a:1::/64\"\n\
         listen = [\"127.0.0.1:0\"]\ncontrol_socket = \"{}\"\n{peers}",
        directory.join("s").display()
    );
    fs::write(directory.join("asbr.toml"), text).unwrap();
}

/// Its status, once `holds` accepts it.
fn wait_for(socket: &str, holds: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let output = keiro(&["show", "egress", "--socket", socket, "--json"]);
        let reported = serde_json::from_slice(&output.stdout);
        if let Ok(status) = reported
            && output.status.success()
            && holds(&status)
        {
            return status;
        }
        assert!(Instant::now() < end, "it never does: {output:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(daemon: &Child, signal: &str) {
    let mut command = Command::new("kill");
    command.args([signal, &daemon.id().to_string()]);
    assert!(command.status().unwrap().success());
}

const TRANSIT: &str =
    "[[peer]]\nname = \"transit\"\naddress = \"192.0.2.9\"\nasn = 65001\npassive = true\n";
const OTHER: &str =
    "[[peer]]\nname = \"other\"\naddress = \"192.0.2.10\"\nasn = 65002\npassive = true\n";

#[test]
fn a_running_daemon_reads_its_file_again_and_refuses_a_broken_one() {
    let directory = tempfile::tempdir().unwrap();
    let (mut daemon, socket) = started(directory.path(), TRANSIT);
    let reload = || keiro(&["reload", "--egress", "--socket", &socket]);
    let of = |output: &[u8]| String::from_utf8_lossy(output).into_owned();
    write(directory.path(), &[TRANSIT, OTHER].concat());
    let output = reload();
    assert_eq!(
        (of(&output.stdout).as_str(), of(&output.stderr).as_str()),
        ("added: other\n", "")
    );
    write(directory.path(), &TRANSIT.replace("192.0.2.9", "192.0.2"));
    let output = reload();
    let said = of(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let wanted = ["refused, everything stays as it was", "asbr.toml:9:"];
    assert!(wanted.iter().all(|part| said.contains(part)), "{said}");
    let table = of(&keiro(&["show", "egress", "--socket", &socket]).stdout);
    assert!(table.contains("the last reload was refused: "), "{table}");
    assert!(table.contains("192.0.2.10"), "{table}");
    // Only the log and the status show that the signal arrived.
    write(
        directory.path(),
        &OTHER.replace("[[peer]]", "[[peer]]\nfunction = 2"),
    );
    signal(&daemon, "-HUP");
    let status = wait_for(&socket, |status| {
        status["neighbours"].as_array().unwrap().len() == 1
    });
    assert_eq!(status["neighbours"][0]["name"], "other");
    assert_eq!(status["config_rejected"], serde_json::Value::Null);
    let output = keiro(&["reload", "--egress", "--socket", &socket, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["removed"], serde_json::json!([]));
    signal(&daemon, "-TERM");
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_running_daemon_describes_itself_and_stops() {
    let directory = tempfile::tempdir().unwrap();
    let (mut daemon, socket) = started(directory.path(), TRANSIT);
    let status = wait_for(&socket, |_| true);
    assert_eq!(status["role"], "asbr");
    assert_eq!(status["neighbours"][0]["name"], "transit");
    assert_eq!(status["neighbours"][0]["state"], "idle");
    // The locator.
    assert_eq!(status["destinations"], 1);
    let table = keiro(&["show", "egress", "--socket", &socket]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(
        table.contains("egress peer") && table.contains("65000:1"),
        "{table}"
    );
    assert!(
        table.contains("kernel: left unchanged (--dry-run)"),
        "{table}"
    );
    let explained = keiro(&["explain", "2001:db8:a:1::7", "--socket", &socket]);
    let explained = String::from_utf8_lossy(&explained.stdout).into_owned();
    for part in [
        "2001:db8:a:1::7/128: best path to 2001:db8:a:1::/64",
        "local",
        "egress peer transit: does not announce it",
    ] {
        assert!(explained.contains(part), "{part}: {explained}");
    }
    let json = keiro(&["explain", "2001:db8::/32", "--socket", &socket, "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["prefix"], serde_json::Value::Null);
    assert_eq!(json["asked"], "2001:db8::/32");
    let mut command = Command::new(env!("CARGO_BIN_EXE_keiro"));
    command.args(["monitor", "--egress", "--socket", &socket]);
    let monitor = command.stderr(Stdio::piped()).spawn().unwrap();
    signal(&daemon, "-TERM");
    assert!(daemon.wait().unwrap().success());
    // It has heard that, or came too late.
    let monitor = monitor.wait_with_output().unwrap();
    assert!(!monitor.status.success());
    let said = String::from_utf8_lossy(&monitor.stderr).into_owned();
    assert!(said.contains("daemon"), "{said}");
}
