//! `[[peer]]` of a border router, and `[[group]]`, which has the keys that several peers share.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use keiro_config::{LocatedError, units::Text};
use serde::Deserialize;
use toml::Spanned;

use super::{Behaviour, bfd::BfdEntry, rules::Filter};

/// Both tables have these keys, so that none is forgotten in one of them.
macro_rules! shared_keys {
    ($($key:ident: $kind:ty,)*) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct Peer {
            pub(super) name: String,
            pub(super) address: Spanned<IpAddr>,
            group: Option<Spanned<String>>,
            pub(super) function: Option<Spanned<u16>>,
            pub(super) ipv4_function: Option<Spanned<u16>>,
            pub(super) rd: Option<Spanned<String>>,
            pub(super) rt: Option<Spanned<String>>,
            pub(super) table: Option<Spanned<u32>>,
            $(pub(super) $key: Option<$kind>,)*
        }

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct Group {
            name: Spanned<String>,
            $($key: Option<$kind>,)*
        }

        impl Peer {
            /// Takes what it has no value for from its group.
            fn inherit(&mut self, group: &Group) {
                $(
                    if self.$key.is_none() {
                        self.$key.clone_from(&group.$key);
                    }
                )*
            }
        }
    };
}

shared_keys! {
    asn: Spanned<u32>,
    port: u16,
    passive: bool,
    ipv4: bool,
    hold_time: Spanned<Text<Duration>>,
    graceful_restart: Spanned<Text<Duration>>,
    add_path: bool,
    extended_messages: bool,
    routes_max: Spanned<usize>,
    md5_file: Spanned<PathBuf>,
    ttl_security: bool,
    local_address: IpAddr,
    next_hop: IpAddr,
    bfd: Spanned<BfdEntry>,
    graceful_shutdown: bool,
    drain: bool,
    import: Filter,
    export: Filter,
    behaviour: Behaviour,
    interface: Spanned<String>,
}

impl Peer {
    pub(super) fn import(&self) -> &Filter {
        self.import.as_ref().unwrap_or(&Filter::None)
    }

    pub(super) fn export(&self) -> &Filter {
        self.export.as_ref().unwrap_or(&Filter::None)
    }
}

/// Gives peers what their groups have.
///
/// # Errors
/// Two groups of one name, or a peer of a group that does not exist.
pub(super) fn inherit(
    peers: &mut [Spanned<Peer>],
    groups: &[Spanned<Group>],
) -> Result<(), LocatedError> {
    let name = |group: &Spanned<Group>| group.get_ref().name.get_ref().clone();
    for (place, group) in groups.iter().enumerate() {
        if groups[..place]
            .iter()
            .any(|other| name(other) == name(group))
        {
            let message = format!(
                "name: there are two groups `{}`; each needs its own",
                name(group)
            );
            return Err(LocatedError::new(group.get_ref().name.span(), message));
        }
    }
    for peer in peers {
        let peer = peer.get_mut();
        let Some(wanted) = &peer.group else { continue };
        let found = groups.iter().find(|group| name(group) == *wanted.get_ref());
        let Some(group) = found else {
            let known: Vec<String> = groups
                .iter()
                .map(|group| format!("`{}`", name(group)))
                .collect();
            let known = match known.is_empty() {
                true => "write [[group]] with its name".to_owned(),
                false => format!("there are {}", known.join(", ")),
            };
            let message = format!("group: there is no group `{}`; {known}", wanted.get_ref());
            return Err(LocatedError::new(wanted.span(), message));
        };
        peer.inherit(group.get_ref());
    }
    Ok(())
}
