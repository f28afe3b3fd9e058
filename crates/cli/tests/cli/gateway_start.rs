//! Why a gateway does not start, and what commands say without one.

use std::{
    fs,
    io::{Read, Write},
    net::UdpSocket,
    os::unix::{fs::MetadataExt, net::UnixListener, process::CommandExt},
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{
    gateway::{Gateway, free, path},
    harness::{Ran, Site, eventually, finish, is_root, keiro, run, shown},
};

fn start(site: &Site, text: &str) -> Ran {
    let file = site.write("gateway.toml", text);
    run(["gateway", "--config", &shown(&file)])
}

#[test]
fn a_missing_configuration_is_an_error() {
    let ran = run(["gateway", "--config", "/no/such.toml"]).expect_code(1);
    ran.says(&["/no/such.toml: no such file", "`keiro init`"]);
}

#[test]
fn a_wrong_configuration_is_shown_with_its_places() {
    let site = Site::new();
    let text = format!(
        "{}{}dely = 1\n",
        site.gateway("a"),
        path("p", free("127.0.0.1"))
    );
    start(&site, &text)
        .expect_code(1)
        .says(&["unknown key `dely`", "did you mean `delay`?"]);
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    let site = Site::new();
    site.set_mode("private.key", 0o640);
    let text = format!("{}{}", site.gateway("a"), path("p", free("127.0.0.1")));
    start(&site, &text)
        .expect_code(1)
        .says(&["private.key", "others can read", "chmod 600"]);
    assert!(!site.path("control.sock").exists());
}

#[test]
fn a_key_that_is_none_is_refused() {
    let site = Site::new();
    let text = format!("{}{}", site.gateway("a"), path("p", free("127.0.0.1")));
    site.write("private.key", "secret\n");
    let ran = start(&site, &text)
        .expect_code(1)
        .says(&["private.key", "not base64"]);
    assert!(!ran.stderr.contains("secret"));
    fs::remove_file(site.path("private.key")).expect("removed");
    start(&site, &text)
        .expect_code(1)
        .says(&["private.key", "keiro genkey"]);
}

#[test]
fn what_this_machine_lacks_for_paths_is_a_warning_of_the_check() {
    let site = Site::new();
    // TEST-NET-2 (RFC 5737): on no machine.
    let text = format!(
        "{}{}[[path]]\nname = \"modem\"\ninterface = \"keiro-none\"\nrate = \"50Mbit\"\n",
        site.gateway("a"),
        path("far", "198.51.100.77:7600".parse().expect("an address"))
    );
    let file = site.write("gateway.toml", &text);
    let said = run(["config", "check", &shown(&file)])
        .expect_code(0)
        .stdout;
    for warning in [
        "warning: path far: no interface has the address 198.51.100.77; ",
        "warning: path modem: interface keiro-none does not exist; ",
    ] {
        assert!(said.contains(warning), "{said}");
    }
}

#[test]
fn a_port_in_use_is_named() {
    let site = Site::new();
    let taken = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address");
    let text = format!("{}{}", site.gateway("a"), path("p", address));
    start(&site, &text)
        .expect_code(1)
        .says(&[&address.to_string(), "in use"]);
}

#[test]
fn memory_of_a_gateway_goes_into_no_core_file() {
    let name = "memory_of_a_gateway_goes_into_no_core_file";
    if !is_root(name) {
        return;
    }
    let site = Site::new();
    let copy = site.path("keiro");
    keiro_testing::copy_program(env!("CARGO_BIN_EXE_keiro"), &copy);
    let text = format!("{}{}", site.gateway("a"), path("p", free("127.0.0.1")));
    let file = site.write("gateway.toml", &text);
    // A user whose processes could read each other's memory.
    for owned in [".", "private.key", "gateway.toml"] {
        std::os::unix::fs::chown(site.path(owned), Some(65_534), Some(65_534)).expect("owned");
    }
    let child = Command::new(copy)
        .args(["gateway", "--config", &shown(&file)])
        .uid(65_534)
        .gid(65_534)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let gateway = Gateway { site, child };
    eventually("it serves", || {
        gateway.site.path("control.sock").exists().then_some(())
    });
    let proc = PathBuf::from(format!("/proc/{}", gateway.child.id()));
    let limits = fs::read_to_string(proc.join("limits")).expect("its limits");
    let core = limits.lines().find(|line| line.starts_with("Max core"));
    let numbers: Vec<&str> = core.expect("a line").split_whitespace().skip(4).collect();
    assert_eq!(numbers, ["0", "0", "bytes"]);
    // The files of a process that may not be dumped are root's (proc(5)).
    let owner = |file| fs::metadata(proc.join(file)).expect("its file").uid();
    eventually("its memory is root's", || (owner("mem") == 0).then_some(()));
    let status = fs::read_to_string(proc.join("status")).expect("its status");
    assert!(status.contains("Uid:\t65534\t65534"), "{status}");
}

#[test]
fn without_privileges_what_is_not_allowed_is_named() {
    if !is_root("without_privileges_what_is_not_allowed_is_named") {
        return;
    }
    let site = Site::new();
    let copy = site.path("keiro");
    keiro_testing::copy_program(env!("CARGO_BIN_EXE_keiro"), &copy);
    site.set_mode(".", 0o755);
    let text = format!("{}{}", site.gateway("a"), path("p", free("127.0.0.1")));
    let file = site.write("gateway.toml", &text);
    site.set_mode("gateway.toml", 0o644);
    let mut command = Command::new(copy);
    command
        .args(["gateway", "--config", &shown(&file)])
        .uid(65_534)
        .gid(65_534);
    // The key is root's own.
    finish(&mut command, b"")
        .expect_code(1)
        .says(&["private.key", "cannot read"]);
}

#[test]
fn without_a_gateway_queries_say_what_to_try() {
    let site = Site::new();
    let socket = shown(&site.path("control.sock"));
    for command in [
        &["status"][..],
        &["show", "path"],
        &["show", "app", "A1"],
        &["show", "path", "near", "--history", "2h"],
        &["show", "peer"],
        &["monitor"],
        &["plan"],
        &["explain", "A1"],
        &["apply"],
        &["reload"],
    ] {
        for json in [false, true] {
            if json && command == ["monitor"] {
                continue;
            }
            let mut args = command.to_vec();
            args.extend(["--socket", &socket]);
            args.extend(json.then_some("--json"));
            let ran = run(&args)
                .expect_code(1)
                .says(&["no gateway is running at", "try: start it"]);
            assert_eq!(ran.stdout, "", "{command:?}");
        }
    }
    run(["explain", "10.2.0.1", "--socket", &socket])
        .expect_code(1)
        .says(&[
            "prefixes are explained by the egress suite's daemons",
            "`keiro show app`",
        ]);
    let message = shown(&site.path("message.sock"));
    finish(&mut keiro(["send", "A1", "--socket", &message]), b"x")
        .expect_code(1)
        .says(&["no gateway takes messages at", "try: "]);
    run(["receive", "A1", "--socket", &message])
        .expect_code(1)
        .says(&["no gateway takes messages"]);
}

#[test]
fn what_is_no_socket_of_the_gateway_is_reported() {
    let site = Site::new();
    site.write("file", "");
    let stale = site.path("stale.sock");
    drop(UnixListener::bind(&stale).expect("a socket"));
    let directory = shown(site.directory.path());
    for (at, wanted) in [
        (directory, "is a directory, not a socket"),
        (shown(&site.path("file")), "is a file, not a socket"),
        (shown(&stale), "no gateway listens on it"),
    ] {
        run(["status", "--socket", &at])
            .expect_code(1)
            .says(&[wanted, &at, "  try: "]);
        finish(&mut keiro(["send", "A1", "--socket", &at]), b"x")
            .expect_code(1)
            .says(&[wanted, &at, "`message_socket`"]);
    }
}

#[test]
fn another_program_behind_the_socket_is_reported() {
    let site = Site::new();
    let at = shown(&site.path("other.sock"));
    let listener = UnixListener::bind(&at).expect("a socket");
    let answering = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().expect("a client");
            // Its first byte: a client that has not been heard is not answered.
            stream.read_exact(&mut [0]).expect("a question");
            stream.write_all(b"HTTP/1.1 400\r\n\r\n").expect("answered");
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    run(["status", "--socket", &at]).expect_code(1).says(&[
        "does not answer as a gateway's control socket does",
        &at,
        "`control_socket`",
    ]);
    finish(&mut keiro(["send", "A1", "--socket", &at]), b"x")
        .expect_code(1)
        .says(&[
            "does not answer as a gateway's message socket does",
            &at,
            "`message_socket`",
        ]);
    answering.join().expect("both were answered");
}
