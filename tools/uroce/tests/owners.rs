//! Two programs on one interface: the second is told who has it, and the first goes on. And what a person is told before a
//! peer comes: which device was opened, how, and why not otherwise.

use crate::common::programs::{Ended, Running, UROCE, run, start, uroce, uroce_as_nobody, wait_for_listener};
use rxe_rig::{Netns, VethPair};

const PORT: u16 = 18515;

/// A server in namespace `a`, that waits for its client.
fn serve(pair: &VethPair, words: &[&str]) -> Running {
    let server = uroce(&pair.a, words);
    wait_for_listener(&pair.a, PORT);
    server
}

/// The game that the server waits for is played to its end.
fn finish(pair: &VethPair, server: Running) -> Ended {
    let host = VethPair::A.ipv4.to_string();
    uroce(&pair.b, &["pingpong", "-c", "-n", "100", &host]).end().succeeded();
    server.end().succeeded()
}

#[test]
fn a_second_program_is_refused_with_the_firsts_name_and_the_first_goes_on() {
    let pair = VethPair::create(1500).unwrap();
    let second = |link: &[&str]| uroce(&pair.a, &[&["pingpong", "-p", "18600", "--exclusive"], link].concat()).end();
    let number = |server: &Running| format!("process {} (uroce)", server.id());
    for link in ["udp", "xdp"] {
        let server = serve(&pair, &["pingpong", "-c", "-n", "100", "--link", link]);
        let name = number(&server);
        second(&["--link", "xdp"]).failed(1, &["uroce0", &name]);
        second(&["--link", "udp"]).failed(1, &["uroce0", &name]);
        // Without a choice AF_XDP is tried, and sockets; neither is to be had.
        second(&[]).failed(1, &["uroce0", &name]);
        // A program under `uroce run` says it, too.
        let other = if link == "udp" { "xdp" } else { "udp" };
        let ended = run(&pair.a, &format!("--exclusive --link {other} ibv_rc_pingpong -p 18600")).end();
        assert!(!ended.status.success() && ended.stderr.contains(&name), "{ended:#?}");
        // Nobody sees the processes of others, but that somebody is there.
        let ended = uroce_as_nobody(&pair.a, &["pingpong", "-p", "18600", "--link", "udp"]).end();
        ended.failed(1, &["uroce0", "of another user or namespace"]);
        finish(&pair, server);
    }
}

#[test]
fn what_was_opened_is_said_before_a_client_comes() {
    let pair = VethPair::create(1500).unwrap();
    for words in [&["pingpong"][..], &["pingpong", "--json"], &["perf", "write-bw"], &["perf", "send-lat", "--json"]] {
        let (stdout, stderr) = serve(&pair, words).stop();
        assert!(stderr.starts_with("uroce: uroce0, xdp-native-copy, GID 1 10.78.0.1\n"), "{words:?}: {stderr}{stdout}");
    }
    let (_, stderr) = serve(&pair, &["pingpong", "-g", "2", "--link", "udp"]).stop();
    assert!(stderr.starts_with("uroce: uroce0, udp, GID 2 fd78::1\n"), "{stderr}");
}

fn devices(namespace: &Netns, before: &[&str]) -> Vec<serde_json::Value> {
    let words = [before, &[UROCE, "devices", "--json"]].concat();
    let listed = start(namespace.command(words[0]), &words[1..]).end().succeeded();
    listed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn devices_marks_the_one_that_is_taken_when_none_is_named() {
    let pair = VethPair::create(1500).unwrap();
    let listed = devices(&pair.a, &["env"]);
    let marks: Vec<_> = listed.iter().map(|d| (d["name"].as_str().unwrap(), d["default"] == true)).collect();
    assert_eq!(marks, [("uroce0", true), ("lo", false)]);
    let text = uroce(&pair.a, &["devices"]).end().succeeded().stdout;
    assert!(text.contains("uroce0 (default): active") && text.contains("lo: active"), "{text}");
    pair.a.ip(&["link", "set", "uroce0", "down"]).unwrap();
    let text = uroce(&pair.a, &["devices"]).end().succeeded().stdout;
    assert!(text.contains("uroce0: down") && text.contains("lo (default): active"), "{text}");
    // Programs under `uroce run` see it then.
    let listed = run(&pair.a, "ibv_devices").end().succeeded().stdout;
    assert!(listed.contains(" lo ") && !listed.contains("uroce0"), "{listed}");
}

#[test]
fn the_default_routes_interface_is_used_over_sockets_unless_it_is_named() {
    let pair = VethPair::create(1500).unwrap();
    pair.a.ip(&["route", "add", "default", "via", &VethPair::B.ipv4.to_string()]).unwrap();
    let opened = |words: &[&str]| serve(&pair, words).stop().1;
    let unnamed = opened(&["pingpong"]);
    assert!(unnamed.contains("--dev uroce0") && unnamed.contains("uroce: uroce0, udp, GID 1"), "{unnamed}");
    let named = opened(&["pingpong", "--dev", "uroce0"]);
    assert!(named.starts_with("uroce: uroce0, xdp-native-copy, GID 1"), "{named}");
    uroce(&pair.a, &["pingpong", "--link", "xdp"]).end().failed(1, &["default route", "--dev uroce0"]);
    // A program picks it from the list: nobody named it either.
    for (words, is_udp) in [("ibv_rc_pingpong -g 1", true), ("--dev uroce0 ibv_rc_pingpong -g 1", false)] {
        let server = run(&pair.a, words);
        wait_for_listener(&pair.a, PORT);
        let (_, stderr) = server.stop();
        assert_eq!(stderr.contains("over UDP sockets: the default route uses uroce0"), is_udp, "{words}: {stderr}");
    }
}

/// Root of a user namespace has all capabilities, and they do not count: it is said, and sockets do.
#[test]
fn root_of_a_user_namespace_plays_over_sockets() {
    let pair = VethPair::create(1500).unwrap();
    let in_user_namespace = ["unshare", "--user", "--map-root-user"];
    let listed = devices(&pair.a, &in_user_namespace);
    let modes = listed[0]["link_modes"].as_array().unwrap();
    let usable: Vec<_> = modes.iter().map(|mode| (mode["name"].as_str().unwrap(), mode["usable"] == true)).collect();
    assert_eq!(usable, [("xdp", false), ("udp", true)], "{listed:?}");
    assert!(modes[0]["missing"][0].as_str().unwrap().contains("user namespace"), "{listed:?}");
    let begin = |words: &[&str]| start(pair.a.command("unshare"), &[&in_user_namespace[1..], &[UROCE], words].concat());
    let server = begin(&["pingpong", "-c", "-n", "100"]);
    wait_for_listener(&pair.a, PORT);
    let ended = finish(&pair, server);
    assert!(ended.stderr.contains("over UDP sockets: uroce0: the kernel refused"), "{ended:#?}");
    assert!(ended.stderr.contains("uroce: uroce0, udp, GID 1"), "{ended:#?}");
    begin(&["pingpong", "--link", "xdp"]).end().failed(1, &["uroce0", "--link udp"]);
    let ended = begin(&["run", "--", "ibv_devinfo"]).end().succeeded();
    assert!(ended.stdout.contains("uroce0"), "{ended:#?}");
}
