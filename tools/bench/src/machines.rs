//! What a message costs between two emulated machines, in instructions and frames: the kernel's rxe beside this stack, with the
//! same unmodified programs. Emulation is slow and says nothing of speed; instructions are what a processor would execute.

use std::path::PathBuf;
use std::time::Duration;

use rxe_rig::{Lab, LabOptions, Vm};
use serde_json::{Value, json};

use crate::Failure;

/// Emulated programs are slow.
const LIMIT: Duration = Duration::from_secs(240);

/// How long a server may take to listen.
const SETUP_LIMIT: Duration = Duration::from_secs(60);

/// What is played: a program of perftest that sleeps until its messages are complete (those of WRITEs cannot), the bytes of a message, how often it is
/// done in a short and in a long run, and the messages of one time. The difference of the runs is without what they begin with.
const GAMES: [(&str, u32, [u32; 2], u32); 4] = [
    ("ib_send_lat", 64, [200, 1200], 2),
    ("ib_send_bw", 64, [1000, 6000], 1),
    ("ib_send_bw", 65536, [50, 300], 1),
    ("ib_read_bw", 65536, [50, 300], 1),
];

/// Where the machines find the programs.
const DIRECTORY: &str = "/opt/uroce";

/// What was counted until a moment, or between two.
#[derive(Clone, Copy)]
struct Counted {
    instructions: u64,
    frames: u64,
}

impl Counted {
    /// Of both machines, and on both of their cables.
    fn now(lab: &Lab) -> Result<Counted, Failure> {
        let mut sum = Counted { instructions: 0, frames: 0 };
        for (number, vm) in lab.vms().iter().enumerate() {
            sum.instructions += vm.instructions()?;
            let file = format!("/sys/class/net/tap{number}/statistics/rx_packets");
            let text = lab.bridge().run(|| std::fs::read_to_string(&file)).map_err(|e| format!("{file}: {e}"))?;
            sum.frames += text.trim().parse::<u64>()?;
        }
        Ok(sum)
    }

    fn since(self, before: Counted) -> Counted {
        Counted { instructions: self.instructions - before.instructions, frames: self.frames - before.frames }
    }
}

/// Plays all games between two machines with rxe, and between two with this stack; a line for each.
///
/// # Errors
/// What the machines or their programs say.
pub fn run() -> Result<Vec<Value>, Failure> {
    let mut lines = Vec::new();
    for stack in ["rxe", "uroce-xdp", "uroce-udp"] {
        let rxe = stack == "rxe";
        let lab = Lab::start(&LabOptions { machines: 2, rxe, counts_instructions: true, ..LabOptions::default() })?;
        if !rxe {
            lab.vms().iter().try_for_each(bring)?;
        }
        for (program, bytes, times, messages) in GAMES {
            let [short, long] = times.map(|times| play(&lab, stack, &format!("{program} -e -F -s {bytes} -n {times}")));
            let counted = long?.since(short?);
            let all = f64::from((times[1] - times[0]) * messages);
            let each = |count: u64| (count as f64 / all * 10.0).round() / 10.0;
            let line = json!({
                "stack": stack,
                "program": program,
                "message_bytes": bytes,
                "instructions": each(counted.instructions),
                "frames": each(counted.frames),
            });
            eprintln!("{line}");
            lines.push(line);
        }
    }
    Ok(lines)
}

/// The results for people.
pub fn table(lines: &[Value]) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_preset(comfy_table::presets::UTF8_BORDERS_ONLY);
    let columns = ["stack", "program", "message_bytes", "instructions", "frames"];
    table.set_header(columns.map(|name| name.replace('_', " ")));
    for line in lines {
        table.add_row(columns.map(|name| line[name].as_str().map_or_else(|| line[name].to_string(), str::to_owned)));
    }
    table
}

/// Puts our programs, which are built beside this one, into a machine.
fn bring(vm: &Vm) -> Result<(), Failure> {
    let beside = |name: &str| Ok::<PathBuf, Failure>(std::env::current_exe()?.with_file_name(name));
    for name in ["uroce", "liburoce_verbs.so"] {
        vm.put_program(&beside(name)?, &format!("{DIRECTORY}/{name}"))?;
    }
    Ok(())
}

/// Plays a game, and counts while it does.
fn play(lab: &Lab, stack: &str, line: &str) -> Result<Counted, Failure> {
    let line = match stack.strip_prefix("uroce-") {
        Some(link) => format!("UROCE_DEV=eth0 UROCE_LINK={link} {DIRECTORY}/uroce run {line}"),
        None => line.to_owned(),
    };
    let before = Counted::now(lab)?;
    let server = lab.vm(0).spawn(&line, LIMIT)?;
    lab.vm(0).check("until ss -ltn | grep -q :18515; do usleep 20000; done", SETUP_LIMIT)?;
    let client = lab.vm(1).run(&format!("{line} {}", lab.vm(0).ipv4()), LIMIT)?;
    let server = server.join()?;
    for end in [&client, &server] {
        if end.status != 0 {
            return Err(format!("{line} ended with {}: {}", end.status, end.text).into());
        }
    }
    Ok(Counted::now(lab)?.since(before))
}
