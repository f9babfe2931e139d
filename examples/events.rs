//! Sleeping instead of polling: SENDs over the loopback, and a thread that waits for completions and for asynchronous events.
//!
//! `cargo run --example events`: needs no privilege, and ends by itself. `UROCE_DEV=eth0` takes another device.

use std::error::Error;
use std::time::Duration;

use uroce::verbs::{
    Access, Capabilities, CompletionChannel, CompletionKind, Event, Notify, OpenOptions, QueuePairOptions,
    ReceiveRequest, SendOperation, SendRequest, Service, Status,
};

/// Each SEND has its own bytes, and its own place at the receiver.
const MESSAGES: usize = 8;
const BYTES: usize = 1000;

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = OpenOptions::from_env()?;
    options.device.get_or_insert("lo".into());
    let context = options.open()?;

    let pd = context.allocate_pd();
    let here = pd.allocate_region(MESSAGES * BYTES, Access::LOCAL_WRITE)?;
    let there = pd.allocate_region(MESSAGES * BYTES, Access::LOCAL_WRITE)?;
    // The queue writes to the channel, a descriptor that poll(2) and its like know, too.
    let channel = CompletionChannel::new()?;
    let cq = context.create_completion_queue_on(64, &channel);
    let capabilities = Capabilities { max_send_requests: MESSAGES, max_receive_requests: MESSAGES };
    let options = QueuePairOptions { capabilities, ..QueuePairOptions::new(Service::Rc, &cq) };
    let (sender, receiver) = (pd.create_queue_pair(&options)?, pd.create_queue_pair(&options)?);
    sender.connect(&receiver.local())?;
    receiver.connect(&sender.local())?;

    for at in 0..MESSAGES {
        here.memory().write(at * BYTES, &[at as u8 + 1; BYTES]);
        receiver.post_receive(ReceiveRequest::new(at as u64, [there.sge(at * BYTES, BYTES)]))?;
    }
    for at in 0..MESSAGES {
        let data = here.sge(at * BYTES, BYTES).into();
        sender.post_send(SendRequest::new(at as u64, SendOperation::Send, data))?;
    }

    let (mut sent, mut received) = (0, 0);
    while sent < MESSAGES || received < MESSAGES {
        // In this order: ask, look once more, sleep. What comes between the look and the sleep ends the sleep.
        cq.request_notification(Notify::Next);
        let mut found = false;
        while let Some(done) = cq.poll() {
            found = true;
            assert_eq!(done.status, Status::Success, "request {}", done.wr_id);
            match done.kind {
                CompletionKind::Receive => received += 1,
                _ => sent += 1,
            }
        }
        if !found && channel.wait(PATIENCE)? == 0 {
            return Err(format!("nothing has happened for {PATIENCE:?}: {sent} sent, {received} received").into());
        }
    }
    for at in 0..MESSAGES {
        assert_eq!(there.memory().to_vec(at * BYTES, BYTES), [at as u8 + 1; BYTES]);
    }

    // What is no request's outcome comes as an event: here that a WRITE asks for memory that nobody registered for it.
    let write = SendOperation::Write(there.remote(0));
    sender.post_send(SendRequest::new(99, write, here.sge(0, BYTES).into()))?;
    let event = context.wait_event(PATIENCE)?;
    assert_eq!(event, Some(Event::AccessError(receiver.qpn())));
    println!("{MESSAGES} messages of {BYTES} bytes received, and {event:?}");
    Ok(())
}
