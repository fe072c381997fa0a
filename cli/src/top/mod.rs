//! `lockward top`: a live view of the locks that are waited for.
//!
//! One thread asks the servers, so that a server that is slow never holds up the keyboard. This one keeps the state, draws
//! it, and reads keys.

mod state;
mod view;
mod watch;

use std::io::{self, IsTerminal};
use std::process::{self, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use nix::sys::signal::{Signal, raise};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::duration;
use crate::failure::{Failure, code_of_signal};
use crate::primaries::{Place, TROUBLE};
use state::{Order, State};
use watch::Watch;

/// How long a key may wait for an answer, and how smoothly leases run down.
const FRAME: Duration = Duration::from_millis(200);

/// Watch the locks that are waited for, live
///
/// Shows who holds them, how long their leases last, how many wait and for how long, and how often locks are handed
/// over. Keys: q quits, arrows or j and k select, enter shows the queue of a lock, ? shows all keys.
#[derive(Args)]
pub(crate) struct Top {
    /// How often to ask the servers
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,

    /// How many locks to show at most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    count: u64,

    #[command(flatten)]
    place: Place,
}

impl Top {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.play().map_err(|failure| failure.exit(TROUBLE))
    }

    fn play(self) -> Result<ExitCode, Failure> {
        self.place.address()?;
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Err(Failure::new("top needs a terminal; lockward ls --top prints the same once"));
        }
        let ended_by = ended_by_signals()?;
        let interval = self.interval.max(FRAME / 2);
        let watch = Watch::start(self.place, interval, self.count)?;
        // It also restores the terminal when this program panics.
        let mut terminal = ratatui::try_init()?;
        let shown = show(&mut terminal, &watch, State::new(interval), &ended_by);
        ratatui::try_restore()?;
        shown?;
        Ok(match ended_by.load(Ordering::Relaxed) {
            0 => ExitCode::SUCCESS,
            number => code_of_signal(number).into(),
        })
    }
}

/// The number of the signal that is to end this, once there is one.
///
/// Who reads keys from a terminal that has just gone may never come back from it. So if this has not ended soon after a signal,
/// it is ended here.
fn ended_by_signals() -> io::Result<Arc<AtomicI32>> {
    let ended_by = Arc::new(AtomicI32::new(0));
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    let flag = Arc::clone(&ended_by);
    thread::spawn(move || {
        let Some(number) = signals.forever().next() else { return };
        flag.store(number, Ordering::Relaxed);
        thread::sleep(FRAME * 5);
        ratatui::restore();
        process::exit(code_of_signal(number).into());
    });
    Ok(ended_by)
}

/// Until the person at the terminal has seen enough, or a signal ends it.
fn show(
    terminal: &mut DefaultTerminal,
    watch: &Watch,
    mut state: State,
    ended_by: &AtomicI32,
) -> io::Result<()> {
    while ended_by.load(Ordering::Relaxed) == 0 {
        for news in watch.news() {
            state.hear(news);
        }
        terminal.draw(|frame| view::draw(frame, &mut state, Instant::now()))?;
        if !event::poll(FRAME)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        match act(key, &mut state) {
            Then::GoOn => watch.look_at(state.focus()),
            Then::Quit => break,
            Then::Stop => {
                ratatui::try_restore()?;
                raise(Signal::SIGTSTP)?;
                *terminal = ratatui::try_init()?;
            }
        }
    }
    Ok(())
}

enum Then {
    GoOn,
    Quit,
    /// As Ctrl-Z stops any program.
    Stop,
}

#[allow(clippy::wildcard_enum_match_arm, reason = "all other keys do nothing")]
fn act(key: KeyEvent, state: &mut State) -> Then {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Then::Quit,
            KeyCode::Char('z') => Then::Stop,
            _ => Then::GoOn,
        };
    }
    match key.code {
        KeyCode::Char('q') => return Then::Quit,
        KeyCode::Esc if !state.close() => return Then::Quit,
        KeyCode::Char('j') | KeyCode::Down => state.select_by(1),
        KeyCode::Char('k') | KeyCode::Up => state.select_by(-1),
        KeyCode::PageDown => state.select_by(10),
        KeyCode::PageUp => state.select_by(-10),
        KeyCode::Home | KeyCode::Char('g') => state.select_by(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => state.select_by(isize::MAX),
        KeyCode::Enter => state.open(),
        KeyCode::Backspace | KeyCode::Left => drop(state.close()),
        KeyCode::Char('p') => state.pause(),
        KeyCode::Char('w') => state.sort(Order::Waiters),
        KeyCode::Char('t') => state.sort(Order::LongestWait),
        KeyCode::Char('l') => state.sort(Order::Lease),
        KeyCode::Char('n') => state.sort(Order::Name),
        KeyCode::Char('?' | 'h') => state.help(),
        _ => {}
    }
    Then::GoOn
}
