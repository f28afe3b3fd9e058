//! Names that shell completion offers: those of the running gateway, or of the configuration if none answers.

use std::{collections::BTreeSet, os::unix::net::UnixStream, path::Path, time::Duration};

use clap_complete::{ArgValueCandidates, CompletionCandidate};
use keiro_control::{
    config::{Config, DEFAULT_CONFIG_FILE, DEFAULT_CONTROL_SOCKET},
    protocol::{Request, Response, client::Client},
};

/// How long the gateway may take to answer. Ours: who has pressed a key notices more.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);
/// Names that are offered. Ours: a shell asks before it lists more than some hundred.
const NAMES_MAX: usize = 1000;

/// Where names are found.
#[derive(Clone, Copy)]
struct Source {
    request: fn() -> Request,
    of_response: fn(Response) -> Vec<String>,
    of_config: fn(&Config) -> Vec<String>,
}

pub(crate) fn apps() -> ArgValueCandidates {
    candidates(APPS)
}

pub(crate) fn paths() -> ArgValueCandidates {
    candidates(PATHS)
}

pub(crate) fn peers() -> ArgValueCandidates {
    candidates(PEERS)
}

pub(crate) fn tenants() -> ArgValueCandidates {
    candidates(TENANTS)
}

/// Where the names of a request's answer are, which the configuration has in a field of the same name.
macro_rules! source {
    ($request:ident, $response:ident, $names:ident) => {
        Source {
            request: || Request::$request { name: None },
            of_response: |response| match response {
                Response::$response { $names } => {
                    $names.into_iter().map(|entry| entry.name).collect()
                }
                _ => Vec::new(),
            },
            of_config: |config| {
                let entries = config.$names.iter();
                entries.map(|entry| entry.name.to_string()).collect()
            },
        }
    };
}

const APPS: Source = source!(ShowApp, Apps, apps);
const PATHS: Source = source!(ShowPath, Paths, paths);
const PEERS: Source = source!(ShowPeer, Peers, peers);
const TENANTS: Source = source!(ShowTenant, Tenants, tenants);

fn candidates(source: Source) -> ArgValueCandidates {
    let socket = Path::new(DEFAULT_CONTROL_SOCKET);
    let file = Path::new(DEFAULT_CONFIG_FILE);
    ArgValueCandidates::new(move || {
        let names = find(source, socket, file).into_iter();
        names.map(CompletionCandidate::new).collect()
    })
}

/// Each name once, sorted. None where neither socket nor file can be read: completion shows no errors.
fn find(source: Source, socket: &Path, file: &Path) -> BTreeSet<String> {
    let names = match ask(socket, &(source.request)()) {
        Some(response) => (source.of_response)(response),
        None => Config::load(file)
            .map(|config| (source.of_config)(&config))
            .unwrap_or_default(),
    };
    names.into_iter().take(NAMES_MAX).collect()
}

fn ask(socket: &Path, request: &Request) -> Option<Response> {
    let stream = UnixStream::connect(socket).ok()?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT)).ok()?;
    Client::new(stream).request(request).ok()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader, Write},
        os::unix::net::UnixListener,
        thread,
    };

    use super::*;

    /// A configuration whose peer is `osaka`.
    fn config(directory: &Path) -> std::path::PathBuf {
        let file = directory.join("gateway.toml");
        let text = format!(
            "[gateway]\nname = \"tokyo\"\nprivate_key_file = \"{}/private.key\"\nuplinks = \"auto\"\n\
             [[peer]]\nname = \"osaka\"\nendpoint = \"192.0.2.1:7600\"\n\
             public_key = \"ZyZYBW9ug8KO1SyYTYlztkDbufKcUBC8mToRplQlaeU=\"\n",
            directory.display()
        );
        fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn without_a_gateway_names_are_those_of_the_configuration() {
        let directory = tempfile::tempdir().unwrap();
        let file = config(directory.path());
        let names = find(PEERS, &directory.path().join("none.sock"), &file);
        assert_eq!(names, BTreeSet::from(["osaka".to_owned()]));
    }

    #[test]
    fn what_is_no_gateway_offers_the_configuration_and_an_unreadable_one_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = config(directory.path());
        let socket = directory.path().join("other.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let other = thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                let mut request = String::new();
                let _ = BufReader::new(&stream).read_line(&mut request);
                let _ = stream.write_all(b"220 mail.example ESMTP\n");
            }
        });
        assert_eq!(find(PEERS, &socket, &file).len(), 1);
        let missing = directory.path().join("missing.toml");
        assert_eq!(find(PEERS, &socket, &missing), BTreeSet::new());
        other.join().unwrap();
    }
}
