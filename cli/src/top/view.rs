//! Draws the screen. If the terminal has fewer than 80 columns, `top` cuts the names of locks and owners, and then leaves
//! out whole columns of the tables.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Block, Borders, Paragraph, Table, Wrap};

use super::poller::{Events, Totals};
use super::state::{Focus, Health, Order, Page, Row, Shown, State};
use crate::duration::{ms, show_ms};
use crate::info;
use crate::locks::Lock;
use crate::text::{self, Column, Column::Left, Column::Right};

/// The width of a column, and the smallest width of a terminal that shows the column.
type Width = (Constraint, u16);

/// The width of the title `LEASE LEFT` and the mark `▾`.
const LEASE: Width = (Constraint::Length(11), 0);

/// The width of a column of times, such as `12m 05s`.
const TIME: Width = (Constraint::Length(9), 0);

/// The width of a column that gets the rest of the line.
const REST: Constraint = Constraint::Fill(1);

const LOCKS_TITLE: &str = "locks with waiters";

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, now: Instant) {
    let warnings: Vec<Line<'_>> =
        state.warnings().flat_map(|line| wrapped(line, frame.area().width)).collect();
    let height = u16::try_from(warnings.len()).unwrap_or(u16::MAX).min(frame.area().height / 3);
    let rows =
        [1, 1, height].map(Constraint::Length).into_iter().chain([Constraint::Min(1), Constraint::Length(1)]);
    let [head, sums, above, body, foot] = Layout::vertical(rows).areas(frame.area());
    draw_head(frame, head, state, now);
    frame.render_widget(Paragraph::new(warnings).style(Style::new().fg(Color::Red)), above);
    if let Some(shown) = &state.shown {
        draw_totals(frame, sums, shown);
    }
    match state.page {
        Page::Help => draw_help(frame, body),
        Page::Queue => draw_queue(frame, body, state, now),
        Page::Locks => draw_locks(frame, body, state, now),
    }
    let keys = match state.page {
        Page::Locks => " q quit   ↑↓ select   enter queue   w t l n sort   p pause   ? help",
        Page::Queue | Page::Help => " q quit   esc back",
    };
    frame.render_widget(Line::from(keys).dim(), foot);
}

/// Breaks a text between words into lines of at most `width` columns. A longer word gets its own line.
fn wrapped(text: &str, width: u16) -> Vec<Line<'static>> {
    let mut lines: Vec<String> = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line)
                if console::measure_text_width(line) + console::measure_text_width(word)
                    < usize::from(width) =>
            {
                *line += &format!(" {word}");
            }
            _ => lines.push(format!(" {word}")),
        }
    }
    lines.into_iter().map(Line::from).collect()
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, now: Instant) {
    let alarm = Style::new().fg(Color::White).bg(Color::Red).bold();
    let (status, style) = match state.health() {
        Health::Failed(since) => {
            (format!(" ERROR for {} ", show_ms(ms(now.saturating_duration_since(since)))), alarm)
        }
        Health::Partial(answer, all) => (format!(" {answer} of {all} answer "), alarm),
        Health::Connecting => (" connecting ".to_owned(), Style::new().fg(Color::Yellow)),
        Health::Connected if state.is_paused => {
            (" PAUSED ".to_owned(), Style::new().fg(Color::Black).bg(Color::Yellow).bold())
        }
        Health::Connected => (" connected ".to_owned(), Style::new().fg(Color::Green)),
    };
    let width = u16::try_from(status.chars().count()).unwrap_or(u16::MAX);
    let [left, right] = Layout::horizontal([Constraint::Min(1), Constraint::Length(width)]).areas(area);
    let title = Line::from(vec![" lockward ".bold().reversed(), " ".into(), Span::from(state.addresses())]);
    frame.render_widget(title, left);
    frame.render_widget(Line::styled(status, style), right);
}

fn draw_totals(frame: &mut Frame<'_>, area: Rect, Shown { totals, rates, .. }: &Shown) {
    let rate = |pick: fn(&Events) -> u64| {
        rates.as_ref().map_or_else(|| "-".to_owned(), |rates| format!("{}/s", text::grouped(pick(rates))))
    };
    let figure = |name: &str, value: String, style: Style| {
        vec![Span::from(format!(" {name} ")).dim(), Span::styled(value, style.bold()), Span::from("  ")]
    };
    let waiting = if totals.waiting > 0 { Style::new().fg(Color::Yellow) } else { Style::new() };
    let ended = rates.is_some_and(|rates| rates.leases_ended > 0);
    let ended = if ended { Style::new().fg(Color::Red) } else { Style::new() };
    let figures = [
        figure("held", text::grouped(totals.held), Style::new()),
        figure("waiting", text::grouped(totals.waiting), waiting),
        figure("hand-offs", rate(|rates| rates.handed_off), Style::new().fg(Color::Cyan)),
        figure("acquired", rate(|rates| rates.acquired), Style::new()),
        figure("leases ended", rate(|rates| rates.leases_ended), ended),
    ];
    frame.render_widget(Line::from(figures.concat()), area);
}

fn draw_locks(frame: &mut Frame<'_>, area: Rect, state: &mut State, now: Instant) {
    let line = match &state.shown {
        Some(shown) if !shown.rows.is_empty() => {
            let table = lock_table(state, shown, now, area.width)
                .row_highlight_style(Style::new().bold().bg(Color::Indexed(237)))
                .highlight_symbol("> ");
            frame.render_stateful_widget(table, area, &mut state.selection);
            return;
        }
        Some(Shown { totals: Totals { held: 0, .. }, .. }) => " No lock is held.".to_owned(),
        Some(shown) => format!(" {} held, and nobody waits.", text::grouped(shown.totals.held)),
        None if matches!(state.health(), Health::Connecting) => " querying the server ...".to_owned(),
        None => String::new(),
    };
    frame.render_widget(titled(LOCKS_TITLE), area);
    let [_, inner] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(area);
    frame.render_widget(Line::from(line), inner);
}

fn lock_table(state: &State, shown: &Shown, now: Instant, width: u16) -> Table<'static> {
    let rows = shown.rows.iter().map(|Row { lock, held, at }| {
        let age = state.age_ms(*at, now);
        let holder = held.as_ref().and_then(|lock| lock.holders.first());
        let owner = holder.map(|holder| &holder.owner).or(lock.holder.as_ref());
        let holders = match held.as_ref().map_or(1, |lock| lock.holding) {
            1 => owner.map(|owner| text::show(owner)),
            holding => Some(format!("{} owners", text::grouped(holding))),
        };
        let or_none = |cell: Option<String>| Line::from(cell.unwrap_or_else(|| "-".to_owned()));
        let wait = lock.longest_wait.saturating_add(age);
        let lease_left = holder.map(|holder| show_ms(holder.lease_left.saturating_sub(age)));
        [
            Line::from(text::show(&lock.key)),
            Line::from(text::grouped(lock.waiters)).bold(),
            Line::from(show_ms(wait)).style(wait_style(wait)),
            or_none(holders),
            or_none(held.as_ref().map(|lock| lock.mode.to_string())),
            Line::from(lease_left.unwrap_or_default()),
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
    let [waiters, longest, mode] = [8, 13, 9].map(Constraint::Length);
    let widths = [(Constraint::Min(12), 0), (waiters, 0), (longest, 60), (REST, 48), (mode, 72), LEASE];
    let sorted = match state.order {
        Order::Name => "LOCK",
        Order::Waiters => "WAITERS",
        Order::LongestWait => "LONGEST WAIT",
        Order::Lease => "LEASE LEFT",
    };
    table(LOCKS_TITLE, width, columns, widths, Some(sorted), rows)
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, state: &State, now: Instant) {
    let wanted = state.focus();
    let focus = state.shown.as_ref().and_then(|shown| shown.focus.as_ref());
    let Some(Focus { key, lock, at }) = focus.filter(|focus| Some(&focus.key) == wanted.as_ref()) else {
        frame.render_widget(titled(&text::show(&wanted.unwrap_or_default())), area);
        return;
    };
    let Some(lock) = lock else {
        let block = titled(&text::show(key));
        let inner = block.inner(area);
        frame.render_widget(block, area);
        frame.render_widget(Paragraph::new("\n Nobody holds this lock now."), inner);
        return;
    };
    let age = state.age_ms(*at, now);
    // Each table has two additional lines, for its title and its head. If the area is too small for both tables, the
    // table of the waiters gets at most half of the area.
    let lines = |rows: usize| u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(2);
    let waiters = lines(lock.queue.as_deref().unwrap_or_default().len()).min(area.height / 2);
    let holders = lines(lock.holders.len()).min(area.height.saturating_sub(waiters));
    let [above, below] = Layout::vertical([Constraint::Length(holders), Constraint::Min(1)]).areas(area);
    frame.render_widget(holder_table(key, lock, age, area.width), above);
    frame.render_widget(waiter_table(lock, age, area.width), below);
}

fn holder_table(key: &[u8], lock: &Lock, age: u64, width: u16) -> Table<'static> {
    let [mode, holds, token] = [9, 5, 16].map(Constraint::Length);
    let widths = [(REST, 0), (mode, 60), (holds, 66), (token, 52), LEASE, TIME];
    let rows = info::holder_rows(lock, age).map(|cells| cells.map(Line::from));
    table(&lock.title(key), width, info::HOLDERS, widths, None, rows)
}

fn waiter_table(lock: &Lock, age: u64, width: u16) -> Table<'static> {
    let [next, mode, client] = [5, 9, 9].map(Constraint::Length);
    let widths = [(next, 0), (REST, 0), (mode, 60), TIME, TIME, (client, 50)];
    let waits = lock.queue.iter().flatten().map(|waiter| waiter.waited.saturating_add(age));
    let rows = info::waiter_rows(lock, age).zip(waits).map(|(cells, wait)| {
        let mut cells = cells.map(Line::from);
        let [_, _, _, waited, _, _] = &mut cells;
        waited.style = wait_style(wait);
        cells
    });
    let title = format!("{} waiting, next first", text::grouped(lock.waiters));
    table(&title, width, info::WAITERS, widths, None, rows)
}

/// A table with a title, on a terminal of this width. The head of the column `sorted` has a mark.
fn table<const N: usize>(
    title: &str,
    width: u16,
    columns: [Column; N],
    widths: [Width; N],
    sorted: Option<&str>,
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
    let heads = columns.map(|(Left(head) | Right(head))| {
        let mark = if sorted == Some(head) { "▾" } else { "" };
        Line::from(format!("{head}{mark}"))
    });
    Table::new(rows.map(aligned), constraints)
        .header(aligned(heads).style(Style::new().add_modifier(Modifier::DIM)))
        .block(titled(title))
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let keys = [
        ("↑ ↓ j k", "select a lock"),
        ("enter", "show its queue, next to be served first"),
        ("esc", "back"),
        ("w t l n", "sort by waiters, wait time, lease left, name"),
        ("p", "pause"),
        ("q", "quit"),
    ];
    let lines = keys.map(|(key, does)| Line::from(vec![format!("  {key:9}").bold(), does.into()]));
    let block = titled("keys");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    frame.render_widget(Paragraph::new(lines.to_vec()).wrap(Wrap { trim: false }), inner);
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
