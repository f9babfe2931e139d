//! `cargo xtask htsim [--json]`: connection matrices on uet-htsim, the Ultra Ethernet consortium's simulator, beside
//! `uroce sim matrix`. Its source is fetched and compiled, which takes a minute; the matrices take 20 s.
use crate::{Failure, Outcome, dist, program, setup};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where its source is from, and the commit.
const SOURCE: &str = "https://github.com/ultraethernet/uet-htsim";
const COMMIT: &str = "40ccb0526bb6297eeb22ab33f9934fb35278dbaf";

/// What building it takes besides.
const PACKAGES: &[(&str, &str)] = &[
    ("git", "uet-htsim's source"),
    ("cmake", "building uet-htsim"),
    ("make", "building uet-htsim"),
    ("g++", "uet-htsim"),
];

/// Who decides on the rate here.
const CONTROLLERS: [&str; 3] = ["nscc", "steady", "dcqcn"];

/// A matrix over a tree, played on both simulators.
struct Play {
    matrix: &'static str,
    tree: &'static str,
    /// The matrix in uet-htsim's folder `connection_matrices`.
    file: &'static str,
    /// How uet-htsim plays it, each for a row.
    there: &'static [There],
}

/// A way in which uet-htsim plays a matrix.
struct There {
    options: &'static [&'static str],
    /// Whether it repairs losses as we do: then NSCC here must take as long as there.
    repairs_alike: bool,
}

impl Play {
    fn path(&self, folder: &Path) -> PathBuf {
        folder.join("connection_matrices").join(self.file)
    }
}

/// Without `-sleek` uet-htsim repeats what is lost after a timeout only.
const PLAYS: [Play; 3] = [
    Play {
        matrix: "permutation",
        tree: "two-tiers",
        file: "perm_32n_32c_2MB.cm",
        there: &[There { options: &["-tiers", "2"], repairs_alike: true }],
    },
    Play {
        matrix: "permutation",
        tree: "oversubscribed",
        file: "perm_32n_32c_2MB.cm",
        there: &[There { options: &["-topo", "topologies/leaf_spine_tiny.topo"], repairs_alike: true }],
    },
    Play {
        matrix: "incast",
        tree: "three-tiers",
        file: "incast.cm",
        there: &[There { options: &[], repairs_alike: false }, There { options: &["-sleek"], repairs_alike: true }],
    },
];

/// The seeds of both simulators. One alone differs from the next by up to a tenth, there and here.
const SEEDS: [&str; 9] = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// What NSCC here may differ from uet-htsim's, and the default take longer, as shares of the last flow's time.
const NSCC_DIFFERS: f64 = 0.05;
const DEFAULT_LONGER: f64 = 0.10;

/// When the last flow was over, and the flows' mean, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    flows: usize,
    last: f64,
    mean: f64,
}

impl Times {
    /// Of what uet-htsim prints: `Flow Uec_25_24 … finished at 167.827 total messages 1 …`. `None` without such a line.
    fn read(text: &str) -> Option<Times> {
        let ends = text.lines().filter(|line| line.starts_with("Flow ")).filter_map(|line| {
            let (_, after) = line.split_once(" finished at ")?;
            after.split(' ').next()?.parse::<f64>().ok()
        });
        let ends: Vec<f64> = ends.collect();
        let last = ends.iter().copied().reduce(f64::max)?;
        Some(Times { flows: ends.len(), last, mean: ends.iter().sum::<f64>() / ends.len() as f64 })
    }

    /// Of an object of `uroce sim matrix --json`.
    fn of(cell: &Value) -> Option<Times> {
        let flows = usize::try_from(cell["flows"].as_u64()?).ok()?;
        Some(Times { flows, last: cell["last_us"].as_f64()?, mean: cell["mean_us"].as_f64()? })
    }

    fn cell(self) -> String {
        format!("{:.0} / {:.0}", self.last, self.mean)
    }

    fn object(self) -> Value {
        json!({ "last_us": self.last, "mean_us": self.mean })
    }
}

/// One matrix with its times there, and here by controller.
struct Row {
    play: &'static Play,
    way: &'static There,
    there: Times,
    here: [Times; CONTROLLERS.len()],
}

impl Row {
    /// What is not as it should be.
    fn faults(&self) -> Vec<String> {
        let [nscc, steady, dcqcn] = self.here;
        let ratio = |times: Times| times.last / self.there.last;
        let mut faults = Vec::new();
        if self.way.repairs_alike && (ratio(nscc) - 1.0).abs() > NSCC_DIFFERS {
            let (least, most) = (1.0 - NSCC_DIFFERS, 1.0 + NSCC_DIFFERS);
            faults.push(format!("nscc takes {:.3} of uet-htsim's time, not {least:.2} to {most:.2}", ratio(nscc)));
        }
        let most = 1.0 + DEFAULT_LONGER;
        if ratio(steady) > most {
            faults.push(format!("steady takes {:.3} of uet-htsim's time, not at most {most:.2}", ratio(steady)));
        }
        if nscc.last.max(steady.last) >= dcqcn.last {
            faults.push("dcqcn is not the slowest".to_owned());
        }
        if self.here.iter().any(|times| times.flows != self.there.flows) {
            faults.push(format!("{} flows ended in uet-htsim, others here", self.there.flows));
        }
        let name = self.name();
        faults.into_iter().map(|fault| format!("{name}: {fault}")).collect()
    }

    fn name(&self) -> String {
        let sleek = if self.way.options.contains(&"-sleek") { ", -sleek there" } else { "" };
        format!("{}{sleek}, {}", self.play.matrix, self.play.tree)
    }

    fn object(&self) -> Value {
        let mut object = json!({
            "commit": COMMIT,
            "matrix": self.play.matrix,
            "tree": self.play.tree,
            "options": self.way.options,
            "flows": self.there.flows,
            "uet_htsim": self.there.object(),
        });
        for (name, times) in CONTROLLERS.iter().zip(self.here) {
            object[*name] = times.object();
        }
        object
    }
}

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    if let Some(other) = arguments.iter().find(|word| **word != "--json") {
        return Err(Failure::Usage(format!("htsim takes --json, not {other}")));
    }
    let folder = build()?;
    setup::build_packages(true)?;
    setup::say(program::cargo().args(["build", "--quiet", "--release", "--package", "uroce-cli"]))?;
    let mut rows = Vec::new();
    for play in &PLAYS {
        let here = here(&folder, play)?;
        for way in play.there {
            rows.push(Row { play, way, there: there(&folder, play, way)?, here });
        }
    }
    if arguments.contains(&"--json") {
        rows.iter().for_each(|row| println!("{}", row.object()));
    } else {
        print!("{}", table(&rows));
    }
    let faults: Vec<String> = rows.iter().flat_map(Row::faults).collect();
    if faults.is_empty() { Ok(()) } else { Err(Failure::Failed(faults.join("\n"))) }
}

/// Builds uet-htsim where it is missing. Returns its folder `datacenter`.
fn build() -> Result<PathBuf, Failure> {
    setup::install(PACKAGES)?;
    let clone = setup::target_directory().join("uet-htsim");
    let git = || {
        let mut git = Command::new("git");
        git.arg("-C").arg(&clone);
        git
    };
    let head = git().args(["rev-parse", "HEAD"]).output();
    let is_there = head.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).trim() == COMMIT);
    if !is_there {
        eprintln!("htsim: {SOURCE}, {COMMIT}");
        setup::say(Command::new("rm").arg("-rf").arg(&clone))?;
        setup::say(Command::new("git").args(["clone", "--quiet", SOURCE]).arg(&clone)).map_err(|failure| {
            Failure::Failed(format!(
                "{failure}\nwhere another place has it: git config --global url.PLACE.insteadOf {SOURCE}"
            ))
        })?;
        setup::say(git().args(["checkout", "--quiet", COMMIT]))?;
    }
    let (source, build) = (clone.join("htsim/sim"), clone.join("htsim/sim/build"));
    setup::say(Command::new("cmake").arg("-S").arg(&source).arg("-B").arg(&build).arg("--log-level=WARNING"))?;
    let mut cmake = Command::new("cmake");
    cmake.arg("--build").arg(&build).args(["--parallel", "2", "--target", "htsim_uec"]);
    // Its warnings are not ours.
    setup::say(cmake.args(["--", "--silent"]))?;
    Ok(source.join("datacenter"))
}

/// What uet-htsim takes for a matrix.
fn there(folder: &Path, play: &Play, way: &There) -> Result<Times, Failure> {
    median(|seed| {
        let mut theirs = Command::new(folder.join("htsim_uec"));
        theirs.args(["-sender_cc_only", "-disable_trim", "-end", "20000", "-seed", seed, "-tm"]).arg(play.path(folder));
        let text = dist::output(theirs.args(way.options).current_dir(folder))?;
        Times::read(&text).ok_or_else(|| Failure::Failed(format!("uet-htsim: no flow of {} has ended", play.file)))
    })
}

/// What `uroce sim matrix` takes for it, by controller.
fn here(folder: &Path, play: &Play) -> Result<[Times; CONTROLLERS.len()], Failure> {
    let uroce = setup::target_directory().join("release/uroce");
    let by = |controller: &str| {
        median(|seed| {
            let mut ours = Command::new(&uroce);
            ours.args(["sim", "matrix", "--json", "--seed", seed, "--congestion", controller, "--matrix"]);
            ours.arg(play.path(folder)).args(["--only", &format!("tree={}", play.tree)]);
            let text = dist::output(&mut ours)?;
            let cell: Option<Value> = serde_json::from_str(text.trim()).ok();
            let read = cell.as_ref().and_then(Times::of);
            read.ok_or_else(|| Failure::Failed(format!("uroce sim matrix: not a cell: {text}")))
        })
    };
    let [nscc, steady, dcqcn] = CONTROLLERS.map(by);
    Ok([nscc?, steady?, dcqcn?])
}

/// The play whose last flow took the median time over all seeds.
fn median(play: impl Fn(&str) -> Result<Times, Failure>) -> Result<Times, Failure> {
    let mut times = SEEDS.iter().map(|seed| play(seed)).collect::<Result<Vec<Times>, Failure>>()?;
    times.sort_by(|one, other| one.last.total_cmp(&other.last));
    Ok(times[times.len() / 2])
}

/// When the last flow was over, and the flows' mean, in microseconds.
fn table(rows: &[Row]) -> String {
    let mut text = format!("| last / mean, µs | uet-htsim | {} |\n|---|---|---|---|---|\n", CONTROLLERS.join(" | "));
    for row in rows {
        let here: Vec<String> = row
            .here
            .iter()
            .map(|times| format!("{} ({:+.1} %)", times.cell(), (times.last / row.there.last - 1.0) * 100.0))
            .collect();
        text.push_str(&format!("| {} | {} | {} |\n", row.name(), row.there.cell(), here.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_uet_htsim_prints_is_read() {
        let text = "endtime(us) 20000\n\
                    Flow Uec_25_24 flowId 28 uecSrc 27 finished at 167.827 total messages 1 in_flight now 0\n\
                    Flow Uec_26_10 flowId 20 uecSrc 19 finished at 175.5 total messages 1 in_flight now 0\n\
                    Flow Uec_1_2 flowId 21 uecSrc 18 began\n\
                    New: 15680 Rtx: 0\n";
        let times = Times::read(text).expect("two flows");
        assert_eq!((times.flows, times.last), (2, 175.5));
        assert!((times.mean - 171.6635).abs() < 1e-9, "{times:?}");
        assert_eq!(Times::read("endtime(us) 20000\n"), None);
    }

    #[test]
    fn each_bound_is_told_by_name() {
        let times = |last: f64| Times { flows: 15, last, mean: last / 2.0 };
        let incast = &PLAYS[2];
        let row = |way: &'static There, nscc: f64, steady: f64, dcqcn: f64| Row {
            play: incast,
            way,
            there: times(1000.0),
            here: [nscc, steady, dcqcn].map(times),
        };
        let (alike, otherwise) = (&incast.there[1], &incast.there[0]);
        assert!(row(alike, 1049.0, 1099.0, 1100.0).faults().is_empty());
        assert!(row(alike, 951.0, 700.0, 1000.0).faults().is_empty());
        assert!(row(otherwise, 900.0, 1000.0, 2000.0).faults().is_empty(), "only losses make the difference");
        let said = |row: Row, words: &str| {
            let faults = row.faults();
            assert!(faults.len() == 1 && faults[0].contains(words), "{faults:?}");
        };
        said(row(alike, 949.0, 1000.0, 2000.0), "incast, -sleek there, three-tiers: nscc takes 0.949");
        said(row(alike, 1051.0, 1000.0, 2000.0), "nscc takes 1.051");
        said(row(otherwise, 900.0, 1101.0, 2000.0), "steady takes 1.101");
        said(row(alike, 1000.0, 1001.0, 1001.0), "dcqcn is not the slowest");
        let fewer = Row {
            here: [Times { flows: 14, ..times(1000.0) }, times(1000.0), times(2000.0)],
            ..row(alike, 1.0, 1.0, 1.0)
        };
        said(fewer, "15 flows ended in uet-htsim");
    }
}
