//! A registry that is being read, with the spans of its values.

use std::{collections::BTreeMap, ops::Range};

use keiro_config::Located;

use super::{Invitation, SecondHub, Site, SiteSpans};
use crate::config::{AppNeeds, Name};

/// A registry that is being read. An entry that is wrong is missing and has a problem in the report.
pub(super) struct Draft {
    pub(super) tenant: Option<Located<Name>>,
    pub(super) direct: bool,
    /// In the order of the file.
    pub(super) apps: Vec<DraftApp>,
    pub(super) sites: BTreeMap<Name, (Site, SiteSpans)>,
    pub(super) second_hub: Option<(Name, SecondHub, SiteSpans)>,
    pub(super) invitations: BTreeMap<Name, (Invitation, InvitationSpans)>,
}

impl Draft {
    /// Sites and the second hub, with their places.
    pub(super) fn members(&self) -> impl Iterator<Item = (&Name, &Site, &SiteSpans)> {
        let sites = self.sites.iter();
        let second = self.second_hub.iter();
        sites
            .map(|(name, (site, spans))| (name, site, spans))
            .chain(second.map(|(name, hub, spans)| (name, &hub.site, spans)))
    }
}

pub(super) struct DraftApp {
    pub(super) at: Range<usize>,
    pub(super) name: Name,
    pub(super) needs: AppNeeds,
}

pub(super) struct InvitationSpans {
    pub(super) id: Range<usize>,
    pub(super) public_key: Range<usize>,
}
