//! Where the applications' traffic goes.

use std::collections::HashMap;

use keiro_core::{AppConfig, AppId, PeerId};

/// Where an application's traffic goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppRoute {
    /// As in the configuration, for clients and logs.
    pub(crate) name: String,
    pub(crate) peer: PeerId,
    pub(crate) config: AppConfig,
    /// Its messages leave by a forward, not by the message socket.
    pub(crate) has_forward: bool,
}

/// The routes of all applications.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    routes: HashMap<AppId, AppRoute>,
    /// A name is not where the number follows from if the application's site was renamed.
    by_name: HashMap<String, AppId>,
}

/// An application of a peer that has no number yet.
#[derive(Clone, Debug)]
pub(crate) struct NewApp {
    pub(crate) name: String,
    pub(crate) config: AppConfig,
    pub(crate) has_forward: bool,
}

impl Routes {
    pub(crate) fn get(&self, app: AppId) -> Option<&AppRoute> {
        self.routes.get(&app)
    }

    /// The route of the application of this name.
    pub(crate) fn named(&self, name: &str) -> Option<&AppRoute> {
        self.routes.get(self.by_name.get(name)?)
    }

    /// The route of the application that `peer` means by `app`; `None` if it is another peer's.
    pub(crate) fn of_peer(&self, peer: PeerId, app: AppId) -> Option<&AppRoute> {
        self.routes.get(&app).filter(|route| route.peer == peer)
    }

    /// The name of an application, for logs; empty if it is not configured.
    pub(crate) fn name(&self, app: AppId) -> &str {
        self.routes
            .get(&app)
            .map_or("", |route| route.name.as_str())
    }

    pub(crate) fn insert(&mut self, route: AppRoute) {
        self.remove(route.config.id);
        self.by_name.insert(route.name.clone(), route.config.id);
        self.routes.insert(route.config.id, route);
    }

    pub(crate) fn remove(&mut self, app: AppId) -> Option<AppRoute> {
        let route = self.routes.remove(&app)?;
        // Two may have changed their names with each other.
        if self.by_name.get(&route.name) == Some(&app) {
            self.by_name.remove(&route.name);
        }
        Some(route)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &AppRoute> {
        self.routes.values()
    }
}

#[cfg(test)]
mod tests {
    use keiro_core::{DeliveryClass, TenantId};

    use super::*;

    fn route(name: &str, id: AppId) -> AppRoute {
        AppRoute {
            name: name.to_owned(),
            peer: PeerId(1),
            config: AppConfig {
                id,
                class: DeliveryClass::Message,
                latency_target: None,
                lifetime: None,
                paths: Vec::new(),
                tenant: TenantId::ZERO,
                is_spread: false,
            },
            has_forward: false,
        }
    }

    #[test]
    fn a_name_with_the_number_of_another_application_is_unknown() {
        let mut routes = Routes::default();
        // As if both names had one number.
        routes.insert(route("known", AppId::of_name("other")));
        assert_eq!(routes.named("other"), None);
        routes.insert(route("known", AppId::of_name("known")));
        assert!(routes.named("known").is_some());
    }

    #[test]
    fn a_peer_cannot_name_the_application_of_another_peer() {
        let mut routes = Routes::default();
        let app = AppId::of_name("known");
        routes.insert(route("known", app));
        assert!(routes.of_peer(PeerId(1), app).is_some());
        assert_eq!(routes.of_peer(PeerId(2), app), None);
    }
}
