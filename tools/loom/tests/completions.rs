//! Completion queues (`src/transport/completion.rs`).

use uroce_loom::completions::models;
use uroce_loom::completions::models::Notify;
use uroce_loom::explore;

#[test]
fn a_completion_is_not_slept_over() {
    explore(3, || models::a_completion_is_not_slept_over(Notify::Next));
    explore(3, || models::a_completion_is_not_slept_over(Notify::Solicited));
}

#[test]
fn of_two_programs_one_is_woken() {
    explore(2, models::of_two_programs_one_is_woken);
}

#[test]
fn what_is_there_is_found_while_a_queue_pair_is_forgotten() {
    explore(3, models::what_is_there_is_found_while_a_queue_pair_is_forgotten);
}

#[test]
fn what_is_there_is_found_while_the_queue_gets_another_size() {
    explore(3, models::what_is_there_is_found_while_the_queue_gets_another_size);
}

#[test]
fn nothing_is_lost_while_a_queue_pair_is_forgotten() {
    explore(2, models::nothing_is_lost_while_a_queue_pair_is_forgotten);
}

#[test]
fn nothing_is_lost_while_the_queue_gets_another_size() {
    explore(2, models::nothing_is_lost_while_the_queue_gets_another_size);
}
