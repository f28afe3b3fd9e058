//! Starting a gateway: reads the configuration, opens what it asks for, starts the data thread, and
//! gives privileges up.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::unix::net::UnixListener,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant as Stopwatch, SystemTime},
};

use anyhow::{Context, bail};
use keiro_control::{
    ConfigError,
    config::{self, Config, Found},
    key,
    protocol::EventKind,
};
use keiro_core::{Endpoint, EndpointConfig, PrivateKey};
use keiro_linux::{
    clock,
    epoll::{Epoll, Interest, Waker},
    metrics_server::MetricsServer,
    privilege::RunAs,
    realtime, unix,
};
use keiro_model::aggregation::ControllerKind;
use keiro_planning::{
    PlanMode, PlannerConfig, PlannerInput, PlanningProblem, forecast::ForecastState,
};

use crate::{
    budgets::Budgets,
    control_server::ControlServer,
    core_config::{aggregation, scheduler},
    data::{
        self, DataOptions, DataThread,
        command::{Command, DataHandle, DataThreadGone},
        drops::SystemDrops,
        messages::Listener,
        report::Reporter,
    },
    endpoints::HostNames,
    epoll_token as token,
    event_log::EventLog,
    gateway::{ConfigFile, Counts, DataThreadLink, EventLoop, Gateway, PlanningState, Process},
    handshake_time::HandshakeTime,
    history::HistoryRecorder,
    message_tls::{self, MessageTlsServer},
    options::Options,
    packet_trace::PacketTraces,
    privileges::{self, Privileges},
    random::random,
    recent_events::RecentEvents,
    replan_backoff::Backoff,
    restart_only_settings::RestartOnlySettings,
    running_config::{self, Prepared, RunningConfig},
    site_plan::SitePlanClient,
    sites::Sites,
    socket_files::SocketFiles,
    status::StatusTable,
    steering::Steering,
    tenants::{OpenedDevices, TenantDevices},
    track_uplinks::look,
    trigger::Trigger,
    uplinks::{Network, NetworkWatch, UplinkRoutes, found_interfaces, withheld},
};

/// Default of [`Options::spin`]: covers the median wake-up.
const SPIN_DEFAULT: Duration = Duration::from_micros(30);

impl Gateway {
    /// Reads the configuration and starts everything that it asks for.
    ///
    /// Privileges are kept; [`crate::run`] gives them up.
    ///
    /// # Errors
    /// What keeps the gateway from starting: what is wrong, where, and what to try. Nothing is left
    /// behind then.
    pub fn start(config_path: &Path, options: &Options) -> anyhow::Result<Self> {
        Self::start_with(config_path, options, None)
    }

    /// Gives up privileges before the first thread is started, unless `run_as` is `None`.
    pub(crate) fn start_with(
        config_path: &Path,
        options: &Options,
        run_as: Option<&RunAs>,
    ) -> anyhow::Result<Self> {
        let mut first = FirstConfiguration::read(config_path, options, run_as)?;
        let running_config = RunningConfig::default();
        let prepared =
            running_config::prepare(&first.config, &running_config, first.environment.machine)?;
        let tenants = TenantDevices::default();
        let devices = tenants.prepare(&first.config)?;

        let mut socket_files = SocketFiles::default();
        let sockets = LocalSockets::open(&first.config, &first.epoll, &mut socket_files)?;
        let privileges = match run_as {
            None => Privileges::Kept,
            Some(run_as) => {
                privileges::give_up(config_path, &first.config, run_as, &socket_files)?;
                Privileges::Reduced
            }
        };
        first.environment.host_names.set_privileges(privileges);
        let data = DataPlane::start(&first.config, first.private_key, options, privileges)?;
        let (message_tls, tls_clients) = sockets
            .message_tls
            .map(|opened| MessageTlsServer::start(opened, privileges))
            .transpose()
            .context("message_tls: cannot start")?
            .unzip();
        let network = first.environment.network;
        let wakers = Wakers::open(&first.epoll, &data.link, network.as_ref())?;
        let mut budgets = Budgets::load(&first.config.gateway.state_directory);
        budgets.start_writer(privileges);
        let mut gateway = Self {
            config_file: ConfigFile::new(config_path, options, &first.config),
            process: Process::new(options.version, first.public_key),
            running_config,
            tenants,
            status: StatusTable::default(),
            planning: PlanningState::new(&first.config),
            counts: Counts::default(),
            packet_traces: PacketTraces::default(),
            history: HistoryRecorder::start(
                &first.config,
                options.history_interval,
                &wakers.trigger,
                privileges,
            ),
            budgets,
            site: SitePlanClient::start(&first.config, Arc::clone(&wakers.store), privileges)?,
            host_names: first.environment.host_names,
            network,
            uplink_routes: UplinkRoutes::default(),
            data: data.handle,
            data_thread: data.link,
            message_tls,
            events: EventLoop {
                epoll: first.epoll,
                trigger: wakers.trigger,
                store_wake: wakers.store,
                control_server: Some(sockets.control),
                metrics_server: sockets.metrics,
                deferred: Vec::new(),
                control_clients: 0,
                log: EventLog::default(),
                recent: RecentEvents::default(),
                _socket_files: socket_files,
            },
            draining: false,
            drained: false,
            withheld: Vec::new(),
            config: first.config,
            written: first.written,
            sites: first.sites,
            followed: first.environment.found.clone(),
            found: first.environment.found,
        };
        gateway.apply_first_configuration(prepared, devices)?;
        let listeners = sockets.messages.into_iter();
        gateway.announce_start(listeners.chain(tls_clients.map(Listener::Tls)))?;
        Ok(gateway)
    }

    fn apply_first_configuration(
        &mut self,
        prepared: Prepared,
        devices: OpenedDevices,
    ) -> anyhow::Result<()> {
        self.running_config.assign_path_ids(&self.config);
        self.note_budgets()?;
        self.await_previous_plan()?;
        let preferences = self.preferences();
        self.running_config
            .apply(&self.config, prepared, &preferences, &self.data)?;
        self.reconcile_config();
        self.publish_missing_uplinks(&BTreeSet::new());
        self.tenants
            .apply(&self.config, devices, &self.running_config, &self.data)?;
        let problems = self.tenants.install(&self.config);
        anyhow::ensure!(problems.is_empty(), problems.join("\n"));
        self.tenants.update_exits(&self.config, &self.data)?;
        self.tenants.on_started();
        Ok(())
    }

    /// Lets local clients in and reports the start.
    fn announce_start(
        &mut self,
        listeners: impl Iterator<Item = Listener>,
    ) -> Result<(), DataThreadGone> {
        for listener in listeners {
            self.data.send(Command::AddMessageListener(listener))?;
        }
        self.host_names.ask();
        self.publish(EventKind::Started {
            version: self.process.version.to_owned(),
        });
        self.publish_withheld();
        Ok(())
    }
}

impl ConfigFile {
    fn new(path: &Path, options: &Options, config: &Config) -> Self {
        Self {
            path: path.to_owned(),
            controller: options.controller,
            loaded: SystemTime::now(),
            rejected: None,
            running: RestartOnlySettings::new(config),
        }
    }
}

impl Process {
    fn new(version: &'static str, public_key: key::PublicKey) -> Self {
        Self {
            version,
            public_key,
            started: SystemTime::now(),
            uptime: Stopwatch::now(),
        }
    }
}

impl PlanningState {
    /// The plan before anything is measured.
    fn new(config: &Config) -> Self {
        let input = PlannerInput::default();
        let config = PlannerConfig::of(config);
        let problem = PlanningProblem::new(&config, &input);
        Self {
            plan: problem.answer(PlanMode::FromScratch, &ForecastState::default()),
            input,
            steering: Steering::default(),
            config,
            operator_paths: BTreeMap::new(),
            backoff: Backoff::default(),
            needs_replan: false,
        }
    }
}

/// The configuration of a start, and what it was made from.
struct FirstConfiguration {
    sites: Sites,
    /// As written, with the sites of the network.
    written: Config,
    /// As resolved with `environment`.
    config: Config,
    private_key: PrivateKey,
    public_key: key::PublicKey,
    epoll: Arc<Epoll>,
    environment: Environment,
}

impl FirstConfiguration {
    fn read(config_path: &Path, options: &Options, run_as: Option<&RunAs>) -> anyhow::Result<Self> {
        let of_file = load(config_path, options.controller)?;
        let sites = Sites::load(of_file, SystemTime::now())?;
        let written = sites.config();
        for warning in written.warnings() {
            tracing::warn!("{warning}");
        }
        let (private_key, public_key) = own_keys(&written)?;
        if let Some(run_as) = run_as {
            privileges::prepare_directories(&written, run_as);
        }
        let epoll = Arc::new(Epoll::new().context("epoll")?);
        let environment = Environment::find(&written, &epoll)?;
        let config = written.resolved(&environment.found);
        if let Some(note) = config.unit_note() {
            tracing::info!("{note}");
        }
        Ok(Self {
            sites,
            written,
            config,
            private_key,
            public_key,
            epoll,
            environment,
        })
    }
}

/// What the configuration depends on outside of its file: interfaces, addresses, host names.
struct Environment {
    /// `None`: the kernel does not report changes.
    network: Option<NetworkWatch>,
    machine: Network,
    host_names: HostNames,
    found: Found,
}

impl Environment {
    fn find(written: &Config, epoll: &Arc<Epoll>) -> anyhow::Result<Self> {
        let mut network = NetworkWatch::open()
            .inspect_err(
                |error| tracing::warn!(%error, "interfaces and addresses are not followed"),
            )
            .ok();
        let machine =
            look(network.as_mut(), written).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        let host_names = HostNames::new(written, epoll).context("eventfd")?;
        let hosts = host_names.addresses();
        let found = Found {
            interfaces: found_interfaces(written, &machine, &[]),
            withheld: withheld(written, &machine, &hosts),
            hosts,
            ..Found::default()
        };
        // What the paths need beside their sockets follows when they are open.
        if let Some(network) = &mut network {
            network.request();
        }
        Ok(Self {
            network,
            machine,
            host_names,
            found,
        })
    }
}

/// What wakes the control thread, known to its epoll.
struct Wakers {
    trigger: Arc<Trigger>,
    store: Arc<Waker>,
}

impl Wakers {
    fn open(
        epoll: &Epoll,
        data: &DataThreadLink,
        network: Option<&NetworkWatch>,
    ) -> anyhow::Result<Self> {
        let trigger = Arc::new(Trigger {
            wake: Waker::new().context("eventfd")?,
            stop: AtomicBool::new(false),
            reload: AtomicBool::new(false),
        });
        let store = Arc::new(Waker::new().context("eventfd")?);
        epoll.add(&*data.wake, token::REPORTS, Interest::Read)?;
        epoll.add(&trigger.wake, token::TRIGGER, Interest::Read)?;
        epoll.add(&*store, token::STORE, Interest::Read)?;
        if let Some(watch) = network.and_then(NetworkWatch::descriptor) {
            epoll.add(watch, token::NETWORK, Interest::Read)?;
        }
        Ok(Self { trigger, store })
    }
}

/// The data thread and the control thread's ends of its queues.
struct DataPlane {
    handle: DataHandle,
    link: DataThreadLink,
}

impl DataPlane {
    fn start(
        config: &Config,
        private_key: PrivateKey,
        options: &Options,
        privileges: Privileges,
    ) -> anyhow::Result<Self> {
        let mut endpoint_config = EndpointConfig::new(private_key);
        endpoint_config.scheduler = scheduler(config);
        endpoint_config.probe_share = config.gateway.probe_share;
        endpoint_config.aggregation = aggregation(config);
        // The configuration has the limit.
        endpoint_config.tenants_max = config::CONFIG_ENTRIES_MAX;
        let unix_time_at_zero = clock::unix_time().saturating_sub(clock::monotonic());
        let handshake_time = HandshakeTime::start(
            &config.gateway.state_directory,
            unix_time_at_zero,
            privileges,
        );
        endpoint_config.unix_time_at_zero = unix_time_at_zero;
        endpoint_config.handshake_time_floor = handshake_time.floor;
        let mut endpoint = Endpoint::new(data::now(), endpoint_config, random()?);
        endpoint.mix_entropy(&random()?);

        let wake = Arc::new(Waker::new().context("eventfd")?);
        let report_wake = Arc::new(Waker::new().context("eventfd")?);
        let (handle, commands) = DataHandle::new(Arc::clone(&wake));
        let (reporter, reports) = Reporter::new(Arc::clone(&report_wake));
        let data_options = DataOptions {
            spin: options.spin.unwrap_or(SPIN_DEFAULT),
            first_flow: u32::from_be_bytes(random()?),
            flow_seed: random()?,
            drops: SystemDrops::start(privileges),
        };
        if let Some(cpu) = options.cpu {
            check_cpu(cpu)?;
        }
        let thread_options = *options;
        // Created in the thread: the message socket's queues are not shared between threads.
        let thread = thread::Builder::new()
            .name("data".into())
            .spawn(move || {
                prepare_thread(&thread_options, privileges);
                match DataThread::new(endpoint, commands, wake, reporter, data_options) {
                    Ok(thread) => thread.run(),
                    Err(error) => tracing::error!(%error, "the data thread cannot start"),
                }
            })
            .context("cannot start a thread")?;
        Ok(Self {
            handle,
            link: DataThreadLink {
                reports,
                reports_lost: 0,
                wake: report_wake,
                join: Some(thread),
                _handshake_time: handshake_time,
            },
        })
    }
}

/// Reads the configuration; `controller` as in [`Options`].
pub(crate) fn load(path: &Path, controller: Option<ControllerKind>) -> Result<Config, ConfigError> {
    let mut config = Config::load(path)?;
    if let Some(controller) = controller {
        config.aggregation.controller = controller;
    }
    Ok(config)
}

/// This gateway's keys, unless a peer has the same public key.
fn own_keys(config: &Config) -> anyhow::Result<(PrivateKey, key::PublicKey)> {
    let private_key = key::load_private_key(&config.gateway.private_key_file)?;
    let private_key = PrivateKey::from_bytes(*private_key.as_bytes());
    let public_key = key::PublicKey::from_bytes(*private_key.public_key().as_bytes());
    if let Some(peer) = config
        .peers
        .iter()
        .find(|peer| peer.public_key == public_key)
    {
        bail!(
            "{}: peer `{}` has this gateway's own public key; write the peer's",
            config.file(),
            peer.name
        );
    }
    Ok((private_key, public_key))
}

/// Listeners for local programs.
struct LocalSockets {
    control: ControlServer,
    metrics: Option<MetricsServer>,
    messages: Vec<Listener>,
    message_tls: Option<message_tls::Opened>,
}

impl LocalSockets {
    fn open(config: &Config, epoll: &Epoll, files: &mut SocketFiles) -> anyhow::Result<Self> {
        let gateway = &config.gateway;
        let group = gateway.socket_group.as_deref();
        let mut opened = |path: &Path, listener: Result<UnixListener, unix::ListenError>| {
            let listener = listener?;
            files.add(path);
            Ok::<_, unix::ListenError>(listener)
        };
        let path = &gateway.control_socket;
        let control = opened(path, unix::listen(path, group))
            .with_context(|| format!("{}: control_socket", config.file()))?;
        let path = gateway.control_socket.clone();
        let mut control = ControlServer::new(epoll, control, path, token::CONTROL)?;
        let readonly = opened(&gateway.readonly_socket, listen_readonly(gateway))
            .with_context(|| format!("{}: readonly_socket", config.file()))?;
        let path = gateway.readonly_socket.clone();
        control.listen_readonly(epoll, readonly, path, token::CONTROL_READONLY)?;
        let mut messages = Vec::new();
        if let Some(path) = &gateway.message_socket {
            let listener = opened(path, unix::listen(path, group))
                .with_context(|| format!("{}: message_socket", config.file()))?;
            let path = path.clone();
            messages.push(Listener::Unix { listener, path });
        }
        if let Some(address) = gateway.message_tcp {
            let listener = std::net::TcpListener::bind(address).with_context(|| {
                format!(
                    "{}: message_tcp: cannot listen on {address}; is the port in use? (`ss -tlnp`)",
                    config.file()
                )
            })?;
            listener.set_nonblocking(true)?;
            messages.push(Listener::Tcp(listener));
        }
        let metrics = gateway.metrics.map(|address| -> anyhow::Result<_> {
            let listener = MetricsServer::bind(address).with_context(|| {
                format!(
                    "{}: metrics: cannot listen on {address}; is the port in use? (`ss -tlnp`)",
                    config.file()
                )
            })?;
            Ok(MetricsServer::new(epoll, listener, token::METRICS)?)
        });
        Ok(Self {
            control,
            metrics: metrics.transpose()?,
            messages,
            message_tls: message_tls::open(config)?,
        })
    }
}

/// The socket for programs that may only look. Where no group is configured and this process may not give it to the
/// default one, it is for those who may use the other sockets too.
fn listen_readonly(gateway: &config::Gateway) -> Result<UnixListener, unix::ListenError> {
    let path = &gateway.readonly_socket;
    if let Some(group) = &gateway.readonly_group {
        return unix::listen(path, Some(group));
    }
    match unix::listen(path, Some(config::READONLY_GROUP)) {
        Err(unix::ListenError::NoSuchGroup { .. } | unix::ListenError::Group { .. }) => {
            unix::listen(path, gateway.socket_group.as_deref())
        }
        listener => listener,
    }
}

/// Tries to pin a thread to the processor, in a thread made for that.
fn check_cpu(cpu: usize) -> anyhow::Result<()> {
    let tried = thread::spawn(move || realtime::pin_to_cpu(cpu)).join();
    match tried {
        Ok(Err(error)) => {
            let hint = "processors are counted from 0, and a process may use those that `taskset -p` shows";
            Err(error).with_context(|| format!("cannot keep to processor {cpu}; {hint}"))
        }
        _ => Ok(()),
    }
}

/// What the data thread does before it begins.
fn prepare_thread(options: &Options, privileges: Privileges) {
    if let Some(cpu) = options.cpu
        && let Err(error) = realtime::pin_to_cpu(cpu)
    {
        tracing::warn!(%error, cpu, "the data thread keeps to no processor");
    }
    if let Err(error) = realtime::set_timer_slack(Duration::from_nanos(1)) {
        tracing::warn!(%error, "cannot set the timer slack; pacing is less precise");
    }
    if let Some(priority) = options.realtime_priority {
        let scheduled = match realtime::FifoPriority::new(priority) {
            Some(priority) => realtime::schedule_fifo(priority),
            None => Err(io::Error::other("a priority is 1 to 99")),
        };
        if let Err(error) = scheduled {
            tracing::warn!(
                %error,
                "no real-time priority for the data thread; it needs CAP_SYS_NICE or LimitRTPRIO="
            );
        }
    }
    if let Err(error) = privileges.drop_in_thread() {
        tracing::warn!(%error, "the data thread keeps its privileges");
    }
}
