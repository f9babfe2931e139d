//! The C library's tables (`tools/verbs/src/slab.rs`).

use uroce_loom::objects;

/// All orders in which threads are interrupted up to three times: a lock that spins makes those of more endless.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn what_is_used_is_not_removed() {
    explore(objects::what_is_used_is_not_removed);
}

#[test]
fn a_slot_that_is_used_again_has_one_object_at_a_time() {
    explore(objects::a_slot_that_is_used_again_has_one_object_at_a_time);
}

#[test]
fn what_two_remove_one_gets() {
    explore(objects::what_two_remove_one_gets);
}
