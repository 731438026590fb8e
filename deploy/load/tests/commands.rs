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
    measured(&[&["run", scenario, "--start=colocated"], &SMALL[..]].concat())
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
fn report_measures_scenarios_on_each_system_in_rounds() {
    let systems = ["--layouts=separate", "--redis=cluster", "--tls=false,true", "--rounds=2"];
    let (text, measured) =
        measured(&[&["report", "home", "view-followers"], &systems[..], &SMALL[..]].concat());
    let rows: Vec<_> = text.lines().skip(2).collect();
    assert_eq!(rows.len(), 4, "{text}");
    assert!(rows[0].starts_with("| home | separate | cluster | no | 4 | "), "{text}");
    assert!(rows[3].starts_with("| view-followers | separate | cluster | yes | 4 | "), "{text}");
    for row in measured.as_array().unwrap() {
        let results = row["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        assert!(results.iter().all(|result| is_positive(&result["calls"])), "{measured}");
    }
}

#[test]
fn no_call_of_any_scenario_fails() {
    for scenario in ["view-followers", "follow", "publish", "home", "user-timeline", "like"] {
        let (_, measured) = run_small(scenario);
        assert_eq!((&measured["scenario"], &measured["errors"]), (&json!(scenario), &json!({})));
        assert!(is_positive(&measured["calls"]), "{measured}");
    }
}

#[test]
fn run_prints_the_memory_of_each_process_periodically() {
    let system = ["--start=separate", "--database=sqlite", "--every=100ms"];
    let arguments = [&["run", "mixed"], &system[..], &SMALL[..]].concat();
    let (text, measured) = measured(&arguments);
    let readings = text.lines().filter(|line| line.contains(" s  redis-server")).count();
    assert!(readings > 0, "{text}");
    let processes = measured["usage"]["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 7, "{measured}");
    for process in processes {
        let bytes = |name: &str| process[name].as_u64().unwrap();
        assert!(bytes("anonymous_bytes") > 1 << 18, "{process}");
        assert!(bytes("resident_bytes") > bytes("anonymous_bytes"), "{process}");
    }
    assert_eq!(measured["errors"], json!({}));
}

#[test]
fn memory_measures_each_kind_of_data() {
    let arguments = ["memory", "--accounts=300", "--posts=2", "--likes=3", "--comments=1"];
    let (text, measured) = measured(&arguments);
    let steps = measured["steps"].as_array().unwrap();
    let kinds: Vec<_> = steps.iter().map(|step| step["what"].as_str().unwrap()).collect();
    let expected = [
        "accounts, cached with their names",
        "follows, cached on both sides",
        "posts, cached",
        "likes, cached on both sides",
        "comments, cached",
    ];
    assert_eq!(kinds[..5], expected, "{text}");
    assert!(kinds[5].starts_with("home timelines, "), "{text}");
    for step in steps {
        assert!(is_positive(&step["count"]) && is_positive(&step["used"]), "{step}");
    }
    assert_eq!(measured["steps"][2]["count"], 600);
}

#[test]
fn capacity_computes_from_the_inputs_of_an_earlier_run() {
    let process = |name: &str| json!({"name": name, "mixed_us": 100, "like_us": 10, "publish_us": 50, "delivery_us": 2});
    let layout = json!({
        "layout": "separate", "readers": 0.25, "followers": 40, "followers_few": 10,
        "followers_many": 90, "processes": [process("timeline"), process("redis-server")],
    });
    let cost = json!({
        "measured": 1, "redis_bytes": 100, "sql_rows": 1, "sql_written": 1, "sql_bytes": 200,
        "sql_us": 50,
    });
    let costs = vec![cost; 5];
    let inputs = json!({"layouts": [layout], "costs": costs, "home_entry_bytes": 20});
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("inputs.json");
    std::fs::write(&file, json!({"inputs": inputs}).to_string()).unwrap();
    let file = file.to_str().unwrap();
    let (text, measured) = measured(&["capacity", "--inputs", file, "--sizes=21600000"]);
    assert!(text.contains("| operations a second, 10% posts | 3,000 |"), "{text}");
    assert!(text.contains("| relation: follows | 216 GB |"), "{text}");
    assert!(text.contains("- Nearest with 21.6 million accounts: "), "{text}");
    assert_eq!(measured["plans"][0]["accounts"], 21_600_000);
    let errors = error_of(&["capacity", "--inputs", "/dev/null"]);
    assert!(errors.contains("cannot read the inputs in /dev/null"), "{errors}");
}

#[test]
fn run_reports_an_unreachable_server() {
    let unreachable = "http://127.0.0.1:1";
    let errors =
        error_of(&["run", "home", "--user-url", unreachable, "--gateway-url", unreachable]);
    assert!(errors.contains("nothing answers at http://127.0.0.1:1"), "{errors}");
}
