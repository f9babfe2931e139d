//! The engine's turns (`src/engine/turns.rs`).

use uroce_loom::engine::models;
use uroce_loom::explore;

#[test]
fn what_a_program_changes_is_seen_by_the_background_thread() {
    explore(2, models::what_a_program_changes_is_seen_by_the_background_thread);
}

#[test]
fn what_a_program_posts_is_seen_by_the_background_thread() {
    explore(2, models::what_a_program_posts_is_seen_by_the_background_thread);
}

#[test]
fn a_program_that_goes_to_sleep_is_watched_for() {
    explore(2, models::a_program_that_goes_to_sleep_is_watched_for);
}

#[test]
fn what_the_last_poll_before_a_sleep_leaves_is_done() {
    explore(2, models::what_the_last_poll_before_a_sleep_leaves_is_done);
}

#[test]
fn polls_step_one_at_a_time() {
    explore(2, models::polls_step_one_at_a_time);
}
