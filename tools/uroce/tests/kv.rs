//! `cargo xtask kv` in small: NIXL's agents and Mooncake's engines move blocks between two sites, over uroce and over TCP, through a
//! network that loses frames. All blocks are compared, and what carried them is looked at.

use std::collections::BTreeSet;
use std::path::Path as File;
use std::time::Duration;

use kv::{Path, Played, Profile, Shows, Tools, page, play, small_plays};
use wan::{Plan, Wan};

use super::json;
use crate::common::programs::UROCE;

const SEED: u64 = 1;

#[test]
fn blocks_arrive_as_they_were_over_all_transports() {
    let environments = File::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory");
    let tools = Tools { uroce: UROCE.into(), environments: environments.to_owned(), kept: None };
    let path = Path { rtt: Duration::from_millis(4), loss: 0.005 };
    let mut all = Vec::new();
    for one in small_plays() {
        let wan = Wan::start(Plan::simple(path.conditions(), SEED)).unwrap();
        let outcome = play(&wan, &tools, &one.cell);
        all.push(Played::new(Profile::Lossy, path, one, outcome));
    }
    for played in &all {
        let (cell, outcome) = (&played.play.cell, &played.outcome);
        assert_eq!(outcome.failure, None, "seed {SEED}, {cell}: {outcome:#?}");
        assert_eq!(outcome.ends.len(), cell.steps.len(), "seed {SEED}, {cell}: {outcome:#?}");
        assert!(outcome.ends.iter().all(|end| end["contents_equal"] == true), "seed {SEED}, {cell}: {outcome:#?}");
        let is_prompt = matches!(played.play.shows, Shows::Prompt { .. });
        assert_eq!(played.first_tokens().len(), usize::from(is_prompt), "seed {SEED}, {cell}: {outcome:#?}");
    }
    let lines: String = all.iter().map(|played| format!("{}\n", played.to_json())).collect();
    let [_, seen] = json::judge(&lines);
    assert_eq!(seen, BTreeSet::from(["uroce.kv/1".to_owned()]));
    let page = page(&all);
    assert!(all.iter().all(|played| page.contains(&played.play.cell.transport_name())), "{page}");
}
