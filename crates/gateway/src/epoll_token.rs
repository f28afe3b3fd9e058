//! What a descriptor in the control thread's epoll set is: the kind in the top byte.

pub(crate) const SIGNALS: u64 = 1;
pub(crate) const REPORTS: u64 = 2;
pub(crate) const TRIGGER: u64 = 3;
pub(crate) const CONTROL: u64 = 4;
pub(crate) const METRICS: u64 = 5;
pub(crate) const STORE: u64 = 8;
pub(crate) const NETWORK: u64 = 9;
pub(crate) const RESOLVER: u64 = 10;
pub(crate) const CONTROL_READONLY: u64 = 11;
pub(crate) const CONTROL_CLIENT: u64 = 6 << 56;
pub(crate) const METRICS_CLIENT: u64 = 7 << 56;
pub(crate) const KIND: u64 = 0xff << 56;
