//! `keiro rotate-key`: another static key for the gateway of this machine.
//!
//! The gateway announces the key and uses what the files have; this writes and renames them. Each step leaves one key
//! in the configured file that all peers accept, so that a crash costs no more than running the command again.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::{
        fs::{MetadataExt, OpenOptionsExt, fchown},
        net::UnixStream,
    },
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use keiro_control::{
    Config, PrivateKey,
    config::Membership,
    key::KeyFiles,
    network::Registry,
    protocol::{KeyRotationSnapshot, Request, Response, client::Client},
};

use super::{keys, query};
use crate::{args, failure::Failure, output::message};

const POLL: Duration = Duration::from_millis(200);

pub(super) fn rotate_key(args: &args::RotateKey) -> Result<(), Failure> {
    let config = Config::load(&args.config)?;
    let files = KeyFiles::of(&config.gateway.private_key_file);
    let _lock = lock(&files.key)?;
    let mut gateway = Gateway::connect(&config)?;
    let state = gateway.follow()?;
    if args.finish {
        return finish(&files, &mut gateway, &config);
    }
    let until = Instant::now() + args.timeout.0;
    match (&state.next, &state.previous) {
        (None, None) => {
            let key = keys::random_key()?;
            write_next(&files, &key).map_err(|error| unwritten(&files.next, &error))?;
            message!("made a new key; the peers of this gateway learn of it");
        }
        (Some(_), _) => message!("continuing with the new key that was made before"),
        (None, Some(_)) => message!("the new key is in use; waiting until all peers use it"),
    }
    if files.next.exists() {
        gateway.wait(until).map_err(|waits_for| {
            waits_for.or_else_failure(|names| {
                Failure::new(format!(
                    "the new key is not in use yet: {names} has not accepted it"
                ))
                .hint(
                    "nothing has changed; run the command again when `keiro show peer` shows it up",
                )
            })
        })?;
        put_in_use(&files).map_err(|error| unwritten(&files.key, &error))?;
    }
    gateway.wait(until).map_err(|waits_for| {
        waits_for.or_else_failure(|names| {
            Failure::new(format!(
                "the new key is in use, and the one before is still accepted: {names} has not used the new one"
            ))
            .hint("run the command again when `keiro show peer` shows it up")
            .hint("`keiro rotate-key --finish` refuses the key before at once; who has not heard of the new one is then cut off")
        })
    })?;
    finish(&files, &mut gateway, &config)
}

/// Removes the key before.
fn finish(files: &KeyFiles, gateway: &mut Gateway, config: &Config) -> Result<(), Failure> {
    if files.next.exists() {
        return Err(Failure::new("the new key is not in use yet").hint(format!(
            "`keiro rotate-key` goes on with it; removing {} gives it up",
            files.next.display()
        )));
    }
    match fs::remove_file(&files.previous) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(unwritten(&files.previous, &error));
        }
        _ => {}
    }
    let state = gateway.follow()?;
    message!("the key of this gateway is {}", state.public_key);
    message!("the one before is refused");
    if let Some(Membership::Hub(hub)) = &config.network
        && let Ok(registry) = Registry::load(&hub.registry)
    {
        let now = SystemTime::now();
        let invitations = registry.invitations.iter();
        let open = invitations.filter(|(_, of)| of.redeemed.is_none() && of.expires > now);
        for (name, _) in open {
            message!(
                "a token for `{name}` that was made before this does not work any more: `keiro invite {name} --replace`"
            );
        }
    }
    Ok(())
}

/// The running gateway.
struct Gateway {
    socket: PathBuf,
    client: Client<UnixStream>,
}

/// Why waiting has ended.
enum WaitError {
    /// For these peers it was too short.
    Late(Vec<String>),
    Failed(Failure),
}

impl WaitError {
    fn or_else_failure(self, late: impl FnOnce(String) -> Failure) -> Failure {
        match self {
            Self::Late(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                late(names.join(", "))
            }
            Self::Failed(failure) => failure,
        }
    }
}

impl Gateway {
    fn connect(config: &Config) -> Result<Self, Failure> {
        let socket = config.gateway.control_socket.clone();
        let client = query::connect(&socket)?;
        Ok(Self { socket, client })
    }

    /// Has it read the key files.
    fn follow(&mut self) -> Result<KeyRotationSnapshot, Failure> {
        let answer = self.client.request(&Request::FollowKeys {});
        match answer.map_err(|error| query::failed(&self.socket, error))? {
            Response::KeyRotation(state) => Ok(state),
            other => Err(query::unexpected(&other)),
        }
    }

    /// Waits until all peers that count have the newest key.
    fn wait(&mut self, until: Instant) -> Result<(), WaitError> {
        let mut named = Vec::new();
        loop {
            let state = self.follow().map_err(WaitError::Failed)?;
            if state.waits_for.is_empty() {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(WaitError::Late(state.waits_for));
            }
            if named != state.waits_for {
                message!("waiting for {}", state.waits_for.join(", "));
                named = state.waits_for;
            }
            thread::sleep(POLL);
        }
    }
}

/// Keeps other runs of the command away.
fn lock(key: &Path) -> Result<File, Failure> {
    let file = File::open(key).map_err(|error| {
        Failure::new(format!("{}: {error}", key.display())).hint("run it as root")
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Failure::new("another `keiro rotate-key` runs")),
        Err(TryLockError::Error(error)) => Err(Failure::new(format!("{}: {error}", key.display()))),
    }
}

/// Writes a new key with the owner of the present one, complete or not at all.
fn write_next(files: &KeyFiles, key: &PrivateKey) -> io::Result<()> {
    let beside = files.next.with_extension("new");
    // Of a command that was killed.
    let _ = fs::remove_file(&beside);
    let present = fs::metadata(&files.key)?;
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&beside)?;
    fchown(&file, Some(present.uid()), Some(present.gid()))?;
    writeln!(file, "{}", *key.to_base64())?;
    file.sync_all()?;
    fs::rename(&beside, &files.next)?;
    sync_directory(&files.next)
}

/// The next key is the one in use from now on, and the one in use the previous one.
fn put_in_use(files: &KeyFiles) -> io::Result<()> {
    match fs::remove_file(&files.previous) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::hard_link(&files.key, &files.previous)?;
    // One of the two is there whenever the machine stops.
    fs::rename(&files.next, &files.key)?;
    sync_directory(&files.key)
}

fn sync_directory(file: &Path) -> io::Result<()> {
    let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", path.display()))
        .hint("run the command as root; run again, it goes on where it was")
}
