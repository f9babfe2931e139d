//! Two programs, on two hosts or in two network namespaces: they tell each other over TCP who they are, and bounce a message.
//!
//! `cargo run --example pingpong` is the server, `cargo run --example pingpong 10.0.0.1` the client. Both take the variables
//! of [`OpenOptions`], `UROCE_DEV=eth0` above all.

#![allow(clippy::disallowed_methods, reason = "a program on the wall clock")]

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use uroce::verbs::{
    Access, Completion, CompletionKind, CompletionQueue, ConnectOptions, OpenOptions, QueuePairOptions, ReceiveRequest,
    SendOperation, SendRequest, Service, Status,
};

const TCP_PORT: u16 = 18520;
const ROUND_TRIPS: u32 = 1000;
const BYTES: usize = 1000;

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1);
    let context = OpenOptions::from_env()?.open()?;
    let pd = context.allocate_pd();
    // What is sent is in the first half, what is received in the second.
    let region = pd.allocate_region(2 * BYTES, Access::LOCAL_WRITE)?;
    let cq = context.create_completion_queue(16);
    let qp = pd.create_queue_pair(&QueuePairOptions::new(Service::Rc, &cq))?;
    // The peer may send as soon as it is connected: the first receive request is there before.
    qp.init(&ConnectOptions::new())?;
    let receive = || qp.post_receive(ReceiveRequest::new(0, [region.sge(BYTES, BYTES)]));
    receive()?;

    // Each says a line, and each reads one.
    let any = [SocketAddr::from((Ipv6Addr::UNSPECIFIED, TCP_PORT)), (Ipv4Addr::UNSPECIFIED, TCP_PORT).into()];
    let mut stream = match &server {
        Some(host) => TcpStream::connect((host.as_str(), TCP_PORT))?,
        None => TcpListener::bind(&any[..])?.accept()?.0,
    };
    writeln!(stream, "{}", qp.local())?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    qp.connect(&line.parse()?)?;

    let send = |bytes: &[u8]| {
        region.memory().write(0, bytes);
        qp.post_send(SendRequest::new(0, SendOperation::Send, region.sge(0, bytes.len()).into()))
    };
    let is_client = server.is_some();
    let mut is_sent = true;
    let start = Instant::now();
    for round in 0..ROUND_TRIPS {
        let expected = [round as u8; BYTES];
        if is_client {
            send(&expected)?;
            is_sent = false;
        }
        // In either order: the peer's message may come before our own is acknowledged.
        let mut has_received = false;
        while !(has_received && is_sent) {
            match wait(&cq)?.kind {
                CompletionKind::Receive => has_received = true,
                _ => is_sent = true,
            }
        }
        let received = region.memory().to_vec(BYTES, BYTES);
        assert_eq!(received, expected, "round {round}");
        receive()?;
        if !is_client {
            send(&received)?;
            is_sent = false;
        }
    }
    if !is_sent {
        wait(&cq)?;
    }
    let each = start.elapsed() / ROUND_TRIPS;
    println!("{ROUND_TRIPS} round trips of {BYTES} bytes, {each:?} each, over {}", context.link_mode());

    // Whoever ends first may still be asked for an acknowledge: wait for the other's word.
    writeln!(stream, "done")?;
    reader.read_line(&mut line)?;
    Ok(())
}

/// The next completion, which is to be a success.
fn wait(cq: &CompletionQueue) -> Result<Completion, Box<dyn Error>> {
    let start = Instant::now();
    loop {
        match cq.poll() {
            Some(done) if done.status == Status::Success => return Ok(done),
            Some(done) => return Err(format!("a request failed: {:?}", done.status).into()),
            None if start.elapsed() > PATIENCE => return Err(format!("nothing has come for {PATIENCE:?}").into()),
            None => {}
        }
    }
}
