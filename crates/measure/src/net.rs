//! Measuring between two hosts: transfer times over TCP, probes and trains over UDP.
//!
//! One host runs a [`Server`], the other opens a [`Session`] with it and measures. The server's resources are
//! bounded and, unless it is [`Access::Open`], limited to clients whose keys it allows. Measurements are
//! returned as data; fitting, printing and drawing are done elsewhere.
//!
//! | file | contents |
//! |---|---|
//! | `wire` | every message, as in `docs/measure-protocol.md` |
//! | `channel`, `limits` | the control connection; waiting with timeouts |
//! | `server`, `reflection` | the server: TCP, UDP |
//! | [`session`](Session) | the client |
//! | `transfer`, `sampling` | time against size; choice of the next size |
//! | `datagrams`, `probe` | round trip, delay variation, loss, order |
//! | `train` | capacity |

mod channel;
mod datagrams;
mod error;
mod payload;
mod probe;
mod reflection;
mod sampling;
mod server;
mod session;
mod timeout;
mod train;
mod transfer;
mod unauthenticated;
mod wire;

pub use channel::Identity;
pub use error::NetError;
pub use probe::{
    DelayVariation, OneWay, ProbePlan, ProbeProgress, ProbeReport, RoundTrip, measure_probes,
};
pub use sampling::{REPEATS_MIN, SIZES_MAX, Schedule, SizeSeries, log_spaced, relative_half_width};
pub use server::{Access, Limits, Server, ServerEvent, Stop};
pub use session::{Connection, Credentials, Direction, Session};
pub use train::{TrainPlan, TrainProgress, TrainReport, measure_trains};
pub use transfer::{Timed, TransferPlan, TransferProgress, Transfers, measure_transfers};
