//! Kinds of experiment. Each measures in its own way and returns [`Findings`], from which the report and its
//! files are written.

use anyhow::bail;

use crate::{
    accuracy,
    campaign::{Bench, Status},
    churn::{self, Churn},
    evaluate::{Basis, NamedDrawing},
    manifest::RunsReport,
    parameters::{self, Study},
    plan::{Accuracy, Plan},
    recorded::{self, Recorded},
    row::Row,
    tenants::{self, Sharing},
    transactions::{self, Case, Transactions},
    transfers::{self, Transfers},
    trials::{self, Trials},
};

/// What a plan measures or computes.
#[derive(Clone, Debug)]
pub enum Subject {
    /// Messages of one setup, measured or computed.
    Messages,
    /// Forecasts compared with measurements over many random workloads.
    Forecasts(Accuracy),
    /// Transactions over several transports.
    Transactions(Transactions),
    /// Trials of gateways, kernels or routing daemons.
    Trials(Trials),
    /// The parameters of aggregation: size, interval, copies.
    Aggregation(Study),
    /// Tenants that share bottlenecks.
    Sharing(Sharing),
    /// Transfer times against sizes.
    Transfers(Transfers),
    /// Applications that come and go.
    Churn(Churn),
    /// Bulk transfers over recorded lines.
    Recorded(Recorded),
}

/// A kind of experiment.
pub(crate) trait Experiment {
    /// Measures the plan with the bench's runners.
    ///
    /// # Errors
    /// Why it could not be carried out, and what to try.
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings>;
}

/// Results of an experiment.
#[derive(Default)]
pub(crate) struct Findings {
    pub(crate) rows: Vec<Row>,
    pub(crate) basis: Vec<Basis>,
    pub(crate) drawings: Vec<NamedDrawing>,
    pub(crate) runs: Vec<RunsReport>,
    /// Precede the manifest's own notes.
    pub(crate) notes: Vec<String>,
    /// Further files: name and content.
    pub(crate) files: Vec<(&'static str, String)>,
}

impl Subject {
    /// The kind of experiment; `None` for messages, whose measurement several plans share.
    pub(crate) fn experiment(&self) -> Option<&dyn Experiment> {
        match self {
            Self::Messages => None,
            Self::Forecasts(accuracy) => Some(accuracy),
            Self::Transactions(transactions) => Some(transactions),
            Self::Trials(trials) => Some(trials),
            Self::Aggregation(study) => Some(study),
            Self::Sharing(sharing) => Some(sharing),
            Self::Transfers(transfers) => Some(transfers),
            Self::Churn(churn) => Some(churn),
            Self::Recorded(recorded) => Some(recorded),
        }
    }
}

impl Experiment for Accuracy {
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        if bench.runners.messages.is_empty() {
            bail!(
                "{} cannot be measured: neither the laboratory nor the simulator is available",
                plan.id
            );
        }
        let quick = bench.options.quick;
        let compared = accuracy::measure(&mut bench.runners.messages, self, quick, watch)?;
        let (rows, basis) = accuracy::rows(&compared.comparisons, self, quick);
        Ok(Findings {
            rows,
            basis,
            drawings: accuracy::drawings(&compared.comparisons, self, quick)?,
            runs: compared.runs,
            notes: Vec::new(),
            files: vec![("comparisons.csv", accuracy::csv(&compared.comparisons))],
        })
    }
}

impl Experiment for Transactions {
    /// Writes a report after every round, because a run takes hours and may be interrupted.
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        let options = bench.options;
        let cases = transactions::select(self, &options.variants)?;
        let Some(runner) = bench.runners.transactions.as_deref_mut() else {
            // As with messages, rows of the laboratory are left out without it.
            let missing = transactions::Measured::without_laboratory(&cases);
            return transactions_found(self, &[], &missing, options.quick);
        };
        let mut kept_in = None;
        let writer = &bench.writer;
        let keep = |so_far: &_| {
            let found = transactions_found(self, &cases, so_far, options.quick);
            match found.and_then(|found| writer.write(found)) {
                Ok(report) => {
                    kept_in = Some(options.results.join(report.directory));
                    Ok(())
                }
                // Nothing can be written: fail now, not after hours.
                Err(error) if kept_in.is_none() => Err(error),
                // Writing may work again at the end; otherwise that attempt reports the error.
                Err(_) => Ok(()),
            }
        };
        let extent = plan.setup.extent(options.quick);
        let measured = transactions::measure(runner, plan, &cases, extent, watch, keep);
        let measured = measured.map_err(|error| match &kept_in {
            Some(directory) => error.context(format!(
                "aborted; the complete rounds are in {}",
                directory.display()
            )),
            None => error,
        })?;
        transactions_found(self, &cases, &measured, options.quick)
    }
}

fn transactions_found(
    transactions: &Transactions,
    cases: &[Case],
    measured: &transactions::Measured,
    quick: bool,
) -> anyhow::Result<Findings> {
    let (rows, basis) = transactions::rows(transactions, cases, measured);
    Ok(Findings {
        rows,
        basis,
        drawings: transactions::drawings(transactions, measured, quick)?,
        runs: transactions::runs_reports(measured),
        notes: transactions::notes(transactions, measured),
        files: vec![
            ("runs.csv", transactions::runs_csv(measured)),
            ("slowest.csv", transactions::slowest_csv(measured)),
            ("counters.csv", transactions::counters_csv(measured)),
        ],
    })
}

impl Experiment for Trials {
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        let options = bench.options;
        let measured = match bench.runners.trials.as_deref_mut() {
            Some(runner) => {
                trials::measure(runner, plan, self, &options.variants, options.quick, watch)?
            }
            None => trials::Measured::default(),
        };
        let (rows, basis) = trials::rows(self, &measured);
        Ok(Findings {
            rows,
            basis,
            drawings: trials::drawings(self, &measured, options.quick)?,
            runs: trials::runs_reports(self, &measured),
            notes: trials::notes(self, &measured),
            files: vec![("runs.csv", trials::runs_csv(self, &measured))],
        })
    }
}

impl Experiment for Study {
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        let quick = bench.options.quick;
        let cases = parameters::select(self, &bench.options.variants)?;
        let measured = parameters::measure(&mut bench.runners.studies, plan, &cases, quick, watch)?;
        let (rows, basis) = parameters::rows(self, &measured);
        Ok(Findings {
            rows,
            basis,
            drawings: parameters::drawings(self, &measured, quick)?,
            runs: parameters::runs_reports(self, &measured),
            notes: parameters::notes(self, &measured),
            files: vec![
                ("trace.csv", parameters::trace_csv(self, &measured)),
                ("counters.csv", parameters::counters_csv(self, &measured)),
            ],
        })
    }
}

impl Experiment for Sharing {
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        let quick = bench.options.quick;
        let cases = tenants::select(self, &bench.options.variants)?;
        let measured = tenants::measure(
            bench.runners.sharing.as_deref_mut(),
            plan,
            &cases,
            quick,
            watch,
        )?;
        let (rows, basis) = tenants::rows(self, &measured);
        Ok(Findings {
            rows,
            basis,
            drawings: tenants::drawings(self, &measured, quick)?,
            runs: tenants::runs_reports(self, &measured),
            notes: tenants::notes(self, &measured),
            files: vec![("seconds.csv", tenants::seconds_csv(self, &measured))],
        })
    }
}

impl Experiment for Transfers {
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        let quick = bench.options.quick;
        let selected = transfers::select(self, &bench.options.variants)?;
        let measured = transfers::measure(
            &mut bench.runners.transfers,
            plan,
            self,
            &selected,
            quick,
            watch,
        )?;
        let (rows, basis) = transfers::rows(self, &measured);
        Ok(Findings {
            rows,
            basis,
            drawings: transfers::drawings(self, &measured, quick)?,
            runs: transfers::runs_reports(self, &measured),
            notes: transfers::notes(self, &measured),
            files: vec![("times.csv", transfers::times_csv(self, &measured))],
        })
    }
}

impl Experiment for Churn {
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        let (quick, names) = (bench.options.quick, &bench.options.variants);
        let measured = churn::measure(
            bench.runners.churn.as_deref_mut(),
            plan,
            self,
            names,
            quick,
            watch,
        )?;
        let (rows, basis) = churn::rows(self, &measured);
        Ok(Findings {
            rows,
            basis,
            drawings: churn::drawings(self, &measured, quick)?,
            runs: churn::runs_reports(self, &measured),
            notes: churn::notes(&measured),
            files: vec![("messages.csv", churn::messages_csv(self, &measured))],
        })
    }
}

impl Experiment for Recorded {
    fn carry_out(
        &self,
        plan: &Plan,
        bench: &mut Bench<'_, '_>,
        watch: &mut dyn FnMut(&Status<'_>),
    ) -> anyhow::Result<Findings> {
        let (quick, names) = (bench.options.quick, &bench.options.variants);
        let measured =
            recorded::measure(&mut bench.runners.recorded, plan, self, names, quick, watch)?;
        let (rows, basis) = recorded::rows(self, &measured);
        Ok(Findings {
            rows,
            basis,
            drawings: recorded::drawings(self, &measured, quick)?,
            runs: recorded::runs_reports(self, &measured),
            notes: recorded::notes(self, &measured),
            files: vec![
                ("seconds.csv", recorded::seconds_csv(self, &measured)),
                ("thin.csv", recorded::thin_csv(self, &measured)),
            ],
        })
    }
}
