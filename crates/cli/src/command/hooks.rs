//! `keiro hooks`: commands and webhooks for events, by [`keiro_hooks`].

use std::process::ExitCode;

use keiro_hooks::{
    config::{self, Hook, TEST},
    deliver::deliver,
    dispatch::{Dispatch, follow},
    occurrence::Occurrence,
};

use super::Outcome;
use crate::{args, failure::Failure, output};

pub(super) fn hooks(args: &args::Hooks) -> Outcome {
    let hooks = config::load(&args.config)?;
    if args.check {
        let names: Vec<&str> = hooks.iter().map(|hook| hook.name.as_str()).collect();
        output::text(format_args!(
            "{}: {} hooks: {}\n",
            args.config.display(),
            names.len(),
            names.join(", ")
        ))?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.test {
        return test(&hooks);
    }
    let mut dispatch = Dispatch::start(hooks)
        .map_err(|error| Failure::new("cannot start a thread for each hook").because(error))?;
    follow(
        &args.socket.socket,
        &mut dispatch,
        keiro_control::event_text::sentence,
    );
    Ok(ExitCode::SUCCESS)
}

/// Gives each hook a test event and says what became of it.
fn test(hooks: &[Hook]) -> Outcome {
    let mut all_well = true;
    for hook in hooks {
        let occurrence = Occurrence::own(TEST, "", "a test of keiro hooks");
        let outcome = deliver(hook, &occurrence);
        all_well &= outcome.is_ok();
        let outcome = outcome.map_or_else(|error| error.to_string(), |()| "done".to_owned());
        output::text(format_args!(
            "{}: {}\n",
            hook.name,
            keiro_terminal::printable(&outcome)
        ))?;
    }
    Ok(match all_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
