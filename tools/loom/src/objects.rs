//! The C library's tables of objects.

use loom::cell::UnsafeCell;
use loom::thread;

use crate::slab::{NotRemoved, Object, Slab};

/// What is in the table: loom sees who looks at it, and when it ends.
struct Thing {
    number: UnsafeCell<u64>,
}

// SAFETY: loom tells when it is not looked at by turns.
unsafe impl Sync for Thing {}

loom::lazy_static! {
    static ref SLAB: Slab<Thing> = Slab::new();
}

impl Object for Thing {
    type C = u64;
    const CAPACITY: usize = 2;

    fn slab() -> &'static Slab<Thing> {
        &SLAB
    }
}

impl Thing {
    fn look(&self) -> u64 {
        // SAFETY: loom tells when somebody writes meanwhile.
        self.number.with(|number| unsafe { *number })
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        // SAFETY: loom tells when somebody looks meanwhile.
        self.number.with_mut(|number| unsafe { *number = u64::MAX });
    }
}

/// Puts one in, and returns the program's pointer to it.
fn make(number: u64) -> Option<usize> {
    let made = Thing::slab().insert(|c| {
        // SAFETY: the slab passes room for it.
        unsafe { c.write(number) };
        Thing { number: UnsafeCell::new(number) }
    });
    made.map(|pointer| pointer.as_ptr() as usize)
}

/// One thread uses what another removes: it finds it whole, or not at all.
pub fn what_is_used_is_not_removed() {
    let pointer = make(1).unwrap();
    let user = thread::spawn(move || {
        if let Some(thing) = Thing::slab().get(pointer as *const u64) {
            assert_eq!(thing.look(), 1);
        }
    });
    assert!(Thing::slab().remove(pointer as *const u64, |_| true).is_ok());
    assert!(Thing::slab().get(pointer as *const u64).is_none());
    user.join().unwrap();
}

/// The same while the slot is used again: whoever holds the old pointer finds the old one, the new one or none, each whole.
pub fn a_slot_that_is_used_again_has_one_object_at_a_time() {
    let (_, pointer) = (make(0).unwrap(), make(1).unwrap());
    let user = thread::spawn(move || {
        if let Some(thing) = Thing::slab().get(pointer as *const u64) {
            let number = thing.look();
            assert!(number == 1 || number == 2);
            // SAFETY: the slot's structure.
            assert_eq!(unsafe { *thing.c().as_ptr() }, number);
        }
    });
    drop(Thing::slab().remove(pointer as *const u64, |_| true));
    assert_eq!(make(2), Some(pointer), "there is no other slot");
    user.join().unwrap();
    assert_eq!(Thing::slab().get(pointer as *const u64).map(|thing| thing.look()), Some(2));
}

/// Two threads remove the same object: one of them gets it.
pub fn what_two_remove_one_gets() {
    let pointer = make(1).unwrap();
    let remove = move || match Thing::slab().remove(pointer as *const u64, |_| true) {
        Ok(thing) => thing.look() == 1,
        Err(error) => {
            assert_eq!(error, NotRemoved::Stale);
            false
        }
    };
    let other = thread::spawn(remove);
    let own = remove();
    assert_ne!(own, other.join().unwrap(), "one of both");
}
