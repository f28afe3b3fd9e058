//! The command line. Man page and completion are made from this.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use axum::http::HeaderName;
use clap::{Parser, Subcommand, ValueHint};
use keiro_control::config::DEFAULT_CONTROL_SOCKET;
use keiro_terminal::{VERSION, manual::Shell};
use keiro_web::SocketName;

/// Pages for a browser over the control sockets of gateways
///
/// Shows paths, applications, forecasts, events and what would happen if a path were lost. It only reads. It runs in
/// a process of its own, needs no privilege but membership of the control socket's group, and answers on this machine
/// alone unless --listen says otherwise.
#[derive(Debug, Parser)]
#[command(name = "keiro-web", version = VERSION, max_term_width = 100)]
pub(crate) struct Cli {
    /// The gateway's control socket, and optionally its name in addresses of pages; several are shown beside one
    /// another
    #[arg(long = "socket", value_name = "[NAME=]FILE", default_value = DEFAULT_CONTROL_SOCKET, value_hint = ValueHint::FilePath)]
    pub(crate) sockets: Vec<SocketName>,
    /// The control socket of a daemon of the egress suite, shown on a page of its own; repeat it for several
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) egress: Vec<PathBuf>,
    /// Where to listen. An address that other machines reach needs --token-file, or --proxy and --proxy-header
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:7680")]
    pub(crate) listen: SocketAddr,
    /// Listen at a Unix socket instead, for a reverse proxy; who may connect is up to the file system
    #[arg(long, value_name = "FILE", conflicts_with = "listen", value_hint = ValueHint::FilePath)]
    pub(crate) listen_unix: Option<PathBuf>,
    /// Ask for the token in this file, which others must not be able to read: (umask 077; keiro gentoken > FILE)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,
    /// Let in who comes from this address with --proxy-header: a reverse proxy that knows its users
    #[arg(long, value_name = "ADDRESS", requires = "proxy_header")]
    pub(crate) proxy: Option<IpAddr>,
    /// The header in which the proxy names the user, as X-Remote-User
    #[arg(long, value_name = "NAME", requires = "proxy")]
    pub(crate) proxy_header: Option<HeaderName>,
    /// A name by which browsers reach these pages, beside addresses of this machine
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Print a shell's completion script
    #[command(hide = true)]
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write the man page
    #[command(hide = true)]
    Man {
        /// Write it to this directory; without it, to standard output
        #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
        output: Option<PathBuf>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_option_has_help_and_its_place_in_the_page() {
        let page = include_str!("../../../docs/web.md");
        keiro_terminal::manual::check_documented("keiro-web", &Cli::command(), page);
        for argument in Cli::command().get_arguments() {
            let Some(long) = argument
                .get_long()
                .filter(|long| !["help", "version"].contains(long))
            else {
                continue;
            };
            assert!(
                page.contains(&format!("--{long}")),
                "docs/web.md has no --{long}"
            );
        }
    }

    #[test]
    fn the_unit_and_the_page_start_it_with_options_that_it_takes() {
        let unit = include_str!("../../../packaging/systemd/keiro-web.service");
        let page = include_str!("../../../docs/web.md");
        let lines = unit.lines().chain(page.lines());
        let starts: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/"))
            .collect();
        assert_eq!(starts.len(), 2);
        for start in starts {
            Cli::try_parse_from(start.split(' ')).unwrap();
        }
    }
}
