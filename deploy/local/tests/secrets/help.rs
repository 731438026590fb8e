//! Help texts and usage errors of the programs, with secrets in the environment.

use std::process::{Command, Output};

use crate::{canaries::Canaries, outputs::Outputs, server::program};

/// All environment variables with secrets.
const SECRET: [&str; 14] = [
    "MICROBLOG_REDIS_URL",
    "MICROBLOG_USER_REDIS_URL",
    "MICROBLOG_RELATION_REDIS_URL",
    "MICROBLOG_POST_REDIS_URL",
    "MICROBLOG_TIMELINE_REDIS_URL",
    "MICROBLOG_REDIS_SENTINEL_PASSWORD",
    "MICROBLOG_DATABASE_URL",
    "MICROBLOG_USER_DATABASE_URL",
    "MICROBLOG_RELATION_DATABASE_URL",
    "MICROBLOG_POST_DATABASE_URL",
    "MICROBLOG_NOTICE_DATABASE_URL",
    "MICROBLOG_IMPORT_PASSWORD",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
];

/// Each program with its subcommand, and a public variable.
const PROGRAMS: [(&str, &[&str], &str); 12] = [
    ("microblog-user", &[], "MICROBLOG_HASHING_THREADS"),
    ("microblog-relation", &[], "MICROBLOG_MAX_CALLS"),
    ("microblog-timeline", &[], "MICROBLOG_PULL_THRESHOLD"),
    ("microblog-post", &[], "MICROBLOG_POSTS_PER_MINUTE"),
    ("microblog-gateway", &[], "MICROBLOG_FOLLOWS_PER_MINUTE"),
    ("microblog", &["serve"], "MICROBLOG_HASHING_THREADS"),
    ("microblog", &["up"], "MICROBLOG_PORT_BASE"),
    ("microblog", &["import"], "MICROBLOG_USER_URL"),
    ("microblog", &["import-posts"], "MICROBLOG_POST_URL"),
    ("microblog", &["verify"], "MICROBLOG_POST_URL"),
    ("microblog", &["export"], "MICROBLOG_RELATION_URL"),
    ("microblog", &["demo"], "MICROBLOG_GATEWAY_URL"),
];

#[test]
fn help_and_usage_errors_do_not_contain_secrets_of_the_environment() {
    let canaries = Canaries::new();
    let mut outputs = Outputs::default();
    let public = "12321";
    for (name, command, variable) in PROGRAMS {
        for flag in ["-h", "--help", "--no-such-flag"] {
            let mut called = Command::new(program(name));
            called.args(command).arg(flag).env(variable, public);
            called.envs(SECRET.map(|secret| (secret, canaries.make(secret))));
            let Output { stdout, stderr, .. } = called.output().unwrap();
            let output = String::from_utf8([stdout, stderr].concat()).unwrap();
            outputs.add(format!("{flag} of {name} {command:?}"), output);
        }
    }
    outputs.assert_keeps(&canaries);
    outputs.assert_contains("--help", public);
    outputs.assert_contains("-h", public);
    outputs.assert_contains("--no-such-flag", "unexpected argument '--no-such-flag'");
}
