//! Runs one program and collects what it prints.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Command, Stdio},
    sync::OnceLock,
    thread,
};

/// How a program runs beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// It prints as it goes.
    Foreground,
    /// It prints when it has ended, so that lines of two programs are not mixed.
    Beside,
    /// As [`Run::Beside`], with the processor time that is left over.
    Background,
}

/// What became of a program.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) succeeded: bool,
    pub(crate) stdout: String,
}

/// Runs `command` to its end. `title` is printed above what it prints.
pub(crate) fn execute(title: &str, command: &Command, run: Run) -> Result<Finished, String> {
    let wrong = |error| format!("{}: {error}", command.get_program().to_string_lossy());
    match run {
        Run::Foreground => foreground(title, as_is(command)).map_err(wrong),
        Run::Beside => collected(title, as_is(command)).map_err(wrong),
        Run::Background => collected(title, with_idle_priority(command)).map_err(wrong),
    }
}

fn foreground(title: &str, mut command: Command) -> std::io::Result<Finished> {
    println!("\n     {title}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut printed = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = Vec::new();
    while stdout.read_until(b'\n', &mut line)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        printed.push_str(&text);
        line.clear();
    }
    Ok(Finished {
        succeeded: child.wait()?.success(),
        stdout: printed,
    })
}

fn collected(title: &str, mut command: Command) -> std::io::Result<Finished> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut stderr = child.stderr.take().expect("it is piped");
    let errors = thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).map(|_| bytes)
    });
    let mut bytes = Vec::new();
    child
        .stdout
        .take()
        .expect("it is piped")
        .read_to_end(&mut bytes)?;
    let errors = errors.join().expect("reading does not panic")?;
    let succeeded = child.wait()?.success();
    let stdout = String::from_utf8_lossy(&bytes).into_owned();
    // One call, so that lines of other programs do not come between.
    print!(
        "\n     {title}\n{}{stdout}",
        String::from_utf8_lossy(&errors)
    );
    Ok(Finished { succeeded, stdout })
}

fn as_is(command: &Command) -> Command {
    copy(command, Command::new(command.get_program()))
}

/// `command` under the scheduling class for work that may wait (`SCHED_IDLE`), which needs no
/// privilege; with the lowest priority where util-linux is missing.
fn with_idle_priority(command: &Command) -> Command {
    static HAS_CHRT: OnceLock<bool> = OnceLock::new();
    let has_chrt = *HAS_CHRT.get_or_init(|| {
        Command::new("chrt")
            .args(["--idle", "0", "true"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    });
    let mut wrapper = match has_chrt {
        true => Command::new("chrt"),
        false => Command::new("nice"),
    };
    match has_chrt {
        true => wrapper.args(["--idle", "0"]),
        false => wrapper.args(["-n", "19"]),
    };
    wrapper.arg(command.get_program());
    copy(command, wrapper)
}

/// `to` with the arguments, variables and directory of `from`.
fn copy(from: &Command, mut to: Command) -> Command {
    to.args(from.get_args());
    for (name, value) in from.get_envs() {
        match value {
            Some(value) => to.env(name, value),
            None => to.env_remove(name),
        };
    }
    if let Some(directory) = from.get_current_dir() {
        to.current_dir(directory);
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ways_give_the_program_its_arguments_variables_and_directory() {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $0 $NAME; pwd; exit 3", "zero"])
            .env("NAME", "value")
            .current_dir("/");
        for run in [Run::Foreground, Run::Beside, Run::Background] {
            let finished = execute("title", &command, run).unwrap();
            assert_eq!(finished.stdout, "zero value\n/\n");
            assert!(!finished.succeeded);
        }
    }

    #[test]
    fn a_program_that_does_not_exist_fails() {
        let missing = Command::new("/nonexistent/program");
        assert!(execute("title", &missing, Run::Foreground).is_err());
        let finished = execute("title", &missing, Run::Background);
        assert!(finished.is_ok_and(|finished| !finished.succeeded));
    }
}
