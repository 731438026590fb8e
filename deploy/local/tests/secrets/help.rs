//! What programs say of themselves, to whoever asks, with secrets in their environment.

use std::process::{Command, Output};

use crate::{canaries::Canaries, collected::Collected, server::program};

/// All variables that have secrets in them.
const SECRET: [&str; 6] = [
    "MICROBLOG_REDIS_URL",
    "MICROBLOG_REDIS_SENTINEL_PASSWORD",
    "MICROBLOG_ARCHIVE_URL",
    "MICROBLOG_IMPORT_PASSWORD",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
];

/// Each program, with its command, and a variable of its own that everybody may see.
const PROGRAMS: [(&str, &[&str], &str); 10] = [
    ("microblog-user", &[], "MICROBLOG_HASHING_THREADS"),
    ("microblog-relation", &[], "MICROBLOG_MAX_CALLS"),
    ("microblog-timeline", &[], "MICROBLOG_PULL_THRESHOLD"),
    ("microblog-post", &[], "MICROBLOG_HOT_POSTS"),
    ("microblog-gateway", &[], "MICROBLOG_FOLLOWS_PER_MINUTE"),
    ("microblog", &["up"], "MICROBLOG_PORT_BASE"),
    ("microblog", &["import"], "MICROBLOG_USER_URL"),
    ("microblog", &["verify"], "MICROBLOG_POST_URL"),
    ("microblog", &["export"], "MICROBLOG_RELATION_URL"),
    ("microblog", &["demo"], "MICROBLOG_GATEWAY_URL"),
];

#[test]
fn no_program_shows_secrets_of_its_environment_in_its_help_or_when_it_is_called_wrongly() {
    let canaries = Canaries::new();
    let mut collected = Collected::default();
    let public = "12321";
    for (name, command, variable) in PROGRAMS {
        for flag in ["-h", "--help", "--no-such-flag"] {
            let mut called = Command::new(program(name));
            called.args(command).arg(flag).env(variable, public);
            called.envs(SECRET.map(|secret| (secret, canaries.make(secret))));
            let Output { stdout, stderr, .. } = called.output().unwrap();
            let said = String::from_utf8([stdout, stderr].concat()).unwrap();
            collected.add(format!("{flag} of {name} {command:?}"), said);
        }
    }
    collected.assert_keeps(&canaries);
    collected.assert_tells("--help", public);
    collected.assert_tells("-h", public);
    collected.assert_tells("--no-such-flag", "unexpected argument '--no-such-flag'");
}
