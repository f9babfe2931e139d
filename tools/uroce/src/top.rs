//! `uroce top`: the queue pairs of running programs, seen live.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Paragraph, Row, Sparkline, Table, TableState};
use serde_json::Value;

use crate::Failure;
use crate::interrupt::{self, Interruptible};
use crate::running::{Look, count};
use crate::stat::{self, FIRST_NUMBER, HEADER, NOTHING_RUNS};

const EXAMPLES: &str = "\
Examples:
  uroce top                                      all programs of this user here
  uroce top --interval 200ms 4711                one of them, five times a second
  uroce top --count 10 > looks.txt               tables, ten times";

/// Watch the queue pairs of this user's running programs: rates, round trips, retransmissions by cause, paths
///
/// It shows what `uroce stat` prints, again and again. Keys: q ends, p pauses, s sorts by another column, the arrows select a queue
/// pair. When stdout is no terminal, it prints the table of `uroce stat` each time.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Show only this process
    #[arg(value_name = "PID")]
    process: Option<u32>,

    /// Time between two looks, 0.1 to 3600 seconds: as in 1, 500ms or 1m
    #[arg(long, value_name = "TIME", default_value = "1", value_parser = uroce::verbs::Intervals::parse)]
    interval: Duration,

    /// End after so many looks
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

/// Looks whose rates are kept for the picture: as many as a wide terminal has columns.
const HISTORY: usize = 240;

/// The longest that a key waits for its effect.
const RESPONSE: Duration = Duration::from_millis(100);

/// What rows are sorted by: the name, and the field.
const ORDERS: [(&str, &str); 4] =
    [("PID", "pid"), ("rate", "rate_bps"), ("retransmitted", "retransmitted_pkts"), ("round trip", "rtt_ns")];

pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    if !io::stdout().is_terminal() {
        return print(arguments);
    }
    // A signal must not leave the terminal as it is from here on.
    let signals = Interruptible::begin();
    let mut terminal = ratatui::try_init().map_err(|error| format!("cannot use this terminal: {error}"))?;
    let ended = watch(arguments, &mut terminal);
    ratatui::restore();
    drop(signals);
    ended.map(|()| interrupt::check().map_or_else(|interrupted| interrupted.status().into(), |()| ExitCode::SUCCESS))
}

/// For pipes and files: the table of each look.
fn print(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut before = Look::now(arguments.process)?;
    let mut left = arguments.count;
    while left != Some(0) {
        wait(arguments.interval);
        let now = Look::now(arguments.process)?;
        let rows = now.rows_since(&before);
        let mut out = io::stdout().lock();
        match rows.is_empty() {
            true => writeln!(out, "{NOTHING_RUNS}\n")?,
            false => writeln!(out, "{}\n", stat::table(&rows))?,
        }
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(ExitCode::SUCCESS)
}

#[allow(clippy::disallowed_methods, reason = "looks are apart on the wall clock")]
fn wait(time: Duration) {
    std::thread::sleep(time);
}

#[allow(clippy::disallowed_methods, reason = "looks are apart on the wall clock")]
fn watch(arguments: &Arguments, terminal: &mut ratatui::DefaultTerminal) -> Result<(), Failure> {
    let mut screen = Screen { interval: arguments.interval, ..Screen::default() };
    let mut before = Look::now(arguments.process)?;
    let mut next = Instant::now() + arguments.interval.min(Duration::from_millis(500));
    let mut left = arguments.count;
    while left != Some(0) && !interrupt::is_pending() {
        terminal.draw(|frame| screen.draw(frame))?;
        if event::poll(next.saturating_duration_since(Instant::now()).min(RESPONSE))?
            && let Event::Key(key) = event::read()?
            && key.kind == KeyEventKind::Press
            && screen.press(key.code, key.modifiers)
        {
            return Ok(());
        }
        if Instant::now() >= next {
            next = Instant::now() + arguments.interval;
            let now = Look::now(arguments.process)?;
            if !screen.is_paused {
                screen.take(now.rows_since(&before));
            }
            before = now;
            left = left.map(|left| left - 1);
        }
    }
    Ok(())
}

/// What is on the screen.
#[derive(Debug, Default)]
struct Screen {
    rows: Vec<Value>,
    /// Whether a first look has been taken.
    has_looked: bool,
    interval: Duration,
    is_paused: bool,
    /// The place in [`ORDERS`].
    order: usize,
    selected: usize,
    /// Bits a second of each queue pair, the newest last.
    history: BTreeMap<(u64, u64), VecDeque<u64>>,
}

impl Screen {
    fn take(&mut self, rows: Vec<Value>) {
        let kept = self.rows.get(self.selected).map(key);
        self.history.retain(|one, _| rows.iter().any(|row| key(row) == *one));
        for row in &rows {
            let history = self.history.entry(key(row)).or_default();
            if history.len() == HISTORY {
                history.pop_front();
            }
            history.push_back(row["rate_bps"].as_f64().unwrap_or(0.0) as u64);
        }
        self.rows = rows;
        self.has_looked = true;
        self.sort();
        self.selected = self.rows.iter().position(|row| Some(key(row)) == kept).unwrap_or(0);
    }

    /// The largest first; of process numbers the smallest.
    fn sort(&mut self) {
        let (name, field) = ORDERS[self.order];
        let value = |row: &Value| row[field].as_f64().unwrap_or(-1.0);
        self.rows.sort_by(|a, b| value(b).total_cmp(&value(a)).then_with(|| key(a).cmp(&key(b))));
        if name == "PID" {
            self.rows.sort_by_key(key);
        }
    }

    /// Takes a key. Returns whether it ends the program.
    fn press(&mut self, code: KeyCode, modifiers: KeyModifiers) -> bool {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('p') => self.is_paused = !self.is_paused,
            KeyCode::Char('s') => {
                self.order = (self.order + 1) % ORDERS.len();
                self.sort();
            }
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => {
                self.selected = (self.selected + 1).min(self.rows.len().saturating_sub(1));
            }
            _ => {}
        }
        false
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [title, table, detail, rates, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(4),
            Constraint::Length(7),
            Constraint::Length(5),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.title(), title);
        self.draw_table(frame, table);
        if let Some(row) = self.rows.get(self.selected).filter(|row| !row["qpn"].is_null()) {
            let block = Block::bordered().title(format!(" {} of {} ", stat::cells(row)[3], name(row)));
            frame.render_widget(Paragraph::new(details(row)).block(block), detail);
            self.draw_rates(frame, rates, row);
        }
        let paused = if self.is_paused { "p goes on" } else { "p pauses" };
        let keys_text = format!(" q ends  {paused}  s sorts (by {})  ↑↓ select", ORDERS[self.order].0);
        frame.render_widget(Paragraph::new(keys_text).style(Style::new().add_modifier(Modifier::DIM)), keys);
    }

    /// What all do together.
    fn title(&self) -> Line<'static> {
        let sum = |field: &str| self.rows.iter().filter_map(|row| row[field].as_f64()).fold(0.0, |a, b| a + b) / 1e6;
        let mut programs: Vec<u64> = self.rows.iter().map(|row| count(&row["pid"])).collect();
        programs.sort_unstable();
        programs.dedup();
        let pairs = self.rows.iter().filter(|row| !row["qpn"].is_null()).count();
        let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let rest = format!(
            "  {}, {}, out {:.1} Mb/s, in {:.1} Mb/s, every {} s",
            plural(programs.len(), "program"),
            plural(pairs, "queue pair"),
            sum("sent_bps"),
            sum("received_bps"),
            self.interval.as_secs_f64(),
        );
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Line::from(vec![Span::styled(" uroce top", bold), Span::raw(rest)])
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect) {
        if self.rows.is_empty() {
            let text = if self.has_looked { NOTHING_RUNS } else { "looking …" };
            frame.render_widget(Paragraph::new(format!(" {text}")), area);
            return;
        }
        let cells: Vec<[String; HEADER.len()]> = self.rows.iter().map(stat::cells).collect();
        let width = |column: usize| {
            let longest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            Constraint::Length(longest.max(HEADER[column].len()) as u16)
        };
        let aligned = |column: usize, text: &str| {
            let line = Line::from(text.to_owned());
            Cell::from(if column < FIRST_NUMBER { line } else { line.alignment(Alignment::Right) })
        };
        let row = |row: &[String; HEADER.len()]| {
            Row::new(row.iter().enumerate().map(|(column, text)| aligned(column, text).style(style(column, text))))
        };
        let header = Row::new(HEADER.iter().enumerate().map(|(column, text)| aligned(column, text)));
        let table = Table::new(cells.iter().map(row), (0..HEADER.len()).map(width))
            .header(header.style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let mut state = TableState::default().with_selected(self.selected);
        frame.render_stateful_widget(table, area, &mut state);
    }

    fn draw_rates(&self, frame: &mut Frame<'_>, area: Rect, row: &Value) {
        let empty = VecDeque::new();
        let history = self.history.get(&key(row)).unwrap_or(&empty);
        let highest = history.iter().max().copied().unwrap_or(0) as f64 / 1e6;
        let block = Block::bordered().title(format!(" rate: up to {highest:.1} Mb/s, the newest at the right "));
        let room = usize::from(area.width.saturating_sub(2));
        let shown: Vec<u64> = history.iter().rev().take(room).rev().copied().collect();
        let padded: Vec<u64> = std::iter::repeat_n(0, room.saturating_sub(shown.len())).chain(shown).collect();
        frame.render_widget(Sparkline::default().data(&padded).style(Style::new().fg(Color::Cyan)).block(block), area);
    }
}

/// What tells a row from others.
fn key(row: &Value) -> (u64, u64) {
    (count(&row["pid"]), row["qpn"].as_u64().unwrap_or(u64::MAX))
}

fn name(row: &Value) -> String {
    format!("{} ({})", row["program"].as_str().unwrap_or("-"), count(&row["pid"]))
}

/// What catches the eye: states in which nothing can be sent, and retransmissions.
fn style(column: usize, text: &str) -> Style {
    match HEADER[column] {
        "state" if ["ERR", "SQE"].contains(&text) => Style::new().fg(Color::Red),
        "retransmitted" | "RNR" if text != "0" && text != "-" => Style::new().fg(Color::Yellow),
        _ => Style::new(),
    }
}

/// What is known of one queue pair beyond its line.
fn details(row: &Value) -> Vec<Line<'static>> {
    let word = |value: &Value| value.as_str().unwrap_or("none").to_owned();
    let counted = |name: &str| count(&row["counters"][name]);
    let flow = &row["flow"];
    let kb = |name: &str| count(&flow[name]) / 1000;
    // All times that the requester went back, without those after NAKs.
    let after_nak = counted("rcvd_seq_err");
    let after_rnr = counted("rcvd_rnr_err");
    let after_timeout = counted("completer_retry").saturating_sub(after_nak + after_rnr);
    let mut lines = vec![
        Line::from(format!(
            "recovery {}, congestion {}, class {}, link {}",
            word(&row["recovery"]),
            word(&row["controller"]),
            word(&row["class"]),
            word(&row["link"]),
        )),
        Line::from(format!(
            "in flight {} kB of a window of {} kB{}",
            kb("in_flight_bytes"),
            kb("window_bytes"),
            if flow["gives_way"] == true { "; gives way to urgent messages" } else { "" },
        )),
        Line::from(format!(
            "{} of {} packets retransmitted, {} spurious; after NAKs {after_nak}, RNR NAKs {after_rnr}, timeouts {after_timeout}",
            counted("retransmitted"),
            counted("sent_pkts"),
            counted("spurious_retransmission"),
        )),
    ];
    let paths = row["paths"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut spans = vec![Span::raw(if paths.is_empty() { "one path" } else { "paths: " })];
    for (number, path) in paths.iter().enumerate() {
        let condition = word(&path["condition"]);
        let round_trip = path["round_trip_ns"].as_f64().map_or(String::new(), |ns| format!(" {:.3} ms", ns / 1e6));
        let color = if condition == "good" { Color::Reset } else { Color::Red };
        spans.push(Span::styled(format!("{number} {condition}{round_trip}  "), Style::new().fg(color)));
    }
    lines.push(Line::from(spans));
    lines
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;
    use crate::running::tests::rows_of_one;

    fn shown(screen: &Screen, width: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn a_screen_shows_a_queue_pair_with_its_paths_and_causes() {
        let mut screen = Screen::default();
        assert!(shown(&screen, 100).contains("looking"));
        screen.take(rows_of_one());
        let text = shown(&screen, 160);
        for part in [
            "1 program, 1 queue pair, out 4.0 Mb/s",
            "10.0.0.2 0x000012",
            "RC 0x000011 of ib_write_bw (7)",
            "recovery selective, congestion steady",
            "after NAKs 0, RNR NAKs 1, timeouts 0",
            "paths: 0 good  1 dark  2 good",
            "up to 4.0 Mb/s",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        screen.take(Vec::new());
        assert!(shown(&screen, 100).contains(NOTHING_RUNS));
        // Terminals that are too small show less, and that is all.
        screen.take(rows_of_one());
        for (width, height) in [(1, 1), (20, 3), (40, 10)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| screen.draw(frame)).unwrap();
        }
    }

    #[test]
    fn keys_sort_select_and_end() {
        let row = |pid: u32, rate: f64, retransmitted: u64| {
            let mut row = rows_of_one().remove(0);
            row["pid"] = pid.into();
            row["rate_bps"] = json!(rate);
            row["retransmitted_pkts"] = retransmitted.into();
            row
        };
        let mut screen = Screen::default();
        screen.take(vec![row(1, 5.0, 7), row(2, 9.0, 1)]);
        let first = |screen: &Screen| screen.rows[0]["pid"].clone();
        assert_eq!(first(&screen), 1);
        screen.press(KeyCode::Char('s'), KeyModifiers::NONE);
        assert_eq!(first(&screen), 2);
        screen.press(KeyCode::Char('s'), KeyModifiers::NONE);
        assert_eq!(first(&screen), 1);
        screen.press(KeyCode::Down, KeyModifiers::NONE);
        screen.press(KeyCode::Down, KeyModifiers::NONE);
        assert_eq!(screen.selected, 1);
        // What is selected stays so when rows come and go.
        screen.take(vec![row(2, 1.0, 9), row(3, 2.0, 3)]);
        assert_eq!(screen.rows[screen.selected]["pid"], 2);
        assert!(!screen.press(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(
            screen.press(KeyCode::Char('c'), KeyModifiers::CONTROL)
                && screen.press(KeyCode::Char('q'), KeyModifiers::NONE)
        );
    }
}
