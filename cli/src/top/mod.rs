//! `lockward top`: a live view of the locks with waiters.
//!
//! A separate thread polls the servers, so a slow server does not delay the keyboard. The main thread keeps and draws the
//! state, and reads keys.

mod poller;
mod state;
mod view;

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::process::{self, ExitCode};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::duration;
use crate::exit_code;
use crate::failure::Failure;
use crate::primaries::Servers;
use crate::text::Name;
use poller::Poll;
use state::State;

/// The time between two frames.
const FRAME: Duration = Duration::from_millis(200);

/// Show the locks with waiters, live
///
/// top shows the holders and their leases, the number of waiters, the longest wait, and the hand-offs per second. Keys:
/// q quits, arrows or j and k select a lock, enter shows its queue, esc goes back.
#[derive(Args)]
pub(crate) struct Top {
    /// How often to query the servers
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration::parse)]
    interval: Duration,

    /// The maximum number of locks to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    count: u64,

    #[command(flatten)]
    servers: Servers,
}

impl Top {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        self.servers.check()?;
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Err(Failure::new("top needs a terminal; without one, use lockward ls --top"));
        }
        end_on_signals()?;
        let interval = self.interval.max(FRAME / 2);
        let (open, polls) = poller::start(self.servers, interval, self.count);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        // `try_init` also restores the terminal after a panic.
        let mut terminal = ratatui::try_init()?;
        let shown = show(&mut terminal, &open, &polls, State::new(count));
        ratatui::try_restore()?;
        shown?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Ends the program when a signal arrives. The main thread cannot do this, because a read from a terminal that has just
/// closed may block forever.
fn end_on_signals() -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM])?;
    thread::spawn(move || {
        let Some(number) = signals.forever().next() else { return };
        // The main thread must not draw on the restored terminal.
        let _out = io::stdout().lock();
        ratatui::restore();
        process::exit(exit_code::after_signal(number).into());
    });
    Ok(())
}

/// Draws and handles keys until the user quits.
fn show(
    terminal: &mut DefaultTerminal,
    open: &Sender<Option<Name>>,
    polls: &Receiver<Poll>,
    mut state: State,
) -> io::Result<()> {
    loop {
        polls.try_iter().for_each(|poll| state.update(poll));
        terminal.draw(|frame| view::draw(frame, &mut state))?;
        if !event::poll(FRAME)? {
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        let opened = state.open.clone();
        if handle_key(key, &mut state).is_break() {
            return Ok(());
        }
        if state.open != opened {
            // The thread of the poller ends only with the program.
            let _ = open.send(state.open.clone());
        }
    }
}

/// Carries out a key. `Break` means that the user quits.
#[allow(clippy::wildcard_enum_match_arm, reason = "all other keys do nothing")]
fn handle_key(key: KeyEvent, state: &mut State) -> ControlFlow<()> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return ControlFlow::Break(()),
        KeyCode::Char('q') => return ControlFlow::Break(()),
        KeyCode::Esc if !state.close() => return ControlFlow::Break(()),
        KeyCode::Char('j') | KeyCode::Down => state.select_by(1),
        KeyCode::Char('k') | KeyCode::Up => state.select_by(-1),
        KeyCode::PageDown => state.select_by(10),
        KeyCode::PageUp => state.select_by(-10),
        KeyCode::Home | KeyCode::Char('g') => state.select_by(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => state.select_by(isize::MAX),
        KeyCode::Enter => state.open(),
        KeyCode::Backspace | KeyCode::Left => drop(state.close()),
        _ => {}
    }
    ControlFlow::Continue(())
}
