//! Runs test binaries: pure ones first, then laboratory tests, each binary alone.
//!
//! A pure test that fails has failed. A laboratory test depends on the machine, so a failed one is
//! run once more, alone; one that passes then is reported as flaky.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    binaries::{self, Binary, Kind},
    busy::Busy,
    not_tested::{self, Skip},
    summary::{self, Outcome},
};

#[derive(Debug, Default)]
pub(crate) struct Options {
    kind: Option<Kind>,
    rounds: Option<usize>,
    busy: usize,
    strict: bool,
    filter: Option<String>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--pure" => options.kind = Some(Kind::Pure),
                "--laboratory" => options.kind = Some(Kind::Laboratory),
                "--strict" => options.strict = true,
                "--rounds" => options.rounds = Some(number(argument, rest.next())?),
                "--busy" => options.busy = number(argument, rest.next())?,
                other if other.starts_with('-') => return Err(format!("unknown option {other}")),
                other => options.filter = Some(other.to_owned()),
            }
        }
        Ok(options)
    }

    fn wants(&self, binary: &Binary) -> bool {
        self.kind.is_none_or(|kind| kind == binary.kind)
            && self
                .filter
                .as_ref()
                .is_none_or(|part| binary.name.contains(part))
    }
}

fn number(option: &str, value: Option<&String>) -> Result<usize, String> {
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| format!("{option} needs a number, such as {option} 2"))
}

/// What all binaries of all rounds did.
#[derive(Default)]
struct Totals {
    passed: u64,
    ignored: u64,
    failed: Vec<String>,
    flaky: Vec<String>,
    durations: Vec<(String, Duration)>,
}

/// Runs everything that `options` ask for; `false`: something failed.
pub(crate) fn all(options: &Options) -> Result<bool, String> {
    let binaries: Vec<Binary> = binaries::build()?
        .into_iter()
        .filter(|binary| options.wants(binary))
        .collect();
    if binaries.is_empty() {
        return Err("no test binary has such a name".to_owned());
    }
    let skips = skips_file()?;
    let mut totals = Totals::default();
    let rounds = options.rounds.unwrap_or(1);
    for round in 1..=rounds {
        if rounds > 1 {
            println!(
                "\nround {round} of {rounds}, beside {} busy loops",
                options.busy
            );
        }
        let _busy = Busy::start(options.busy);
        for binary in &binaries {
            run(binary, &skips, &mut totals)?;
        }
    }
    Ok(report(&totals, &not_tested::read(&skips), options.strict))
}

/// An empty file for what is not tested, in the target directory.
fn skips_file() -> Result<PathBuf, String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let path = target.join("not-tested");
    fs::write(&path, "").map_err(|error| format!("{}: {error}", path.display()))?;
    path.canonicalize()
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn run(binary: &Binary, skips: &Path, totals: &mut Totals) -> Result<(), String> {
    println!("\n     Running {}", binary.name);
    let began = Instant::now();
    let (passes, outcome) = execute(binary, skips, &[])?;
    totals
        .durations
        .push((binary.name.clone(), began.elapsed()));
    totals.passed += outcome.passed;
    totals.ignored += outcome.ignored;
    if passes {
        return Ok(());
    }
    if binary.kind == Kind::Pure {
        match outcome.failed.is_empty() {
            true => totals.failed.push(format!("{} (died)", binary.name)),
            false => totals.failed.extend(names(binary, &outcome)),
        }
        return Ok(());
    }
    if outcome.failed.is_empty() {
        println!("\n     Retrying {}, which died", binary.name);
        let (passes, outcome) = execute(binary, skips, &["--test-threads=1"])?;
        totals.passed += outcome.passed;
        let name = format!("{} (died)", binary.name);
        match passes {
            true => totals.flaky.push(name),
            false => totals.failed.push(name),
        }
        return Ok(());
    }
    for test in &outcome.failed {
        println!("\n     Retrying {} alone: {test}", binary.name);
        let (passes, _) = execute(binary, skips, &["--exact", test])?;
        let name = format!("{} {test}", binary.name);
        match passes {
            true => {
                totals.passed += 1;
                totals.flaky.push(name);
            }
            false => totals.failed.push(name),
        }
    }
    Ok(())
}

fn names(binary: &Binary, outcome: &Outcome) -> impl Iterator<Item = String> {
    let binary = binary.name.clone();
    let failed = outcome.failed.clone();
    failed
        .into_iter()
        .map(move |test| format!("{binary} {test}"))
}

/// Runs a binary and passes on what it prints.
fn execute(binary: &Binary, skips: &Path, arguments: &[&str]) -> Result<(bool, Outcome), String> {
    let wrong = |error| format!("{}: {error}", binary.executable.display());
    let mut child = Command::new(&binary.executable)
        .args(arguments)
        .current_dir(&binary.directory)
        .env("CARGO_MANIFEST_DIR", &binary.directory)
        .env("CARGO", binaries::cargo())
        .env(not_tested::VARIABLE, skips)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(wrong)?;
    let mut printed = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut line = Vec::new();
    while stdout.read_until(b'\n', &mut line).map_err(wrong)? > 0 {
        let text = String::from_utf8_lossy(&line);
        print!("{text}");
        printed.push_str(&text);
        line.clear();
    }
    let status = child.wait().map_err(wrong)?;
    Ok((status.success(), summary::read(&printed)))
}

/// Prints what matters last; `false`: something failed.
fn report(totals: &Totals, skips: &[Skip], strict: bool) -> bool {
    let mut slowest = totals.durations.clone();
    slowest.sort_by_key(|(_, duration)| std::cmp::Reverse(*duration));
    let slowest: Vec<String> = slowest
        .iter()
        .take(6)
        .map(|(name, duration)| format!("{name} {} s", duration.as_secs()))
        .collect();
    println!("\nslowest: {}", slowest.join(", "));
    for test in &totals.flaky {
        println!("flaky, passed when run again alone: {test}");
    }
    for test in &totals.failed {
        println!("failed: {test}");
    }
    let mut refused = 0;
    for skip in skips {
        let verdict = match skip.is_allowed() {
            true => "allowed",
            false => {
                refused += 1;
                "not on xtask/skips-allowed.txt"
            }
        };
        println!("not tested ({verdict}): {}: {}", skip.test, skip.reason);
    }
    println!(
        "{} passed, {} failed, {} skipped",
        totals.passed,
        totals.failed.len(),
        skips.len() as u64 + totals.ignored
    );
    totals.failed.is_empty() && !(strict && refused > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        Options::parse(&arguments)
    }

    #[test]
    fn options_are_read() {
        let read = options(&["--pure", "--rounds", "3", "--busy", "2", "core"]).unwrap();
        assert_eq!(
            (read.kind, read.rounds, read.busy),
            (Some(Kind::Pure), Some(3), 2)
        );
        assert_eq!(read.filter.as_deref(), Some("core"));
        assert!(options(&["--rounds", "x"]).is_err());
        assert!(options(&["--rond"]).is_err());
    }

    #[test]
    fn a_skip_fails_a_strict_run_only_if_it_is_not_allowed() {
        let totals = Totals::default();
        let skip = |reason: &str| {
            [Skip {
                test: "a_peer_has_the_vrf_device_that_it_asks_for".to_owned(),
                reason: reason.to_owned(),
            }]
        };
        assert!(report(
            &totals,
            &skip("this kernel has no VRF devices"),
            true
        ));
        assert!(report(&totals, &skip("it rained"), false));
        assert!(!report(&totals, &skip("it rained"), true));
    }

    fn script(name: &str, text: &str) -> Binary {
        use std::os::unix::fs::PermissionsExt;
        let directory = env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let executable = directory.join("binary");
        fs::write(&executable, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&executable, fs::Permissions::from_mode(0o755)).unwrap();
        Binary {
            kind: Kind::Laboratory,
            name: name.to_owned(),
            executable,
            directory,
        }
    }

    const FAILS: &str = "printf 'failures:\\n    a\\n\\ntest result: FAILED. 2 passed; 1 failed; 0 ignored\\n'; exit 101";

    #[test]
    fn a_laboratory_test_that_passes_alone_is_flaky_and_a_pure_one_has_failed() {
        let text = format!("[ \"$1\" = --exact ] && [ \"$2\" = a ] && exit 0\n{FAILS}");
        let mut binary = script("flaky", &text);
        let mut totals = Totals::default();
        run(&binary, Path::new("/dev/null"), &mut totals).unwrap();
        assert_eq!(
            (&totals.flaky[..], totals.passed),
            (&["flaky a".to_owned()][..], 3)
        );
        assert!(totals.failed.is_empty());
        binary.kind = Kind::Pure;
        let mut totals = Totals::default();
        run(&binary, Path::new("/dev/null"), &mut totals).unwrap();
        assert_eq!(totals.failed, ["flaky a"]);
        fs::remove_dir_all(binary.directory).unwrap();
    }

    #[test]
    fn a_laboratory_test_that_fails_twice_has_failed() {
        let binary = script("broken", FAILS);
        let mut totals = Totals::default();
        run(&binary, Path::new("/dev/null"), &mut totals).unwrap();
        assert_eq!(totals.failed, ["broken a"]);
        fs::remove_dir_all(binary.directory).unwrap();
    }
}
