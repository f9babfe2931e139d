//! rdma-core's own tests in Python, of Debian's package python3-pyverbs: unpacked for a run, and what they say of a device.
//!
//! They are not part of this repository. The package has them in its documentation folder, which small containers leave out:
//! then the package is fetched once more, only to be unpacked.
use crate::error::{Result, RigError};
use crate::lab::{Lab, LabOptions};
use crate::netns::Netns;
use crate::{image, process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Debian's package.
const PACKAGE: &str = "python3-pyverbs";

/// Where the package has the tests, some of them compressed.
const FOLDER: &str = "usr/share/doc/rdma-core/tests";

/// The Python that the package's modules are for.
const PYTHON: &str = "/usr/bin/python3";

const DRIVER: &str = include_str!("../guest/pyverbs.py");

/// How long one file may take here. They take seconds; the longest sleep in them is 30 s.
const LIMIT: Duration = Duration::from_secs(120);

/// How long one file may take in a machine under emulation.
const SLOW_LIMIT: Duration = Duration::from_secs(600);

/// The tests, unpacked.
#[derive(Debug, Clone)]
pub struct Suite {
    folder: PathBuf,
    files: Vec<String>,
}

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// As it should.
    Passed,
    /// It found that the device does not have what it is about.
    Skipped,
    /// It failed, did not end in time, or took its process with it.
    Failed,
}

/// One test's end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its class and name.
    pub test: String,
    /// How it ended.
    pub verdict: Verdict,
    /// Why it was skipped, or what went wrong.
    pub why: String,
}

/// What the tests of one file said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The file, like `test_cq`.
    pub file: String,
    /// Every test in it.
    pub outcomes: Vec<Outcome>,
    /// How long it took.
    pub time: Duration,
}

impl Suite {
    /// Unpacks the tests under cargo's target directory.
    ///
    /// # Errors
    /// [`RigError::Command`] when the package cannot be fetched, [`RigError::Missing`] when it has no tests,
    /// [`RigError::Io`] when they cannot be written.
    pub fn unpack() -> Result<Suite> {
        let folder = image::target_directory().join("pyverbs");
        let folder = std::path::absolute(&folder).unwrap_or(folder);
        let tests = folder.join("tests");
        fs::create_dir_all(&tests).map_err(RigError::io(format!("making {}", tests.display())))?;
        // Two at a time must not write the same files.
        let _lock = image::lock(&folder.join("lock"))?;
        let installed = Path::new("/").join(FOLDER);
        let from = if installed.join("base.py.gz").exists() { installed } else { fetch(&folder)?.join(FOLDER) };
        let mut files = Vec::new();
        for entry in fs::read_dir(&from).map_err(RigError::io(format!("reading {}", from.display())))?.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(stem) = name.trim_end_matches(".gz").strip_suffix(".py") else { continue };
            let bytes = if name.ends_with(".gz") { gunzip(&path)? } else { read(&path)? };
            let to = tests.join(format!("{stem}.py"));
            fs::write(&to, bytes).map_err(RigError::io(format!("writing {}", to.display())))?;
            if stem.starts_with("test_") {
                files.push(stem.to_owned());
            }
        }
        if files.is_empty() {
            return Err(RigError::Missing(format!("{PACKAGE} has no tests in {}", from.display())));
        }
        files.sort();
        let driver = folder.join("driver.py");
        fs::write(&driver, DRIVER).map_err(RigError::io(format!("writing {}", driver.display())))?;
        Ok(Suite { folder, files })
    }

    /// The names of its files, like `test_cq`, in order.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// The program and its arguments for one file on a device.
    fn words(&self, device: &str, file: &str) -> [String; 5] {
        let path = |path: &Path| path.display().to_string();
        [PYTHON.into(), path(&self.folder.join("driver.py")), path(&self.folder), device.into(), file.into()]
    }

    /// Runs the tests of one file in a namespace, as the arguments of `prefix`: a program and its own first arguments.
    ///
    /// # Errors
    /// [`RigError::Io`] when the program cannot be started.
    pub fn run(&self, namespace: &Netns, prefix: &[&str], device: &str, file: &str) -> Result<Report> {
        let started = Instant::now();
        // Beside its own, the output has what the tests print: into a file, since nobody reads a pipe meanwhile.
        let log = self.folder.join(format!("{file}-{}.log", std::process::id()));
        let to = fs::File::create(&log).map_err(RigError::io(format!("making {}", log.display())))?;
        let errors = to.try_clone().map_err(RigError::io("duplicating a descriptor"))?;
        let mut command = namespace.command("timeout");
        command.args(["-k", "5", &LIMIT.as_secs().to_string()]).args(prefix).args(self.words(device, file));
        command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).stdout(to).stderr(errors);
        let mut child = process::spawn(command).map_err(RigError::io("starting timeout"))?;
        let status = child.wait().map_err(RigError::io("waiting for the tests"))?;
        let text = String::from_utf8_lossy(&read(&log)?).into_owned();
        let _ = fs::remove_file(&log);
        Ok(Report::read(file, &text, &status.to_string(), started.elapsed()))
    }

    /// Runs the tests of `files` on the kernel's rxe in a machine, which uses this host's Python and libraries; tells each
    /// report as it comes.
    ///
    /// # Errors
    /// Those of [`Lab::start`] and [`crate::Vm::run`].
    pub fn run_on_rxe(&self, files: &[String], mut tell: impl FnMut(&Report)) -> Result<Vec<Report>> {
        let options = LabOptions { share: Some("/".into()), memory_mib: 1024, ..LabOptions::default() };
        let lab = Lab::start(&options)?;
        let vm = lab.vm(0);
        // This host's files, with the machine's devices; what is written goes to the machine's memory.
        let prepare = "for name in dev proc sys; do mount -o rbind /$name /share/$name || exit 1; done";
        vm.check(prepare, SLOW_LIMIT)?;
        let mut reports = Vec::new();
        for file in files {
            let words = self.words("rxe0", file).join(" ");
            let variables = "PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/dev/shm PYTHONPYCACHEPREFIX=/dev/shm/cache";
            let started = Instant::now();
            let output = vm.run(&format!("{variables} chroot /share {words}"), SLOW_LIMIT)?;
            let ended = format!("status {}", output.status);
            let report = Report::read(file, &output.text, &ended, started.elapsed());
            tell(&report);
            reports.push(report);
        }
        Ok(reports)
    }
}

impl Report {
    /// What the driver printed, between all that the tests did. `ended` says how its process did.
    fn read(file: &str, text: &str, ended: &str, time: Duration) -> Report {
        let mut said: Vec<Value> = Vec::new();
        // What the library and the test's own processes said while it ran.
        let mut remarks: BTreeMap<String, String> = BTreeMap::new();
        for line in text.lines() {
            if let Some(value) = line.starts_with('{').then(|| serde_json::from_str(line).ok()).flatten() {
                said.push(value);
            } else if let Some(test) = said.last().and_then(|last| last["began"].as_str()) {
                remarks.entry(test.to_owned()).or_default().push_str(&format!("{line}\n"));
            }
        }
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let names = said.iter().find_map(|line| line["tests"].as_array());
        let last_words = || {
            let rest: Vec<&str> = text.lines().filter(|line| !line.starts_with('{') && !line.is_empty()).collect();
            format!("the process ended with {ended}: {}", rest[rest.len().saturating_sub(5)..].join("; "))
        };
        let Some(names) = names else {
            // The file could not even be loaded.
            let outcome = Outcome { test: "(all)".into(), verdict: Verdict::Failed, why: last_words() };
            return Report { file: file.into(), outcomes: vec![outcome], time };
        };
        let outcome = |name: &Value| {
            let ends: Vec<&Value> = said.iter().filter(|line| &line["ended"] == name).collect();
            let (verdict, why) = match ends.iter().find(|end| end["verdict"] == "failed").or(ends.first()) {
                Some(end) if end["verdict"] == "passed" => (Verdict::Passed, String::new()),
                Some(end) if end["verdict"] == "skipped" => (Verdict::Skipped, word(&end["why"])),
                Some(end) => (Verdict::Failed, word(&end["why"]) + remarks.get(&word(name)).map_or("", String::as_str)),
                None if said.iter().any(|line| &line["began"] == name) => (Verdict::Failed, last_words()),
                None => (Verdict::Failed, "not begun: the process had ended before".into()),
            };
            Outcome { test: word(name), verdict, why }
        };
        Report { file: file.into(), outcomes: names.iter().map(outcome).collect(), time }
    }

    /// How many tests ended so.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.outcomes.iter().filter(|outcome| outcome.verdict == verdict).count()
    }
}

impl Outcome {
    /// The end of what is told of a failure, or why it was skipped: one line.
    pub fn reason(&self) -> &str {
        self.why.trim_end().lines().next_back().unwrap_or_default()
    }
}

/// The package's files, below a folder of ours.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let tree = folder.join("package");
    if tree.join(FOLDER).join("base.py.gz").exists() {
        return Ok(tree);
    }
    let archives = folder.join("archives");
    fs::create_dir_all(&archives).map_err(RigError::io(format!("making {}", archives.display())))?;
    process::run(image::apt("apt-get").args(["download", "-qq", PACKAGE]).current_dir(&archives))?;
    for entry in fs::read_dir(&archives).map_err(RigError::io(format!("reading {}", archives.display())))?.flatten() {
        process::run(Command::new("dpkg-deb").arg("-x").arg(entry.path()).arg(&tree))?;
    }
    Ok(tree)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(RigError::io(format!("reading {}", path.display())))
}

fn gunzip(path: &Path) -> Result<Vec<u8>> {
    Ok(process::run(Command::new("gzip").arg("-dc").arg(path))?.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_says_is_found_among_what_the_tests_print() {
        let text = "noise\n{\"tests\": [\"A.a\", \"A.b\", \"A.c\", \"A.d\", \"A.e\"]}\n\n{\"began\": \"A.a\"}\nhello\n\
                    {\"ended\": \"A.a\", \"verdict\": \"passed\", \"why\": \"\"}\n{ no JSON\n{\"began\": \"A.b\"}\n\
                    {\"ended\": \"A.b\", \"verdict\": \"skipped\", \"why\": \"no such thing\"}\n{\"began\": \"A.c\"}\n\
                    uroce: veth0: busy\n{\"ended\": \"A.c\", \"verdict\": \"failed\", \"why\": \"Traceback\\nAssertionError: x\\n\"}\n\
                    {\"ended\": \"A.c\", \"verdict\": \"passed\", \"why\": \"\"}\n{\"began\": \"A.d\"}\nlast words\n";
        let report = Report::read("test_a", text, "signal 11", Duration::ZERO);
        let verdicts: Vec<_> = report.outcomes.iter().map(|outcome| outcome.verdict).collect();
        use Verdict::{Failed, Passed, Skipped};
        assert_eq!(verdicts, [Passed, Skipped, Failed, Failed, Failed]);
        let reasons: Vec<_> = report.outcomes.iter().map(Outcome::reason).collect();
        assert_eq!(reasons[1..3], ["no such thing", "uroce: veth0: busy"]);
        assert!(reasons[3].contains("signal 11") && reasons[3].contains("last words"), "{reasons:?}");
        assert!(reasons[4].contains("not begun"), "{reasons:?}");
        assert!(report.outcomes[2].why.contains("AssertionError: x"));
        assert_eq!(report.count(Failed), 3);
    }

    #[test]
    fn a_file_that_cannot_be_loaded_is_a_failure() {
        let text = "Traceback\nModuleNotFoundError: No module named 'pyverbs'\n";
        let report = Report::read("test_a", text, "exit status: 1", Duration::ZERO);
        assert_eq!(report.count(Verdict::Failed), 1);
        assert!(report.outcomes[0].why.contains("No module named 'pyverbs'"));
    }
}
