//! What `[message_tls]` needs: `keiro gencert`, `keiro gentoken`, and what `keiro config check` says of their
//! files.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use crate::harness::{Site, finish, run, shown};

#[test]
fn a_certificate_is_made_once_and_its_key_is_private() {
    let site = Site::new();
    let (cert, key) = (shown(&site.path("cert.pem")), shown(&site.path("key.pem")));
    let made = [
        "gencert",
        "192.0.2.1",
        "gw.example",
        "--cert",
        &cert,
        "--key",
        &key,
    ];
    let fingerprint = run(made).expect_code(0).stdout;
    let digits = fingerprint
        .strip_prefix("SHA-256 fingerprint: ")
        .expect("a fingerprint");
    assert_eq!(digits.trim().split(':').count(), 32, "{fingerprint}");
    let text = |file: &str| fs::read_to_string(site.path(file)).expect("it is there");
    assert!(text("cert.pem").starts_with("-----BEGIN CERTIFICATE-----"));
    assert!(text("key.pem").contains("PRIVATE KEY"));
    let mode = fs::metadata(site.path("key.pem"))
        .expect("it is there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // A file that is there is not overwritten, and nothing is left of the other.
    let before = text("cert.pem");
    let other = shown(&site.path("other.pem"));
    run(["gencert", "192.0.2.1", "--cert", &cert, "--key", &other])
        .expect_code(1)
        .says(&["cannot make", "cert.pem", "--cert"]);
    assert_eq!(text("cert.pem"), before);
    assert!(!site.path("other.pem").exists());
    run(["gencert", "gâteway", "--cert", &other, "--key", &other])
        .expect_code(1)
        .says(&["no certificate can be made"]);
    run(["gencert"]).expect_code(64);
}

#[test]
fn a_check_says_which_file_is_missing_open_or_wrong() {
    let site = Site::new();
    let file = |name: &str| shown(&site.path(name));
    let text = format!(
        "{}[[path]]\nname = \"p\"\nlocal = \"192.0.2.1:7600\"\nrate = \"1Mbit\"\n[[peer]]\nname = \"b\"\n\
         public_key = \"ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=\"\n[[app]]\nname = \"A3\"\n\
         class = \"message\"\npeer = \"b\"\n[message_tls]\nlisten = [\"127.0.0.1:7602\"]\n\
         cert = \"{}\"\nkey = \"{}\"\n[[message_client]]\nname = \"sensor\"\ntoken_file = \"{}\"\nsend = [\"A3\"]\n",
        site.gateway("a"),
        file("cert.pem"),
        file("key.pem"),
        file("token"),
    );
    site.write("gateway.toml", &text);
    let check = || {
        run(["config", "check", &file("gateway.toml")])
            .expect_code(0)
            .stdout
    };
    let says = |parts: &[&str]| {
        let stdout = check();
        assert!(
            parts.iter().all(|part| stdout.contains(part)),
            "{parts:?} not in {stdout}"
        );
    };
    says(&[
        "would not start",
        "gateway.toml:",
        "cert: ",
        "keiro gencert",
    ]);
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    run(["gencert", "127.0.0.1", "--cert", &cert, "--key", &key]).expect_code(0);
    says(&["token_file: ", "no such file", "keiro gentoken"]);
    site.write("token", "guess\n");
    site.set_mode("token", 0o600);
    says(&["token_file: ", "line 1 is not a token"]);
    let token = run(["gentoken"]).expect_code(0).stdout;
    assert_eq!(token.trim().len(), 44, "{token}");
    site.write("token", &token);
    site.set_mode("token", 0o644);
    says(&["token_file: ", "mode 0644", "chmod 600"]);
    site.set_mode("token", 0o600);
    assert!(!check().contains("would not start"), "{}", check());
    site.set_mode("key.pem", 0o644);
    says(&["key: ", "mode 0644", "chmod 600"]);
    site.set_mode("key.pem", 0o600);
    fs::remove_file(site.path("cert.pem")).expect("removed");
    let other = file("other-key.pem");
    run(["gencert", "127.0.0.1", "--cert", &cert, "--key", &other]).expect_code(0);
    says(&["key: ", "does not fit the certificate"]);
    site.write("cert.pem", "nothing\n");
    says(&["cert: ", "no certificate in PEM"]);
}

#[test]
fn the_python_client_writes_and_reads_the_documented_bytes() {
    const SCRIPT: &str = "\
import sys
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import keiro
print('token:', keiro.token_header('dG9rZW4=').hex(' '))
print('hello of a sender:', keiro.hello(1, 'A3').hex(' '))
print('hello of a receiver:', keiro.hello(2, 'A3').hex(' '))
print('message:', (keiro.message_header(7, 2) + b'hi').hex(' '))
for line in sys.argv[2:]:
    print(keiro.parse_ack(bytes.fromhex(line)))
";
    let document = include_str!("../../../../docs/message-socket.md");
    let documented = |name: &str| {
        let prefix = format!("{name}: ");
        let found = document.lines().find_map(|line| line.strip_prefix(&prefix));
        found.unwrap_or_else(|| panic!("docs/message-socket.md has no example {name}"))
    };
    let clients = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python");
    let mut python = Command::new("python3");
    python.args([
        "-c",
        SCRIPT,
        clients,
        documented("delivered"),
        documented("refused message"),
        documented("unknown"),
    ]);
    let said = finish(&mut python, b"").expect_code(0).stdout;
    for name in [
        "token",
        "hello of a sender",
        "hello of a receiver",
        "message",
    ] {
        let line = format!("{name}: {}\n", documented(name));
        assert!(said.contains(&line), "no {line} in {said}");
    }
    for outcome in [
        "Outcome(id=7, name='delivered', reason=None, delay=0.0105)",
        "Outcome(id=8, name='refused', reason='QueueFull', delay=0.0)",
        "Outcome(id=9, name='unknown', reason='PeerRestarted', delay=0.0)",
    ] {
        assert!(said.contains(outcome), "no {outcome} in {said}");
    }
}
