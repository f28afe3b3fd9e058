//! What a command line must have beyond what its definition in [`args`](crate::args) can demand,
//! reported in sentences before anything is done.

use keiro_measure::net::{ProbePlan, log_spaced};

use crate::{
    args::{self, MeasurePart},
    failure::Failure,
    output::human,
};

/// Whether `keiro measure` is given keys, and which peers are allowed; and whether what is asked for can
/// be.
///
/// # Errors
/// There are no keys and `--open` is not given, or something is asked for that cannot be.
pub(crate) fn measure(args: &args::Measure) -> Result<(), Failure> {
    let net = &args.net;
    if args.command.is_some() {
        return Ok(());
    }
    keys(net)?;
    match net.target {
        Some(_) => measurable(net),
        None => Ok(()),
    }
}

fn keys(net: &args::MeasureNet) -> Result<(), Failure> {
    if net.open {
        return Ok(());
    }
    let (key, peer, allow) = (net.key.is_some(), net.peer.is_some(), !net.allow.is_empty());
    match net.target.is_some() {
        true if key && peer => Ok(()),
        true => Err(keys_missing()),
        false if !key => Err(server_key_missing()),
        false if !allow => Err(none_allowed()),
        false => Ok(()),
    }
}

/// Whether what is asked for can be, whatever the network.
fn measurable(net: &args::MeasureNet) -> Result<(), Failure> {
    if net.measures(MeasurePart::Udp) {
        probes(net).check().map_err(|error| {
            Failure::usage(
                error.to_string(),
                "fewer --probes, or another --probe-interval",
            )
        })?;
    }
    if !net.measures(MeasurePart::Tcp) {
        let files = [("--csv", &net.csv), ("--figure", &net.figure)];
        let Some((option, _)) = files.iter().find(|(_, file)| file.is_some()) else {
            return Ok(());
        };
        return Err(Failure::usage(
            format!("{option} is of transfers over TCP, which --only leaves out"),
            format!("--only tcp as well, or no {option}"),
        ));
    }
    let sizes = sizes(net)?;
    if net.figure.is_some() && sizes.len() < 2 {
        return Err(Failure::usage(
            "--figure draws a fit, and there is none to transfers of one size",
            "--sizes with a smallest and a largest, as in 1kB-100MB",
        ));
    }
    if net.pause.0 >= net.time.0 {
        let (pause, time) = (human::duration(net.pause.0), human::duration(net.time.0));
        return Err(Failure::usage(
            format!(
                "a pause of {pause} before each transfer leaves no time for one in the {time} that all \
                 may take"
            ),
            "a shorter --pause, or a longer --time",
        ));
    }
    Ok(())
}

/// The probes that are asked for.
pub(crate) fn probes(net: &args::MeasureNet) -> ProbePlan {
    ProbePlan {
        count: net.probes,
        interval: net.probe_interval.0,
        bytes: PROBE_BYTES,
    }
}

/// The sizes that are asked for.
///
/// # Errors
/// They are too many.
pub(crate) fn sizes(net: &args::MeasureNet) -> Result<Vec<u64>, Failure> {
    let (first, last) = (net.sizes.first.get(), net.sizes.last.get());
    log_spaced(first, last, net.per_decade.into())
        .map_err(|error| Failure::usage(error.to_string(), "a smaller --per-decade or --sizes"))
}

/// Length of a probe; ours: that of a voice packet.
const PROBE_BYTES: usize = 172;

/// Who measures has to have a key and know the server's.
pub(crate) fn keys_missing() -> Failure {
    Failure::usage(
        "both hosts prove who they are: --key and --peer are needed",
        "keiro measure HOST:PORT --key /etc/keiro/private.key --peer PUBKEY, or --open if the \
         server is open too",
    )
}

/// Who serves measurements has to have a key.
pub(crate) fn server_key_missing() -> Failure {
    Failure::usage(
        "a server needs to know who it is and who may use it",
        "keiro measure --serve --key /etc/keiro/private.key --allow PUBKEY, or --open in a \
         laboratory",
    )
}

/// A server needs peers that it serves.
pub(crate) fn none_allowed() -> Failure {
    Failure::usage(
        "no client may use this server",
        "--allow PUBKEY for every host that measures; `keiro pubkey < private.key` prints it",
    )
}
