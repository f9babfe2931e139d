//! What a kernel rxe peer was sent of the extension, in the captures of it.

use std::path::Path;

use crate::common::offer::{Tally, only_offers};

#[test]
fn rxe_was_sent_offers_until_it_had_answered_eight_times_and_nothing_else() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures/uroce-rxe-6.1");
    for (name, sent, received, offers) in [
        ("uroce-pingpong", 49, 54, 24),
        ("uroce-pingpong-server", 48, 48, 24),
        ("uroce-write-bw", 100, 6, 100),
        ("uroce-read-bw", 5, 100, 5),
        ("uroce-atomic-bw", 5, 5, 5),
    ] {
        let tally = only_offers(&folder.join(name).with_extension("pcapng"), true);
        assert_eq!(tally, Tally { sent, received, offers }, "{name}");
    }
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(files, 5, "each capture has its line here");
}
