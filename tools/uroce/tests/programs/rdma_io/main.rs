//! Streams of the crate rdma-io between two hosts, connected by RDMA CM: over SENDs, and over a ring that the peer writes
//! while it has credits. Over each, both ends send a mebibyte and compare every byte that they get. `serve ADDRESS` is the
//! server, `ADDRESS` the client.
//!
//! Version 0.0.2 has a third kind, a ring whose reader's place is READ. Its writer now and then sleeps for ever, when the
//! READ's answer comes as it goes to sleep: that was mended after this version.

use std::error::Error;
use std::net::SocketAddr;

use rdma_io::async_cm::AsyncCmListener;
use rdma_io::async_stream::AsyncRdmaStream;
use rdma_io::credit_ring_transport::CreditRingConfig;
use rdma_io::send_recv_transport::SendRecvConfig;
use rdma_io::transport::{Transport, TransportBuilder};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

const BYTES: usize = 1 << 20;

/// What an end sends before it is the other's turn. In version 0.0.2 an end that only reads runs out of send requests after
/// 64 messages of 1500 bytes: it collects the completions of its credits when it writes.
const TURN_BYTES: usize = 16 << 10;

/// What the client sends over a transport, and what the server does: no two of them are alike.
fn texts(transport: u32) -> [Vec<u8>; 2] {
    [2 * transport + 1, 2 * transport + 2].map(|seed| {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        (0..BYTES).map(|_| next()).collect()
    })
}

/// Takes as many bytes as are expected, and compares them.
async fn expect<T: Transport>(stream: &mut AsyncRdmaStream<T>, expected: &[u8]) -> Outcome {
    let mut got = vec![0; expected.len()];
    let mut count = 0;
    while count < got.len() {
        match stream.read(&mut got[count..]).await? {
            0 => return Err(format!("the stream ended after {count} bytes").into()),
            more => count += more,
        }
    }
    if got != expected {
        let first = got.iter().zip(expected).position(|(got, expected)| got != expected);
        return Err(format!("another byte at {first:?}").into());
    }
    Ok(())
}

async fn serve(builder: impl TransportBuilder, listener: &AsyncCmListener, transport: u32) -> Outcome {
    let mut stream = AsyncRdmaStream::new(builder.accept(listener).await?);
    let [theirs, ours] = texts(transport);
    for (theirs, ours) in theirs.chunks(TURN_BYTES).zip(ours.chunks(TURN_BYTES)) {
        expect(&mut stream, theirs).await?;
        stream.write_all(ours).await?;
    }
    match stream.read(&mut [0]).await? {
        0 => Ok(()),
        _ => Err("a byte too many".into()),
    }
}

async fn ask(builder: impl TransportBuilder, server: &SocketAddr, transport: u32) -> Outcome {
    let mut stream = AsyncRdmaStream::new(builder.connect(server).await?);
    let [ours, theirs] = texts(transport);
    for (ours, theirs) in ours.chunks(TURN_BYTES).zip(theirs.chunks(TURN_BYTES)) {
        stream.write_all(ours).await?;
        expect(&mut stream, theirs).await?;
    }
    Ok(stream.shutdown().await?)
}

#[tokio::main]
async fn main() -> Outcome {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", address] => {
            let listener = AsyncCmListener::bind(&address.parse()?)?;
            serve(SendRecvConfig::stream(), &listener, 0).await?;
            serve(CreditRingConfig::default(), &listener, 1).await?;
        }
        [address] => {
            let server = address.parse()?;
            ask(SendRecvConfig::stream(), &server, 0).await?;
            ask(CreditRingConfig::default(), &server, 1).await?;
        }
        _ => return Err("[serve] ADDRESS".into()),
    }
    println!("all bytes compared");
    Ok(())
}
