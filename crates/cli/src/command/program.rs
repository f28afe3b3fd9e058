//! What a program of the machine prints, in bounded time and memory.

use std::{
    io::Read,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// How long a program may take.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The outcome of a program.
pub(super) enum Output {
    Text(String),
    Failed(String),
    /// The machine does not have it.
    NoTool,
}

/// Runs it without input and reads `bytes_max` of what it prints; a program that prints more, or that takes more than
/// [`TIME_MAX`], is ended.
pub(super) fn output(command: &mut Command, bytes_max: u64) -> Output {
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
            let read = stdout.take(bytes_max).read_to_end(&mut bytes);
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
        (Ok(Ok(bytes)), Ok(status)) if status.success() || bytes.len() as u64 == bytes_max => {
            Output::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        (Ok(_), Ok(status)) => Output::Failed(status.to_string()),
        (Ok(_), Err(error)) => Output::Failed(error.to_string()),
        (Err(_), _) => Output::Failed(format!("no answer within {} s", TIME_MAX.as_secs())),
    }
}
