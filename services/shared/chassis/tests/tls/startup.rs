//! A whole process with invalid TLS files.

use crate::{
    fixture::{Fixture, HOST},
    support::process::Process,
};

/// Starts a process that must fail, and returns the logged error.
fn start_error(fixture: &Fixture) -> String {
    let mut process = Process::start("127.0.0.1:0", &fixture.flags());
    let line = process.wait(|line| line["message"] == "cannot set up TLS");
    assert!(!process.ended().success());
    line["error"].as_str().unwrap().to_owned()
}

#[test]
fn invalid_file_is_named_with_its_problem() {
    let fixture = Fixture::new();
    let other = fixture.authority.issue(&[HOST]);
    let secret = other.key.lines().nth(1).unwrap().to_owned();
    let expect = |texts: &[&str]| {
        let error = start_error(&fixture);
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        assert!(!error.contains(&secret), "{error}");
    };
    fixture.files.write("server.key", &other.key);
    expect(&["server.key", "not that of the certificate in", "server.crt"]);
    fixture.files.write("server.key", &other.certificate);
    expect(&["server.key", "no private key"]);
    // The last line is missing.
    fixture.files.write("server.key", other.key.replace("-----END PRIVATE KEY-----", ""));
    expect(&["server.key", "not PEM"]);
    fixture.issue("server", &other);
    fixture.files.write("ca.crt", "");
    expect(&["ca.crt", "no certificate"]);
    std::fs::remove_file(fixture.files.path("ca.crt")).unwrap();
    expect(&["ca.crt", "cannot be read", "No such file"]);
}
