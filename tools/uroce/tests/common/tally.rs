//! The games of a matrix: what passed, and what did not and why.

#![allow(clippy::disallowed_methods, reason = "it says how long games take")]

use std::io::Write;
use std::time::{Duration, Instant};

use comfy_table::Table;

use super::is_wanted;

/// A matrix's results: rows and columns in the order in which they first came.
pub struct Tally {
    began: Instant,
    rows: Vec<String>,
    columns: Vec<String>,
    games: Vec<Game>,
    /// Games that were played twice.
    excused: usize,
}

/// Of so many games, or fewer, one may be played twice: more are no accident.
const GAMES_AN_EXCUSE: usize = 50;

/// Says how many games passed, also when the test harness keeps to itself what a test prints: `cargo xtask test` reads it.
pub fn tell(played: usize, passed: usize, excused: usize) {
    let _ = writeln!(std::io::stderr(), "{passed} of {played} games passed, {excused} of them played twice");
}

/// Fails when of so many games too many were played twice.
pub fn bound_excuses(excused: usize, played: usize) {
    let excuses = played.div_ceil(GAMES_AN_EXCUSE);
    assert!(excused <= excuses, "{excused} of {played} games were played twice: {excuses} may be");
}

/// A game that was played.
struct Game {
    row: usize,
    column: usize,
    name: String,
    /// Why it did not pass.
    failure: Option<String>,
}

/// The place of a name in a list, at its end if it is new.
fn place(list: &mut Vec<String>, name: &str) -> usize {
    list.iter().position(|known| known == name).unwrap_or_else(|| {
        list.push(name.to_owned());
        list.len() - 1
    })
}

impl Tally {
    pub fn begin() -> Tally {
        Tally { began: Instant::now(), rows: Vec::new(), columns: Vec::new(), games: Vec::new(), excused: 0 }
    }

    /// Plays a game, and says on stderr how it went.
    pub fn play(&mut self, row: &str, column: &str, name: &str, game: impl FnMut() -> Result<(), String>) {
        self.play_again_if(|_| false, [row, column, name], game);
    }

    /// Plays a game, and once more if the reason why it did not pass is excused; row, column and name of the game.
    pub fn play_again_if(
        &mut self,
        is_excused: impl Fn(&str) -> bool,
        [row, column, name]: [&str; 3],
        mut game: impl FnMut() -> Result<(), String>,
    ) {
        if !is_wanted(name) {
            return;
        }
        let began = Instant::now();
        let mut failure = game().err();
        if let Some(reason) = failure.take_if(|reason| is_excused(reason)) {
            eprintln!("{name}: once more: {reason}");
            self.excused += 1;
            failure = game().err();
        }
        let seconds = began.elapsed().as_secs_f32();
        match &failure {
            None => eprintln!("{name}: {seconds:.1} s"),
            Some(reason) => eprintln!("{name}: FAILED after {seconds:.1} s: {reason}"),
        }
        let (row, column) = (place(&mut self.rows, row), place(&mut self.columns, column));
        self.games.push(Game { row, column, name: name.to_owned(), failure });
    }

    /// Passed and played, of the games that `counts` picks.
    fn count(&self, counts: impl Fn(&Game) -> bool) -> (usize, usize) {
        let picked = || self.games.iter().filter(|game| counts(game));
        (picked().filter(|game| game.failure.is_none()).count(), picked().count())
    }

    /// Prints the table on stderr.
    ///
    /// # Panics
    /// When a game did not pass, naming all that did not; when more were excused than one of fifty.
    pub fn end(self) {
        let cell = |(passed, played): (usize, usize)| match played {
            0 => String::new(),
            _ => format!("{passed}/{played}"),
        };
        let mut table = Table::new();
        table.set_header([String::new()].into_iter().chain(self.columns.iter().cloned()).chain(["all".to_owned()]));
        for (row, name) in self.rows.iter().enumerate() {
            let cells =
                (0..self.columns.len()).map(|column| self.count(|game| (game.row, game.column) == (row, column)));
            let all = self.count(|game| game.row == row);
            table.add_row([name.clone()].into_iter().chain(cells.chain([all]).map(cell)));
        }
        let columns = (0..self.columns.len()).map(|column| self.count(|game| game.column == column));
        let (passed, played) = self.count(|_| true);
        let all = columns.chain([(passed, played)]).map(cell);
        table.add_row(["all".to_owned()].into_iter().chain(all));
        let took = Duration::from_secs(self.began.elapsed().as_secs());
        eprintln!("{table}\nin {took:?}");
        tell(played, passed, self.excused);
        let failures = self.games.iter().filter_map(|game| Some((&game.name, game.failure.as_ref()?)));
        let failures: Vec<String> = failures.map(|(name, reason)| format!("{name}: {reason}")).collect();
        assert!(failures.is_empty(), "{} of {played} games failed:\n{}", failures.len(), failures.join("\n"));
        bound_excuses(self.excused, played);
        assert!(played > 0, "no game is wanted");
    }
}
