//! The loop: keys, answers of the gateway, pictures.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant, SystemTime},
};

use crossterm::event::{self, Event, KeyEventKind};
use keiro_linux::signal::Signals;

use crate::{
    Options, TopError,
    data::Data,
    draw::{Scene, draw},
    rows,
    source::Source,
    terminal::Screen,
    view::{Effect, View},
};

/// How long a key is waited for before the gateway's answers are looked at. Ours: too short to be
/// noticed.
const WAIT: Duration = Duration::from_millis(200);
/// Ages of what is shown are counted in seconds.
const TICK: Duration = Duration::from_secs(1);
/// Updates and keys that are taken before the next picture. Ours.
const BATCH_MAX: usize = 4096;

/// Shows the gateway until `q`, Ctrl-C, SIGTERM, SIGINT or SIGHUP.
///
/// # Errors
/// There is no terminal, or it fails. A gateway that does not answer is no error: the view says so and goes on when
/// it is back.
pub fn run(options: &Options) -> Result<(), TopError> {
    if !io::stdin().is_terminal() {
        return Err(TopError::NotATerminal("standard input"));
    }
    if !io::stdout().is_terminal() {
        return Err(TopError::NotATerminal("standard output"));
    }
    // Before any thread is started, so that all of them leave signals alone.
    let mut signals = Signals::block().map_err(TopError::Signals)?;
    let source = Source::start(&options.socket, options.interval).map_err(TopError::Terminal)?;
    let mut screen = Screen::enter().map_err(TopError::Terminal)?;
    let mut top = Top::new(options, source);
    loop {
        if signals.take().map_err(TopError::Signals)?.is_some() {
            return Ok(());
        }
        top.take_updates();
        top.show(&mut screen).map_err(TopError::Terminal)?;
        if top.take_keys(&mut screen).map_err(TopError::Terminal)? {
            return Ok(());
        }
    }
}

struct Top {
    source: Source,
    live: Data,
    /// What is shown while it is paused.
    held: Option<Data>,
    view: View,
    colour: bool,
    /// The application that the gateway was last asked to explain.
    explains: Option<String>,
    /// Something differs from the last picture.
    is_changed: bool,
    shown_at: Instant,
}

impl Top {
    fn new(options: &Options, source: Source) -> Self {
        Self {
            source,
            live: Data::new(),
            held: None,
            view: View::default(),
            colour: options.colour,
            explains: None,
            is_changed: true,
            shown_at: Instant::now(),
        }
    }

    fn take_updates(&mut self) {
        for update in self.source.updates.try_iter().take(BATCH_MAX) {
            self.live.apply(SystemTime::now(), update);
            self.is_changed = true;
        }
        // What was asked for while the rest is held is shown, once.
        if let Some(held) = &mut self.held
            && held.explained_app() != self.explains.as_deref()
            && self.live.explained_app() == self.explains.as_deref()
        {
            held.explained.clone_from(&self.live.explained);
        }
    }

    fn data(&self) -> &Data {
        self.held.as_ref().unwrap_or(&self.live)
    }

    fn show(&mut self, screen: &mut Screen) -> io::Result<()> {
        if !self.is_changed && self.shown_at.elapsed() < TICK {
            return Ok(());
        }
        (self.is_changed, self.shown_at) = (false, Instant::now());
        let seen = self.held.as_ref().map(|held| held.events_seen);
        let scene = Scene {
            data: self.data(),
            view: &self.view,
            held_events: seen.map_or(0, |seen| self.live.events_seen - seen),
            colour: self.colour,
            now: SystemTime::now(),
        };
        screen.show(|buffer| draw(buffer, &scene))
    }

    /// Takes what was typed; `true`: it is over.
    fn take_keys(&mut self, screen: &mut Screen) -> io::Result<bool> {
        let mut wait = WAIT;
        for _ in 0..BATCH_MAX {
            if !event::poll(wait)? {
                break;
            }
            wait = Duration::ZERO;
            self.is_changed = true;
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let table = rows::shown(self.data(), &self.view);
                    match self.view.on_key(key, &table) {
                        Effect::Quit => return Ok(true),
                        Effect::Repaint => screen.forget(),
                        Effect::Nothing => {}
                    }
                }
                Event::Resize(..) => screen.forget(),
                _ => {}
            }
        }
        self.follow_view();
        Ok(false)
    }

    /// Does what follows from keys: holds what is shown, and asks for explanations.
    fn follow_view(&mut self) {
        match (self.view.is_paused, self.held.is_some()) {
            (true, false) => self.held = Some(self.live.clone()),
            (false, true) => self.held = None,
            _ => {}
        }
        let wanted = match self.view.has_detail {
            true => self.view.explains(&rows::shown(self.data(), &self.view)),
            false => None,
        };
        if wanted != self.explains && self.source.explain(wanted.clone()) {
            self.explains = wanted;
        }
    }
}
