//! Reading TOML files that people write: quantities with units, and every problem with its place.
//!
//! Two ways of reading share one [`Report`], one [`nearest`] and one form of error:
//! [`TableReader`] reads a table key by key, for schemas in which keys depend on each other;
//! [`deserialize`] reads a whole file into a type that derives `Deserialize`. Both find all problems
//! in one pass. What a file means, and which values fit together, is left to the file's owner.
#![forbid(unsafe_code)]

mod byte_order_mark;
mod deserialize;
mod document;
mod file;
mod nearest;
pub mod regular_file;
mod rename;
mod report;
mod table;
pub mod units;
mod value;

pub use self::{
    byte_order_mark::without_byte_order_mark,
    deserialize::{deserialize, deserialize_into},
    document::parse,
    file::FileLimits,
    nearest::{did_you_mean, nearest},
    rename::{RenamedKey, Rewrite, apply_renames, rewrite},
    report::{ConfigError, LocatedError, Location, Problem, Report},
    table::{Located, TableReader},
    units::shown,
    value::{
        ValueError, address_in, boolean, choice, file_name, quantity, socket_address, string,
        type_name,
    },
};
