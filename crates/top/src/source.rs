//! Asks the gateway: one thread for snapshots and explanations, one for events. Both connect again after a failure.

use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender},
    thread,
    time::{Duration, Instant, SystemTime},
};

use keiro_control::protocol::{
    Explanation, Request, Response, TenantSnapshot,
    client::{Client, ClientError},
};

use crate::data::{Rates, Snapshot, Update};

/// How long the gateway may take for one answer before the view says so. Ours: planning for the largest
/// configuration takes less than a second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause before a failed connection is made again. Ours.
const RETRY: Duration = Duration::from_secs(1);
/// Updates that wait for the view. Beyond, events wait in the socket and then at the gateway, which counts what it
/// drops. Ours.
const UPDATES_MAX: usize = 4096;

/// What the view exchanges with the threads, which end when it is dropped.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) updates: Receiver<Update>,
    questions: SyncSender<Option<String>>,
}

impl Source {
    pub(crate) fn start(socket: &Path, interval: Duration) -> io::Result<Self> {
        let (sender, updates) = mpsc::sync_channel(UPDATES_MAX);
        let (questions, asked) = mpsc::sync_channel(1);
        let asker = Asker {
            socket: socket.to_owned(),
            interval,
            updates: sender.clone(),
            questions: asked,
            subject: None,
            before: None,
        };
        let listener = socket.to_owned();
        thread::Builder::new()
            .name("snapshots".to_owned())
            .spawn(move || asker.run())?;
        thread::Builder::new()
            .name("events".to_owned())
            .spawn(move || listen(&listener, &sender))?;
        Ok(Self { updates, questions })
    }

    /// From now on this application is explained with every snapshot, and at once; `None`: none is. `false`: the
    /// gateway is busy with another question, ask later.
    pub(crate) fn explain(&self, app: Option<String>) -> bool {
        self.questions.try_send(app).is_ok()
    }
}

struct Asker {
    socket: PathBuf,
    interval: Duration,
    updates: SyncSender<Update>,
    questions: Receiver<Option<String>>,
    /// The application that is explained.
    subject: Option<String>,
    before: Option<Snapshot>,
}

/// The view has gone.
struct Gone;

impl Asker {
    fn run(mut self) {
        loop {
            let why = match connect(&self.socket) {
                Ok(client) => match self.serve(client) {
                    Ok(error) => error,
                    Err(Gone) => return,
                },
                Err(error) => unreachable_text(&self.socket, &error),
            };
            if self.updates.send(Update::Lost(why)).is_err() {
                return;
            }
            self.before = None;
            if self.wait(RETRY).is_err() {
                return;
            }
        }
    }

    /// Asks until the gateway fails to answer, and gives the reason.
    fn serve(&mut self, mut client: Client<UnixStream>) -> Result<String, Gone> {
        loop {
            match self.snapshot(&mut client) {
                Ok(snapshot) => {
                    let snapshot = snapshot.since(self.before.as_ref());
                    self.before = Some(snapshot.clone());
                    self.send(Update::Snapshot(Box::new(snapshot)))?;
                }
                Err(error) => return Ok(error_text(&error)),
            }
            let mut left = self.interval;
            loop {
                if let Err(error) = self.explain(&mut client)? {
                    return Ok(error_text(&error));
                }
                let begun = Instant::now();
                if !self.wait(left)? {
                    break;
                }
                left = left.saturating_sub(begun.elapsed());
            }
        }
    }

    fn snapshot(&self, client: &mut Client<UnixStream>) -> Result<Snapshot, ClientError> {
        let Response::Status(status) = client.request(&Request::Status {})? else {
            return Err(unexpected());
        };
        let Response::Paths { paths } = client.request(&Request::ShowPath { name: None })? else {
            return Err(unexpected());
        };
        let Response::Apps { apps } = client.request(&Request::ShowApp { name: None })? else {
            return Err(unexpected());
        };
        let tenants = tenants(client)?;
        Ok(Snapshot {
            taken: SystemTime::now(),
            status: *status,
            paths,
            apps,
            tenants,
            rates: Rates::default(),
        })
    }

    /// Asks why the subject is where it is, if there is one.
    fn explain(&self, client: &mut Client<UnixStream>) -> Result<Result<(), ClientError>, Gone> {
        let Some(app) = &self.subject else {
            return Ok(Ok(()));
        };
        let answer: Result<Box<Explanation>, String> =
            match client.request(&Request::Explain { app: app.clone() }) {
                Ok(Response::Explanation(explanation)) => Ok(explanation),
                Ok(_) => return Ok(Err(unexpected())),
                Err(ClientError::Refused(error)) => Err(error.to_string()),
                Err(error) => return Ok(Err(error)),
            };
        self.send(Update::Explanation(app.clone(), answer))?;
        Ok(Ok(()))
    }

    /// Waits; `true`: there is another subject before the time is over.
    fn wait(&mut self, time: Duration) -> Result<bool, Gone> {
        match self.questions.recv_timeout(time) {
            Ok(subject) => {
                self.subject = subject;
                Ok(true)
            }
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Err(RecvTimeoutError::Disconnected) => Err(Gone),
        }
    }

    fn send(&self, update: Update) -> Result<(), Gone> {
        self.updates.send(update).map_err(|_| Gone)
    }
}

/// A gateway that refuses the question has none.
fn tenants(client: &mut Client<UnixStream>) -> Result<Vec<TenantSnapshot>, ClientError> {
    match client.request(&Request::ShowTenant { name: None }) {
        Ok(Response::Tenants { tenants }) => Ok(tenants),
        Err(ClientError::Refused(_)) => Ok(Vec::new()),
        Ok(_) => Err(unexpected()),
        Err(error) => Err(error),
    }
}

/// Passes events on until the view has gone.
fn listen(socket: &Path, updates: &SyncSender<Update>) {
    loop {
        // That it fails is what the snapshots say.
        if let Ok(client) = connect(socket)
            && follow(client, updates).is_err()
        {
            return;
        }
        thread::sleep(RETRY);
    }
}

/// Until the gateway closes the connection.
fn follow(mut client: Client<UnixStream>, updates: &SyncSender<Update>) -> Result<(), Gone> {
    if !matches!(
        client.request(&Request::Monitor {}),
        Ok(Response::Monitoring {})
    ) {
        return Ok(());
    }
    loop {
        match client.next_event() {
            Ok(event) => updates
                .send(Update::Event(Box::new(event)))
                .map_err(|_| Gone)?,
            // Nothing has happened for a while.
            Err(ClientError::Io(error)) if is_timeout(&error) => {}
            Err(_) => return Ok(()),
        }
    }
}

fn connect(socket: &Path) -> io::Result<Client<UnixStream>> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(Client::new(stream))
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn unexpected() -> ClientError {
    let error =
        io::Error::other("it answered something else than was asked; are both of one version?");
    ClientError::Io(error)
}

fn unreachable_text(socket: &Path, error: &io::Error) -> String {
    let socket = socket.display();
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("no gateway is running at {socket}")
        }
        _ => format!("{socket}: {error}"),
    }
}

fn error_text(error: &ClientError) -> String {
    match error {
        ClientError::Closed => "the gateway has stopped".to_owned(),
        ClientError::Io(error) if is_timeout(error) => {
            format!("nothing came within {} s", ANSWER_TIMEOUT.as_secs())
        }
        error => error.to_string(),
    }
}
