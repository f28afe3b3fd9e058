//! Rules that concern `[message_tls]`, its clients and other entries.

use std::{ops::Range, path::PathBuf};

use keiro_config::Report;

use crate::config::{AppIndex, Class, draft::Draft};

/// Rules that concern other entries as well. `indices_hold`: no entry is missing from the draft.
pub(in crate::config) fn check(draft: &Draft, indices_hold: bool, report: &mut Report<'_>) {
    match (&draft.message_tls, draft.message_clients.first()) {
        (Some((_, spans)), None) => {
            let hint = "add one per program, with name, token_file, and send or receive";
            report.add(
                &spans.table,
                "[message_tls] without a [[message_client]]",
                hint,
            );
        }
        (None, Some((_, spans))) if indices_hold => {
            let hint = "add [message_tls] with listen, cert and key, or remove the clients";
            report.add(
                &spans.token_file,
                "[[message_client]] without [message_tls]",
                hint,
            );
        }
        _ => {}
    }
    if !indices_hold {
        return;
    }
    let mut files: Vec<(&PathBuf, &Range<usize>)> = Vec::new();
    for (client, spans) in &draft.message_clients {
        if let Some((_, earlier)) = files.iter().find(|(file, _)| **file == client.token_file) {
            let line = report.line(earlier);
            let message = format!("token_file: line {line} has the same file");
            report.add(
                &spans.token_file,
                message,
                "give each client a token of its own",
            );
        }
        files.push((&client.token_file, &spans.token_file));
        for (app, at) in client.send.iter().zip(&spans.send) {
            messages_only("send", draft, *app, at, report);
        }
        for (app, at) in client.receive.iter().zip(&spans.receive) {
            messages_only("receive", draft, *app, at, report);
            if draft
                .forwards
                .iter()
                .any(|(forward, _)| forward.app == *app)
            {
                let message = "receive: messages of this application leave by its forward";
                report.add(
                    at,
                    message,
                    "remove the forward, or leave the application out",
                );
            }
        }
    }
}

fn messages_only(
    key: &str,
    draft: &Draft,
    app: AppIndex,
    at: &Range<usize>,
    report: &mut Report<'_>,
) {
    let class = draft.apps[app.0].0.class;
    if class != Class::Message {
        let message = format!("{key}: the application's class is `{}`", class.as_str());
        report.add(at, message, "name applications of class \"message\"");
    }
}
