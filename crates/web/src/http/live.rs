//! Changes of a page as server-sent events: the parts of it that differ from what was sent last, as HTML.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    http::StatusCode,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, watch};

use super::{Server, plain, turns::Turn};
use crate::{
    page::{Page, PageAddress},
    site::VIEWERS_MAX,
    source::View,
};

/// One viewer of a page.
struct Viewer {
    server: Arc<Server>,
    source: usize,
    place: PageAddress,
    views: watch::Receiver<Arc<View>>,
    shown: Option<Arc<Page>>,
    waiting: VecDeque<Event>,
    ends: Instant,
    _permit: OwnedSemaphorePermit,
    /// Of a page that costs work.
    turn: Option<Turn>,
}

/// A part of a page as the script gets it.
#[derive(Serialize)]
struct Part<'a> {
    id: &'a str,
    html: &'a str,
}

/// A viewer is asked to come again after this time, so that sessions that ended do not go on. Ours.
const VIEWER_TIME_MAX: Duration = Duration::from_secs(3600);
/// Between comments where nothing changes, so that both ends notice a lost connection. Ours.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Changes of the page at `place` of gateway `source`, for as long as the viewer listens.
pub(super) fn live(
    server: &Arc<Server>,
    source: usize,
    place: PageAddress,
    turn: Option<Turn>,
) -> Response {
    let Ok(permit) = Arc::clone(&server.site.viewers).try_acquire_owned() else {
        let what = format!("{VIEWERS_MAX} pages are followed live already");
        let mut response = plain(
            StatusCode::SERVICE_UNAVAILABLE,
            &what,
            "close some of them; reloading shows new data",
        );
        let later = axum::http::HeaderValue::from_static("30");
        response
            .headers_mut()
            .insert(axum::http::header::RETRY_AFTER, later);
        return response;
    };
    let viewer = Viewer {
        server: Arc::clone(server),
        source,
        place,
        views: server.site.sources[source].views(),
        shown: None,
        waiting: VecDeque::new(),
        ends: Instant::now() + VIEWER_TIME_MAX,
        _permit: permit,
        turn,
    };
    let events = stream::unfold(viewer, |mut viewer| async move {
        let event = viewer.next().await?;
        Some((Ok::<_, Infallible>(event), viewer))
    });
    let keep_alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(events).keep_alive(keep_alive).into_response()
}

impl Viewer {
    /// The next change; `None`: the viewer has to come again.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Some(event);
            }
            if Instant::now() >= self.ends {
                return None;
            }
            if self.shown.is_some() {
                self.server.site.sources[self.source].look(self.place.needs());
                // The thread that polls has ended.
                self.views.changed().await.ok()?;
            }
            self.views.mark_unchanged();
            let source = &self.server.site.sources[self.source];
            let page = self
                .server
                .render_in_turn(source, &self.place, self.turn.as_ref())
                .await;
            self.compare(page);
        }
    }

    fn compare(&mut self, page: Arc<Page>) {
        for (id, html) in page.live_parts() {
            let before = self.shown.as_ref().and_then(|shown| shown.live_part(id));
            if before == Some(html) {
                continue;
            }
            let part = serde_json::to_string(&Part { id, html }).unwrap_or_default();
            self.waiting.push_back(Event::default().data(part));
        }
        self.shown = Some(page);
    }
}
