//! What a test binary printed, in numbers.

/// The result of one run of a test binary.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: u64,
    pub(crate) ignored: u64,
    /// Names of failed tests; empty although the binary failed: it died before it could list them.
    pub(crate) failed: Vec<String>,
}

/// Reads what libtest prints: the last list of failures, and the result.
pub(crate) fn read(output: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut in_failures = false;
    for line in output.lines() {
        if line == "failures:" {
            in_failures = true;
            outcome.failed.clear();
        } else if let Some(result) = line.strip_prefix("test result: ") {
            in_failures = false;
            outcome.passed = number_before(result, " passed");
            outcome.ignored = number_before(result, " ignored");
        } else if in_failures
            && let Some(name) = line.strip_prefix("    ")
            && !name.is_empty()
            && !name.contains(char::is_whitespace)
        {
            outcome.failed.push(name.to_owned());
        }
    }
    outcome
}

fn number_before(text: &str, what: &str) -> u64 {
    let before = text.split(what).next().unwrap_or_default();
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tests_are_those_of_the_last_list() {
        let output = "running 3 tests\ntest a::b ... FAILED\ntest c ... ok\n\nfailures:\n\n\
            ---- a::b stdout ----\n    not a name\n\nfailures:\n    a::b\n    d\n\n\
            test result: FAILED. 12 passed; 2 failed; 3 ignored; 0 measured; 0 filtered out\n";
        let outcome = read(output);
        assert_eq!(outcome.failed, ["a::b", "d"]);
        assert_eq!((outcome.passed, outcome.ignored), (12, 3));
    }

    #[test]
    fn a_binary_that_died_has_no_result() {
        assert_eq!(
            read("running 3 tests\nmemory corruption\n"),
            Outcome::default()
        );
    }
}
