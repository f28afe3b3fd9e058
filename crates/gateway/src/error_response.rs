//! Errors that several requests of the control socket answer with.

use keiro_control::protocol::{ErrorCode, ErrorResponse};

use crate::data::command::DataThreadGone;

pub(crate) fn internal(error: DataThreadGone) -> ErrorResponse {
    let hint = "the log may say why; a restart helps";
    ErrorResponse::new(ErrorCode::Internal, error.to_string(), hint)
}

pub(crate) fn not_found(kind: &str, name: &str) -> ErrorResponse {
    let command = match kind {
        "application" => "app",
        other => other,
    };
    let message = format!("there is no {kind} `{name}`");
    let hint = format!("`keiro show {command}` lists them");
    ErrorResponse::new(ErrorCode::NotFound, message, &hint)
}
