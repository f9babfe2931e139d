//! A lock for a few instructions that can be held over fork.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

use crate::sync::{AtomicBool, Ordering, for_statics, yield_now};

/// A spinning lock. Unlike the standard library's, a handler for fork can take it and give it back in both processes.
pub(crate) struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by whoever holds the lock.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    for_statics! {
        pub(crate) fn new(value: T) -> SpinLock<T> {
            SpinLock { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
        }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.take();
        Guard(self)
    }

    /// Takes the lock without a guard.
    pub(crate) fn take(&self) {
        while self.taken.swap(true, Ordering::Acquire) {
            yield_now();
        }
    }

    /// Gives the lock back.
    ///
    /// # Safety
    /// The caller took it with [`take`](SpinLock::take), or is a fork of who did.
    pub(crate) unsafe fn give_back(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// The value, for who took the lock without a guard.
    pub(crate) fn peek(&self) -> *mut T {
        self.value.get()
    }
}

/// The lock is held.
pub(crate) struct Guard<'a, T>(&'a SpinLock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock, and `self` is borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        // SAFETY: the guard's maker took it.
        unsafe { self.0.give_back() };
    }
}
