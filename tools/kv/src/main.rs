//! `uroce-kv`: KV caches between two sites, over uroce and over TCP. `cargo xtask kv` builds this program and passes its options on.
#![allow(clippy::disallowed_methods, reason = "it lives on the wall clock")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use kv::{
    DemoPlan, Outcome, Path, Play, Played, Profile, Served, Streamed, Tools, demo_picture, demo_table, load_table,
    loads, page, play, plays, small_plays, stream, stream_page, stream_summary, stream_tables, summary, tables,
};
use wan::{Plan, Wan};

/// KV caches between a prefill and a decode site: NIXL and Mooncake, over uroce and over TCP, through an emulated wide area
/// network of 300 Mb/s
///
/// Leaves a page with pictures at target/kv/kv.html.
#[derive(Parser)]
#[command(name = "cargo xtask kv")]
struct Arguments {
    /// Which paths: metro (2 ms), regional (10 ms, 0.01 %), continental (40 ms, 0.05 %) or lossy (30 ms with 0.001, 0.1 and 1 %,
    /// and 100 ms); default: all. Times are round trips, losses those of each way
    #[arg(long)]
    profile: Option<Profile>,

    /// Play only cells whose line contains this, such as `nixl write over uroce`
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,

    /// Play a small version of each kind of cell
    #[arg(long)]
    small: bool,

    /// Look for the most prompts a second that a site serves in time, instead of cells (docs/schemas/kv.load.json)
    #[arg(long, conflicts_with_all = ["small", "keep", "streams"])]
    load: bool,

    /// Instead of the engines, stream caches in chunks while they are computed, by the library: the time by the length of a chunk,
    /// with the chosen one. Leaves a page at target/kv/streams.html
    #[arg(long, conflicts_with_all = ["only", "small"])]
    streams: bool,

    /// Instead of the engines, show streaming, priority and deadlines over one path: 30 ms, 0.1 % (docs/schemas/kv.demo.json).
    /// Leaves a picture at target/kv/demo.svg
    #[arg(long, conflicts_with_all = ["profile", "only", "small", "keep", "load", "streams"])]
    demo: bool,

    /// Decides which frames are lost
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Keep in this folder what each site of a cell said on stderr, and its frames over verbs (pcapng)
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,

    /// Print one JSON object per cell instead of tables (docs/schemas/kv.json)
    #[arg(long)]
    json: bool,
}

/// What went wrong, in one line.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    // SAFETY: no arguments, no effect.
    if unsafe { libc::geteuid() } != 0 {
        return Err("network namespaces and AF_XDP need root: run it with sudo".into());
    }
    let tools = tools()?;
    if arguments.demo {
        let demo = DemoPlan::usual(arguments.seed).play(&tools)?;
        match arguments.json {
            true => println!("{}", demo.to_json()),
            false => println!("{}", demo_table(&demo)),
        }
        leave(&tools, "demo.svg", &demo_picture(&demo))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &arguments.keep {
        std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    }
    let profiles = arguments.profile.map_or_else(|| Profile::ALL.to_vec(), |profile| vec![profile]);
    if arguments.load {
        return load(&profiles, arguments, &tools);
    }
    if arguments.streams {
        return streams(&profiles, arguments, &tools);
    }
    let mut all = Vec::new();
    for profile in profiles {
        let paths = profile.paths();
        let most_loss = paths.iter().map(|path| path.loss).fold(0.0, f64::max);
        for path in paths {
            let cells = if arguments.small { small_plays() } else { plays(path.loss == most_loss) };
            all.extend(over(profile, path, cells, arguments, &tools)?);
        }
    }
    if all.is_empty() {
        return Err("no cell is called like that".into());
    }
    match arguments.json {
        true => all.iter().for_each(|played| println!("{}", played.to_json())),
        false => println!("{}", tables(&all)),
    }
    leave(&tools, "kv.html", &page(&all))?;
    let failed = all.iter().filter(|played| played.outcome.failure.is_some()).count();
    if failed > 0 {
        return Err(format!("{failed} of {} cells failed", all.len()).into());
    }
    Ok(ExitCode::SUCCESS)
}

/// Looks for the prompts a second that a site serves in time over each path.
fn load(profiles: &[Profile], arguments: &Arguments, tools: &Tools) -> Result<ExitCode, Failure> {
    let paths = profiles.iter().flat_map(|profile| profile.paths().into_iter().map(|path| (*profile, path)));
    let mut all = Vec::new();
    for (profile, path) in paths {
        for (prompt, transport) in loads() {
            let line = prompt.line(transport);
            if arguments.only.as_ref().is_some_and(|text| !line.contains(text)) {
                continue;
            }
            let served = prompt.serve((profile, path), transport, arguments.seed, |cell| {
                match Wan::start(Plan::simple(path.conditions(), arguments.seed)) {
                    Ok(wan) => play(&wan, tools, cell),
                    Err(error) => Outcome { failure: Some(error.to_string()), ..Outcome::default() },
                }
            });
            let Served { lambda_max_per_s, ideal_per_s, .. } = served;
            eprintln!("kv: {profile}, {path}, {line}: {lambda_max_per_s:.2} of {ideal_per_s:.2} prompts a second");
            all.push(served);
        }
    }
    match arguments.json {
        true => all.iter().for_each(|served| println!("{}", served.to_json())),
        false => println!("{}", load_table(&all)),
    }
    if all.is_empty() {
        return Err("no search is called like that".into());
    }
    let failed = all.iter().filter(|served| served.failure.is_some()).count();
    if failed > 0 { Err(format!("{failed} of {} searches failed", all.len()).into()) } else { Ok(ExitCode::SUCCESS) }
}

/// Leaves a page.
fn leave(tools: &Tools, name: &str, page: &str) -> Result<(), Failure> {
    let folder = tools.environments.join("kv");
    let file = folder.join(name);
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&file, page))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    eprintln!("kv: {}", file.display());
    Ok(())
}

/// Plays streams over all paths of profiles.
fn streams(profiles: &[Profile], arguments: &Arguments, tools: &Tools) -> Result<ExitCode, Failure> {
    let program = stream::program(tools, "stream")?;
    let lengths: Vec<Option<u64>> = stream::CHUNKS.map(Some).into_iter().chain([None]).collect();
    let chunks: Vec<u64> =
        std::iter::repeat_n(&lengths, stream::ROUNDS).flatten().map(|length| length.unwrap_or(0)).collect();
    let mut all = Vec::new();
    for (profile, path) in profiles.iter().flat_map(|profile| profile.paths().into_iter().map(|path| (*profile, path)))
    {
        for prompt in stream::PROMPTS {
            let wan = Wan::start(Plan::simple(path.conditions(), arguments.seed))?;
            let name = format!("{profile}-{}ms-{}-{}-{}", path.rtt_ms(), path.loss, prompt.model.name, prompt.tokens);
            let kept = arguments.keep.as_ref().map(|folder| folder.join(name));
            let played = stream::play(&wan, &Tools { kept, ..tools.clone() }, &program, &prompt, &chunks);
            let of_length = |number: usize| -> Vec<_> {
                let said = played.as_deref().unwrap_or_default();
                said.iter().skip(number).step_by(lengths.len()).cloned().collect()
            };
            let transfer_ms = Streamed::transfer_ms(&path, &of_length(stream::CHUNKS.len() - 1));
            for (number, chunk) in lengths.iter().copied().enumerate() {
                let (said, failure) = (of_length(number), played.as_ref().err().cloned());
                let streamed = Streamed { profile, path, prompt, chunk, said, transfer_ms, failure };
                eprintln!("kv: {}", stream_summary(&streamed));
                all.push(streamed);
            }
        }
    }
    match arguments.json {
        true => all.iter().for_each(|streamed| println!("{}", streamed.to_json())),
        false => println!("{}", stream_tables(&all)),
    }
    leave(tools, "streams.html", &stream_page(&all))?;
    match all.iter().filter(|streamed| streamed.failure.is_some()).count() {
        0 => Ok(ExitCode::SUCCESS),
        failed => Err(format!("{failed} of {} cells failed", all.len()).into()),
    }
}

/// Plays cells over a path, and says what each came to.
fn over(
    profile: Profile,
    path: Path,
    cells: Vec<Play>,
    arguments: &Arguments,
    tools: &Tools,
) -> Result<Vec<Played>, Failure> {
    let is_wanted = |play: &Play| arguments.only.as_ref().is_none_or(|text| play.cell.to_string().contains(text));
    let cells: Vec<Play> = cells.into_iter().filter(is_wanted).collect();
    let mut done = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        // A network for each: what one left queued does not meet the next.
        let wan = Wan::start(Plan::simple(path.conditions(), arguments.seed))?;
        let begin = Instant::now();
        let name = format!("{profile}-{}ms-{}-{}", path.rtt_ms(), path.loss, number + 1);
        let kept = arguments.keep.as_ref().map(|folder| folder.join(name));
        let outcome = play(&wan, &Tools { kept, ..tools.clone() }, &cell.cell);
        let played = Played::new(profile, path, cell.clone(), outcome);
        let seconds = begin.elapsed().as_secs_f64();
        eprintln!("kv: {profile} {} of {}, {seconds:.0} s: {}", number + 1, cells.len(), summary(&played));
        done.push(played);
    }
    Ok(done)
}

/// What is beside this program, as cargo builds it: target/release/uroce-kv.
fn tools() -> Result<Tools, Failure> {
    let own = std::env::current_exe().map_err(|error| format!("cannot tell where this program is: {error}"))?;
    let uroce = own.with_file_name("uroce");
    let environments = own.ancestors().nth(2).map(PathBuf::from).ok_or("this program is not in a target directory")?;
    let python = environments.join("nixl/bin/python3");
    for (file, how) in [(&uroce, "cargo build --release --workspace"), (&python, "cargo xtask setup")] {
        if !file.is_file() {
            return Err(format!("{} is not there: {how} makes it", file.display()).into());
        }
    }
    Ok(Tools { uroce, environments, kept: None })
}
