use comfy_table::{Table, presets};
use wan::of_sorted;

use crate::cell::{Program, UcxChoice};
use crate::cells::Shows;
use crate::demo::{DEMO_SHARE, Demo, Fetched, REPAIR_PER_MILLE};
use crate::load::Served;
use crate::played::Played;
use crate::profile::LINE_BPS;

/// Tables of what was played: bulk transfers, batches, prompts.
pub fn tables(all: &[Played]) -> String {
    let of = |shows: fn(&Shows) -> bool| all.iter().filter(move |played| shows(&played.play.shows));
    let mut parts = Vec::new();
    let mut add = |header: &[&str], rows: Vec<Vec<String>>| {
        if !rows.is_empty() {
            let mut table = Table::new();
            table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
            table.add_rows(rows);
            parts.push(table.to_string());
        }
    };
    let bulk = [
        "round trip, loss",
        "program",
        "transport",
        "request",
        "MiB",
        "Mb/s",
        "of the line",
        "window's limit",
        "cold",
        "carried by",
    ];
    add(&bulk, of(|shows| *shows == Shows::Bulk).map(bulk_row).collect());
    let batches = [
        "round trip, loss",
        "program",
        "transport",
        "batches of 2 MiB",
        "median",
        "99 %",
        "ideal median",
        "ideal 99 %",
    ];
    add(&batches, of(|shows| *shows == Shows::Batches).map(batches_row).collect());
    let prompts = [
        "round trip, loss",
        "model",
        "tokens",
        "transport",
        "first token",
        "90 %",
        "path",
        "compute",
        "transfer beyond",
        "step",
    ];
    add(&prompts, of(|shows| matches!(shows, Shows::Prompt { .. })).map(prompt_row).collect());
    parts.join("\n\n")
}

/// What a demonstration came to.
pub fn demo_table(demo: &Demo) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(["", "", ""]);
    let mut add = |what: &str, which: String, came_to: String| {
        table.add_row([what.to_owned(), which, came_to]);
    };
    let of_a_cache = [("compute", "compute_ms"), ("there, in chunks", "total_ms")];
    for (which, field) in of_a_cache {
        add("streaming", which.to_owned(), ms(Some(demo.streamed_ms(field))));
    }
    add("streaming", "there, sent when all is computed".to_owned(), ms(Some(demo.after_ms())));
    for played in &demo.tokens {
        let [median, p90] = [0.5, DEMO_SHARE].map(|share| played.quantile(share).as_secs_f64() * 1e3);
        let goodput = played.goodput_bps / 1e6;
        let came_to = format!("median {median:.2} ms, 90 % {p90:.2} ms, transfer {goodput:.0} Mb/s");
        add("tokens", played.beside.to_string(), came_to);
    }
    for (repair, fetched) in [0, REPAIR_PER_MILLE].into_iter().zip(&demo.fetched) {
        for Fetched { deadline_ms, whole, blocks } in fetched {
            let which = format!("{deadline_ms} ms, {} % repair symbols", repair / 10);
            add("deadline", which, format!("{whole} of {blocks} blocks"));
        }
    }
    table.to_string()
}

/// A table of what sites serve in time.
pub fn load_table(all: &[Served]) -> String {
    let header =
        ["round trip, loss", "model", "transport", "objective", "ideal", "prompts a second", "of the ideal", "loads"];
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN).set_header(header);
    let row = |served: &Served| {
        let found = match &served.failure {
            Some(why) => [format!("failed: {why}"), "-".to_owned()],
            None => {
                let share = served.lambda_max_per_s / served.ideal_per_s;
                [format!("{:.2}", served.lambda_max_per_s), format!("{:.0} %", 100.0 * share)]
            }
        };
        let [lambda_max, share] = found;
        [
            served.path.to_string(),
            served.prompt.workload.model.name.to_owned(),
            served.transport_name(),
            ms(Some(served.objective.as_secs_f64() * 1e3)),
            format!("{:.2}", served.ideal_per_s),
            lambda_max,
            share,
            served.loads.len().to_string(),
        ]
    };
    table.add_rows(all.iter().map(row));
    table.to_string()
}

/// What a line of progress says of a cell.
pub fn summary(played: &Played) -> String {
    let row = match played.play.shows {
        Shows::Bulk => bulk_row(played),
        Shows::Batches => batches_row(played),
        Shows::Prompt { .. } => prompt_row(played),
    };
    row.join(", ")
}

pub(crate) fn names(played: &Played) -> [String; 3] {
    let cell = &played.play.cell;
    let is_own = cell.program == Program::Nixl && cell.is_over_verbs() && cell.ucx == UcxChoice::Own;
    let transport = if is_own { "uroce, as UCX chooses".to_owned() } else { cell.transport_name() };
    [played.path.to_string(), format!("{} {}", cell.program, cell.op), transport]
}

fn ms(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0} ms"))
}

fn carried_by(played: &Played) -> String {
    match (&played.outcome.failure, &played.outcome.sockets) {
        (Some(why), _) => format!("failed: {why}"),
        (None, Some(sockets)) => format!("{} × {}", sockets.count, sockets.controls.join(",")),
        (None, None) => format!("{} QP", played.outcome.queue_pairs.len()),
    }
}

fn bulk_row(played: &Played) -> Vec<String> {
    let json = played.to_json();
    let mebibytes =
        |name: &str| json[name].as_f64().map_or_else(|| "-".to_owned(), |bytes| format!("{:.0}", bytes / 1_048_576.0));
    let size = match json["cut"] == true {
        true => format!("{} of {}, cut", mebibytes("arrived_bytes"), mebibytes("bytes")),
        false => mebibytes("bytes"),
    };
    let goodput = played.goodput_bps();
    let mut row = names(played).to_vec();
    row.extend([
        format!("{} KiB", played.play.cell.block_bytes >> 10),
        size,
        goodput.map_or_else(|| "-".to_owned(), |bps| format!("{:.0}", bps / 1e6)),
        goodput.map_or_else(|| "-".to_owned(), |bps| format!("{:.1} %", 100.0 * bps / LINE_BPS as f64)),
        played.window_bps().map_or_else(|| "-".to_owned(), |bps| format!("{:.0} Mb/s", bps / 1e6)),
        ms(json["cold_ms"].as_f64()),
        carried_by(played),
    ]);
    row
}

fn batches_row(played: &Played) -> Vec<String> {
    let batches = played.batches_ms();
    let mut row = names(played).to_vec();
    row.push(match played.outcome.failure {
        Some(_) => carried_by(played),
        None => batches.len().to_string(),
    });
    row.extend([0.5, 0.99].map(|share| ms(of_sorted(&batches, share).copied())));
    row.extend([0, 1].map(|which: usize| ms(played.ideal_ms().map(|ideal| ideal[which]))));
    row
}

fn prompt_row(played: &Played) -> Vec<String> {
    let [path, _, transport] = names(played);
    let Shows::Prompt { model, tokens } = &played.play.shows else { return vec![path] };
    let all = played.first_tokens();
    let median = of_sorted(&all, 0.5);
    let total = |share| of_sorted(&all, share).map(|token| token.total_ms());
    let first = if played.outcome.failure.is_some() { carried_by(played) } else { ms(total(0.5)) };
    let mut row = vec![path, model.name.to_owned(), tokens.to_string(), transport, first, ms(total(0.9))];
    row.extend([
        ms(median.map(|token| token.path_ms)),
        ms(median.map(|token| token.compute_ms)),
        ms(median.map(|token| token.transfer_ms)),
        ms(median.map(|token| token.step_ms)),
    ]);
    row
}
