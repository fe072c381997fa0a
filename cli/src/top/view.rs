//! How it is shown. Each width has what fits: 80 columns have all, 40 the most important.

use std::time::Instant;

use indicatif::HumanCount;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table, Wrap};

use super::state::{Order, Page, State, whole};
use crate::duration::show_ms;
use crate::locks::{Holder, Lock};
use crate::text;

/// From here on there is room for all columns.
const WIDE: u16 = 70;
const BAR: usize = 10;
const CURVE_FROM: u16 = 14;

pub(super) fn draw(frame: &mut Frame<'_>, state: &mut State, now: Instant) {
    let area = frame.area();
    let curve = if area.height >= CURVE_FROM && state.page == Page::Locks { 3 } else { 0 };
    let totals = if area.width >= WIDE { 1 } else { 2 };
    let rows = [
        Constraint::Length(1),
        Constraint::Length(totals),
        Constraint::Length(curve),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [head, sums, rates, body, foot] = Layout::vertical(rows).areas(area);
    draw_head(frame, head, state, now);
    draw_totals(frame, sums, state);
    draw_curve(frame, rates, state);
    match state.page {
        Page::Help => draw_help(frame, body),
        Page::Queue => draw_queue(frame, body, state, now),
        Page::Locks => draw_locks(frame, body, state, now),
    }
    let keys = match (state.page, area.width >= WIDE) {
        (Page::Locks, true) => " q quit   ↑↓ select   enter queue   w t l n sort   p pause   ? help",
        (Page::Locks, false) => " q quit  ↑↓  enter  p pause  ? help",
        (Page::Queue | Page::Help, _) => " q quit   esc back",
    };
    frame.render_widget(Line::from(keys).dim(), foot);
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, state: &State, now: Instant) {
    let servers = state.sample.as_ref().map_or("", |sample| sample.servers.as_str());
    let (word, style) = match (&state.trouble, &state.sample) {
        (Some((_, since)), Some(_)) => {
            let span = now.saturating_duration_since(*since).as_millis();
            let span = show_ms(u64::try_from(span).unwrap_or(u64::MAX));
            (format!(" NO SERVER for {span} "), Style::new().fg(Color::White).bg(Color::Red).bold())
        }
        (Some(_), None) => (" NO SERVER ".to_owned(), Style::new().fg(Color::White).bg(Color::Red).bold()),
        (None, None) => (" connecting ".to_owned(), Style::new().fg(Color::Yellow)),
        (None, Some(_)) if state.is_paused => {
            (" PAUSED ".to_owned(), Style::new().fg(Color::Black).bg(Color::Yellow).bold())
        }
        (None, Some(_)) => (" connected ".to_owned(), Style::new().fg(Color::Green)),
    };
    let width = u16::try_from(word.chars().count()).unwrap_or(u16::MAX);
    let [left, right] = Layout::horizontal([Constraint::Min(1), Constraint::Length(width)]).areas(area);
    let title = Line::from(vec![" lockward ".bold().reversed(), " ".into(), Span::from(servers.to_owned())]);
    frame.render_widget(title, left);
    frame.render_widget(Line::styled(word, style), right);
}

fn draw_totals(frame: &mut Frame<'_>, area: Rect, state: &State) {
    let Some(sample) = &state.sample else { return };
    let rate = |pick: fn(&super::state::Rates) -> f64| {
        state
            .rates
            .as_ref()
            .map_or_else(|| "-".to_owned(), |rates| format!("{}/s", HumanCount(whole(pick(rates)))))
    };
    let figure = |name: &str, value: String, style: Style| {
        vec![Span::from(format!(" {name} ")).dim(), Span::styled(value, style.bold()), Span::from("  ")]
    };
    let waiting = if sample.totals.waiting > 0 { Style::new().fg(Color::Yellow) } else { Style::new() };
    let ended = state.rates.as_ref().is_some_and(|rates| rates.leases_ended > 0.0);
    let ended = if ended { Style::new().fg(Color::Red) } else { Style::new() };
    let held = [
        figure("held", HumanCount(sample.totals.held).to_string(), Style::new()),
        figure("waiting", HumanCount(sample.totals.waiting).to_string(), waiting),
    ];
    let rates = [
        figure("hand-offs", rate(|rates| rates.handed_off), Style::new().fg(Color::Cyan)),
        figure("acquired", rate(|rates| rates.acquired), Style::new()),
        figure("leases ended", rate(|rates| rates.leases_ended), ended),
    ];
    let lines = if area.height > 1 {
        let [handed_off, _, ended] = rates;
        vec![Line::from(held.concat()), Line::from([handed_off, ended].concat())]
    } else {
        vec![Line::from([held.concat(), rates.concat()].concat())]
    };
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_curve(frame: &mut Frame<'_>, area: Rect, state: &State) {
    if area.height == 0 {
        return;
    }
    let width = usize::from(area.width.saturating_sub(2));
    let shown: Vec<u64> = state.curve.iter().rev().take(width).rev().copied().collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    let title = format!(" hand-offs a second, {} at most ", HumanCount(most));
    let block = Block::new().borders(Borders::TOP).border_style(Style::new().dim()).title(title);
    let [_, inner] = Layout::horizontal([Constraint::Length(1), Constraint::Min(1)]).areas(block.inner(area));
    frame.render_widget(block, area);
    frame.render_widget(Sparkline::default().data(shown).style(Style::new().fg(Color::Cyan)), inner);
}

fn draw_locks(frame: &mut Frame<'_>, area: Rect, state: &mut State, now: Instant) {
    let why = state.trouble.as_ref().map(|(why, _)| why.clone());
    let Some(sample) = &state.sample else {
        let line = why.unwrap_or_else(|| "asking the server ...".to_owned());
        let says = Paragraph::new(format!("\n {line}")).wrap(Wrap { trim: false });
        frame.render_widget(says, area);
        return;
    };
    if sample.locks.is_empty() {
        let line = why.unwrap_or_else(|| match sample.totals.held {
            0 => "No lock is held.".to_owned(),
            held => format!("{} held, and nobody waits for any.", HumanCount(held)),
        });
        frame.render_widget(titled("locks that are waited for").title_bottom(""), area);
        let [_, inner] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(area);
        frame.render_widget(Paragraph::new(format!(" {line}")).wrap(Wrap { trim: false }), inner);
        return;
    }
    let age = u64::try_from(state.age(now).as_millis()).unwrap_or(u64::MAX);
    let is_wide = area.width >= WIDE;
    let rows: Vec<Row<'_>> = sample
        .locks
        .iter()
        .map(|(lock, held)| {
            let holder = held.as_ref().and_then(|lock| lock.holders.first());
            let owner = holder.map(|holder| &holder.owner).or(lock.holder.as_ref());
            let owner = owner.map_or_else(|| "-".to_owned(), |owner| text::show(owner));
            let wait = lock.longest_wait.saturating_add(age);
            let cells = [
                Cell::from(text::show(&lock.key)),
                Cell::from(Line::from(HumanCount(lock.waiters).to_string()).right_aligned().bold()),
                Cell::from(Line::from(show_ms(wait)).right_aligned().style(wait_style(wait))),
            ];
            let lease =
                Cell::from(holder.map_or_else(Line::default, |holder| lease(state, holder, age, is_wide)));
            let mut cells = Vec::from(cells);
            if is_wide {
                cells.push(Cell::from(owner));
            }
            cells.push(lease);
            Row::new(cells)
        })
        .collect();
    let mark = |order: Order, name: &str| {
        let mark = if state.order == order { "▾" } else { "" };
        format!("{name}{mark}")
    };
    let right = |name: String| Cell::from(Line::from(name).right_aligned());
    let mut head = vec![
        Cell::from(mark(Order::Name, "LOCK")),
        right(mark(Order::Waiters, "WAITERS")),
        right(mark(Order::LongestWait, if is_wide { "LONGEST WAIT" } else { "WAIT" })),
    ];
    let mut widths = vec![Constraint::Fill(3), Constraint::Length(8)];
    if is_wide {
        head.push(Cell::from("HOLDER"));
        widths.extend([Constraint::Length(13), Constraint::Fill(4), Constraint::Length(18)]);
    } else {
        widths.extend([Constraint::Length(7), Constraint::Length(7)]);
    }
    head.push(if is_wide {
        Cell::from(mark(Order::Lease, "LEASE LEFT"))
    } else {
        right(mark(Order::Lease, "LEASE"))
    });
    let title = why.unwrap_or_else(|| "locks that are waited for".to_owned());
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::DIM)))
        .block(titled(&title))
        .row_highlight_style(Style::new().bold().bg(Color::Indexed(237)))
        .highlight_symbol("> ");
    frame.render_stateful_widget(table, area, &mut state.selection);
}

fn draw_queue(frame: &mut Frame<'_>, area: Rect, state: &State, now: Instant) {
    let age = u64::try_from(state.age(now).as_millis()).unwrap_or(u64::MAX);
    let focus = state.sample.as_ref().and_then(|sample| sample.focus.as_ref());
    let wanted = state.focus();
    let Some((key, held)) = focus.filter(|(key, _)| Some(key) == wanted.as_ref()) else {
        frame.render_widget(titled(&text::show(&wanted.unwrap_or_default())), area);
        return;
    };
    let Some(lock) = held else {
        let block = titled(&text::show(key));
        let inner = block.inner(area);
        frame.render_widget(block, area);
        frame.render_widget(Paragraph::new("\n Nobody holds it now."), inner);
        return;
    };
    let is_wide = area.width >= WIDE;
    let holders = u16::try_from(lock.holders.len()).unwrap_or(u16::MAX).saturating_add(2);
    let [above, below] = Layout::vertical([Constraint::Length(holders), Constraint::Min(1)]).areas(area);
    draw_holders(frame, above, state, key, lock, age, is_wide);
    let shown = lock.queue.as_deref().unwrap_or_default();
    let rows = (1_u64..).zip(shown).map(|(place, waiter)| {
        let waited = waiter.waited.saturating_add(age);
        let left =
            waiter.wait_left.map_or_else(|| "no limit".to_owned(), |left| show_ms(left.saturating_sub(age)));
        let mut cells = vec![
            Cell::from(Line::from(place.to_string()).right_aligned()),
            Cell::from(text::show(&waiter.owner)),
            Cell::from(Line::from(show_ms(waited)).right_aligned().style(wait_style(waited))),
        ];
        if is_wide {
            cells.push(Cell::from(Line::from(left).right_aligned()));
            cells.push(Cell::from(Line::from(waiter.client_id.to_string()).right_aligned()));
        }
        Row::new(cells)
    });
    let right = |name: &'static str| Cell::from(Line::from(name).right_aligned());
    let mut head = vec![right("NEXT"), Cell::from("WAITER"), right("WAITED")];
    let mut widths = vec![Constraint::Length(5), Constraint::Fill(1), Constraint::Length(9)];
    if is_wide {
        head.extend([right("WAIT LEFT"), right("CLIENT")]);
        widths.extend([Constraint::Length(10), Constraint::Length(9)]);
    }
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::DIM)))
        .block(titled(&format!("{} waiting, next first", HumanCount(lock.waiters))));
    frame.render_widget(table, below);
}

fn draw_holders(
    frame: &mut Frame<'_>,
    area: Rect,
    state: &State,
    key: &[u8],
    lock: &Lock,
    age: u64,
    is_wide: bool,
) {
    let rows = lock.holders.iter().map(|holder| {
        let mut cells = vec![Cell::from(text::show(&holder.owner))];
        if is_wide {
            cells.push(Cell::from(Line::from(holder.holds.to_string()).right_aligned()));
            cells.push(Cell::from(Line::from(holder.token.to_string()).right_aligned()));
        }
        cells.push(Cell::from(Line::from(show_ms(holder.held_for.saturating_add(age))).right_aligned()));
        cells.push(Cell::from(lease(state, holder, age, is_wide)));
        Row::new(cells)
    });
    let right = |name: &'static str| Cell::from(Line::from(name).right_aligned());
    let mut head = vec![Cell::from("HOLDER")];
    let mut widths = vec![Constraint::Fill(1)];
    if is_wide {
        head.extend([right("HOLDS"), right("TOKEN")]);
        widths.extend([Constraint::Length(5), Constraint::Length(16)]);
    }
    head.push(right("HELD FOR"));
    head.push(if is_wide { Cell::from("LEASE LEFT") } else { right("LEASE") });
    widths.extend([Constraint::Length(9), Constraint::Length(if is_wide { 18 } else { 7 })]);
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(Style::new().add_modifier(Modifier::DIM)))
        .block(titled(&text::show(key)));
    frame.render_widget(table, area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let keys = [
        ("↑ ↓ j k", "select a lock"),
        ("enter", "who waits for it, next to be served first"),
        ("esc", "back"),
        ("w t l n", "sort by waiters, wait time, lease left, name"),
        ("p", "pause: what is shown stays"),
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

/// What is left of a lease: a bar where there is room, and the time.
fn lease(state: &State, holder: &Holder, age: u64, has_bar: bool) -> Line<'static> {
    let left = holder.lease_left.saturating_sub(age);
    let share = state.share_left(holder, left);
    let style = match share {
        share if share < 0.2 => Style::new().fg(Color::Red),
        share if share < 0.5 => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Green),
    };
    if !has_bar {
        return Line::styled(show_ms(left), style).right_aligned();
    }
    let full = usize::try_from(whole(share * 10.0)).unwrap_or(BAR).min(BAR);
    Line::from(vec![
        Span::styled("█".repeat(full), style),
        Span::from("░".repeat(BAR - full)).dim(),
        Span::from(format!("{:>8}", show_ms(left))),
    ])
}

/// A wait of ten seconds, or a minute, is worth a look.
fn wait_style(ms: u64) -> Style {
    match ms {
        0..10_000 => Style::new(),
        10_000..60_000 => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Red),
    }
}
