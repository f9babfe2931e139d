//! Completion queues: the transport adds, programs take and sleep, and others change the queue meanwhile.

#[path = "../../../src/transport/cause.rs"]
mod cause;
#[path = "../../../src/transport/completion.rs"]
mod completion;

/// The models.
pub mod models {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use loom::sync::Arc;
    use loom::thread;

    pub use super::completion::Notify;
    use super::completion::{Completion, CompletionKind, CompletionRing, Status};
    use crate::wire::Qpn;

    /// A queue, and how often it has notified.
    struct Shared {
        queue: CompletionRing,
        notifications: std::sync::Arc<AtomicUsize>,
    }

    fn shared(capacity: usize) -> Arc<Shared> {
        let notifications = std::sync::Arc::new(AtomicUsize::new(0));
        let count = notifications.clone();
        let queue = CompletionRing::new(capacity, move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        Arc::new(Shared { queue, notifications })
    }

    impl Shared {
        fn push(&self, qpn: u32, wr_id: u64, solicited: bool) {
            let completion = Completion::send(wr_id, Qpn::new(qpn), CompletionKind::Send, Status::Success, 0);
            assert!(self.queue.push(completion, solicited).is_ok(), "there is room");
        }

        fn poll(&self) -> Option<u64> {
            self.queue.poll().map(|completion| completion.wr_id)
        }

        fn drain(&self) -> Vec<u64> {
            std::iter::from_fn(|| self.poll()).collect()
        }
    }

    /// A program asks for a notification, takes what there is and then sleeps, while completions are added: it is notified,
    /// once, of what it did not take.
    pub fn a_completion_is_not_slept_over(notify: Notify) {
        let shared = shared(2);
        let transport = shared.clone();
        let transport = thread::spawn(move || (1..3).for_each(|wr_id| transport.push(1, wr_id, true)));
        shared.queue.request_notification(notify);
        let mut taken = shared.drain();
        transport.join().unwrap();
        let notifications = shared.notifications.load(Ordering::Relaxed);
        assert!(notifications <= 1, "{notifications} for one request");
        if taken.len() < 2 {
            assert_eq!(notifications, 1, "the program sleeps, and took no more than {taken:?}");
            assert!(!shared.queue.wants_notification());
        }
        taken.extend(shared.drain());
        assert_eq!(taken, [1, 2]);
    }

    /// Two threads of a program ask, take what there is and sleep. One asks for more than the other, maybe while a
    /// notification is being made: when neither took the completion, there is one.
    pub fn of_two_programs_one_is_woken() {
        let shared = shared(1);
        let transport = shared.clone();
        let transport = thread::spawn(move || transport.push(1, 1, true));
        let other = shared.clone();
        let other = thread::spawn(move || {
            other.queue.request_notification(Notify::Solicited);
            other.poll()
        });
        shared.queue.request_notification(Notify::Next);
        let taken = [shared.poll(), other.join().unwrap()];
        transport.join().unwrap();
        if taken == [None, None] {
            assert!(shared.notifications.load(Ordering::Relaxed) >= 1, "both sleep");
            assert_eq!(shared.drain(), [1]);
        }
    }

    /// What is in a queue is found although somebody changes it: a program that is told «nothing» sleeps.
    fn what_is_there_is_found(change: impl FnOnce(&CompletionRing) + Send + 'static) {
        let shared = shared(2);
        shared.push(1, 1, false);
        let changer = shared.clone();
        let changer = thread::spawn(move || change(&changer.queue));
        shared.queue.request_notification(Notify::Next);
        assert_eq!(shared.poll(), Some(1));
        changer.join().unwrap();
        assert_eq!(shared.poll(), None);
    }

    pub fn what_is_there_is_found_while_a_queue_pair_is_forgotten() {
        what_is_there_is_found(|queue| queue.forget(Qpn::new(2)));
    }

    pub fn what_is_there_is_found_while_the_queue_gets_another_size() {
        what_is_there_is_found(|queue| assert_eq!(queue.resize(3), Ok(())));
    }

    /// One adds, one takes and one changes the queue: everything is taken once and in order.
    fn nothing_is_lost(change: impl FnOnce(&CompletionRing) + Send + 'static, forgotten: Option<u64>) {
        let shared = shared(3);
        shared.push(2, 20, false);
        shared.push(1, 10, false);
        let changer = shared.clone();
        let changer = thread::spawn(move || change(&changer.queue));
        let transport = shared.clone();
        let transport = thread::spawn(move || transport.push(1, 11, false));
        let mut taken = Vec::from_iter(shared.poll());
        transport.join().unwrap();
        changer.join().unwrap();
        taken.extend(shared.drain());
        let others: &[u64] = if taken.first() == forgotten.as_ref() { &taken[1..] } else { &taken };
        let all: &[u64] = if forgotten.is_some() { &[10, 11] } else { &[20, 10, 11] };
        assert_eq!(others, all, "{taken:?} were taken");
    }

    pub fn nothing_is_lost_while_a_queue_pair_is_forgotten() {
        nothing_is_lost(|queue| queue.forget(Qpn::new(2)), Some(20));
    }

    pub fn nothing_is_lost_while_the_queue_gets_another_size() {
        nothing_is_lost(|queue| assert_eq!(queue.resize(4), Ok(())), None);
    }
}
