//! What the running gateway and the daemons of the egress suite answer.

use std::{
    io,
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use keiro_control::protocol::{
    HistoryKind, Request, Response,
    client::{Client, ClientError},
};
use keiro_egress::control::{self, Answer, Request as EgressRequest};
use serde_json::Value;

use super::Gathering;
use crate::{args::DEFAULT_EGRESS_SOCKET, failure::Failure};

/// How long the gateway may take for an answer. Ours.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Applications and paths of which explanations and histories are asked for. Ours.
const ASKED_MAX: usize = 64;
/// How far back histories go: rows of minutes, then rows of hours.
const HISTORIES: [(&str, u64); 2] = [("hours", 6 * 3600), ("month", 30 * 86_400)];
/// Events that are written, and how long they are read. Ours.
const EVENTS_MAX: usize = 10_000;
const EVENTS_TIME_MAX: Duration = Duration::from_secs(2);

/// How long the next event is waited for: those that have happened are there. Ours.
const EVENT_TIMEOUT: Duration = Duration::from_millis(50);

/// Events of a gateway while the rest is gathered.
pub(super) struct Events(Option<Client<UnixStream>>);

impl Events {
    /// From now on; none where no gateway answers.
    pub(super) fn follow(socket: &Path) -> Self {
        let follow = || {
            let stream = stream(socket).ok()?;
            let mut client = Client::new(stream.try_clone().ok()?);
            let answer = client.request(&Request::Monitor {});
            stream.set_read_timeout(Some(EVENT_TIMEOUT)).ok()?;
            matches!(answer, Ok(Response::Monitoring {})).then_some(client)
        };
        Self(follow())
    }

    /// Those that have happened, one line of JSON each.
    pub(super) fn take(self) -> Option<String> {
        let mut client = self.0?;
        let begun = Instant::now();
        let mut lines = String::new();
        for _ in 0..EVENTS_MAX {
            let Ok(event) = client.next_event() else {
                break;
            };
            lines.push_str(&serde_json::to_string(&event).unwrap_or_default());
            lines.push('\n');
            if begun.elapsed() > EVENTS_TIME_MAX {
                break;
            }
        }
        Some(lines)
    }
}

/// Everything that the gateway at `socket` answers.
pub(super) fn gather(gathering: &mut Gathering, socket: &Path) -> Result<(), Failure> {
    let mut client = match stream(socket) {
        Ok(stream) => Client::new(stream),
        Err(error) => {
            let why = format!("no gateway answers at {}: {error}", socket.display());
            return gathering.add_result("gateway/status.json", Err(why));
        }
    };
    let questions = [
        ("version", Request::Version {}),
        ("status", Request::Status {}),
        ("paths", Request::ShowPath { name: None }),
        ("apps", Request::ShowApp { name: None }),
        ("peers", Request::ShowPeer { name: None }),
        ("tenants", Request::ShowTenant { name: None }),
        ("network", Request::ShowNetwork {}),
        ("message-clients", Request::ShowMessageClient { name: None }),
        (
            "plan",
            Request::Plan {
                anew: false,
                what_if: Vec::new(),
            },
        ),
    ];
    let mut names = (Vec::new(), Vec::new());
    for (name, question) in questions {
        match ask(&mut client, &question) {
            Asked::Answer(answer) => {
                match name {
                    "paths" => names.0 = names_in(&answer, "paths"),
                    "apps" => names.1 = names_in(&answer, "apps"),
                    _ => {}
                }
                gathering.add_json(&format!("gateway/{name}.json"), &answer)?;
            }
            Asked::Refused(why) => {
                gathering.add_result(&format!("gateway/{name}.json"), Err(why))?;
            }
            Asked::Broken(why) => {
                return gathering.add_result(&format!("gateway/{name}.json"), Err(why));
            }
        }
    }
    let (paths, apps) = names;
    for question in further(&paths, &apps) {
        match ask(&mut client, &question.1) {
            Asked::Answer(answer) => gathering.add_json(&question.0, &answer)?,
            // There is no history, perhaps.
            Asked::Refused(_) => {}
            Asked::Broken(why) => return gathering.add_result(&question.0, Err(why)),
        }
    }
    Ok(())
}

/// Explanations and histories, with the names of their files: numbers, since names may be anything.
fn further(paths: &[String], apps: &[String]) -> Vec<(String, Request)> {
    let mut questions = Vec::new();
    for (number, app) in apps.iter().enumerate() {
        let request = Request::Explain { app: app.clone() };
        questions.push((format!("gateway/explain-{}.json", number + 1), request));
    }
    for (what, past_seconds) in HISTORIES {
        for (kind, word, names) in [
            (HistoryKind::Path, "path", paths),
            (HistoryKind::App, "app", apps),
        ] {
            for (number, name) in names.iter().enumerate() {
                let request = Request::History {
                    kind,
                    name: name.clone(),
                    past_seconds,
                };
                questions.push((
                    format!("gateway/history-{what}-{word}-{}.json", number + 1),
                    request,
                ));
            }
        }
    }
    questions
}

/// The daemon of the egress suite, where one runs.
pub(super) fn egress(gathering: &mut Gathering) -> Result<(), Failure> {
    let socket = Path::new(DEFAULT_EGRESS_SOCKET);
    if !socket.exists() {
        return Ok(());
    }
    match control::ask(socket, EgressRequest::Status) {
        Ok(Answer::Status(status)) => {
            let status = serde_json::to_value(&*status).unwrap_or_default();
            gathering.add_json("egress/status.json", &status)
        }
        Ok(_) => gathering.add_result(
            "egress/status.json",
            Err("it answers something else".to_owned()),
        ),
        Err(error) => gathering.add_result("egress/status.json", Err(error.to_string())),
    }
}

enum Asked {
    Answer(Value),
    Refused(String),
    /// Nothing more can be asked.
    Broken(String),
}

fn ask(client: &mut Client<UnixStream>, question: &Request) -> Asked {
    match client.request(question) {
        Ok(answer) => Asked::Answer(serde_json::to_value(answer).unwrap_or_default()),
        Err(ClientError::Refused(error)) => Asked::Refused(error.to_string()),
        Err(error) => Asked::Broken(error.to_string()),
    }
}

fn stream(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    Ok(stream)
}

/// Distinct names, in their order.
fn names_in(answer: &Value, list: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for one in answer[list].as_array().into_iter().flatten() {
        let name = one["name"].as_str().unwrap_or_default().to_owned();
        if !names.contains(&name) && names.len() < ASKED_MAX {
            names.push(name);
        }
    }
    names
}
