//! Pages by their address, each made once for all who look at it.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    extract::{Extension, Request, State},
    http::{Method, StatusCode, Uri, header},
    response::{IntoResponse, Redirect, Response},
};

use super::{
    Remote, Server, live, plain,
    turns::{TURNS_MAX, Turn},
};
use crate::{
    page::{self, Page, PageAddress, layout},
    site::Site,
    source::Source,
};

/// Pages of the last poll, by gateway and place.
#[derive(Debug, Default)]
pub(super) struct Rendered(Mutex<BTreeMap<(String, PageAddress), Slot>>);

/// A page and the number of the poll that it is of. Who wants the same meanwhile waits for the lock.
type Slot = Arc<tokio::sync::Mutex<Option<(u64, Arc<Page>)>>>;

/// Pages that are kept; those that are not in use are forgotten at more. Ours.
const KEPT_MAX: usize = 64;

impl Rendered {
    fn slot(&self, source: &Source, place: &PageAddress) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (source.name.clone(), place.clone());
        if slots.len() >= KEPT_MAX && !slots.contains_key(&key) {
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        Arc::clone(slots.entry(key).or_default())
    }
}

impl Server {
    /// A page of the newest poll.
    async fn render(&self, source: &Source, place: &PageAddress) -> Arc<Page> {
        let view = source.fresh(place.needs()).await;
        let slot = self.rendered.slot(source, place);
        let mut kept = slot.lock().await;
        if let Some((number, page)) = &*kept
            && *number >= view.number
        {
            return Arc::clone(page);
        }
        let page = Arc::new(page::render(&self.site, source, &view, place).await);
        *kept = Some((view.number, Arc::clone(&page)));
        page
    }

    /// A page of the newest poll, after the viewer's other questions where it asks one.
    pub(super) async fn render_in_turn(
        &self,
        source: &Source,
        place: &PageAddress,
        turn: Option<&Turn>,
    ) -> Arc<Page> {
        let _asking = match turn {
            Some(turn) => Some(turn.ask().await),
            None => None,
        };
        self.render(source, place).await
    }
}

/// The list of gateways, or the only one.
pub(super) async fn index(State(server): State<Arc<Server>>) -> Response {
    match &server.site.sources[..] {
        [only] => Redirect::to(&format!("/{}/", only.name)).into_response(),
        _ => layout::index(&page::gateways(&server.site).await).into_response(),
    }
}

/// `/GATEWAY/PAGE`, and `/GATEWAY/live/PAGE` for the changes of a page.
pub(super) async fn page(
    State(server): State<Arc<Server>>,
    Extension(remote): Extension<Remote>,
    request: Request,
) -> Response {
    if request.method() == Method::POST {
        return not_post();
    }
    let site = &server.site;
    let mut segments = segments(request.uri());
    let gateway = segments.first().cloned().unwrap_or_default();
    let Some(index) = site
        .sources
        .iter()
        .position(|source| source.name == gateway)
    else {
        return not_found(site, None);
    };
    segments.remove(0);
    let is_live = segments.first().is_some_and(|first| first == "live");
    if is_live {
        segments.remove(0);
    }
    let is_foreign = request
        .headers()
        .get("sec-fetch-site")
        .is_some_and(|site| site == "cross-site");
    let place = PageAddress::parse(&segments, request.uri().query().unwrap_or_default());
    let Some(place) = place.map(|place| {
        if is_foreign {
            place.without_questions()
        } else {
            place
        }
    }) else {
        return not_found(site, Some(&site.sources[index]));
    };
    let turn = match place.is_question() {
        true => match server.turns.begin(remote) {
            Some(turn) => Some(turn),
            None => return no_turn(),
        },
        false => None,
    };
    if is_live {
        return live::live(&server, index, place, turn);
    }
    let source = &site.sources[index];
    let page = server.render_in_turn(source, &place, turn.as_ref()).await;
    layout::page(site, source, &place, &page).into_response()
}

fn no_turn() -> Response {
    plain(
        StatusCode::TOO_MANY_REQUESTS,
        &format!("{TURNS_MAX} pages of what is supposed are open for this address already"),
        "close some of them",
    )
}

fn not_post() -> Response {
    let mut response = plain(
        StatusCode::METHOD_NOT_ALLOWED,
        "pages are read with GET",
        "",
    );
    let allowed = axum::http::HeaderValue::from_static("GET, HEAD");
    response.headers_mut().insert(header::ALLOW, allowed);
    response
}

fn not_found(site: &Site, source: Option<&Source>) -> Response {
    (StatusCode::NOT_FOUND, layout::not_found(site, source)).into_response()
}

/// The parts of an address between its slashes, decoded; empty ones are left out.
fn segments(uri: &Uri) -> Vec<String> {
    let parts = uri.path().split('/').filter(|part| !part.is_empty());
    let decoded = parts.map(|part| {
        percent_encoding::percent_decode_str(part)
            .decode_utf8_lossy()
            .into_owned()
    });
    decoded.collect()
}
