//! `keiro top`: the terminal and the colours for [`keiro_top`].

use std::os::unix::net::UnixStream;

use keiro_top::{Options, TopError};

use super::socket::Socket;
use crate::{args, failure::Failure, output::Style};

pub(super) fn top(args: &args::Top) -> Result<(), Failure> {
    let socket = &args.socket.socket;
    // One that is away may come; one that this user may not ask, or that is no socket, will not.
    let named = Socket::Control(socket);
    if let Err(error) = UnixStream::connect(socket)
        && !named.may_come(&error)
    {
        return Err(named.unreachable(error));
    }
    let options = Options {
        socket: socket.clone(),
        interval: args.interval.0,
        colour: !args.no_color && Style::of_stdout() == Style::Colour,
    };
    keiro_top::run(&options).map_err(|error| match error {
        TopError::NotATerminal(_) => Failure::new(error.to_string()).hint(
            "in scripts use `keiro status`, `keiro show app` and `keiro monitor`, with --json",
        ),
        error => Failure::new(error.to_string()),
    })
}
