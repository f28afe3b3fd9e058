//! Commands and webhooks that are well, slow, stuck or away.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use keiro_hooks::{
    config::{Action, Events, Hook, Webhook},
    deliver::{DeliverError, deliver},
    dispatch::Dispatch,
    occurrence::Occurrence,
};
use keiro_testing::{eventually, wait_until, write_script};

fn hook(action: Action, timeout: Duration) -> Hook {
    Hook {
        name: "ops".to_owned(),
        events: Events::All,
        action,
        timeout,
        per_minute: 6000,
    }
}

fn script(directory: &Path, text: &str) -> Action {
    let file = directory.join("script");
    write_script(&file, text);
    Action::Command(vec![
        file.display().to_string(),
        directory.display().to_string(),
    ])
}

fn occurrence() -> Occurrence {
    Occurrence::own(
        "path_down",
        "tokyo",
        "path wan0 to osaka is down; $(reboot)",
    )
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_command_gets_the_event_without_a_shell_and_nothing_of_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let action = script(directory.path(), "env > $1/env; cat > $1/document");
    deliver(&hook(action, LONG), &occurrence()).unwrap();
    let read = |name| fs::read_to_string(directory.path().join(name)).unwrap();
    let env = read("env");
    for line in [
        "KEIRO_EVENT=path_down",
        "KEIRO_GATEWAY=tokyo",
        "KEIRO_TEXT=path wan0 to osaka is down; $(reboot)",
    ] {
        assert!(env.lines().any(|of| of == line), "{line}: {env}");
    }
    assert!(!env.contains("CARGO"), "{env}");
    assert!(read("document").contains("\"event\":\"path_down\""));
}

#[test]
fn a_command_that_fails_or_is_missing_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let failing = hook(script(directory.path(), "exit 3"), LONG);
    let error = deliver(&failing, &occurrence()).unwrap_err();
    assert!(error.to_string().contains("exit status: 3"), "{error}");
    let missing = hook(Action::Command(vec!["/no/such".to_owned()]), LONG);
    let error = deliver(&missing, &occurrence()).unwrap_err();
    assert!(
        error.to_string().contains("/no/such cannot be run"),
        "{error}"
    );
}

#[test]
fn a_command_that_is_stuck_is_ended_with_what_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let action = script(directory.path(), "sleep 1000 & echo $! > $1/pid; wait");
    let outcome = deliver(&hook(action, Duration::from_millis(500)), &occurrence());
    assert!(
        matches!(outcome, Err(DeliverError::TimedOut(_))),
        "{outcome:?}"
    );
    let pid = fs::read_to_string(directory.path().join("pid")).unwrap();
    let process = PathBuf::from(format!("/proc/{}/stat", pid.trim()));
    wait_until("it has ended", || {
        // It may wait for its new parent to look at it.
        fs::read_to_string(&process).map_or(true, |stat| stat.contains(") Z "))
    });
}

#[test]
fn a_slow_hook_holds_up_nothing_and_what_is_too_much_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    // It ends soon after the test, which does not wait for it.
    let action = script(directory.path(), "exec sleep 10");
    let slow = hook(action, Duration::from_secs(2));
    let mut dispatch = Dispatch::start(vec![slow]).unwrap();
    let now = Instant::now();
    for _ in 0..10_000 {
        dispatch.on_event(now, &occurrence());
    }
    // A minute's events pass the limit; of these 256 wait, and one is under way.
    let lost = dispatch.lost();
    assert!((9_000..10_000).contains(&lost), "{lost}");
}

/// Answers requests with these statuses, one after the other, and returns what they were.
fn serve(statuses: &'static [&'static str]) -> (String, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let serving = thread::spawn(move || {
        let mut requests = Vec::new();
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            let mut bytes = [0; 4096];
            while !request.ends_with('}') {
                let count = stream.read(&mut bytes).unwrap();
                request.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            requests.push(request);
        }
        requests
    });
    (url, serving)
}

fn webhook(url: String, token_file: Option<PathBuf>) -> Hook {
    let webhook = Webhook {
        url,
        authorities: PathBuf::from("/none"),
        token_file,
    };
    hook(Action::Webhook(webhook), LONG)
}

#[test]
fn a_webhook_is_sent_again_to_a_server_that_is_not_well() {
    let (url, serving) = serve(&["503 Service Unavailable", "204 No Content"]);
    let mut dispatch = Dispatch::start(vec![webhook(url, None)]).unwrap();
    dispatch.on_event(Instant::now(), &occurrence());
    eventually("both have come", || serving.is_finished().then_some(()));
    let requests = serving.join().unwrap();
    let body = |request: &String| request.split("\r\n\r\n").nth(1).map(str::to_owned);
    assert_eq!(body(&requests[0]), body(&requests[1]));
    assert!(
        requests[0].starts_with("POST /hook HTTP/1.1\r\n"),
        "{}",
        requests[0]
    );
    assert!(body(&requests[0]).unwrap().contains("path_down"));
}

#[test]
fn a_webhook_has_its_token_and_a_refusal_is_final() {
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "abc\n").unwrap();
    let (url, serving) = serve(&["403 Forbidden"]);
    let outcome = deliver(&webhook(url, Some(token)), &occurrence());
    assert!(
        matches!(outcome, Err(DeliverError::Refused(403))),
        "{outcome:?}"
    );
    assert!(!outcome.unwrap_err().is_temporary());
    let requests = serving.join().unwrap();
    assert!(
        requests[0]
            .to_lowercase()
            .contains("authorization: bearer abc\r\n"),
        "{}",
        requests[0]
    );
}
