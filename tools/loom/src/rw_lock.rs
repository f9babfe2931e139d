//! What stands for the standard library's lock of many readers: loom's own prints a line whenever it is taken.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, TryLockError, TryLockResult};

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// In place of the number of readers, while somebody writes.
const WRITER: usize = usize::MAX;

/// As on Linux: one number says who has it.
pub struct RwLock<T> {
    readers: AtomicUsize,
    value: UnsafeCell<T>,
}

// SAFETY: many look at the value, or one changes it.
unsafe impl<T: Send + Sync> Sync for RwLock<T> {}

impl<T> RwLock<T> {
    pub fn new(value: T) -> RwLock<T> {
        RwLock { readers: AtomicUsize::new(0), value: UnsafeCell::new(value) }
    }

    pub fn try_read(&self) -> TryLockResult<RwLockReadGuard<'_, T>> {
        let one_more = |readers| if readers == WRITER { None } else { Some(readers + 1) };
        match self.readers.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(RwLockReadGuard(self)),
            Err(_) => Err(TryLockError::WouldBlock),
        }
    }

    pub fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        loop {
            match self.try_read() {
                Ok(guard) => return Ok(guard),
                Err(_) => thread::yield_now(),
            }
        }
    }

    pub fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        while self.readers.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_err() {
            thread::yield_now();
        }
        Ok(RwLockWriteGuard(self))
    }
}

/// Somebody looks.
pub struct RwLockReadGuard<'a, T>(&'a RwLock<T>);

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: as long as somebody looks, nobody changes it.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> Drop for RwLockReadGuard<'_, T> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Release);
    }
}

/// Somebody changes it.
pub struct RwLockWriteGuard<'a, T>(&'a RwLock<T>);

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: nobody else has it.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else has it.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for RwLockWriteGuard<'_, T> {
    fn drop(&mut self) {
        self.0.readers.store(0, Ordering::Release);
    }
}
