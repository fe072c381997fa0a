//! Draws the screen. If the terminal has fewer than 80 columns, `top` cuts the names of locks and owners.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{self, Block, Borders, Cell, Paragraph, Table, Wrap};

use super::poller::{Events, Totals};
use super::state::{Focus, Health, Order, Page, Row, Shown, State};
use crate::duration::{ms, show_ms};
use crate::locks::{Holder, Lock};
use crate::text;

/// The width of a mode: `10 of 100`.
const MODE: Constraint = Constraint::Length(9);
/// The width of the title `LEASE LEFT` and the mark `▾`.
const LEASE: Constraint = Constraint::Length(11);
/// The name of a lock has room even on a narrow terminal, where other columns then get less.
const LOCK: Constraint = Constraint::Min(12);
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

/// Breaks a text between words into lines that are no longer than `width`, if the words are not longer.
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
            let table = lock_table(state, shown, now)
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

fn lock_table(state: &State, shown: &Shown, now: Instant) -> Table<'static> {
    let mark = |order: Order, name: &str| {
        let mark = if state.order == order { "▾" } else { "" };
        format!("{name}{mark}")
    };
    let columns = [
        (left(mark(Order::Name, "LOCK")), LOCK),
        (right(mark(Order::Waiters, "WAITERS")), Constraint::Length(8)),
        (right(mark(Order::LongestWait, "LONGEST WAIT")), Constraint::Length(13)),
        (left("HOLDER"), Constraint::Fill(1)),
        (left("MODE"), MODE),
        (right(mark(Order::Lease, "LEASE LEFT")), LEASE),
    ];
    let rows = shown.rows.iter().map(|Row { lock, held, at }| {
        let age = state.age_ms(*at, now);
        let holder = held.as_ref().and_then(|lock| lock.holders.first());
        let owner = holder.map(|holder| &holder.owner).or(lock.holder.as_ref());
        let holders = match held.as_ref().map_or(1, |lock| lock.holding) {
            1 => owner.map(|owner| text::show(owner)),
            holding => Some(format!("{} owners", text::grouped(holding))),
        };
        let mode = held.as_ref().map_or_else(|| "-".to_owned(), |lock| lock.mode.to_string());
        let wait = lock.longest_wait.saturating_add(age);
        [
            left(text::show(&lock.key)),
            right(Line::from(text::grouped(lock.waiters)).bold()),
            right(Line::from(show_ms(wait)).style(wait_style(wait))),
            left(holders.unwrap_or_else(|| "-".to_owned())),
            left(mode),
            right(holder.map_or_else(String::new, |holder| lease(holder, age))),
        ]
    });
    table(LOCKS_TITLE, columns, rows)
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
    frame.render_widget(holder_table(key, lock, age), above);
    frame.render_widget(waiter_table(lock, age), below);
}

fn holder_table(key: &[u8], lock: &Lock, age: u64) -> Table<'static> {
    let columns = [
        (left("HOLDER"), Constraint::Fill(1)),
        (left("MODE"), MODE),
        (right("HOLDS"), Constraint::Length(5)),
        (right("TOKEN"), Constraint::Length(16)),
        (right("HELD FOR"), Constraint::Length(9)),
        (right("LEASE LEFT"), LEASE),
    ];
    let rows = lock.holders.iter().map(|holder| {
        [
            left(text::show(&holder.owner)),
            left(holder.mode.to_string()),
            right(holder.holds.to_string()),
            right(holder.token.to_string()),
            right(show_ms(holder.held_for.saturating_add(age))),
            right(lease(holder, age)),
        ]
    });
    table(&lock.title(key), columns, rows)
}

fn waiter_table(lock: &Lock, age: u64) -> Table<'static> {
    let columns = [
        (right("NEXT"), Constraint::Length(5)),
        (left("WAITER"), Constraint::Fill(1)),
        (left("MODE"), MODE),
        (right("WAITED"), Constraint::Length(9)),
        (right("WAIT LEFT"), Constraint::Length(10)),
        (right("CLIENT"), Constraint::Length(9)),
    ];
    let shown = lock.queue.as_deref().unwrap_or_default();
    let rows = (1_u64..).zip(shown).map(|(position, waiter)| {
        let waited = waiter.waited.saturating_add(age);
        let wait_left =
            waiter.wait_left.map_or_else(|| "no limit".to_owned(), |left| show_ms(left.saturating_sub(age)));
        [
            right(position.to_string()),
            left(text::show(&waiter.owner)),
            left(waiter.mode.to_string()),
            right(Line::from(show_ms(waited)).style(wait_style(waited))),
            right(wait_left),
            right(waiter.client_id.to_string()),
        ]
    });
    table(&format!("{} waiting, next first", text::grouped(lock.waiters)), columns, rows)
}

fn table<const COLUMNS: usize>(
    title: &str,
    columns: [(Cell<'static>, Constraint); COLUMNS],
    rows: impl Iterator<Item = [Cell<'static>; COLUMNS]>,
) -> Table<'static> {
    let (head, widths): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    Table::new(rows.map(widgets::Row::new), widths)
        .header(widgets::Row::new(head).style(Style::new().add_modifier(Modifier::DIM)))
        .block(titled(title))
}

fn left(text: impl Into<Line<'static>>) -> Cell<'static> {
    Cell::from(text.into())
}

fn right(text: impl Into<Line<'static>>) -> Cell<'static> {
    Cell::from(text.into().right_aligned())
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

/// The remaining lease.
fn lease(holder: &Holder, age: u64) -> String {
    show_ms(holder.lease_left.saturating_sub(age))
}

/// Highlights waits from ten seconds on, and more strongly from a minute on.
fn wait_style(ms: u64) -> Style {
    match ms {
        0..10_000 => Style::new(),
        10_000..60_000 => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Red),
    }
}
