//! What stands for crossbeam's ring, which is not built for loom.

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// A bounded ring that promises as little as it can: whoever takes a value sees what was done before it was added, and the
/// ring is empty for whoever has not seen yet that something was added. Crossbeam's `pop` has a fence, which its
/// documentation does not promise; this one has none.
pub struct ArrayQueue<T> {
    /// Only who has a place to himself takes its lock: it orders nothing that the two counts do not.
    places: Vec<Mutex<Option<T>>>,
    /// How many were taken.
    head: AtomicUsize,
    /// How many were added.
    tail: AtomicUsize,
}

impl<T> ArrayQueue<T> {
    pub fn new(capacity: usize) -> ArrayQueue<T> {
        let places = std::iter::repeat_with(|| Mutex::new(None)).take(capacity).collect();
        ArrayQueue { places, head: AtomicUsize::new(0), tail: AtomicUsize::new(0) }
    }

    pub fn capacity(&self) -> usize {
        self.places.len()
    }

    pub fn len(&self) -> usize {
        self.tail.load(Ordering::Acquire) - self.head.load(Ordering::Acquire)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One at a time adds, as the engine does. Crossbeam moves the tail by an exchange that is `SeqCst`: see
    /// [`AtomicU8`](crate::sync::atomic::AtomicU8).
    pub fn push(&self, value: T) -> Result<(), T> {
        let tail = self.tail.load(Ordering::Relaxed);
        if tail - self.head.load(Ordering::Acquire) == self.capacity() {
            return Err(value);
        }
        let place = &self.places[tail % self.capacity()];
        loop {
            let mut place = place.lock().unwrap();
            if place.is_none() {
                *place = Some(value);
                break;
            }
            // It is about to be taken.
            drop(place);
            thread::yield_now();
        }
        self.tail.store(tail + 1, Ordering::Release);
        Ok(())
    }

    pub fn force_push(&self, mut value: T) -> Option<T> {
        let mut oldest = None;
        while let Err(back) = self.push(value) {
            value = back;
            oldest = self.pop();
        }
        oldest
    }

    pub fn pop(&self) -> Option<T> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            if head == self.tail.load(Ordering::Acquire) {
                return None;
            }
            match self.head.compare_exchange(head, head + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let taken = self.places[head % self.capacity()].lock().unwrap().take();
        Some(taken.expect("it was added before the tail went on"))
    }
}
