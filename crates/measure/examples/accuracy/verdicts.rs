//! Compares measured figures with true values and bounds.

use std::process::ExitCode;

/// Counts checked and missed figures.
#[derive(Default)]
pub(crate) struct Verdicts {
    checked: usize,
    missed: usize,
}

/// Bound of the error: relative, or absolute in the figure's own unit.
#[derive(Clone, Copy)]
pub(crate) struct Bound {
    pub(crate) percent: f64,
    pub(crate) or_absolute: Option<f64>,
}

/// A measured figure with its true value.
#[derive(Clone, Copy)]
pub(crate) struct Figure<'a> {
    pub(crate) found: f64,
    pub(crate) truth: f64,
    pub(crate) unit: &'a str,
}

impl Bound {
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

    pub(crate) fn check(&mut self, what: &str, figure: Figure<'_>, bound: Bound) {
        let Figure { found, truth, unit } = figure;
        let percent = (found / truth - 1.0) * 100.0;
        let absolute = (found - truth).abs();
        let reached = percent.abs() <= bound.percent
            || bound.or_absolute.is_some_and(|most| absolute <= most);
        let mut text = format!("{} %", bound.percent);
        if let Some(most) = bound.or_absolute {
            text.push_str(&format!(" or {most} {unit}"));
        }
        self.row(
            &format!(
                "{what:<22} {found:>12.3} {truth:>12.3}  {unit:<7} {percent:>+7.2} %  {text:<18}"
            ),
            reached,
        );
    }

    /// Checks something that is either right or wrong.
    pub(crate) fn check_count(&mut self, what: &str, found: usize, truth: usize) {
        self.row(
            &format!("{what:<22} {found:>12} {truth:>12}  {:38}", ""),
            found == truth,
        );
    }

    /// Reports a figure that was not found at all.
    pub(crate) fn missing(&mut self, what: &str, why: &str) {
        self.row(&format!("{what:<22} {why}"), false);
    }

    fn row(&mut self, text: &str, reached: bool) {
        self.checked += 1;
        self.missed += usize::from(!reached);
        println!("  {text} {}", if reached { "reached" } else { "MISSED" });
    }

    pub(crate) fn conclude(&self) -> ExitCode {
        println!(
            "\n{} of {} figures reached",
            self.checked - self.missed,
            self.checked
        );
        match self.missed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        }
    }
}
