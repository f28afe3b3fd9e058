//! What servers of local clients work with during one turn of the data thread.

use keiro_core::{Endpoint, Instant};
use keiro_linux::epoll::Epoll;

use super::{route::Routes, tunnels::Tunnels};

pub(crate) struct Context<'a> {
    pub(crate) now: Instant,
    pub(crate) epoll: &'a Epoll,
    pub(crate) routes: &'a Routes,
    pub(crate) tunnels: &'a Tunnels,
    pub(crate) endpoint: &'a mut Endpoint,
}
