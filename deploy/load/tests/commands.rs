//! The program as people call it. Needs the programs of the workspace beside it, which are there when
//! all of it is tested.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

fn load(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_microblog-load")).args(arguments).output().unwrap()
}

fn measured(arguments: &[&str], file: &Path) -> (String, Value) {
    let output = load(&[arguments, &["--json", file.to_str().unwrap()]].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let json = std::fs::read(file).unwrap();
    (String::from_utf8(output.stdout).unwrap(), serde_json::from_slice(&json).unwrap())
}

const SMALL: [&str; 10] = [
    "--accounts=30",
    "--following=5",
    "--viewers=2",
    "--posts=3",
    "--start=one",
    "--threads=1",
    "--clients=4",
    "--duration=500ms",
    "--warm-up=600ms",
    "--seed=7",
];

#[test]
fn a_scenario_is_measured_on_a_system_that_is_started_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("measured.json");
    let (text, measured) = measured(&[&["run", "mixed"], &SMALL[..]].concat(), &file);
    assert!(text.contains("calls/s") && text.contains("mixed"), "{text}");
    assert_eq!(measured["scenario"], "mixed");
    assert_eq!(measured["errors"], serde_json::json!({}));
    assert!(measured["calls"].as_u64().unwrap() > 0);
    let latency = |name: &str| measured["latency_us"][name].as_u64().unwrap();
    assert!(0 < latency("p50") && latency("p50") <= latency("p99"), "{measured}");
    let processes = measured["usage"]["processes"].as_array().unwrap();
    let names: Vec<_> = processes.iter().map(|process| process["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["microblog", "redis-server"]);
    assert!(measured["usage"]["redis"]["commands"].as_u64().unwrap() > 0);
}

#[test]
fn posts_are_followed_to_all_followers() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("measured.json");
    let arguments = ["fan-out", "--followers=40", "--posts=2", "--entries=3"];
    let (text, measured) = measured(&arguments, &file);
    assert!(text.starts_with("2 posts to 40 followers, each with 3 posts at home\n"), "{text}");
    assert!(measured["deliveries_per_second"].as_f64().unwrap() > 0.0);
    assert_eq!(measured["author_ms"].as_array().unwrap().len(), 2);
}

#[test]
fn where_nothing_answers_it_says_so() {
    let nowhere = "http://127.0.0.1:1";
    let output = load(&["run", "home", "--user-url", nowhere, "--gateway-url", nowhere]);
    assert_eq!(output.status.code(), Some(2));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("nothing answers at http://127.0.0.1:1"), "{errors}");
}
