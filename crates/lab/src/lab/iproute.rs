//! iproute2's `ip`, which makes namespaces, devices, addresses and routes.

use std::{
    fmt::Write as _,
    io::{ErrorKind, Write},
    process::{Command, Output, Stdio},
};

use super::LabError;

/// Runs one command and returns its output.
pub(crate) fn run(arguments: &[&str]) -> Result<String, LabError> {
    let output = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| missing_or(&error, &arguments.join(" ")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(LabError::Ip {
        command: arguments.join(" "),
        message: message_of(&output),
    })
}

/// Commands for one namespace, run by one `ip -batch` that stops at the first failure.
#[derive(Debug)]
pub(crate) struct Batch<'a> {
    namespace: &'a str,
    commands: Vec<String>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(namespace: &'a str) -> Self {
        Self {
            namespace,
            commands: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, command: String) {
        self.commands.push(command);
    }

    /// Runs the commands, if there are any.
    pub(crate) fn run(self) -> Result<(), LabError> {
        if self.commands.is_empty() {
            return Ok(());
        }
        let start = format!("-n {} -batch -", self.namespace);
        let failed = |error: std::io::Error| missing_or(&error, &start);
        let mut child = Command::new("ip")
            .args(["-n", self.namespace, "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut text = String::new();
        for command in &self.commands {
            let _ = writeln!(text, "{command}");
        }
        let written = child
            .stdin
            .take()
            .map_or(Ok(()), |mut input| input.write_all(text.as_bytes()));
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return written.map_err(failed);
        }
        let message = message_of(&output);
        let command = failed_line(&message)
            .and_then(|line| self.commands.get(line.checked_sub(1)?))
            .unwrap_or(&start);
        let command = format!("-n {} {command}", self.namespace);
        Err(LabError::Ip { command, message })
    }
}

fn missing_or(error: &std::io::Error, command: &str) -> LabError {
    match error.kind() {
        ErrorKind::NotFound => LabError::ToolMissing {
            tool: "ip",
            package: "iproute2",
        },
        _ => LabError::Ip {
            command: command.to_owned(),
            message: error.to_string(),
        },
    }
}

fn message_of(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    match text.trim() {
        "" => output.status.to_string(),
        text => text.replace('\n', "; "),
    }
}

/// The line number in "Command failed -:3".
fn failed_line(message: &str) -> Option<usize> {
    let (_, rest) = message.rsplit_once("Command failed -:")?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failed_line_of_a_batch_is_named() {
        let message = "RTNETLINK answers: File exists; Command failed -:12";
        assert_eq!(failed_line(message), Some(12));
        assert_eq!(failed_line("Cannot open network namespace"), None);
    }
}
