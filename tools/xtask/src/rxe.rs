//! `cargo xtask rxe`: kernel rxe machines by hand.
//!
//! `up` leaves a process of its own behind (`rxe hold`) that owns the lab and answers on a socket, one JSON object a line;
//! `exec` and the others talk to it, and `down` ends it.
use crate::{Failure, Outcome, setup};
use rxe_rig::{Lab, LabOptions};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) fn run(arguments: &[&str]) -> Outcome {
    match arguments {
        ["build"] => {
            setup::packages()?;
            let image = rxe_rig::image::ensure()?;
            println!("{}", json!({"kernel": image.kernel, "initramfs": image.initramfs, "version": image.version}));
            Ok(())
        }
        ["up", rest @ ..] => up(rest),
        ["hold", rest @ ..] => hold(rest),
        ["exec", machine, command @ ..] if !command.is_empty() => exec(machine, &command.join(" ")),
        ["put", machine, file, path] => {
            let file = std::path::absolute(file).map_err(|e| Failure::Failed(format!("{file}: {e}")))?;
            ask(&json!({"do": "put", "machine": machine, "file": file, "path": path})).map(drop)
        }
        ["capture", file] => capture(file),
        ["status"] => {
            println!("{}", ask(&json!({"do": "status"}))?);
            Ok(())
        }
        ["down"] => down(),
        _ => Err(Failure::Usage("rxe: build, up, exec, put, capture, status or down".into())),
    }
}

/// The socket of the process that holds the lab: one lab for each target directory. Not in that directory, whose path may be
/// too long for a socket's.
fn socket() -> PathBuf {
    let directory = rxe_rig::image::directory();
    let directory = std::path::absolute(&directory).unwrap_or(directory);
    let key = rxe_rig::pattern::hash(directory.as_os_str().as_encoded_bytes());
    std::env::temp_dir().join(format!("uroce-rxe-{key:016x}.sock"))
}

fn options(words: &[&str]) -> Result<LabOptions, Failure> {
    let mut options = LabOptions::default();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let mut value = || rest.next().copied().ok_or_else(|| Failure::Usage(format!("{word}: a value is missing")));
        let wrong = |text: &str| Failure::Usage(format!("{word}: {text} is no number that will do"));
        match *word {
            "--n" => options.machines = value().and_then(|v| v.parse().map_err(|_| wrong(v)))?,
            "--mtu" => options.mtu = value().and_then(|v| v.parse().map_err(|_| wrong(v)))?,
            "--memory" => options.memory_mib = value().and_then(|v| v.parse().map_err(|_| wrong(v)))?,
            "--share" => {
                let path = std::path::absolute(value()?).map_err(|e| Failure::Failed(format!("--share: {e}")))?;
                options.share = Some(path);
            }
            "--no-rxe" => options.rxe = false,
            other => return Err(Failure::Usage(format!("rxe up has no option {other}"))),
        }
    }
    Ok(options)
}

fn up(words: &[&str]) -> Outcome {
    options(words)?;
    if ask(&json!({"do": "status"})).is_ok() {
        return Err(Failure::Failed("a lab is up already: `cargo xtask rxe down` first".into()));
    }
    setup::packages()?;
    rxe_rig::image::ensure()?;
    let started = Instant::now();
    let log = rxe_rig::image::directory().join("hold.log");
    let failed = |e: std::io::Error| Failure::Failed(format!("starting the lab's process: {e}"));
    let errors = std::fs::File::create(&log).map_err(failed)?;
    let program = std::env::current_exe().map_err(failed)?;
    // A session of its own: it must not end with this terminal.
    let mut command = Command::new(program);
    command.args(["rxe", "hold"]).args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(failed)?;
    loop {
        if let Ok(status) = ask(&json!({"do": "status"})) {
            println!("{status}");
            eprintln!("rxe: up after {:.1} s", started.elapsed().as_secs_f64());
            return Ok(());
        }
        if let Ok(Some(_)) = child.try_wait() {
            return Err(Failure::Failed(std::fs::read_to_string(&log).unwrap_or_default()));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The lab's process: owns it until `down`.
fn hold(words: &[&str]) -> Outcome {
    let lab = Arc::new(Lab::start(&options(words)?)?);
    let path = socket();
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path).map_err(|e| Failure::Failed(format!("{}: {e}", path.display())))?;
    let (down, asked_down) = std::sync::mpsc::channel();
    let served = Arc::clone(&lab);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (lab, down) = (Arc::clone(&served), down.clone());
            std::thread::spawn(move || serve(&lab, stream, &down));
        }
    });
    let _ = asked_down.recv();
    let _ = std::fs::remove_file(&path);
    // Other threads hold the lab too, so it is not dropped: QEMU dies with this process and the namespaces go at its exit.
    Ok(())
}

fn serve(lab: &Lab, mut stream: UnixStream, down: &std::sync::mpsc::Sender<()>) {
    let mut line = String::new();
    let Ok(reader) = stream.try_clone() else { return };
    if BufReader::new(reader).read_line(&mut line).is_err() {
        return;
    }
    let request: Value = serde_json::from_str(&line).unwrap_or(Value::Null);
    let answer = answer(lab, &request).unwrap_or_else(|error| json!({"error": error}));
    let _ = writeln!(stream, "{answer}");
    if request["do"] == "down" {
        let _ = down.send(());
    }
}

fn answer(lab: &Lab, request: &Value) -> Result<Value, String> {
    let text = |name: &str| request[name].as_str().ok_or_else(|| format!("no {name}"));
    let machine = || {
        let name = text("machine")?;
        lab.vms().iter().find(|vm| vm.name() == name).ok_or_else(|| format!("there is no machine {name}"))
    };
    match text("do")? {
        "status" => Ok(json!({
            "bridge": lab.bridge().name(),
            "peer": lab.peer().name(),
            "pid": std::process::id(),
            "machines": lab.vms().iter().map(|vm| json!({
                "name": vm.name(), "ipv4": vm.ipv4(), "ipv6": vm.ipv6(), "pid": vm.pid(), "boot_s": vm.boot_time().as_secs_f64(),
            })).collect::<Vec<_>>(),
        })),
        "exec" => {
            let limit = Duration::from_secs(request["limit_s"].as_u64().unwrap_or(600));
            let output = machine()?.run(text("command")?, limit).map_err(|e| e.to_string())?;
            Ok(json!({"status": output.status, "text": output.text}))
        }
        "put" => {
            let file = PathBuf::from(text("file")?);
            machine()?.put_program(&file, text("path")?).map_err(|e| e.to_string())?;
            Ok(json!({}))
        }
        "down" => Ok(json!({})),
        other => Err(format!("it cannot {other}")),
    }
}

/// Asks the lab's process; an answer with `error` is a failure.
fn ask(request: &Value) -> Result<Value, Failure> {
    let gone = |_| Failure::Failed("no lab is up: `cargo xtask rxe up` first".into());
    let mut stream = UnixStream::connect(socket()).map_err(gone)?;
    let mut line = String::new();
    let broken = |e: std::io::Error| Failure::Failed(format!("the lab's process: {e}"));
    writeln!(stream, "{request}").map_err(broken)?;
    BufReader::new(stream).read_line(&mut line).map_err(broken)?;
    let answer: Value = serde_json::from_str(&line).map_err(|e| Failure::Failed(format!("the lab's process: {e}")))?;
    match answer["error"].as_str() {
        Some(error) => Err(Failure::Failed(error.into())),
        None => Ok(answer),
    }
}

fn exec(machine: &str, command: &str) -> Outcome {
    let answer = ask(&json!({"do": "exec", "machine": machine, "command": command}))?;
    print!("{}", answer["text"].as_str().unwrap_or_default());
    match answer["status"].as_i64() {
        Some(0) => Ok(()),
        status => Err(Failure::Status(status.and_then(|s| u8::try_from(s).ok()).unwrap_or(1))),
    }
}

/// tcpdump in the bridge's namespace, until interrupted.
fn capture(file: &str) -> Outcome {
    let status = ask(&json!({"do": "status"}))?;
    let bridge = status["bridge"].as_str().unwrap_or_default();
    let tcpdump =
        ["tcpdump", "-Z", "root", "--immediate-mode", "-B", "32768", "-i", "br0", "-U", "-w", file, "udp port 4791"];
    let error = Command::new("ip").args(["netns", "exec", bridge]).args(tcpdump).exec();
    Err(Failure::Failed(format!("tcpdump: {error}")))
}

fn down() -> Outcome {
    let status = ask(&json!({"do": "status"}))?;
    ask(&json!({"do": "down"}))?;
    let pid = status["pid"].as_u64().unwrap_or_default();
    let until = Instant::now() + Duration::from_secs(30);
    while PathBuf::from(format!("/proc/{pid}")).exists() {
        if Instant::now() > until {
            return Err(Failure::Failed(format!("the lab's process, {pid}, does not end")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    rxe_rig::netns::sweep();
    Ok(())
}
