//! What the two ends of a test say to each other, and in which order: perftest's, which differs from test to test.

use super::exchange::Exchange;
use super::extent::{Extent, Stalled};
use super::keys::Keys;
use super::report::{Bandwidth, Printer};
use super::settings::Settings;
use super::side::Side;
use super::test::{Test, Verb};
use super::{Arguments, bandwidth, latency};
use crate::Failure;
use crate::choices::{check_mtu, choose_gid};
use crate::failed_request::{Around, FailedRequest};
use crate::tcp::PeerProgram;

/// Runs a test from its beginning to its end.
pub fn run(arguments: &Arguments, mut settings: Settings) -> Result<(), Failure> {
    let context = arguments.device.open()?;
    let _told = arguments.device.watch(&context, arguments.json)?;
    let mtu = arguments.mtu.unwrap_or(context.active_mtu());
    check_mtu(&context, mtu)?;
    let gid_index = choose_gid(&context, "-x", arguments.gid_index)?;
    arguments.device.announce(&context, gid_index);
    if !settings.is_client {
        eprintln!("uroce: waiting for a client on TCP port {}", arguments.port);
    }
    let mut exchange = Exchange::open(arguments.host.as_deref(), arguments.port, settings.patience, &context)?;
    exchange.compare(settings.terms());
    let agreed = exchange.negotiate(mtu)?;
    settings.fit_datagrams(&context, agreed.mtu)?;
    let side = Side::new(&settings, agreed, &context, gid_index)?;
    let printer = Printer::begin(&side, agreed);
    let mut conversation = Conversation { side, exchange, printer };
    conversation.introduce()?;
    conversation.printer.heading();
    conversation.talk().map_err(|failure| conversation.explain(failure))?;
    conversation.printer.end();
    // Our queue pairs stay until the peer has what it needs of them.
    let Conversation { side, exchange, .. } = conversation;
    exchange.wait_for_end();
    drop(side);
    Ok(())
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
        let theirs: Vec<Keys> = own.iter().map(|own| self.exchange.keys(own)).collect::<Result<_, _>>()?;
        self.side.connect(&theirs)?;
        if is_send {
            self.meet()?;
        }
        self.printer.addresses(" local", &own);
        for own in &own {
            self.exchange.keys(own)?;
        }
        self.printer.addresses("remote", &theirs);
        if !is_send {
            self.meet()?;
        }
        Ok(())
    }

    /// Says more of a failure: what the peer's end of the TCP connection, and a small packet, tell of it.
    fn explain(&self, failure: Failure) -> Failure {
        let program = self.exchange.peer_program();
        let at = self.exchange.peer_address();
        match failure.downcast::<FailedRequest>() {
            Ok(failed) => {
                let answers_small = match program {
                    PeerProgram::Ended => None,
                    _ => self.side.answers_small(&failed),
                };
                let (is_uroce, mtu) = (self.exchange.is_uroce(), self.side.mtu());
                failed.explain(&Around { at, program, is_uroce, mtu, answers_small }).into()
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
            let found = latency::run(&mut self.side, size)?;
            self.printer.latency(&found, &self.side);
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
            let own = bandwidth::run(&mut self.side, size)?;
            let by_time = matches!(settings.extent, Extent::Duration(_));
            let found = match settings.bidirectional && !by_time {
                true => own.with(self.exchange.report(&own)?),
                false => own,
            };
            self.printer.bandwidth(&found, &self.side);
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
            self.printer.bandwidth(&found, &self.side);
            return Ok(());
        }
        let mut last = Bandwidth::default();
        for size in settings.sizes.clone() {
            if settings.bidirectional {
                self.meet()?;
            }
            last = bandwidth::run(&mut self.side, size)?;
            if settings.bidirectional && settings.all_sizes {
                self.meet()?;
            }
            let found = match settings.bidirectional {
                true => last.with(self.exchange.report(&last)?),
                false => last,
            };
            self.printer.bandwidth(&found, &self.side);
        }
        if !settings.bidirectional {
            self.meet()?;
            self.exchange.report(&last)?;
        }
        Ok(())
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
