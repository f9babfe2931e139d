//! The C library's tables (`tools/verbs/src/slab.rs`).

use uroce_loom::{explore, objects};

#[test]
fn what_is_used_is_not_removed() {
    explore(3, objects::what_is_used_is_not_removed);
}

#[test]
fn a_slot_that_is_used_again_has_one_object_at_a_time() {
    explore(3, objects::a_slot_that_is_used_again_has_one_object_at_a_time);
}

#[test]
fn what_two_remove_one_gets() {
    explore(3, objects::what_two_remove_one_gets);
}
