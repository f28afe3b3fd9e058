//! `classes` of `[tenant.NAME]`: applications of the built-in classes.
//!
//! They belong to a peer as the application that carries its packets, and inherit its pin and its paths. Their names are those
//! of the class and of that application, as in `voice@office`, or of the class and the site, as in `voice@tokyo`. The
//! sender of a packet alone sorts it, so the peer's gateway need not have them.

use std::{collections::BTreeMap, time::Duration};

use keiro_ip::builtin_classes::BuiltInClass;
use keiro_units::Probability;

use crate::config::{App, AppIndex, AppNeeds, Class, Config, Name, Problem};

/// Whether a tenant's packets are sorted into built-in classes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Classes {
    #[default]
    Off,
    Auto,
}

/// The application of a built-in class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassApp {
    pub class: BuiltInClass,
    pub app: AppIndex,
}

/// Why a class is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Conflict {
    /// The application of its name does not carry datagrams.
    Class,
    /// The application of its name belongs to another peer.
    Peer,
}

/// By class and reason, the first application that lacks the class, and how many lack it.
type Conflicts = BTreeMap<(BuiltInClass, Conflict), (AppIndex, usize)>;

impl Config {
    /// This configuration, to which nothing is added any more, with the applications of built-in classes, and a warning
    /// for each class that is left out because its application's name is taken.
    #[must_use]
    pub fn with_classes(mut self) -> Self {
        // By the names here and on the wire.
        let mut named: BTreeMap<Name, AppIndex> = BTreeMap::new();
        for (number, app) in self.apps.iter().enumerate() {
            for name in [&app.name, app.wire_name()] {
                named.entry(name.clone()).or_insert(AppIndex(number));
            }
        }
        let mut conflicts = Conflicts::new();
        for number in 0..self.tenants.len() {
            if self.tenants[number].classes == Classes::Off {
                continue;
            }
            let of_peers = self.tenants[number].peers.iter().map(|of| of.app);
            let of_peers: Vec<AppIndex> = of_peers.collect();
            for base in of_peers {
                let apps = self.apps_of_classes(base, &mut named, &mut conflicts);
                self.tenants[number].class_apps.insert(base, apps);
            }
        }
        let warnings: Vec<Problem> = conflicts
            .into_iter()
            .map(|((class, why), (base, count))| self.left_out(class, why, base, count))
            .collect();
        self.warnings.extend(warnings);
        self
    }

    /// The applications beside `base`; those of another tenant with the same one are the same.
    fn apps_of_classes(
        &mut self,
        base: AppIndex,
        named: &mut BTreeMap<Name, AppIndex>,
        conflicts: &mut Conflicts,
    ) -> Vec<ClassApp> {
        let mut tenants = self.tenants.iter();
        if let Some(known) = tenants.find_map(|tenant| tenant.class_apps.get(&base)) {
            return known.clone();
        }
        let mut apps = Vec::new();
        for class in BuiltInClass::ALL {
            let of_base = &self[base];
            // The other end has the class as well, whatever each of them calls the site.
            let Some(wire_name) = name_of(class, of_base.wire_name()) else {
                continue;
            };
            let name = name_of(class, &of_base.name).unwrap_or_else(|| wire_name.clone());
            // An application of the network that is named as the class, with other needs.
            let of_name = named.get(&wire_name).or_else(|| named.get(&name));
            if let Some(app) = of_name.copied() {
                match conflict(&self[app], of_base) {
                    None => apps.push(ClassApp { class, app }),
                    Some(why) => conflicts.entry((class, why)).or_insert((base, 0)).1 += 1,
                }
                continue;
            }
            let app = AppIndex(self.apps.len());
            let of_class = App {
                paths: of_base.paths,
                path: of_base.path,
                wire_name: (wire_name != name).then(|| wire_name.clone()),
                ..App::with_needs(name.clone(), of_base.peer, &needs_of(class))
            };
            self.apps.push(of_class);
            named.extend([(name, app), (wire_name, app)]);
            apps.push(ClassApp { class, app });
        }
        apps
    }

    fn left_out(
        &self,
        class: BuiltInClass,
        why: Conflict,
        base: AppIndex,
        count: usize,
    ) -> Problem {
        let base = &self[base].name;
        let name = name_of(class, base).map_or_else(String::new, |name| name.to_string());
        let of_name = self.app_named(&name).map(|app| &self[app]);
        let why = match (why, of_name) {
            (Conflict::Class, Some(app)) => format!("has class \"{}\"", app.class.as_str()),
            (Conflict::Peer, Some(app)) => format!("belongs to peer `{}`", self[app.peer].name),
            (_, None) => "is taken".to_owned(),
        };
        let others = match count {
            1 => String::new(),
            _ => format!(" (and {} more)", count - 1),
        };
        let class = class.name();
        Problem {
            file: self.origin.file.clone(),
            place: None,
            message: format!(
                "classes: application `{base}`{others} has no class `{class}`: application `{name}` {why}"
            ),
            hint: Some(format!(
                "rename it; one of class \"datagram\" and the same peer would carry the class `{class}`"
            )),
        }
    }
}

/// Why an application does not carry packets of a class beside `base`; `None`: it does.
fn conflict(app: &App, base: &App) -> Option<Conflict> {
    if app.class != Class::Datagram {
        return Some(Conflict::Class);
    }
    (app.peer != base.peer).then_some(Conflict::Peer)
}

/// What a class needs. Delays are one way.
fn needs_of(class: BuiltInClass) -> AppNeeds {
    let (target_ms, loss_per_cent, essential) = match class {
        // ITU-T G.114 asks for 150 ms from mouth to ear, of which coding and playing out take a third.
        BuiltInClass::Voice => (Some(100), 1, Some(true)),
        // ITU-T G.1035: players notice a round trip of some 100 ms.
        BuiltInClass::Games => (Some(60), 1, None),
        // ITU-T G.1010: less than 200 ms for a shell's echo, with the way back and the host.
        BuiltInClass::Interactive => (Some(100), 1, Some(true)),
        // ITU-T G.1010: 2 s for a page, which takes some ten ways.
        BuiltInClass::Web => (Some(200), 1, None),
        // Beyond it TCP gets a small part of the path's rate.
        BuiltInClass::Bulk | BuiltInClass::Backup => (None, 2, Some(false)),
    };
    AppNeeds {
        latency_target: target_ms.map(Duration::from_millis),
        loss: Probability::from_ratio(loss_per_cent, 100),
        essential,
        ..AppNeeds::of_class(Class::Datagram)
    }
}

/// `None`: it would be too long.
fn name_of(class: BuiltInClass, base: &Name) -> Option<Name> {
    let whose = match base.as_str().split_once('@') {
        // Of a network: `office@tokyo`, and over the second hub `office@@tokyo`.
        Some((_, site)) => site,
        None => base.as_str(),
    };
    Name::of_class(class.name(), whose)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_application_of_a_network_gives_its_classes_the_sites_name() {
        let name = |base: &Name| name_of(BuiltInClass::Voice, base).map(|name| name.to_string());
        let expect = |text: &str| Some(text.to_owned());
        assert_eq!(name(&Name::of("office", "tokyo")), expect("voice@tokyo"));
        assert_eq!(name(&Name::of("office", "@tokyo")), expect("voice@@tokyo"));
        let direct = Name::of_pair("office", "kobe", "tokyo").expect("it is short");
        assert_eq!(name(&direct), expect("voice@kobe@tokyo"));
        let longest = Name::new(&"x".repeat(crate::config::NAME_BYTES_MAX)).expect("a name");
        assert_eq!(name(&longest), None);
    }
}
