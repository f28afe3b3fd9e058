//! A new configuration for a running gateway: it is checked and prepared completely, then applied;
//! or refused without any change.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use keiro_control::{
    ConfigError,
    config::{AppIndex, Config, ConfigDiff, Found, Local, Name, PeerOrigin},
    key,
    protocol::{DownReason, ErrorCode, ErrorResponse, EventKind},
};
use keiro_core::{AppId, PrivateKey};
use keiro_planning::{PlanMode, PlannerConfig, PlannerInput, PlanningProblem};
use sd_notify::NotifyState;

use crate::{
    core_config::{aggregation, scheduler},
    data::{
        self,
        command::{Command, DataThreadGone},
    },
    gateway::{Gateway, notify},
    message_tls,
    path_ids::PeerPath,
    running_config::{self, Applied, Preference, Preferences, Rename, Renamed, app_id},
    start::load,
    track_uplinks::look,
    uplinks::{Network, found_interfaces, withheld},
};

/// The result of a reload.
#[derive(Debug)]
pub(crate) struct Reloaded {
    pub(crate) changes: Box<ConfigDiff>,
    /// What waits for a restart, of this reload or an earlier one.
    pub(crate) needs_restart: Vec<String>,
    /// Addresses, routes and devices that tenants lack.
    pub(crate) problems: Vec<String>,
    /// Those of [`Config::warnings`].
    pub(crate) warnings: Vec<String>,
}

impl Gateway {
    pub(crate) fn reload_on_signal(&mut self) {
        // Published, logged and counted inside; a signal gets no answer.
        let _ = self.reload();
    }

    /// Reads the configuration file again. A bad one changes nothing.
    ///
    /// # Errors
    /// Why the new configuration is not in force.
    pub(crate) fn reload(&mut self) -> Result<Reloaded, ErrorResponse> {
        match NotifyState::monotonic_usec_now() {
            Ok(time) => notify(&[NotifyState::Reloading, time]),
            Err(error) => tracing::debug!(%error, "reload: no time for the service manager"),
        }
        let result = self.try_reload();
        match &result {
            Ok(reloaded) => {
                self.counts.reloads_accepted += 1;
                self.config_file.rejected = None;
                let changes = reloaded.changes.clone();
                for line in &reloaded.needs_restart {
                    tracing::warn!("reload: {line}");
                }
                for problem in &reloaded.problems {
                    tracing::error!("{problem}");
                }
                self.publish(EventKind::Reloaded { changes });
                self.publish_device_events();
            }
            Err((error, problems, first)) => {
                self.counts.reloads_rejected += 1;
                self.config_file.rejected = Some(format!("{error:#}"));
                if *problems > 1 {
                    tracing::error!("the new configuration's problems:\n{error:#}");
                }
                self.publish(EventKind::ConfigRejected {
                    problems: *problems,
                    first: first.clone(),
                });
            }
        }
        notify(&[NotifyState::Ready, NotifyState::Status(&self.status_line())]);
        result.map_err(|(error, _, _)| {
            let hint =
                "correct the file and reload again; `keiro config check` checks it beforehand";
            ErrorResponse::new(ErrorCode::ConfigRejected, format!("{error:#}"), hint)
        })
    }

    fn try_reload(&mut self) -> Result<Reloaded, (anyhow::Error, u64, String)> {
        let one = |error: anyhow::Error| {
            let first = format!("{error:#}");
            (error, 1, first)
        };
        if self.draining {
            return Err(one(anyhow::anyhow!("the gateway is stopping")));
        }
        let sites = self.sites.prepare(self.read_file()?).map_err(rejected)?;
        let written = sites.config();
        for warning in written.warnings() {
            tracing::warn!("{warning}");
        }
        self.refuse_own_key(&written).map_err(one)?;
        let machine = look(self.network.as_mut(), &written);
        let machine = machine.map_err(|problem| one(anyhow::anyhow!("{problem}")))?;
        // What has changed for paths that stay is still to be followed.
        if let Some(network) = &mut self.network {
            network.request();
        }
        let found = Found {
            interfaces: found_interfaces(&written, &machine, &[]),
            withheld: withheld(&written, &machine, &self.found.hosts),
            ..self.found.of_config(&written)
        };
        let reloaded = self.adopt(&written, &found, &machine).map_err(one)?;
        self.written = written;
        self.found = found;
        self.sites.take(sites);
        self.host_names.apply_config(&self.written);
        self.apply_host_names();
        self.config_file.loaded = SystemTime::now();
        Ok(reloaded)
    }

    /// Lets the configuration follow what was found since it was applied. Where that fails, all stays as it is.
    pub(crate) fn apply_found(&mut self, machine: &Network) -> Result<(), DataThreadGone> {
        self.followed = self.found.clone();
        if self.draining {
            return Ok(());
        }
        let (written, found) = (self.written.clone(), self.found.clone());
        match self.adopt(&written, &found, machine) {
            Ok(Reloaded { changes, .. }) => {
                tracing::info!("paths follow what was found: {changes}");
            }
            Err(error) => tracing::error!("paths stay as they are: {error:#}"),
        }
        Ok(())
    }

    /// # Errors
    /// A peer has this gateway's own key.
    pub(crate) fn refuse_own_key(&self, config: &Config) -> anyhow::Result<()> {
        let own = self.process.public_key;
        match config.peers.iter().find(|peer| peer.public_key == own) {
            Some(peer) => Err(anyhow::anyhow!(
                "peer `{}` has this gateway's own public key",
                peer.name
            )),
            None => Ok(()),
        }
    }

    /// Applies a configuration, which is as in its file, with what was found on a machine like this.
    pub(crate) fn adopt(
        &mut self,
        written: &Config,
        found: &Found,
        machine: &Network,
    ) -> anyhow::Result<Reloaded> {
        let config = written.resolved(found);
        let prepared = running_config::prepare(&config, &self.running_config, machine.clone())?;
        let devices = self.tenants.prepare(&config)?;
        let message_tls = message_tls::settings(&config)?;
        let changes = Box::new(self.config.diff(&config));
        let known: BTreeSet<Local> = self.running_config.locals().cloned().collect();
        let is_own_key = self.is_own_key(&config);
        self.config_file.running.apply_config(&config, is_own_key);
        let warnings = config.warnings().iter().map(ToString::to_string).collect();
        let never_up = self.direct_sessions_that_are_down();
        self.config = config;
        self.planning.config = PlannerConfig::of(&self.config);
        self.followed = found.clone();
        self.running_config.assign_path_ids(&self.config);
        self.note_budgets()?;
        self.update_others();
        // Its indices are those of the old one.
        self.planning.input = PlannerInput::default();
        let scheduler = Command::SetScheduler(scheduler(&self.config));
        self.data.send(scheduler)?;
        let probes = Command::SetProbeShare(self.config.gateway.probe_share);
        self.data.send(probes)?;
        // Unchanged it would reset the aggregation controllers.
        if changes.gateway.iter().any(|key| key == "aggregation") {
            let gathers = Command::SetAggregation(Box::new(aggregation(&self.config)));
            self.data.send(gathers)?;
        }
        let problem = PlanningProblem::new(&self.planning.config, &self.planning.input);
        self.planning.plan = problem.answer(
            PlanMode::FromScratch,
            self.planning.steering.forecast_state(),
        );
        // Until the next plan, the present path of each application comes first.
        let preferences = self.preferences_of_now(&changes);
        let applied = self
            .running_config
            .apply(&self.config, prepared, &preferences, &self.data);
        let Applied { removed, renamed } = applied?;
        // First what is gone: another site may have got its name.
        for peer in removed {
            self.status.forget_peer(&peer);
            if never_up.contains(&peer) {
                continue;
            }
            let reason = DownReason::Removed;
            self.publish(EventKind::PeerDown { peer, reason });
        }
        self.follow_names(&renamed);
        self.tenants
            .apply(&self.config, devices, &self.running_config, &self.data)?;
        let refused = self.tenants.install(&self.config).into_iter();
        self.tenants.update_exits(&self.config, &self.data)?;
        let refused = refused.map(|line| format!("{line}; the gateway tries again every second"));
        let problems = refused.chain(self.tenants.problems(&self.config)).collect();
        if let Some(server) = &self.message_tls {
            server.apply_settings(message_tls);
        }
        self.reconcile_config();
        self.publish_missing_uplinks(&known);
        self.publish_withheld();
        self.site.forget_before_start();
        self.replan()?;
        Ok(Reloaded {
            changes,
            needs_restart: self.config_file.running.pending().to_vec(),
            problems,
            warnings,
        })
    }

    /// What is known by name follows peers and applications that have another one.
    fn follow_names(&mut self, renamed: &Renamed) {
        if renamed.is_empty() {
            return;
        }
        self.status.rename(renamed);
        self.planning.steering.rename(renamed);
        self.history.rename(renamed);
        for Rename { before, now } in &renamed.peers {
            self.publish(EventKind::PeerRenamed {
                peer: now.clone(),
                before: before.clone(),
            });
        }
    }

    /// Names of sites to which there is a direct session that is not up; that it goes is no event.
    fn direct_sessions_that_are_down(&self) -> BTreeSet<String> {
        let peers = self.config.peers.iter();
        let down =
            peers.filter(|peer| peer.origin == PeerOrigin::Direct && !self.is_peer_up(&peer.name));
        down.map(|peer| peer.name.to_string()).collect()
    }

    /// The configuration that the file has now.
    fn read_file(&self) -> Result<Config, (anyhow::Error, u64, String)> {
        load(&self.config_file.path, self.config_file.controller).map_err(rejected)
    }

    /// The preferences of the plan, with the present path of each unchanged application first.
    fn preferences_of_now(&self, changes: &ConfigDiff) -> Preferences {
        let mut preferences = self.preferences();
        let Ok(snapshot) = self.data.snapshot() else {
            return preferences;
        };
        let of_config: BTreeMap<AppId, AppIndex> = (self.config.apps.iter().enumerate())
            .map(|(number, app)| (app_id(app), AppIndex(number)))
            .collect();
        let has_changed = |app: AppIndex| {
            let name = self.config[app].name.as_str();
            changes.apps.changed.iter().any(|changed| changed == name)
        };
        for session in snapshot.sessions.values() {
            for app in &session.apps {
                let known = self.running_config.app_name(session.peer, app.id);
                let index = known.and_then(|_| of_config.get(&app.id).copied());
                let index = index.filter(|index| !has_changed(*index));
                let path = app
                    .path
                    .and_then(|path| self.running_config.path_ids().index(path));
                if let (Some(index), Some(path)) = (index, path)
                    && let Some(Preference { paths, .. }) = preferences.get_mut(&index)
                {
                    paths.retain(|other| *other != path);
                    paths.insert(0, path);
                }
            }
        }
        preferences
    }

    /// The private key file of `config` holds the key in use.
    fn is_own_key(&self, config: &Config) -> bool {
        key::load_private_key(&config.gateway.private_key_file).is_ok_and(|private| {
            let private = PrivateKey::from_bytes(*private.as_bytes());
            private.public_key().as_bytes() == self.process.public_key.as_bytes()
        })
    }

    /// Lets the state that outlives a configuration follow the one that was just applied.
    pub(crate) fn reconcile_config(&mut self) {
        let peers: Vec<String> = names(&self.config.peers, |peer| &peer.name);
        let apps: Vec<String> = names(&self.config.apps, |app| &app.name);
        let ids: BTreeSet<AppId> = self.config.apps.iter().map(app_id).collect();
        let path_ids = self.running_config.path_ids();
        let to_peer = |peer| path_ids.iter().map(move |path| PeerPath::new(peer, path));
        let paths: Vec<PeerPath> = self.running_config.peer_ids().flat_map(to_peer).collect();
        self.status.apply_config(data::now(), &peers, &paths, &apps);
        let of_apps = (&ids, &apps[..]);
        self.planning
            .steering
            .apply_config(&paths, of_apps, path_ids);
        self.budgets.retain_paths(&paths);
        self.planning
            .operator_paths
            .retain(|app, path| ids.contains(app) && path_ids.index(*path).is_some());
    }
}

/// A configuration with problems, their number and the first.
fn rejected(error: ConfigError) -> (anyhow::Error, u64, String) {
    let problems = error.problems();
    let first = problems.first().map(ToString::to_string);
    let count = problems.len() as u64;
    (error.into(), count, first.unwrap_or_default())
}

fn names<T>(items: &[T], name: impl Fn(&T) -> &Name) -> Vec<String> {
    items.iter().map(|item| name(item).to_string()).collect()
}
