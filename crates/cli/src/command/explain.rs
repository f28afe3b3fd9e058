//! `keiro explain`: why an application is on its path, or what is known of a prefix.

use std::net::IpAddr;

use ipnet::IpNet;
use keiro_control::protocol::{Request, Response};

use super::{
    query::{self, ask, unexpected},
    show,
};
use crate::{args, failure::Failure};

pub(super) fn explain(args: &args::Explain) -> Result<(), Failure> {
    if let Some(prefix) = prefix(&args.app) {
        return super::egress::explain(prefix, args);
    }
    if args.verify {
        return Err(Failure::usage(
            "--verify is for a prefix or an address",
            "leave it out for an application",
        ));
    }
    // No application is called so.
    if args.app.contains(['/', ':']) {
        return Err(Failure::usage(
            format!("`{}` is neither a prefix nor an address", args.app),
            "write 2001:db8::/32, 192.0.2.0/24 or 2001:db8::1, or the name of an application",
        ));
    }
    let request = Request::Explain {
        app: args.app.clone(),
    };
    match ask(&args.query.socket, &request)? {
        Response::Explanation(explanation) => {
            query::show(&args.query, &*explanation, show::explanation)
        }
        other => Err(unexpected(&other)),
    }
}

/// An address is a prefix of its own; `None`: it is neither, but an application.
fn prefix(text: &str) -> Option<IpNet> {
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse().ok().or_else(address)
}
