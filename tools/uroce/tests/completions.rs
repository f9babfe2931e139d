//! Completions and manual pages: shells can read them, and they have what users see, and nothing else.

use std::fs;
use std::process::{Command, Output, Stdio};

use crate::common::captures::scratch;
use crate::common::programs::UROCE;

fn uroce(arguments: &[&str]) -> Output {
    Command::new(UROCE).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn completions_of_each_shell_have_the_commands_and_their_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let output = uroce(&["completions", shell]);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        for word in ["pingpong", "perf", "run", "write-bw", "congestion"] {
            assert!(text.contains(word), "{shell}: no {word}");
        }
        assert!(!text.contains("arbiter"), "{shell}: a hidden command");
    }
    assert_eq!(uroce(&["completions", "tcsh"]).status.code(), Some(2));
}

#[test]
fn bash_completes_a_command_and_a_flag() {
    let script = "
        source <(\"$0\" completions bash)
        complete_line() {
            COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _uroce uroce \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD - 1]}\"
            echo \"${COMPREPLY[*]}\"
        }
        complete_line uroce ping
        complete_line uroce run --cap";
    let output = Command::new("bash").args(["-c", script, UROCE]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "pingpong\n--capture\n", "{output:?}");
}

#[test]
fn each_command_that_is_shown_has_a_manual_page() {
    let folder = scratch("man");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let output = uroce(&["man", folder.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    assert!(read("uroce.1").contains("uroce\\-run(1)"));
    assert!(read("uroce-run.1").contains("UROCE_CAPTURE"));
    assert!(!folder.join("uroce-arbiter.1").exists() && !folder.join("uroce-man.1").exists());
    assert_eq!(uroce(&["man", "/nowhere"]).status.code(), Some(1));
}
