//! What the two ends of a test say to each other, and in which order: perftest's, which differs from test to test.

use std::net::TcpStream;
use std::process::ExitCode;

use uroce::verbs::{Context, PathMtu};

use super::exchange::Exchange;
use super::extent::Extent;
use super::report::{Bandwidth, Printer};
use super::settings::Settings;
use super::side::Side;
use super::test::{Test, Verb};
use super::{Arguments, bandwidth, latency};
use crate::Failure;
use crate::choices::{check_mtu, choose_gid};
use crate::failed_request::{Around, FailedRequest};
use crate::interrupt::{self, Interruptible};
use crate::losses::Losses;
use crate::tcp::{self, Listener};
use crate::watch::Stalled;

/// Runs a test from its beginning to its end; a server that stays, one with each client.
pub fn run(arguments: &Arguments, settings: Settings) -> Result<ExitCode, Failure> {
    let context = arguments.device.open()?;
    let _told = arguments.device.watch(&context, arguments.json)?;
    let mtu = arguments.mtu.unwrap_or(context.active_mtu());
    check_mtu(&context, mtu)?;
    let gid_index = choose_gid(&context, "-x", arguments.gid_index)?;
    arguments.device.announce(&context, gid_index);
    let play = |stream: TcpStream| converse(stream, settings.clone(), &context, (mtu, gid_index));
    if let Some(host) = &arguments.host {
        return play(tcp::connect(host, arguments.port, settings.patience)?);
    }
    let listener = Listener::bind(arguments.port)?;
    if arguments.forever {
        eprintln!("uroce: waiting for clients on TCP port {}", arguments.port);
        return Err(listener.serve_all(arguments.json, |stream| play(stream).map(drop)));
    }
    eprintln!("uroce: waiting for a client on TCP port {}", arguments.port);
    let stream = listener.accept()?;
    drop(listener);
    play(stream)
}

/// A test with one peer, from a path MTU and a GID. Returns failure when it is below a bound.
fn converse(
    stream: TcpStream,
    mut settings: Settings,
    context: &Context,
    (mtu, gid_index): (PathMtu, usize),
) -> Result<ExitCode, Failure> {
    let losses = Losses::begin(context);
    let mut exchange = Exchange::begin(stream, &settings, context)?;
    exchange.compare(settings.terms());
    let agreed = exchange.negotiate(mtu)?;
    settings.fit_datagrams(context, agreed.mtu)?;
    let side = Side::new(&settings, agreed, context, gid_index)?;
    let printer = Printer::begin(&side, agreed)?;
    let mut conversation = Conversation { side, exchange, printer };
    conversation.introduce()?;
    conversation.printer.heading();
    let interruptible = Interruptible::begin();
    let talked = conversation.talk();
    drop(interruptible);
    if talked.is_ok() || interrupt::is_pending() {
        conversation.printer.end();
    }
    losses.tell(context);
    interrupt::check()?;
    talked.map_err(|failure| conversation.explain(failure))?;
    // Our queue pairs stay until the peer has what it needs of them.
    let Conversation { side, exchange, printer } = conversation;
    exchange.wait_for_end();
    drop(side);
    match printer.below() {
        Some(text) => Err(text.into()),
        None => Ok(ExitCode::SUCCESS),
    }
}

struct Conversation<'a> {
    side: Side<'a>,
    exchange: Exchange<'a>,
    printer: Printer<'a>,
}

impl Conversation<'_> {
    /// Exchanges keys and connects the queue pairs.
    fn introduce(&mut self) -> Result<(), Failure> {
        let settings = self.side.settings;
        let is_send = settings.verb() == Verb::Send;
        let own = self.side.keys();
        if settings.test.is_latency() && !is_send {
            self.meet()?;
        }
        let theirs = self.exchange.all_keys(&own)?;
        self.side.connect(&theirs)?;
        if is_send {
            self.meet()?;
        }
        self.printer.addresses(" local", &own);
        self.exchange.all_keys(&own)?;
        self.printer.addresses("remote", &theirs);
        if !is_send {
            self.meet()?;
        }
        Ok(())
    }

    /// Says more of a failure: what the peer's end of the TCP connection, and a small packet, tell of it.
    fn explain(&self, failure: Failure) -> Failure {
        let (program, at) = (self.exchange.peer_program(), self.exchange.peer_address());
        match failure.downcast::<FailedRequest>() {
            Ok(failed) => {
                let around = Around { at, program, is_uroce: self.exchange.is_uroce(), mtu: self.side.mtu() };
                failed.explain(&around, self.side.largest_message(), |qpn| self.side.probe(qpn)).into()
            }
            Err(other) => match other.downcast::<Stalled>() {
                Ok(stalled) => stalled.explain(program, &at).into(),
                Err(other) => other,
            },
        }
    }

    /// Runs the test.
    fn talk(&mut self) -> Result<(), Failure> {
        let settings = self.side.settings;
        match settings.test {
            Test::WriteLat => {
                // Nothing ends it: the ends part with the last message.
                self.latencies()
            }
            Test::SendLat => {
                self.latencies()?;
                self.close()
            }
            Test::ReadLat | Test::AtomicLat => {
                if settings.is_client {
                    self.latencies()?;
                }
                self.close()
            }
            Test::SendBw => {
                self.send_bandwidths()?;
                self.close()
            }
            Test::WriteBw | Test::ReadBw | Test::AtomicBw => {
                self.bandwidths()?;
                self.close()
            }
        }
    }

    fn latencies(&mut self) -> Result<(), Failure> {
        for size in self.side.settings.sizes.clone() {
            if self.side.settings.test == Test::SendLat {
                self.side.post_receives(size)?;
                self.meet()?;
            }
            let found = latency::run(&mut self.side, self.exchange.stream(), size)?;
            self.printer.latency(&found)?;
            interrupt::check()?;
        }
        Ok(())
    }

    fn send_bandwidths(&mut self) -> Result<(), Failure> {
        let settings = self.side.settings;
        for size in settings.sizes.clone() {
            if settings.receives() {
                self.side.post_receives(size)?;
            }
            self.meet()?;
            let own = self.measure(size)?;
            let by_time = matches!(settings.extent, Extent::Duration(_));
            let theirs = match settings.bidirectional && !by_time {
                true => Some(self.exchange.report(&own)?),
                false => None,
            };
            self.printer.bandwidth(&own, theirs.as_ref())?;
            if settings.all_sizes {
                self.meet()?;
            }
        }
        Ok(())
    }

    /// WRITE, READ and atomics: who does not post only serves, and gets the results at the end.
    fn bandwidths(&mut self) -> Result<(), Failure> {
        let settings = self.side.settings;
        if !settings.sends() {
            self.meet()?;
            let found = self.exchange.report(&Bandwidth::default())?;
            return self.printer.bandwidth(&found, None);
        }
        let mut last = Bandwidth::default();
        for size in settings.sizes.clone() {
            if settings.bidirectional {
                self.meet()?;
            }
            last = self.measure(size)?;
            if settings.bidirectional && settings.all_sizes {
                self.meet()?;
            }
            let theirs = match settings.bidirectional {
                true => Some(self.exchange.report(&last)?),
                false => None,
            };
            self.printer.bandwidth(&last, theirs.as_ref())?;
        }
        if !settings.bidirectional {
            self.meet()?;
            self.exchange.report(&last)?;
        }
        Ok(())
    }

    /// Sends and receives messages of `size` bytes. When a signal has cut that short, prints what there is.
    fn measure(&mut self, size: usize) -> Result<Bandwidth, Failure> {
        let Conversation { side, exchange, printer } = self;
        let mut told = Ok(());
        let found = bandwidth::run(side, exchange.stream(), size, |found| {
            if told.is_ok() {
                told = printer.bandwidth(found, None);
            }
        })?;
        told?;
        if interrupt::is_pending() {
            self.printer.bandwidth(&found, None)?;
        }
        interrupt::check()?;
        Ok(found)
    }

    /// Waits until both ends are here: the keys of the first queue pair, once more.
    fn meet(&mut self) -> Result<(), Failure> {
        self.exchange.keys(&self.side.keys()[0]).map(drop)
    }

    /// The end of most tests.
    fn close(&mut self) -> Result<(), Failure> {
        self.meet()?;
        self.exchange.done()
    }
}
