//! `keiro measure`: what a network does for transfers, measured towards another host or read from
//! files.

mod compare;
mod destination;
mod fit;
mod found;
mod picture;
mod run;
mod serve;
mod waiting;

use super::Outcome;
use crate::{
    args::{Measure, MeasureCommand},
    failure::Failure,
};

pub(super) fn measure(args: &Measure) -> Outcome {
    match (&args.command, args.net.serve, &args.net.target) {
        (Some(MeasureCommand::Fit(args)), _, _) => fit::fit(args),
        (Some(MeasureCommand::Compare(args)), _, _) => compare::compare(args),
        (None, Some(address), _) => serve::serve(address, &args.net),
        (None, None, Some(target)) => run::run(target, &args.net),
        // The command line does not allow it.
        (None, None, None) => Err(Failure::new("neither a host nor --serve is given")
            .hint("`keiro measure HOST:PORT`, or `keiro measure fit FILE`")),
    }
}
