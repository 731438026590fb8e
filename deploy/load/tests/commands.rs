//! Black-box tests of the program. They need the programs of the workspace beside it, which a test
//! run of the whole workspace builds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Output};

use serde_json::{Value, json};

fn load(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_microblog-load")).args(arguments).output().unwrap()
}

/// Returns the standard output and the JSON file of a command.
fn measured(arguments: &[&str]) -> (String, Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("measured.json");
    let output = load(&[arguments, &["--json", file.to_str().unwrap()]].concat());
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let json = std::fs::read(file).unwrap();
    (String::from_utf8(output.stdout).unwrap(), serde_json::from_slice(&json).unwrap())
}

fn error_of(arguments: &[&str]) -> String {
    let output = load(arguments);
    assert_eq!(output.status.code(), Some(2));
    String::from_utf8(output.stderr).unwrap()
}

fn is_positive(number: &Value) -> bool {
    number.as_f64().is_some_and(|number| number > 0.0)
}

/// Options for a small graph and a few calls.
const SMALL: [&str; 9] = [
    "--accounts=60",
    "--following=8",
    "--viewers=3",
    "--posts=4",
    "--threads=1",
    "--clients=4",
    "--duration=300ms",
    "--warm-up=200ms",
    "--seed=7",
];

fn run_small(scenario: &str) -> (String, Value) {
    measured(&[&["run", scenario, "--start=one"], &SMALL[..]].concat())
}

#[test]
fn run_measures_a_scenario_on_a_started_system() {
    let (text, measured) = run_small("mixed");
    assert!(text.contains("calls/s") && text.contains("mixed"), "{text}");
    assert_eq!(measured["scenario"], "mixed");
    assert_eq!(measured["errors"], json!({}));
    assert!(is_positive(&measured["calls"]));
    let latency = |name: &str| measured["latency_us"][name].as_u64().unwrap();
    assert!(0 < latency("p50") && latency("p50") <= latency("p99"), "{measured}");
    let processes = measured["usage"]["processes"].as_array().unwrap();
    let names: Vec<_> = processes.iter().map(|process| process["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["microblog", "redis-server"]);
    assert!(is_positive(&measured["usage"]["redis"]["commands"]));
}

#[test]
fn no_call_of_any_scenario_fails() {
    for scenario in [
        "view-followers",
        "relation",
        "view-user",
        "follow",
        "publish",
        "home",
        "scroll",
        "user-timeline",
        "like",
        "register-login",
    ] {
        let (_, measured) = run_small(scenario);
        assert_eq!((&measured["scenario"], &measured["errors"]), (&json!(scenario), &json!({})));
        assert!(is_positive(&measured["calls"]), "{measured}");
    }
}

#[test]
fn run_measures_import_in_follows() {
    let (text, measured) = run_small("import");
    assert!(text.lines().any(|line| line.starts_with("import ") && line.contains(" - ")), "{text}");
    assert!(is_positive(&measured["calls_per_second"]));
    assert_eq!(measured["latency_us"], Value::Null);
    // The size range of a generated graph with these options.
    assert!((300..700).contains(&measured["calls"].as_u64().unwrap()), "{measured}");
}

#[test]
fn soak_samples_memory_under_load() {
    let (text, measured) =
        measured(&[&["soak", "--layout=five", "--every=200ms"], &SMALL[..]].concat());
    let readings = measured["readings"].as_array().unwrap();
    // One before, one after, and at least one in between.
    assert!(readings.len() >= 3, "{measured}");
    assert_eq!(text.lines().filter(|line| line.contains(" s ")).count(), readings.len(), "{text}");
    for reading in readings {
        let processes = reading["processes"].as_array().unwrap();
        assert_eq!(processes.len(), 6, "{reading}");
        for process in processes {
            let bytes = |name: &str| process[name].as_u64().unwrap();
            assert!(bytes("anonymous_bytes") > 1 << 18, "{process}");
            assert!(bytes("resident_bytes") > bytes("anonymous_bytes"), "{process}");
        }
    }
    assert_eq!(measured["outcome"]["errors"], json!({}));
}

#[test]
fn fan_out_measures_delivery_to_all_followers() {
    let arguments = ["fan-out", "--followers=40", "--posts=2", "--entries=3"];
    let (text, measured) = measured(&arguments);
    assert!(text.starts_with("2 posts to 40 followers, each with 3 posts at home\n"), "{text}");
    assert!(is_positive(&measured["deliveries_per_second"]));
    assert_eq!(measured["author_ms"].as_array().unwrap().len(), 2);
}

#[test]
fn run_reports_an_unreachable_server() {
    let unreachable = "http://127.0.0.1:1";
    let errors =
        error_of(&["run", "home", "--user-url", unreachable, "--gateway-url", unreachable]);
    assert!(errors.contains("nothing answers at http://127.0.0.1:1"), "{errors}");
}
