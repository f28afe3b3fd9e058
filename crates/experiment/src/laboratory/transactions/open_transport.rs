//! A transport that carries transactions.

use std::{fmt, net::SocketAddr};

/// An open transport; dropping it closes it.
pub(in crate::laboratory) trait OpenTransport: fmt::Debug {
    /// The address to which clients connect.
    fn entry(&self) -> SocketAddr;

    /// Diagnostic output for an error.
    fn log_tail(&self) -> String {
        "transactions could not be carried".to_owned()
    }

    /// Checks that it worked until now, and closes it.
    ///
    /// # Errors
    /// What ended it early.
    fn close(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
