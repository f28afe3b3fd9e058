//! What a command line must have beyond what its definition in [`args`](crate::args) can demand,
//! told in sentences before anything is done.

use crate::{args, failure::Failure};

/// Whether `keiro measure` is told with whom, and who may.
///
/// # Errors
/// The host has no port, or there are no keys and `--open` is not given.
pub(crate) fn measure(args: &args::Measure) -> Result<(), Failure> {
    let net = &args.net;
    if args.command.is_some() {
        return Ok(());
    }
    if let Some(target) = &net.target
        && !has_port(target)
    {
        return Err(Failure::usage(
            format!("{target}: not an address and port"),
            "write HOST:PORT, as in 192.0.2.1:7610 or [2001:db8::1]:7610",
        ));
    }
    let (key, peer, allow) = (net.key.is_some(), net.peer.is_some(), !net.allow.is_empty());
    match (net.open, net.target.is_some()) {
        (true, _) => Ok(()),
        (false, true) if key && peer => Ok(()),
        (false, true) => Err(Failure::usage(
            "both hosts prove who they are: --key and --peer are needed",
            "keiro measure HOST:PORT --key /etc/keiro/private.key --peer PUBKEY, or --open if the \
             server is open too",
        )),
        (false, false) if !key => Err(Failure::usage(
            "a server needs to know who it is and who may use it",
            "keiro measure --serve --key /etc/keiro/private.key --allow PUBKEY, or --open in a \
             laboratory",
        )),
        (false, false) if !allow => Err(Failure::usage(
            "nobody may use this server",
            "--allow PUBKEY for every host that measures; `keiro pubkey < private.key` prints it",
        )),
        (false, false) => Ok(()),
    }
}

/// Whether `text` has the shape of HOST:PORT, with an IPv6 address in brackets.
fn has_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host.starts_with('[') && host.ends_with(']');
    let host_is_one = !host.is_empty() && (bracketed || !host.contains(':'));
    host_is_one && port.parse::<u16>().is_ok_and(|port| port > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_host_and_a_port() {
        for good in ["192.0.2.1:7610", "[2001:db8::1]:7610", "osaka.example:1"] {
            assert!(has_port(good), "{good}");
        }
        for bad in [
            "",
            "osaka",
            "::1",
            ":7610",
            "osaka:",
            "osaka:0",
            "osaka:65536",
            "osaka:http",
        ] {
            assert!(!has_port(bad), "{bad}");
        }
    }
}
