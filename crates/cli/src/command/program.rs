//! What a program of the machine prints, in bounded time and memory.

use std::{
    io::{self, Read},
    process::{Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

/// How long a program may take.
const TIME_MAX: Duration = Duration::from_secs(10);
/// What is read of its messages. Ours.
const MESSAGE_BYTES_MAX: u64 = 64 << 10;

/// The outcome of a program.
pub(super) enum Output {
    Text(String),
    /// Its first message, or its exit status.
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
        .stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        return Output::NoTool;
    };
    let messages = child.stderr.take().map(|of| read(of, MESSAGE_BYTES_MAX));
    let text = match child.stdout.take().map(|of| read(of, bytes_max)) {
        Some(text) => text.recv_timeout(TIME_MAX).ok(),
        None => None,
    };
    if text.is_none() {
        // It may have ended by itself just now.
        let _ = child.kill();
    }
    let status = child.wait();
    match (text, status) {
        (Some(Ok(bytes)), Ok(status)) if status.success() || bytes.len() as u64 == bytes_max => {
            Output::Text(String::from_utf8_lossy(&bytes).into_owned())
        }
        (Some(_), Ok(status)) => {
            let messages = messages.and_then(|of| of.recv_timeout(TIME_MAX).ok()?.ok());
            let messages = messages.unwrap_or_default();
            let messages = String::from_utf8_lossy(&messages);
            let first = messages
                .lines()
                .map(str::trim)
                .find(|line| !line.is_empty());
            Output::Failed(first.map_or(status.to_string(), str::to_owned))
        }
        (Some(_), Err(error)) => Output::Failed(error.to_string()),
        (None, _) => Output::Failed(format!("no answer within {} s", TIME_MAX.as_secs())),
    }
}

/// Reads in a thread of its own, so that a program that fills one pipe does not wait for the other.
fn read(from: impl Read + Send + 'static, bytes_max: u64) -> Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = from.take(bytes_max).read_to_end(&mut bytes);
        // The other end has gone if it took too long.
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver
}
