//! Follows a gateway's events and gives them to the hooks, each of which has a queue and a thread.

use std::{
    io,
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

use keiro_control::protocol::{
    EventKind, Request, Response,
    client::{Client, ClientError},
};
use keiro_terminal::output::message;

use crate::{
    config::{GATEWAY_ANSWERS, GATEWAY_GONE, Hook},
    deliver::{DeliverError, deliver},
    limit::Limit,
    occurrence::Occurrence,
};

/// Events that wait for one hook; further ones are counted. Ours.
const QUEUE_MAX: usize = 256;
/// How long a webhook that does not answer is tried again: the way to it may be what is down. Ours.
const KEPT_FOR: Duration = Duration::from_secs(3600);
/// Pauses between two attempts, the first and the longest. Ours.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Pause before a gateway that has gone is looked for again. Ours.
const RETRY: Duration = Duration::from_secs(1);
/// How often what was lost is reported. Ours.
const REPORTED_EVERY: Duration = Duration::from_secs(60);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The hooks with their queues.
pub struct Dispatch {
    queues: Vec<Queue>,
    reported_at: Instant,
}

struct Queue {
    hook: Arc<Hook>,
    sender: SyncSender<Occurrence>,
    limit: Limit,
    /// Events that were not passed on since the last one that was.
    lost: u64,
    counts: Arc<Counts>,
    /// What was reported of them.
    reported: [u64; 2],
}

/// What has become of a hook's events since the start.
#[derive(Debug, Default)]
struct Counts {
    lost: AtomicU64,
    failed: AtomicU64,
}

impl Dispatch {
    /// Starts a thread for each hook.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(hooks: Vec<Hook>) -> io::Result<Self> {
        let now = Instant::now();
        let queues = hooks.into_iter().map(|hook| Queue::start(now, hook));
        Ok(Self {
            queues: queues.collect::<io::Result<_>>()?,
            reported_at: now,
        })
    }

    /// Gives an event to the hooks that want it. Never waits.
    pub fn on_event(&mut self, now: Instant, occurrence: &Occurrence) {
        for queue in &mut self.queues {
            queue.on_event(now, occurrence);
        }
        self.report(now);
    }

    /// Events that found no room, of all hooks since the start.
    pub fn lost(&self) -> u64 {
        let queues = self.queues.iter();
        queues
            .map(|queue| queue.counts.lost.load(Ordering::Relaxed))
            .sum()
    }

    /// Reports what was lost and what failed, at times.
    pub fn report(&mut self, now: Instant) {
        if now.saturating_duration_since(self.reported_at) < REPORTED_EVERY {
            return;
        }
        self.reported_at = now;
        for queue in &mut self.queues {
            let counts = [&queue.counts.lost, &queue.counts.failed]
                .map(|count| count.load(Ordering::Relaxed));
            if counts != queue.reported {
                queue.reported = counts;
                message!(
                    "keiro: hook {}: {} events were not passed on so far, since there were too many, and {} failed",
                    queue.hook.name,
                    counts[0],
                    counts[1]
                );
            }
        }
    }
}

impl Queue {
    fn start(now: Instant, hook: Hook) -> io::Result<Self> {
        let (sender, receiver) = mpsc::sync_channel(QUEUE_MAX);
        let (hook, counts) = (Arc::new(hook), Arc::new(Counts::default()));
        let (of_thread, counted) = (Arc::clone(&hook), Arc::clone(&counts));
        thread::Builder::new()
            .name(format!("hook {}", hook.name))
            .spawn(move || serve(&of_thread, &receiver, &counted))?;
        Ok(Self {
            limit: Limit::new(now, hook.per_minute),
            hook,
            sender,
            lost: 0,
            counts,
            reported: [0; 2],
        })
    }

    fn on_event(&mut self, now: Instant, occurrence: &Occurrence) {
        if !self.hook.wants(&occurrence.event) {
            return;
        }
        let passed = self.limit.take(now) && {
            let lost = self.lost;
            let occurrence = Occurrence {
                lost,
                ..occurrence.clone()
            };
            self.sender.try_send(occurrence).is_ok()
        };
        match passed {
            true => self.lost = 0,
            false => {
                self.lost += 1;
                self.counts.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Delivers what comes, one after the other.
fn serve(hook: &Hook, events: &Receiver<Occurrence>, counts: &Counts) {
    let mut is_failing = false;
    for occurrence in events {
        let outcome = insist(hook, &occurrence);
        if let Err(error) = &outcome {
            counts.failed.fetch_add(1, Ordering::Relaxed);
            // What lasts is in the reports.
            if !is_failing {
                message!("keiro: hook {}: {}: {error}", hook.name, occurrence.event);
            }
        } else if is_failing {
            message!("keiro: hook {} works again", hook.name);
        }
        is_failing = outcome.is_err();
    }
}

/// Delivers it, and again where that may help.
fn insist(hook: &Hook, occurrence: &Occurrence) -> Result<(), DeliverError> {
    let begun = Instant::now();
    let mut pause = PAUSE_MIN;
    loop {
        match deliver(hook, occurrence) {
            Err(error) if error.is_temporary() && begun.elapsed() < KEPT_FOR => {
                thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
            outcome => return outcome,
        }
    }
}

/// Follows the gateway at `socket` for ever. `describe` puts events into words.
pub fn follow(socket: &Path, dispatch: &mut Dispatch, describe: fn(&EventKind) -> String) {
    // A gateway has answered and is away.
    let mut is_gone = false;
    // That it does not answer was said.
    let mut is_said = false;
    loop {
        match open(socket) {
            Ok((mut client, gateway)) => {
                if is_gone {
                    let text = "the gateway answers again";
                    let answers = Occurrence::own(GATEWAY_ANSWERS, &gateway, text);
                    dispatch.on_event(Instant::now(), &answers);
                }
                message!("keiro: following gateway {gateway}");
                let why = pass_on(&mut client, &gateway, dispatch, describe);
                message!("keiro: gateway {gateway}: {why}");
                let text = "the gateway has stopped or closed the connection";
                let gone = Occurrence::own(GATEWAY_GONE, &gateway, text);
                dispatch.on_event(Instant::now(), &gone);
                is_gone = true;
            }
            Err(error) if !is_gone && !is_said => {
                let socket = socket.display();
                message!("keiro: no gateway answers at {socket}: {error}; waiting for one");
                is_said = true;
            }
            Err(_) => {}
        }
        dispatch.report(Instant::now());
        thread::sleep(RETRY);
    }
}

/// Until the connection ends; returns why.
fn pass_on(
    client: &mut Client<UnixStream>,
    gateway: &str,
    dispatch: &mut Dispatch,
    describe: fn(&EventKind) -> String,
) -> ClientError {
    loop {
        match client.next_event() {
            Ok(event) => {
                let text = describe(&event.kind);
                dispatch.on_event(Instant::now(), &Occurrence::of(&event, gateway, text));
            }
            // Nothing has happened for a while.
            Err(ClientError::Io(error)) if is_timeout(&error) => dispatch.report(Instant::now()),
            Err(error) => return error,
        }
    }
}

/// A connection on which events follow, and the gateway's name.
fn open(socket: &Path) -> Result<(Client<UnixStream>, String), ClientError> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    let mut client = Client::new(stream);
    let name = match client.request(&Request::Status {})? {
        Response::Status(status) => status.name,
        _ => String::new(),
    };
    match client.request(&Request::Monitor {})? {
        Response::Monitoring {} => Ok((client, name)),
        _ => Err(ClientError::Io(io::Error::other(
            "it answered something else than was asked",
        ))),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}
