//! Pages over control sockets, for browsers: what `keiro status`, `show`, `explain`, `plan` and `monitor` print, as HTML.
//!
//! [`serve`] runs one HTTP server. A [`source::Source`] per control socket polls the gateway for all viewers together
//! and keeps its events; [`page`] makes HTML of a snapshot, [`drawing`] makes SVG, and [`http`] decides who may ask and
//! sends what has changed. Nothing here changes a gateway: only requests that read are ever sent.
#![forbid(unsafe_code)]

mod drawing;
mod http;
mod page;
mod site;
mod source;
mod text;

pub use self::{
    http::{
        Listen, Options, ServeError,
        access::{Access, AccessError, Proxy, Token},
        serve,
    },
    source::SocketName,
};
