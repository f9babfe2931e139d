//! Conversations of two programs each of which compares every byte that it gets, and says so at its end.

use std::time::Duration;

use rxe_rig::Netns;

use super::programs::{Ended, Running, run, run_as_nobody, sent_packets};

/// How `uroce run` is started: the namespace, and its words.
pub type Start = fn(&Netns, &str) -> Running;

/// Over AF_XDP as root, and over UDP sockets as nobody.
pub const OVER_XDP: (Start, &str) = (run, "xdp");
pub const OVER_UDP: (Start, &str) = (run_as_nobody, "udp");

const LIMIT: Duration = Duration::from_secs(90);

/// A conversation.
pub struct Compared {
    /// The programs and their words, the server's first.
    pub lines: [String; 2],
    /// The TCP port at which the server listens before the client begins.
    pub port: u16,
    /// Each end sends as many packets at least. Many programs take TCP in silence when they find no device.
    pub fewest_packets: u64,
}

impl Compared {
    /// Plays it, the server in the first namespace and the client in the second, with options of `uroce run` for each.
    #[track_caller]
    pub fn play(&self, (start, link): (Start, &str), namespaces: [&Netns; 2], options: [&str; 2]) {
        let line = |end: usize| format!("--link {link} {} --trace -- {}", options[end], self.lines[end]);
        let mut server = start(namespaces[0], &line(0));
        server.listens(namespaces[0], self.port, LIMIT).unwrap();
        let client = start(namespaces[1], &line(1));
        let ended = [client, server].map(|program| program.end_within(LIMIT).unwrap());
        for ended in ended.map(Ended::succeeded) {
            assert!(ended.stdout.ends_with("all bytes compared\n"), "{ended:#?}");
            let sent = sent_packets(&ended.stderr);
            assert!(sent >= self.fewest_packets, "{sent} packets, not {}: {ended:#?}", self.fewest_packets);
        }
    }
}
