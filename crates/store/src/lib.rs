//! What a site's gateways share, and what one gateway remembers over a restart.
//!
//! - [`site`]: what is shared: every gateway's planning inputs, and the plan.
//! - [`PlanStore`]: where it is kept. [`FileStore`] keeps it in a directory, [`EtcdStore`] in etcd.
//! - [`Worker`]: a thread between a store, which may be slow or gone, and a control thread, which
//!   may not wait.
//! - [`History`]: measured series of paths and applications, bounded, in an embedded database;
//!   [`Recorder`] is its thread.
//!
//! `docs/store.md` describes keys, files and bounds. Who computes the plan, and what a gateway does
//! with it, is the gateway's.

#![forbid(unsafe_code)]

pub mod etcd;
mod file;
pub mod history;
mod plan_store;
mod quarantine;
mod recorder;
pub mod site;
#[cfg(test)]
mod small_disk;
mod worker;
pub use etcd::EtcdStore;
pub use file::FileStore;
pub use history::History;
pub use plan_store::{Notice, OfferOutcome, PlanStore, PublishOutcome, StoreError, Watcher};
pub use quarantine::QuarantinedFile;
pub use recorder::{QueryError, Recorder, RecorderCounts, RecorderUpdate};
pub use site::{AppInputs, Inputs, Member, PathInputs, SitePlan, SiteView};
pub use worker::{Connection, Status, Update, Worker};
