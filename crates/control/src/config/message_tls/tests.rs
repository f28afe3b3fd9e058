use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use super::*;

const HEAD: &str = r#"[gateway]
name = "a"

[[path]]
name = "p"
local = "192.0.2.1:7600"
rate = "1Mbit"

[[peer]]
name = "b"
public_key = "ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU="

[[app]]
name = "A3"
class = "message"
peer = "b"

[[app]]
name = "D1"
class = "datagram"
peer = "b"

[message_tls]
listen = ["192.0.2.1:7602", "[2001:db8::1]:7602"]
cert = "/etc/keiro/cert.pem"
key = "/etc/keiro/key.pem"
"#;

fn client(name: &str, file: &str, rest: &str) -> String {
    format!("[[message_client]]\nname = \"{name}\"\ntoken_file = \"{file}\"\n{rest}\n")
}

fn parsed(text: &str) -> Result<Config, String> {
    Config::parse(text, "f").map_err(|error| {
        let problems: Vec<String> = error.problems().iter().map(ToString::to_string).collect();
        problems.join("\n")
    })
}

#[test]
fn a_listener_and_its_clients_are_read() {
    let all = "send = [\"A3\"]\nreceive = [\"A3\"]\nconnections_max = 2\nmessages_max = 10\nbytes_max = \"20MiB\"";
    let text = [
        HEAD,
        &client("one", "/t1", all),
        &client("two", "/t2", "send = [\"A3\"]"),
    ]
    .concat();
    let config = parsed(&text).unwrap();
    let tls = config.message_tls.as_ref().unwrap();
    assert_eq!(tls.listen.len(), 2);
    let [one, two] = &config.message_clients[..] else {
        panic!("{:?}", config.message_clients);
    };
    assert_eq!((one.connections_max, one.messages_max), (2, 10));
    assert_eq!(one.bytes_max, ByteCount::new(20 << 20));
    assert_eq!((one.send.len(), one.receive.len()), (1, 1));
    assert_eq!(two.connections_max, DEFAULT_CLIENT_CONNECTIONS_MAX);
    assert_eq!(two.messages_max, DEFAULT_CLIENT_MESSAGES_MAX);
    assert_eq!(two.bytes_max, DEFAULT_CLIENT_BYTES_MAX);
    assert!(config.message_client_named("two").is_some());
}

#[test]
fn message_tls_errors_name_their_place() {
    let good = [HEAD, &client("one", "/t1", "send = [\"A3\"]")].concat();
    assert!(parsed(&good).is_ok());
    for (old, new, wanted) in [
        (
            "\"[2001:db8::1]:7602\"",
            "\"192.0.2.1:7602\"",
            "f:24:10: listen: `192.0.2.1:7602` is there twice",
        ),
        (
            "[\"192.0.2.1:7602\", \"[2001:db8::1]:7602\"]",
            "[]",
            "f:24:10: listen: 0 addresses",
        ),
        (
            "[\"192.0.2.1:7602\", \"[2001:db8::1]:7602\"]",
            "\"192.0.2.1:7602\"",
            "f:24:10: listen: this is a text",
        ),
        ("192.0.2.1:7602", "224.0.0.1:7602", "is a multicast address"),
        (
            "cert = ",
            "crt = ",
            "f:25:1: unknown key `crt` in [message_tls]; did you mean `cert`?",
        ),
        ("key = \"/etc/keiro/key.pem\"\n", "", "has no `key`"),
        (
            "\"/etc/keiro/key.pem\"",
            "\"key.pem\"",
            "f:26:7: key: `key.pem` is not an absolute file name",
        ),
        (
            "send = [\"A3\"]",
            "send = [\"A4\"]",
            "f:30:9: send: there is no [[app]] named `A4`; did you mean `A3`?",
        ),
        (
            "send = [\"A3\"]",
            "send = [\"D1\"]",
            "f:30:9: send: the application's class is `datagram`",
        ),
        (
            "send = [\"A3\"]",
            "receive = [\"D1\"]",
            "f:30:12: receive: the application's class is `datagram`",
        ),
        (
            "send = [\"A3\"]",
            "send = [\"A3\", \"A3\"]",
            "f:30:15: send: `A3` is there twice",
        ),
        (
            "send = [\"A3\"]",
            "send = \"A3\"",
            "f:30:8: send: this is a text",
        ),
        (
            "send = [\"A3\"]",
            "send = [3]",
            "f:30:9: send: this is an integer",
        ),
        ("send = [\"A3\"]", "", "may neither send nor receive"),
        (
            "send = [\"A3\"]",
            "send = [\"A3\"]\nbytes_max = \"1MiB\"",
            "bytes_max: 1MiB is out of range",
        ),
        (
            "send = [\"A3\"]",
            "send = [\"A3\"]\nconnections_max = 0",
            "connections_max: 0 is out of range",
        ),
        (
            "send = [\"A3\"]",
            "send = [\"A3\"]\nmessages_max = 70000",
            "messages_max: 70000 is out of range",
        ),
    ] {
        let text = good.replacen(old, new, 1);
        assert_ne!(text, good, "{old}");
        let error = parsed(&text).unwrap_err();
        assert!(error.contains(wanted), "{new}: {error}");
    }
    let error = parsed(HEAD).unwrap_err();
    assert!(error.contains("without a [[message_client]]"), "{error}");
    let twice = [&*good, &client("two", "/t1", "send = [\"A3\"]")].concat();
    let error = parsed(&twice).unwrap_err();
    assert!(
        error.contains("token_file: line 29 has the same file"),
        "{error}"
    );
    let alone = good.replace("[message_tls]\nlisten = [\"192.0.2.1:7602\", \"[2001:db8::1]:7602\"]\ncert = \"/etc/keiro/cert.pem\"\nkey = \"/etc/keiro/key.pem\"\n", "");
    let error = parsed(&alone).unwrap_err();
    assert!(error.contains("without [message_tls]"), "{error}");
    let taken = good.replace(
        "name = \"a\"\n",
        "name = \"a\"\nmetrics = \"192.0.2.1:7602\"\nmetrics_public = true\n",
    );
    let error = parsed(&taken).unwrap_err();
    assert!(
        error.contains("listen: `192.0.2.1:7602` is already taken"),
        "{error}"
    );
    let forward = format!(
        "{}[[forward]]\napp = \"A3\"\nudp = \"10.0.0.9:5005\"\n",
        good.replace("send = ", "receive = ")
    );
    let error = parsed(&forward).unwrap_err();
    assert!(error.contains("leave by its forward"), "{error}");
}

const ONE: &str = "ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=";
const OTHER: &str = "AyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=";

fn write(path: &Path, text: &str, mode: u32) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn token_files_obey_the_rules_of_key_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let (first, second) = (file("1"), file("2"));
    let text = [
        HEAD,
        &client("one", first.to_str().unwrap(), "send = [\"A3\"]"),
        &client("two", second.to_str().unwrap(), "send = [\"A3\"]"),
    ]
    .concat();
    let config = parsed(&text).unwrap();
    let problem = || config.message_tokens().unwrap_err().problems()[0].to_string();
    assert!(
        problem().starts_with("f:29:14: token_file: "),
        "{}",
        problem()
    );
    assert!(problem().contains("keiro gentoken"), "{}", problem());
    write(&first, &format!("{ONE}\n\n{OTHER}\n"), 0o600);
    write(&second, ONE, 0o644);
    assert!(
        problem().starts_with("f:33:14: token_file: "),
        "{}",
        problem()
    );
    assert!(problem().contains("mode 0644"), "{}", problem());
    write(&second, ONE, 0o600);
    assert!(
        problem().contains("client `one` has the same token"),
        "{}",
        problem()
    );
    for (contents, wanted) in [
        ("secret\n", "line 1 is not a token"),
        ("\n", "0 tokens"),
        ("\u{fffd}", "line 1 is not a token"),
    ] {
        write(&second, contents, 0o600);
        let problem = problem();
        assert!(problem.contains(wanted), "{problem}");
        assert!(!problem.contains("secret"), "{problem}");
    }
    let third = "ByZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=";
    write(&second, third, 0o600);
    let tokens = config.message_tokens().unwrap();
    let clients: Vec<usize> = tokens.iter().map(|token| token.client).collect();
    assert_eq!(clients, [0, 0, 1]);
    assert_eq!(*tokens[1].text, OTHER);
}

#[test]
fn reload_reports_changed_clients_and_what_needs_a_restart() {
    let one = [HEAD, &client("one", "/t1", "send = [\"A3\"]")].concat();
    let two = [
        HEAD,
        &client("one", "/t3", "send = [\"A3\"]"),
        &client("two", "/t2", "send = [\"A3\"]"),
    ]
    .concat();
    let (old, new) = (parsed(&one).unwrap(), parsed(&two).unwrap());
    assert_eq!(old.diff(&new).to_string(), "message_client +two ~one");
    let moved = parsed(&one.replace("[2001:db8::1]:7602", "[2001:db8::1]:7603")).unwrap();
    assert_eq!(
        old.diff(&moved).gateway,
        ["message_tls", "message_tls.listen"]
    );
    let renewed = parsed(&one.replace("cert.pem", "new.pem")).unwrap();
    assert_eq!(old.diff(&renewed).gateway, ["message_tls"]);
}
