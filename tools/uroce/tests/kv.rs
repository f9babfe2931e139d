//! `cargo xtask kv` in small: NIXL's agents and Mooncake's engines move blocks between two sites, over uroce and over TCP, through a
//! network that loses frames. All blocks are compared, and what carried them is looked at.

use std::path::Path as File;
use std::time::Duration;

use kv::{
    Beside, DemoPlan, Outcome, Path, Played, Profile, Served, Shows, Step, Streamed, TokenPlan, TokensPlayed, Tools,
    demo_picture, demo_table, loads, page, play, play_tokens, small_plays, stream, stream_page,
};
use uroce::verbs::LinkKind;
use wan::{Plan, Wan};

use super::json;
use crate::common::programs::UROCE;

const SEED: u64 = 1;

/// A search of the load that a site serves, which ends with the first load: ten prompts of a hundred, without computing for long.
fn served(path: Path, tools: &Tools) -> Served {
    let (prompt, transport) = loads().next().expect("there are some");
    let served = prompt.serve((Profile::Lossy, path), transport, SEED, |cell| {
        let mut cell = cell.clone();
        let Some(Step::Pieces { at_ms, limit, .. }) = cell.steps.last_mut() else { panic!("no pieces: {cell}") };
        at_ms.truncate(at_ms.len() / 10);
        // All of them may be late here.
        *limit = None;
        let wan = Wan::start(Plan::simple(path.conditions(), SEED)).unwrap();
        let outcome = play(&wan, tools, &cell);
        let pieces = outcome.pieces().pop().unwrap_or_else(|| panic!("seed {SEED}, {cell}: {outcome:#?}"));
        assert!(pieces.len() == 320 && outcome.failure.is_none(), "seed {SEED}, {cell}: {outcome:#?}");
        Outcome { failure: Some("a test of ten prompts".to_owned()), ..outcome }
    });
    assert_eq!(served.loads.len(), 1, "{served:?}");
    served
}

fn tools() -> Tools {
    let environments = File::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is in the target directory");
    Tools { uroce: UROCE.into(), environments: environments.to_owned(), kept: None }
}

/// `--streams` in small: the line that it would print has all its fields, and the page has the stream.
#[test]
fn a_cache_leaves_while_it_is_computed() {
    let path = Path { rtt: Duration::from_millis(4), loss: 0.005 };
    let wan = Wan::start(Plan::simple(path.conditions(), SEED)).unwrap();
    let (tools, prompt) = (tools(), stream::SMALL_PROMPT);
    let program = stream::program(&tools, "stream").unwrap();
    let said = stream::play(&wan, &tools, &program, &prompt, &[0, 10_000]).unwrap();
    let all: Vec<Streamed> = [None, Some(10_000)]
        .into_iter()
        .zip(said)
        .map(|(chunk, said)| {
            let profile = Profile::Lossy;
            let said = vec![said];
            let transfer_ms = Streamed::transfer_ms(&path, &said);
            Streamed { profile, path, prompt, chunk, said, transfer_ms, failure: None }
        })
        .collect();
    let lines: String = all.iter().map(|streamed| format!("{}\n", streamed.to_json())).collect();
    let [_, seen] = json::judge(&lines);
    assert_eq!(seen, ["uroce.kv.stream/1".to_owned()].into());
    assert_eq!(all[1].to_json()["chunk_bytes"], 10_000, "seed {SEED}: {lines}");
    assert!(stream_page(&all).contains(prompt.model.name));
}

#[test]
fn blocks_arrive_as_they_were_over_all_transports() {
    let tools = tools();
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
    let mut lines: String = all.iter().map(|played| format!("{}\n", played.to_json())).collect();
    lines += &format!("{}\n", served(path, &tools).to_json());
    let [_, seen] = json::judge(&lines);
    assert_eq!(seen, ["uroce.kv/1", "uroce.kv.load/1"].map(str::to_owned).into());
    let page = page(&all);
    assert!(all.iter().all(|played| page.contains(&played.play.cell.transport_name())), "{page}");
}

/// `uroce-tokens` in small: all tokens arrive, none earlier than the path lets it, beside transfers that move on.
#[test]
fn tokens_arrive_beside_transfers_at_full_rate() {
    let plan = TokenPlan {
        path: "delay=5ms,rate=100M".parse().unwrap(),
        tokens: 300,
        every: Duration::from_millis(2),
        flows: 2,
        warm_up: 300,
        seed: SEED,
        link: LinkKind::Udp,
        apart: Some(UROCE.into()),
    };
    let played: Vec<TokensPlayed> = Beside::ALL.map(|beside| play_tokens(&plan, beside).unwrap()).into();
    let lines: String = played.iter().map(|one| format!("{}\n", one.to_json(&plan, &played[0]))).collect();
    for one in &played {
        assert_eq!(one.latencies.len(), plan.tokens, "seed {SEED}: {lines}");
        assert!(one.quantile(0.0) >= plan.path.delay, "seed {SEED}: {lines}");
        assert!(one.lateness.frames() > 2 * plan.tokens as u64, "seed {SEED}: {lines}");
        assert_eq!(one.goodput_bps > 0.0, one.beside != Beside::Nothing, "seed {SEED}: {lines}");
    }
    let [_, seen] = json::judge(&lines);
    assert_eq!(seen, ["uroce.kv.tokens/1".to_owned()].into());
}

/// `--demo` in small: streaming, priority and deadlines, and the picture that it would leave.
#[test]
fn streaming_priority_and_deadlines_are_shown() {
    let plan = DemoPlan {
        path: Path { rtt: Duration::from_millis(4), loss: 0.005 },
        prompt: stream::SMALL_PROMPT,
        tokens: [200, 100],
        object_bytes: 1 << 20,
        deadlines_ms: vec![10, 2000],
        ..DemoPlan::usual(SEED)
    };
    let demo = plan.play(&tools()).unwrap();
    // A mebibyte takes 28 ms.
    let [early, late] = [0, 1].map(|number: usize| demo.fetched.each_ref().map(|fetched| fetched[number]));
    assert!(early.iter().all(|fetched| fetched.whole < fetched.blocks), "seed {SEED}: {demo:#?}");
    assert!(late.iter().all(|fetched| fetched.whole == fetched.blocks), "seed {SEED}: {demo:#?}");
    assert!(demo.tokens.iter().all(|played| played.latencies.len() == 200), "seed {SEED}: {demo:#?}");
    assert!(demo.after_ms() > demo.streamed_ms("compute_ms"), "seed {SEED}: {demo:#?}");
    let [_, seen] = json::judge(&format!("{}\n", demo.to_json()));
    assert_eq!(seen, ["uroce.kv.demo/1".to_owned()].into());
    assert!(demo_table(&demo).contains("deadline") && demo_picture(&demo).contains("xmlns="));
}
