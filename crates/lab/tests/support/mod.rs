//! Shared by the laboratory's tests: unique names, waiting for conditions, root.

// Every test binary uses only a part of it.
#![allow(dead_code)]

use std::{
    path::Path,
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use keiro_lab::{Lab, Topology};

/// A laboratory name that no other test and no other run uses.
pub(crate) fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("t{}-{number}", process::id())
}

pub(crate) fn topology(text: &str) -> Topology {
    Topology::parse(text, "test").unwrap()
}

/// Makes a laboratory; fails if the tests run without root.
pub(crate) fn up(topology: &Topology, name: &str) -> Lab {
    Lab::builder(topology)
        .name(name)
        .grace(Duration::from_millis(300))
        .up()
        .unwrap_or_else(|error| panic!("the laboratory's tests need root and iproute2: {error}"))
}

/// The remaining namespaces and records of laboratory `name`.
pub(crate) fn remains(name: &str) -> Vec<String> {
    let prefix = format!("keiro-{name}-");
    let mut remains: Vec<String> = std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|file| file.starts_with(&prefix))
        .collect();
    let record = format!("{}/{name}.json", keiro_lab::lab::RECORD_DIRECTORY);
    if Path::new(&record).exists() {
        remains.push(record);
    }
    remains
}
