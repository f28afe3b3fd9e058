//! What the machine's tools print of its firewalls.

use std::{
    io::Read,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use keiro_doctor::firewall::Firewall;

/// What is read of one tool's output. Ours: a ruleset of 100,000 rules.
const OUTPUT_BYTES_MAX: u64 = 64 << 20;
/// How long a tool may take.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The rules, and why they could not be read.
pub(super) fn look() -> (Firewall, Option<String>) {
    let mut firewall = Firewall::default();
    let mut problem = None;
    // First, since nft shows rules of iptables with gaps.
    for (tool, is_ipv6) in [("iptables-save", false), ("ip6tables-save", true)] {
        match output(Command::new(tool).args(["-t", "filter"])) {
            Output::Text(text) => firewall.add_iptables(&text, is_ipv6),
            Output::Failed(why) => problem = Some(format!("{tool}: {why}")),
            Output::NoTool => {}
        }
    }
    match output(Command::new("nft").args(["-j", "list", "ruleset"])) {
        Output::Text(text) => firewall.add_nft(&text),
        Output::Failed(why) => problem = Some(format!("nft: {why}")),
        Output::NoTool => {}
    }
    let problem = problem.map(|why| format!("the machine's firewall: {why}; run it as root"));
    (firewall, problem)
}

enum Output {
    Text(String),
    Failed(String),
    NoTool,
}

fn output(command: &mut Command) -> Output {
    let command = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else {
        return Output::NoTool;
    };
    let (sender, receiver) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            let read = stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
            // The other end has gone if it took too long.
            let _ = sender.send(read.map(|_| bytes));
        });
    }
    let text = receiver.recv_timeout(TIME_MAX);
    if text.is_err() {
        let _ = child.kill();
    }
    let status = child.wait();
    match (text, status) {
        (Ok(Ok(bytes)), Ok(status)) if status.success() => {
            Output::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        (Ok(_), Ok(status)) => Output::Failed(status.to_string()),
        (Ok(_), Err(error)) => Output::Failed(error.to_string()),
        (Err(_), _) => Output::Failed(format!("no answer within {} s", TIME_MAX.as_secs())),
    }
}
