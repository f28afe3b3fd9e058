//! The login with a token.

use std::{sync::Arc, time::Instant};

use axum::{
    body::{Body, to_bytes},
    extract::{Extension, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};

use super::{Remote, Server, access::Login, guard::BODY_BYTES_MAX, plain};
use crate::page::layout;

pub(super) async fn form(State(server): State<Arc<Server>>) -> Response {
    match server.access.has_login() {
        true => layout::login(None).into_response(),
        false => Redirect::to("/").into_response(),
    }
}

pub(super) async fn login(
    State(server): State<Arc<Server>>,
    Extension(remote): Extension<Remote>,
    body: Body,
) -> Response {
    let Ok(body) = to_bytes(body, BODY_BYTES_MAX).await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "the form is too large", "");
    };
    let mut fields = form_urlencoded::parse(&body);
    let token = fields.find(|(name, _)| name == "token");
    let token = token
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default();
    match server.access.login(remote.0, &token, Instant::now()) {
        Login::Open(cookie) => ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response(),
        Login::Wrong => {
            let why =
                "That is not the token. It is in the file that --token-file of keiro-web names.";
            (StatusCode::FORBIDDEN, layout::login(Some(why))).into_response()
        }
        Login::Wait => {
            let why = "There were too many wrong tokens. Try again in a minute.";
            (StatusCode::TOO_MANY_REQUESTS, layout::login(Some(why))).into_response()
        }
    }
}

pub(super) async fn logout(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    let cookie = server.access.logout(&headers);
    ([(header::SET_COOKIE, cookie)], Redirect::to("/login")).into_response()
}
