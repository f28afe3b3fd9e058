//! What was found beside the truth and what was asked.

use std::process::ExitCode;

/// Counts what was asked and what was missed.
#[derive(Default)]
pub(crate) struct Verdicts {
    asked: usize,
    missed: usize,
}

/// How far from the truth a figure may be: a share of it, or as much in its own unit.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) percent: f64,
    pub(crate) or_absolute: Option<f64>,
}

impl Asked {
    pub(crate) const fn percent(percent: f64) -> Self {
        Self {
            percent,
            or_absolute: None,
        }
    }
}

impl Verdicts {
    pub(crate) fn heading(&self, network: &str) {
        println!("\n{network}");
        println!(
            "  {:<22} {:>12} {:>12}  {:<7} {:>9}  {:<18}",
            "", "found", "truth", "", "error", "asked"
        );
    }

    pub(crate) fn check(
        &mut self,
        what: &str,
        (found, truth, unit): (f64, f64, &str),
        asked: Asked,
    ) {
        let percent = (found / truth - 1.0) * 100.0;
        let absolute = (found - truth).abs();
        let reached = percent.abs() <= asked.percent
            || asked.or_absolute.is_some_and(|most| absolute <= most);
        let mut text = format!("{} %", asked.percent);
        if let Some(most) = asked.or_absolute {
            text.push_str(&format!(" or {most} {unit}"));
        }
        self.row(
            &format!(
                "{what:<22} {found:>12.3} {truth:>12.3}  {unit:<7} {percent:>+7.2} %  {text:<18}"
            ),
            reached,
        );
    }

    /// Something that is right or wrong.
    pub(crate) fn check_count(&mut self, what: &str, found: usize, truth: usize) {
        self.row(
            &format!("{what:<22} {found:>12} {truth:>12}  {:38}", ""),
            found == truth,
        );
    }

    /// Something was not found at all.
    pub(crate) fn missing(&mut self, what: &str, why: &str) {
        self.row(&format!("{what:<22} {why}"), false);
    }

    fn row(&mut self, text: &str, reached: bool) {
        self.asked += 1;
        self.missed += usize::from(!reached);
        println!("  {text} {}", if reached { "reached" } else { "MISSED" });
    }

    pub(crate) fn conclude(&self) -> ExitCode {
        println!(
            "\n{} of {} figures reached",
            self.asked - self.missed,
            self.asked
        );
        match self.missed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}
