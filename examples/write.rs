//! Two queue pairs in one program: one WRITEs into the other's memory, over the loopback and its UDP socket.
//!
//! `cargo run --example write`: needs no privilege, and ends by itself. `UROCE_DEV=eth0` takes another device.

use std::error::Error;

use uroce::verbs::{Access, OpenOptions, QueuePairOptions, SendOperation, SendRequest, Service, Status};

const MESSAGE: &[u8] = b"hello, RDMA";

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = OpenOptions::from_env()?;
    options.device.get_or_insert("lo".into());
    let context = options.open()?;

    let pd = context.allocate_pd();
    let here = pd.allocate_region(4096, Access::LOCAL_WRITE)?;
    let there = pd.allocate_region(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let cq = context.create_completion_queue(16);
    let a = pd.create_queue_pair(&QueuePairOptions::new(Service::Rc, &cq))?;
    let b = pd.create_queue_pair(&QueuePairOptions::new(Service::Rc, &cq))?;
    a.connect(&b.local())?;
    b.connect(&a.local())?;

    here.memory().write(0, MESSAGE);
    let write = SendOperation::Write(there.remote(64));
    a.post_send(SendRequest::new(1, write, here.sge(0, MESSAGE.len()).into()))?;
    // A peer that is gone ends this too, with another status: after eight timeouts of 67 ms.
    let done = std::iter::repeat_with(|| cq.poll()).flatten().next().expect("it never ends");

    assert_eq!(done.status, Status::Success);
    assert_eq!(there.memory().to_vec(64, MESSAGE.len()), MESSAGE);
    println!("{} bytes written over {} ({})", MESSAGE.len(), context.device().name, context.link_mode());
    Ok(())
}
