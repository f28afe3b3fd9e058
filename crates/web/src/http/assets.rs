//! The files that pages refer to, compiled in.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::LazyLock,
};

use axum::{
    extract::Path,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};

use super::plain;

struct Asset {
    name: &'static str,
    media_type: &'static str,
    content: &'static str,
}

const ASSETS: [Asset; 3] = [
    Asset {
        name: "keiro.css",
        media_type: "text/css; charset=utf-8",
        content: include_str!("../../assets/keiro.css"),
    },
    Asset {
        name: "live.js",
        media_type: "text/javascript; charset=utf-8",
        content: include_str!("../../assets/live.js"),
    },
    Asset {
        name: "icon.svg",
        media_type: "image/svg+xml",
        content: include_str!("../../assets/icon.svg"),
    },
];

/// Of all assets together: addresses of another build's files are others, so that browsers may keep them.
static TAG: LazyLock<String> = LazyLock::new(|| {
    let mut hasher = DefaultHasher::new();
    ASSETS
        .iter()
        .for_each(|asset| asset.content.hash(&mut hasher));
    format!("{:016x}", hasher.finish())
});

/// The address of an asset.
pub(crate) fn address(name: &str) -> String {
    format!("/assets/{name}?{}", *TAG)
}

pub(super) async fn asset(Path(file): Path<String>) -> Response {
    match ASSETS.iter().find(|asset| asset.name == file) {
        Some(asset) => {
            let headers = [
                (header::CONTENT_TYPE, asset.media_type),
                (header::CACHE_CONTROL, "private, max-age=86400"),
            ];
            (headers, asset.content).into_response()
        }
        None => plain(StatusCode::NOT_FOUND, "there is no such file", ""),
    }
}
