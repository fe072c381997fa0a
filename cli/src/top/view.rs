//! Draws the screen. If the terminal has fewer than 80 columns, `top` cuts the names of locks and owners, and then leaves
//! out whole columns of the tables.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Block, Borders, Paragraph, Table, Widget, Wrap};

use super::poller::{FIGURES, Figures};
use super::state::{Shown, State};
use crate::duration::{ms, show_ms};
use crate::info;
use crate::locks::{FoundLock, Lock};
use crate::text::{Column, Column::Left, Column::Right, Name};

/// The width of a column, and the smallest width of a terminal that shows the column.
type Width = (Constraint, u16);

/// The width of the title `LEASE LEFT`.
const LEASE: Width = (Constraint::Length(10), 0);

/// The width of a column of times, such as `12m 05s`.
const TIME: Width = (Constraint::Length(9), 0);

/// The width of a column that gets the rest of the line.
const REST: Constraint = Constraint::Fill(1);

const LOCKS_TITLE: &str = "locks with waiters";

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State) {
    let warnings: Vec<_> = state.warnings().iter().map(|line| Line::from(line.as_str())).collect();
    let warnings = Paragraph::new(warnings).style(Style::new().fg(Color::Red)).wrap(Wrap { trim: true });
    let height = height(&warnings, Rect { height: frame.area().height / 3, ..frame.area() });
    let rows =
        [1, 1, height].map(Constraint::Length).into_iter().chain([Constraint::Min(1), Constraint::Length(1)]);
    let [head, sums, above, body, foot] = Layout::vertical(rows).areas(frame.area());
    draw_head(frame, head, state);
    frame.render_widget(warnings, above);
    if let Some(shown) = &state.shown {
        frame.render_widget(figures(shown.figures, shown.rates), sums);
    }
    let keys = if state.open.is_some() {
        draw_queue(frame, body, state);
        " q quit   esc back"
    } else {
        draw_locks(frame, body, state);
        " q quit   ↑↓ select   enter queue"
    };
    frame.render_widget(Line::from(keys).dim(), foot);
}

/// How many lines of the area the text fills.
fn height(text: &Paragraph<'_>, area: Rect) -> u16 {
    let mut buffer = Buffer::empty(area);
    text.render(area, &mut buffer);
    let is_empty = |y: &u16| area.columns().all(|column| buffer[(column.x, *y)].symbol() == " ");
    (area.top()..area.bottom()).rev().find(|y| !is_empty(y)).map_or(0, |last| last + 1 - area.top())
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let alarm = Style::new().fg(Color::White).bg(Color::Red).bold();
    let (status, style) = match (&state.failure, &state.shown) {
        (Some(_), Some(shown)) => (format!(" ERROR for {} ", show_ms(ms(shown.at.elapsed()))), alarm),
        (Some(_), None) => (" ERROR ".to_owned(), alarm),
        (None, None) => (" connecting ".to_owned(), Style::new().fg(Color::Yellow)),
        (None, Some(Shown { failed: 0, .. })) => (" connected ".to_owned(), Style::new().fg(Color::Green)),
        (None, Some(Shown { answered, failed, .. })) => {
            (format!(" {answered} of {} answer ", answered + failed), alarm)
        }
    };
    let width = u16::try_from(status.chars().count()).unwrap_or(u16::MAX);
    let [left, right] = Layout::horizontal([Constraint::Min(1), Constraint::Length(width)]).areas(area);
    let addresses = state.shown.as_ref().map_or("", |shown| &shown.addresses);
    let title = Line::from(vec![" lockward ".bold().reversed(), " ".into(), Span::from(addresses)]);
    frame.render_widget(title, left);
    frame.render_widget(Line::styled(status, style), right);
}

/// The line of the figures.
fn figures(figures: Figures, rates: Option<Figures>) -> Line<'static> {
    let rates = rates.map_or([None; FIGURES.len()], |rates| rates.map(Some));
    let mut line = Line::default();
    for ((figure, value), rate) in FIGURES.into_iter().zip(figures).zip(rates) {
        let value = if figure.is_rate {
            rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate}/s"))
        } else {
            value.to_string()
        };
        line.push_span(format!(" {} ", figure.title).dim());
        line.push_span(value.bold());
        line.push_span("  ");
    }
    line
}

fn draw_locks(frame: &mut Frame<'_>, area: Rect, state: &mut State) {
    let line = match &state.shown {
        Some(shown) if !shown.rows.is_empty() => {
            let table = lock_table(shown, area.width)
                .row_highlight_style(Style::new().bold().bg(Color::Indexed(237)))
                .highlight_symbol("> ");
            frame.render_stateful_widget(table, area, &mut state.selection);
            return;
        }
        Some(Shown { figures: [0, ..], .. }) => " No lock is held.",
        Some(_) => " Nobody waits.",
        None => "",
    };
    frame.render_widget(Paragraph::new(line).block(titled(LOCKS_TITLE)), area);
}

fn lock_table(shown: &Shown, width: u16) -> Table<'static> {
    let rows = shown.rows.iter().map(|FoundLock { key, longest_wait, lock }| {
        let holder = lock.holders.first();
        let holders = match lock.holding {
            0 | 1 => holder.map(|holder| holder.owner.to_string()),
            holding => Some(format!("{holding} owners")),
        };
        let or_none = |cell: Option<String>| Line::from(cell.unwrap_or_else(|| "-".to_owned()));
        [
            Line::from(key.to_string()),
            Line::from(lock.waiters.to_string()).bold(),
            Line::from(show_ms(*longest_wait)).style(wait_style(*longest_wait)),
            or_none(holders),
            or_none(holder.map(|_| lock.mode.to_string())),
            or_none(holder.map(|holder| show_ms(holder.lease_left))),
        ]
    });
    let columns = [
        Left("LOCK"),
        Right("WAITERS"),
        Right("LONGEST WAIT"),
        Left("HOLDER"),
        Left("MODE"),
        Right("LEASE LEFT"),
    ];
    let [waiters, longest, mode] = [7, 12, 9].map(Constraint::Length);
    let widths = [(Constraint::Min(12), 0), (waiters, 0), (longest, 60), (REST, 48), (mode, 72), LEASE];
    table(LOCKS_TITLE, width, columns, widths, rows)
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let title = titled(&state.open.as_ref().map(Name::to_string).unwrap_or_default());
    let read = state.shown.as_ref().and_then(|shown| shown.open.as_ref());
    let Some((key, lock)) = read.filter(|(key, _)| Some(key) == state.open.as_ref()) else {
        frame.render_widget(title, area);
        return;
    };
    let Some(lock) = lock else {
        frame.render_widget(Paragraph::new(" Nobody holds this lock now.").block(title), area);
        return;
    };
    // Each table has two additional lines, for its title and its head. If the area is too small for both tables, the
    // table of the waiters gets at most half of the area.
    let lines = |rows: usize| u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2);
    let waiters = lines(lock.queue.as_deref().unwrap_or_default().len()).min(area.height / 2);
    let holders = lines(lock.holders.len()).min(area.height.saturating_sub(waiters));
    let [above, below] = Layout::vertical([Constraint::Length(holders), Constraint::Min(1)]).areas(area);
    frame.render_widget(holder_table(&key.0, lock, area.width), above);
    frame.render_widget(waiter_table(lock, area.width), below);
}

fn holder_table(key: &[u8], lock: &Lock, width: u16) -> Table<'static> {
    let [mode, holds, token] = [9, 5, 16].map(Constraint::Length);
    let widths = [(REST, 0), (mode, 60), (holds, 66), (token, 52), LEASE, TIME];
    let rows = info::holder_rows(lock).map(|cells| cells.map(Line::from));
    table(&lock.title(key), width, info::HOLDERS, widths, rows)
}

fn waiter_table(lock: &Lock, width: u16) -> Table<'static> {
    let [next, mode, client] = [5, 9, 9].map(Constraint::Length);
    let widths = [(next, 0), (REST, 0), (mode, 60), TIME, TIME, (client, 50)];
    let rows = info::waiter_rows(lock).map(|cells| cells.map(Line::from));
    let title = format!("{} waiting, next first", lock.waiters);
    table(&title, width, info::WAITERS, widths, rows)
}

/// A table with a title, on a terminal of this width.
fn table<const N: usize>(
    title: &str,
    width: u16,
    columns: [Column; N],
    widths: [Width; N],
    rows: impl Iterator<Item = [Line<'static>; N]>,
) -> Table<'static> {
    let aligned = |cells: [Line<'static>; N]| {
        let cells = cells.into_iter().zip(columns).zip(widths);
        widgets::Row::new(cells.filter(|(_, (_, from))| width >= *from).map(
            |((cell, column), _)| match column {
                Left(_) => cell,
                Right(_) => cell.right_aligned(),
            },
        ))
    };
    let constraints = widths.into_iter().filter(|(_, from)| width >= *from).map(|(constraint, _)| constraint);
    let heads = columns.map(|(Left(head) | Right(head))| Line::from(head));
    Table::new(rows.map(aligned), constraints)
        .header(aligned(heads).style(Style::new().add_modifier(Modifier::DIM)))
        .block(titled(title))
}

fn titled(title: &str) -> Block<'static> {
    Block::new().borders(Borders::TOP).border_style(Style::new().dim()).title(format!(" {title} "))
}

/// Highlights waits from ten seconds on, and more strongly from a minute on.
fn wait_style(ms: u64) -> Style {
    match ms {
        0..10_000 => Style::new(),
        10_000..60_000 => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Red),
    }
}
