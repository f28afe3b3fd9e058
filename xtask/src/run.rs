//! Runs test binaries: laboratory tests two binaries at a time, pure ones beside them.
//!
//! Laboratory tests mostly wait, so two of their binaries share the machine, and pure tests and other
//! checks use the processor time that they leave. A pure test that fails has failed. A laboratory test
//! depends on the machine, so a failed one is run once more when everything else has ended, alone; one
//! that passes then is reported as flaky.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use crate::{
    binaries::{self, Binary, Kind},
    busy::Busy,
    execute::{Run, execute},
    not_tested::{self, Skip},
    side::{self, Check},
    summary::{self, Outcome},
};

/// The seed of property tests: the same in every run, so that none fails by chance. Set in the environment, another
/// one counts.
const SEED_VARIABLE: &str = "PROPTEST_RNG_SEED";
const SEED: &str = "1";

/// Laboratory binaries that run at the same time, unless `--jobs` says otherwise. They use less than half of two
/// cores.
const LABORATORY_JOBS: usize = 2;

#[derive(Debug)]
pub(crate) struct Options {
    kind: Option<Kind>,
    rounds: Option<usize>,
    busy: usize,
    jobs: usize,
    strict: bool,
    filter: Option<String>,
}

impl Options {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            kind: None,
            rounds: None,
            busy: 0,
            jobs: LABORATORY_JOBS,
            strict: false,
            filter: None,
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match argument.as_str() {
                "--pure" => options.kind = Some(Kind::Pure),
                "--laboratory" => options.kind = Some(Kind::Laboratory),
                "--strict" => options.strict = true,
                "--rounds" => options.rounds = Some(number(argument, rest.next())?),
                "--busy" => options.busy = number(argument, rest.next())?,
                "--jobs" => options.jobs = number(argument, rest.next())?.max(1),
                other if other.starts_with('-') => return Err(format!("unknown option {other}")),
                other => options.filter = Some(other.to_owned()),
            }
        }
        Ok(options)
    }

    /// Whether examples in documentation and the workspaces beside this one are checked too.
    fn checks_everything(&self) -> bool {
        self.kind.is_none() && self.filter.is_none() && self.rounds.is_none()
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

/// Laboratory tests that failed beside others.
struct Again<'b> {
    binary: &'b Binary,
    /// None: the binary died.
    tests: Vec<String>,
}

/// What all binaries of all rounds did.
#[derive(Default)]
struct Totals<'b> {
    passed: u64,
    ignored: u64,
    failed: Vec<String>,
    flaky: Vec<String>,
    again: Vec<Again<'b>>,
    durations: Vec<(String, Duration)>,
}

impl Totals<'_> {
    fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.ignored += other.ignored;
        self.failed.extend(other.failed);
        self.flaky.extend(other.flaky);
        self.again.extend(other.again);
        self.durations.extend(other.durations);
    }

    /// A laboratory test that failed was run once more, alone.
    fn retried(&mut self, name: String, succeeded: bool) {
        match succeeded {
            true => self.flaky.push(name),
            false => self.failed.push(name),
        }
    }
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
    let checks = match options.checks_everything() {
        true => side::checks()?,
        false => Vec::new(),
    };
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
        totals.add(one_round(&binaries, &checks, &skips, options.jobs)?);
    }
    Ok(report(&totals, &not_tested::read(&skips), options.strict))
}

/// Laboratory tests, `jobs` binaries at a time, and beside them pure tests, then `checks`; these alone and in the
/// foreground where there are no laboratory tests. What failed of the laboratory tests runs again last.
fn one_round<'b>(
    binaries: &'b [Binary],
    checks: &[Check],
    skips: &Path,
    jobs: usize,
) -> Result<Totals<'b>, String> {
    let (pure, laboratory): (Vec<&Binary>, Vec<&Binary>) = binaries
        .iter()
        .partition(|binary| binary.kind == Kind::Pure);
    if laboratory.is_empty() {
        return run_all(&pure, checks, skips, Run::Foreground);
    }
    let how = match laboratory.len().min(jobs) {
        1 => Run::Foreground,
        _ => Run::Beside,
    };
    let waiting = Mutex::new(laboratory.into_iter());
    let job = || {
        let mut totals = Totals::default();
        loop {
            let next = waiting.lock().expect("no job panics").next();
            let Some(binary) = next else {
                return Ok(totals);
            };
            run(binary, skips, how, &mut totals)?;
        }
    };
    let mut totals = thread::scope(|scope| {
        let mut threads: Vec<_> = (0..jobs).map(|_| scope.spawn(job)).collect();
        threads.push(scope.spawn(|| run_all(&pure, checks, skips, Run::Background)));
        let mut totals = Totals::default();
        for thread in threads {
            totals.add(thread.join().expect("running tests does not panic")?);
        }
        Ok::<_, String>(totals)
    })?;
    for again in std::mem::take(&mut totals.again) {
        retry(&again, skips, &mut totals)?;
    }
    Ok(totals)
}

fn run_all<'b>(
    binaries: &[&'b Binary],
    checks: &[Check],
    skips: &Path,
    how: Run,
) -> Result<Totals<'b>, String> {
    let mut totals = Totals::default();
    for binary in binaries {
        run(binary, skips, how, &mut totals)?;
    }
    for check in checks {
        let finished = execute(&check.name, &check.command, how)?;
        if !finished.succeeded {
            totals.failed.push(check.name.clone());
        }
    }
    Ok(totals)
}

/// An empty file for what is not tested, in the target directory.
fn skips_file() -> Result<PathBuf, String> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let path = target.join("not-tested");
    fs::write(&path, "").map_err(|error| format!("{}: {error}", path.display()))?;
    path.canonicalize()
        .map_err(|error| format!("{}: {error}", path.display()))
}

fn run<'b>(
    binary: &'b Binary,
    skips: &Path,
    how: Run,
    totals: &mut Totals<'b>,
) -> Result<(), String> {
    let began = Instant::now();
    let title = format!("Running {}", binary.name);
    let (succeeded, outcome) = test(&title, binary, skips, &[], how)?;
    totals
        .durations
        .push((binary.name.clone(), began.elapsed()));
    totals.passed += outcome.passed;
    totals.ignored += outcome.ignored;
    if succeeded {
        return Ok(());
    }
    if binary.kind == Kind::Laboratory {
        totals.again.push(Again {
            binary,
            tests: outcome.failed,
        });
    } else if outcome.failed.is_empty() {
        totals.failed.push(format!("{} (died)", binary.name));
    } else {
        totals.failed.extend(names(binary, &outcome));
    }
    Ok(())
}

/// Runs what failed once more: the flaky pass, the broken fail.
fn retry(again: &Again<'_>, skips: &Path, totals: &mut Totals<'_>) -> Result<(), String> {
    let binary = again.binary;
    if again.tests.is_empty() {
        let title = format!("Retrying {}, which died", binary.name);
        let arguments = ["--test-threads=1"];
        let (succeeded, outcome) = test(&title, binary, skips, &arguments, Run::Foreground)?;
        totals.passed += outcome.passed;
        totals.retried(format!("{} (died)", binary.name), succeeded);
    }
    for failed in &again.tests {
        let title = format!("Retrying {} alone: {failed}", binary.name);
        let arguments = ["--exact", failed];
        let (succeeded, _) = test(&title, binary, skips, &arguments, Run::Foreground)?;
        totals.passed += u64::from(succeeded);
        totals.retried(format!("{} {failed}", binary.name), succeeded);
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

/// Runs a test binary; whether it succeeded, and its result.
fn test(
    title: &str,
    binary: &Binary,
    skips: &Path,
    arguments: &[&str],
    how: Run,
) -> Result<(bool, Outcome), String> {
    let mut command = Command::new(&binary.executable);
    command
        .args(arguments)
        .current_dir(&binary.directory)
        .env("CARGO_MANIFEST_DIR", &binary.directory)
        .env("CARGO", binaries::cargo())
        .env(not_tested::VARIABLE, skips);
    if env::var_os(SEED_VARIABLE).is_none() {
        command.env(SEED_VARIABLE, SEED);
    }
    let finished = execute(title, &command, how)?;
    Ok((finished.succeeded, summary::read(&finished.stdout)))
}

/// Prints what matters last; `false`: something failed.
fn report(totals: &Totals<'_>, skips: &[Skip], strict: bool) -> bool {
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
    use std::slice;

    use super::*;

    fn options(arguments: &[&str]) -> Result<Options, String> {
        let arguments: Vec<String> = arguments.iter().map(|&a| a.to_owned()).collect();
        Options::parse(&arguments)
    }

    #[test]
    fn options_are_read() {
        let read = options(&[
            "--pure", "--rounds", "3", "--busy", "2", "--jobs", "4", "core",
        ])
        .unwrap();
        assert_eq!(
            (read.kind, read.rounds, read.busy, read.jobs),
            (Some(Kind::Pure), Some(3), 2, 4)
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
        let directory = env::temp_dir().join(format!("xtask-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let executable = directory.join("binary");
        keiro_testing::write_script(&executable, text);
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
        let totals = round(&binary);
        assert_eq!(
            (&totals.flaky[..], totals.passed),
            (&["flaky a".to_owned()][..], 3)
        );
        assert!(totals.failed.is_empty());
        binary.kind = Kind::Pure;
        assert_eq!(round(&binary).failed, ["flaky a"]);
        fs::remove_dir_all(binary.directory).unwrap();
    }

    fn round(binary: &Binary) -> Totals<'_> {
        one_round(slice::from_ref(binary), &[], Path::new("/dev/null"), 2).unwrap()
    }

    /// Each of two laboratory binaries waits for the other, and their failures are retried when both have ended.
    #[test]
    fn laboratory_binaries_run_beside_each_other_and_are_retried_when_all_have_ended() {
        let met = env::temp_dir().join(format!("xtask-{}-met", std::process::id()));
        fs::create_dir_all(&met).unwrap();
        let text = |own: &str, other: &str| {
            let met = met.display();
            format!(
                "if [ \"$1\" = --exact ]; then [ -e {met}/{own}-ended -a -e {met}/{other}-ended ]; exit; fi\n\
                 touch {met}/{own}; for i in $(seq 600); do [ -e {met}/{other} ] && break; sleep 0.1; done\n\
                 [ -e {met}/{other} ] || exit 1\n\
                 touch {met}/{own}-ended\n{FAILS}"
            )
        };
        let binaries = [
            script("one", &text("one", "two")),
            script("two", &text("two", "one")),
        ];
        let mut totals = one_round(&binaries, &[], Path::new("/dev/null"), 2).unwrap();
        totals.flaky.sort();
        assert_eq!(totals.flaky, ["one a", "two a"]);
        for directory in binaries.map(|binary| binary.directory).iter().chain([&met]) {
            fs::remove_dir_all(directory).unwrap();
        }
    }

    #[test]
    fn pure_tests_and_checks_beside_laboratory_tests_count_too() {
        let passes = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored'";
        let laboratory = script("laboratory", passes);
        let mut pure = script("pure", FAILS);
        pure.kind = Kind::Pure;
        let check = Check {
            name: "a check".to_owned(),
            command: Command::new("false"),
        };
        let binaries = [laboratory, pure];
        let totals = one_round(&binaries, &[check], Path::new("/dev/null"), 1).unwrap();
        assert_eq!(totals.passed, 4);
        assert_eq!(totals.failed, ["pure a", "a check"]);
        for binary in binaries {
            fs::remove_dir_all(binary.directory).unwrap();
        }
    }

    #[test]
    fn a_laboratory_test_that_fails_twice_has_failed() {
        let binary = script("broken", FAILS);
        let totals = round(&binary);
        assert_eq!(totals.failed, ["broken a"]);
        fs::remove_dir_all(binary.directory).unwrap();
    }
}
