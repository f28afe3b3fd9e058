//! Answers requests for packet traces, which the core records while a client asks for them.

use std::time::{Instant as Stopwatch, SystemTime, UNIX_EPOCH};

use keiro_control::protocol::{ErrorResponse, Response};

use crate::{
    data::command::{Command, DataThreadGone},
    error_response::{internal, not_found},
    gateway::Gateway,
};

impl Gateway {
    /// What was recorded of a peer's paths from event `from` on; `None`: from now on.
    pub(crate) fn qlog_of(
        &mut self,
        name: &str,
        from: Option<u64>,
    ) -> Result<Response, ErrorResponse> {
        let peer = self
            .running_config
            .peer_id(name)
            .ok_or_else(|| not_found("peer", name))?;
        let trace = self.data.take_trace(peer).map_err(internal)?;
        let Some(batch) = trace.batch else {
            return Err(not_found("peer", name));
        };
        let now = Stopwatch::now();
        let new = self.packet_traces.on_request(peer, now, batch, from);
        let event = |event: &&keiro_core::TraceEvent| {
            let path = self.running_config.path_ids().name(event.path);
            keiro_qlog::event(event, path.unwrap_or_default())
        };
        let wall_clock = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_ms = wall_clock.unwrap_or_default().as_secs_f64() * 1e3;
        let at_ms = keiro_qlog::milliseconds(trace.at);
        let mut events: Vec<_> = new.events.iter().map(event).collect();
        if new.dropped > 0 {
            events.push(keiro_qlog::dropped(at_ms, new.dropped));
        }
        let vantage_point = self.config.gateway.name.as_str();
        Ok(Response::Qlog {
            header: keiro_qlog::header(vantage_point, name, Some(now_ms - at_ms)),
            events,
            dropped_events: new.dropped,
            next: new.next,
        })
    }

    /// Ends recordings of clients that are gone.
    pub(crate) fn end_idle_traces(&mut self) -> Result<(), DataThreadGone> {
        for peer in self.packet_traces.take_idle(Stopwatch::now()) {
            self.data.send(Command::StopTrace { peer })?;
        }
        Ok(())
    }
}
