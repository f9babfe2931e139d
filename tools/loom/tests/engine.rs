//! The engine's turns (`src/engine/turns.rs`).

use uroce_loom::engine::models;

/// All orders in which threads are interrupted up to twice: a loop that waits makes those of more endless.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(model);
}

#[test]
fn what_a_program_changes_is_seen_by_the_background_thread() {
    explore(models::what_a_program_changes_is_seen_by_the_background_thread);
}

#[test]
fn a_program_that_goes_to_sleep_is_watched_for() {
    explore(models::a_program_that_goes_to_sleep_is_watched_for);
}

#[test]
fn polls_step_one_at_a_time() {
    explore(models::polls_step_one_at_a_time);
}
