//! Where the objects live that programs hold pointers to.
//!
//! A pointer that a program hands in is believed only when it is one that we gave out and have not taken back: it lies in
//! the table of its kind, at the beginning of a slot, and the slot is live. The tables are never unmapped, so looking at
//! a slot is safe whatever the pointer was, and the structure of a destroyed object stays readable: the header's inline
//! functions go through it before they reach us.
//!
//! ```text
//!   pointer ──► slot: C structure │ state: live bit, users │ body
//!                                    a call in progress is a user; destruction waits until there is none
//! ```

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;

use crate::lock::SpinLock;
use crate::sync::{AtomicU32, OnceLock, Ordering, for_statics, reserve, yield_now};

/// What a program holds a pointer to.
pub(crate) trait Object: Send + Sync + Sized + 'static {
    /// The structure that programs see, as the slot holds it.
    type C;
    /// Where in it the program's pointer points.
    const OFFSET: usize = 0;
    /// How many there can be.
    const CAPACITY: usize;
    /// The table.
    fn slab() -> &'static Slab<Self>;
}

/// A table of objects of one kind.
pub(crate) struct Slab<T: Object> {
    base: OnceLock<Base<T>>,
    free: SpinLock<Free>,
}

struct Base<T: Object>(NonNull<Slot<T>>);

// SAFETY: the table belongs to the process; its slots are reached through atomics.
unsafe impl<T: Object> Send for Base<T> {}
// SAFETY: as above.
unsafe impl<T: Object> Sync for Base<T> {}

/// Slots that nobody has.
struct Free {
    /// Those from here on were never used.
    fresh: usize,
    /// The longest free first.
    returned: VecDeque<u32>,
}

/// Slots that stay free before one is used again, while there are fresh ones: for so long a stale pointer is known as such.
const REST: usize = 256;

#[repr(C)]
struct Slot<T: Object> {
    c: UnsafeCell<MaybeUninit<T::C>>,
    /// [`LIVE`], and the number of calls that use the object now.
    state: AtomicU32,
    body: UnsafeCell<MaybeUninit<T>>,
}

const LIVE: u32 = 1 << 31;

impl<T: Object> Slot<T> {
    /// Nobody's. All zero, so that pages that nobody has written are tables of such.
    fn fresh() -> Slot<T> {
        Slot {
            c: UnsafeCell::new(MaybeUninit::zeroed()),
            state: AtomicU32::new(0),
            body: UnsafeCell::new(MaybeUninit::zeroed()),
        }
    }
}

/// An object in use: it is not destroyed before this is dropped.
pub(crate) struct Ref<T: Object> {
    slot: NonNull<Slot<T>>,
}

/// Why an object was not removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRemoved {
    /// There is no such object (any more).
    Stale,
    /// Others depend on it.
    Busy,
}

impl<T: Object> Slab<T> {
    for_statics! {
        pub(crate) fn new() -> Slab<T> {
            Slab { base: OnceLock::new(), free: SpinLock::new(Free { fresh: 0, returned: VecDeque::new() }) }
        }
    }

    /// Reserves the address range; pages come with use. `None` when the kernel gives none.
    fn base(&self) -> Option<NonNull<Slot<T>>> {
        if let Some(base) = self.base.get() {
            return Some(base.0);
        }
        let base = reserve(T::CAPACITY, Slot::fresh)?;
        // When two threads come first, one mapping is left over, empty.
        Some(self.base.get_or_init(|| Base(base)).0)
    }

    /// Puts an object into the table. `make` writes the structure that the program sees to where it is told, and makes the
    /// rest. `None` when the table is full.
    pub(crate) fn insert(&self, make: impl FnOnce(*mut T::C) -> T) -> Option<NonNull<T::C>> {
        let base = self.base()?;
        let index = {
            let mut free = self.free.lock();
            if free.fresh < T::CAPACITY && free.returned.len() < REST {
                free.fresh += 1;
                free.fresh - 1
            } else {
                free.returned.pop_front()? as usize
            }
        };
        // SAFETY: the index is within the table, and zeroed pages are a slot that is not live. Nobody else has the index.
        unsafe {
            let slot = base.add(index);
            let body = make((*slot.as_ptr()).c.get().cast());
            (*(*slot.as_ptr()).body.get()).write(body);
            (*slot.as_ptr()).state.fetch_or(LIVE, Ordering::Release);
            NonNull::new((*slot.as_ptr()).c.get().cast())
        }
    }

    /// The slot that `pointer` is the program's pointer to, live or not.
    fn slot<P>(&self, pointer: *const P) -> Option<NonNull<Slot<T>>> {
        let base = self.base.get()?.0;
        let offset = (pointer as usize).wrapping_sub(base.as_ptr() as usize + T::OFFSET);
        let (index, rest) = (offset / size_of::<Slot<T>>(), offset % size_of::<Slot<T>>());
        if index >= T::CAPACITY || rest != 0 {
            return None;
        }
        // SAFETY: the index is within the table.
        Some(unsafe { base.add(index) })
    }

    /// The number of the slot whose structure is at `c`: no other live object of the kind has it.
    pub(crate) fn number(&self, c: *const T::C) -> u32 {
        let base = self.base.get().expect("there is a slot").0;
        ((c as usize - base.as_ptr() as usize) / size_of::<Slot<T>>()) as u32
    }

    /// The object that a program's pointer means, if it is one.
    pub(crate) fn get<P>(&self, pointer: *const P) -> Option<Ref<T>> {
        let slot = self.slot(pointer)?;
        // SAFETY: every slot of the table is readable, and its state is an atomic.
        let state = unsafe { &(*slot.as_ptr()).state };
        let is_dead = state.fetch_add(1, Ordering::Acquire) & LIVE == 0;
        if is_dead && !uroce::mutated!("destroyed-object-is-used", by "uroce-verbs --lib only_live_objects_are_found") {
            state.fetch_sub(1, Ordering::Release);
            return None;
        }
        Some(Ref { slot })
    }

    /// Takes an object out of the table, when no call uses it any more and `may_go` says so; else it stays.
    pub(crate) fn remove<P>(&self, pointer: *const P, may_go: impl Fn(&T) -> bool) -> Result<T, NotRemoved> {
        // Looked at first: calls that use it must not find it dead for a moment.
        if !may_go(&*self.get(pointer).ok_or(NotRemoved::Stale)?) {
            return Err(NotRemoved::Busy);
        }
        let slot = self.slot(pointer).ok_or(NotRemoved::Stale)?;
        // SAFETY: as in `get`.
        let state = unsafe { &(*slot.as_ptr()).state };
        if state.fetch_and(!LIVE, Ordering::AcqRel) & LIVE == 0 {
            return Err(NotRemoved::Stale);
        }
        // Calls are short, and none of them destroys what it uses.
        while state.load(Ordering::Acquire) != 0
            && !uroce::mutated!("object-goes-under-a-call", by "uroce-loom --test objects what_is_used_is_not_removed")
        {
            yield_now();
        }
        // SAFETY: the object was live, so its body is there; nobody uses it, and nobody can begin to.
        let body = unsafe { &*slot.as_ptr() }.body.get();
        // SAFETY: as above.
        if !may_go(unsafe { (*body).assume_init_ref() }) {
            state.fetch_or(LIVE, Ordering::Release);
            return Err(NotRemoved::Busy);
        }
        // SAFETY: as above; it is read once, since the slot is not live any more.
        let object = unsafe { (*body).assume_init_read() };
        let base = self.base.get().expect("there is a slot").0;
        // SAFETY: both are in the same table.
        let index = unsafe { slot.as_ptr().offset_from(base.as_ptr()) };
        self.free.lock().returned.push_back(index as u32);
        Ok(object)
    }

    /// The pointers of all live objects that `which` picks.
    pub(crate) fn pointers(&self, which: impl Fn(&T) -> bool) -> Vec<NonNull<T::C>> {
        let Some(base) = self.base.get() else { return Vec::new() };
        let used = self.free.lock().fresh;
        (0..used)
            .filter_map(|index| {
                // SAFETY: the index is within the table.
                let slot = unsafe { base.0.add(index) };
                let public = slot.as_ptr().cast::<u8>().wrapping_add(T::OFFSET);
                let object = self.get(public)?;
                which(&object).then_some(object.c())
            })
            .collect()
    }

    /// Takes the lock on the table's free slots, lest a child of fork finds it taken.
    pub(crate) fn before_fork(&self) {
        self.free.take();
    }

    /// Gives it back; in a child all objects are dead from now on: what they need lives in the parent. They are not
    /// dropped.
    pub(crate) fn after_fork(&self, is_child: bool) {
        if let (true, Some(base)) = (is_child, self.base.get()) {
            // SAFETY: `before_fork` took the lock, in this thread or the one that this is a copy of.
            let used = unsafe { (*self.free.peek()).fresh };
            for index in 0..used {
                // SAFETY: the index is within the table. Nobody else runs: fork copies one thread.
                unsafe { (*base.0.add(index).as_ptr()).state.store(0, Ordering::Relaxed) };
            }
        }
        // SAFETY: as above.
        unsafe { self.free.give_back() };
    }
}

impl<T: Object> Ref<T> {
    /// The structure that the program sees. It may write to it at any time, so no reference to it is made.
    pub(crate) fn c(&self) -> NonNull<T::C> {
        // SAFETY: the slot is in the table.
        unsafe { NonNull::new_unchecked((*self.slot.as_ptr()).c.get().cast()) }
    }
}

impl<T: Object> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the object is live and stays so while this exists.
        unsafe { (*(*self.slot.as_ptr()).body.get()).assume_init_ref() }
    }
}

impl<T: Object> Drop for Ref<T> {
    fn drop(&mut self) {
        // SAFETY: the slot is in the table.
        unsafe { (*self.slot.as_ptr()).state.fetch_sub(1, Ordering::Release) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize};

    macro_rules! thing {
        ($name:ident, $capacity:literal) => {
            /// Counts its end.
            struct $name(u64, &'static AtomicUsize);

            impl Object for $name {
                type C = [u64; 3];
                const OFFSET: usize = 8;
                const CAPACITY: usize = $capacity;

                fn slab() -> &'static Slab<$name> {
                    static SLAB: Slab<$name> = Slab::new();
                    &SLAB
                }
            }

            impl Drop for $name {
                fn drop(&mut self) {
                    self.1.fetch_add(1, Ordering::Relaxed);
                }
            }

            impl $name {
                /// Makes one, and returns the program's pointer to it.
                fn make(number: u64, ended: &'static AtomicUsize) -> Option<*mut u64> {
                    let made = $name::slab().insert(|c| {
                        // SAFETY: the slab passes room for it.
                        unsafe { c.write([0, number, 0]) };
                        $name(number, ended)
                    })?;
                    Some(made.as_ptr().cast::<u64>().wrapping_add(1))
                }
            }
        };
    }

    #[test]
    fn only_live_objects_are_found_and_only_by_their_own_pointer() {
        thing!(Thing, 300);
        static ENDED: AtomicUsize = AtomicUsize::new(0);
        let slab = Thing::slab();
        assert!(slab.get(&0u64).is_none(), "before there is a table");
        let one = Thing::make(1, &ENDED).unwrap();
        assert_eq!(slab.get(one).unwrap().0, 1);
        for wrong in [one.wrapping_add(1), one.wrapping_sub(1), one.wrapping_add(1000), std::ptr::null_mut()] {
            assert!(slab.get(wrong).is_none());
        }
        assert_eq!(slab.remove(one, |_| false).err(), Some(NotRemoved::Busy));
        assert_eq!(slab.get(one).unwrap().0, 1);
        assert!(slab.remove(one, |_| true).is_ok());
        assert_eq!(slab.remove(one, |_| true).err(), Some(NotRemoved::Stale));
        assert!(slab.get(one).is_none());
        // SAFETY: tables are never unmapped.
        assert_eq!(unsafe { *one }, 1, "the structure stays readable");
        // The slot rests while there are others, and the table is full in the end.
        let many: Vec<_> = (0..299).map(|number| Thing::make(number, &ENDED).unwrap()).collect();
        assert!(!many.contains(&one));
        assert!(Thing::make(0, &ENDED) == Some(one) && Thing::make(0, &ENDED).is_none());
        assert_eq!(slab.pointers(|thing| thing.0 == 77).len(), 1);
        assert_eq!(ENDED.load(Ordering::Relaxed), 1, "the first");
    }

    #[test]
    fn what_is_used_is_not_removed_until_its_users_are_done() {
        thing!(Raced, 4);
        static ENDED: AtomicUsize = AtomicUsize::new(0);
        static CURRENT: AtomicPtr<u64> = AtomicPtr::new(std::ptr::null_mut());
        static DONE: AtomicBool = AtomicBool::new(false);
        const ROUNDS: u64 = 5000;
        let users: Vec<_> = (0..2)
            .map(|_| {
                std::thread::spawn(|| {
                    let mut found = 0u64;
                    while !DONE.load(Ordering::Relaxed) {
                        if let Some(thing) = Raced::slab().get(CURRENT.load(Ordering::Relaxed)) {
                            // SAFETY: the slot's structure.
                            assert_eq!(unsafe { (*thing.c().as_ptr())[1] }, thing.0);
                            found += 1;
                        }
                    }
                    found
                })
            })
            .collect();
        for number in 1..=ROUNDS {
            let made = Raced::make(number, &ENDED).unwrap();
            CURRENT.store(made, Ordering::Relaxed);
            if number % 100 == 0 {
                std::thread::yield_now();
            }
            assert!(Raced::slab().remove(made, |_| true).is_ok());
        }
        DONE.store(true, Ordering::Relaxed);
        let found: u64 = users.into_iter().map(|user| user.join().unwrap()).sum();
        assert_eq!(ENDED.load(Ordering::Relaxed) as u64, ROUNDS);
        println!("{found} were found alive");
    }
}
