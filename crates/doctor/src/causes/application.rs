//! Applications that two gateways are not configured alike for.

use keiro_control::{
    config::Class,
    protocol::{EventKind, Side},
};

use super::Cause;
use crate::{Subject, facts::REPORTED_EACH};

pub(super) static APP_MISMATCH: Cause = Cause {
    id: "app_mismatch",
    what: "an application has another class or another peer at the other gateway, or does not exist there",
    remedy: "the same `name` and `class` in the [[app]] of both gateways",
    check: |facts, _| {
        let mut found = Vec::new();
        for report in facts.reports(REPORTED_EACH) {
            let EventKind::AppMismatch {
                peer,
                app,
                class,
                seen_by,
                configured_peer,
                configured_class,
            } = &report.kind
            else {
                continue;
            };
            let here = configured_peer.as_deref().zip(*configured_class);
            let (finding, remedy) = texts(peer, app.as_deref(), *class, *seen_by, here);
            let subject = match app {
                Some(app) => Subject::App(app.clone()),
                None => Subject::Peer(peer.clone()),
            };
            found.push(APP_MISMATCH.found(subject, finding, remedy));
        }
        found
    },
};

fn texts(
    peer: &str,
    app: Option<&str>,
    sent: Class,
    seen_by: Side,
    here: Option<(&str, Class)>,
) -> (String, String) {
    let sent = word(sent);
    let Some(app) = app else {
        return (
            format!("it sends data of class {sent} of an application that is not configured here"),
            format!("add its [[app]] here with the name that it has at {peer}, or remove it there"),
        );
    };
    match (seen_by, here) {
        (Side::Peer, _) => (
            format!(
                "{peer} takes nothing of it, which is sent as class {sent}: it has no application of this name and class"
            ),
            format!(
                "write `name = \"{app}\"` and `class = \"{sent}\"` in the [[app]] at {peer}, then `keiro reload` there"
            ),
        ),
        (Side::Us, Some((of, class))) if of == peer => (
            format!(
                "{peer} sends it as class {sent}, and it has class {} here",
                word(class)
            ),
            format!(
                "write `class = \"{sent}\"` in its [[app]] here, or `class = \"{}\"` at {peer}",
                word(class)
            ),
        ),
        (Side::Us, Some((of, _))) => (
            format!("{peer} sends it, and it is of peer {of} here"),
            format!("give the application of {peer} another name at both gateways"),
        ),
        (Side::Us, None) => (
            format!("{peer} sends it as class {sent}, and it is not configured here"),
            format!(
                "add an [[app]] with `name = \"{app}\"` and `class = \"{sent}\"` here, then `keiro reload`"
            ),
        ),
    }
}

/// As configurations write it.
fn word(class: Class) -> &'static str {
    match class {
        Class::Message => "message",
        Class::Datagram => "datagram",
        Class::Stream => "stream",
    }
}
