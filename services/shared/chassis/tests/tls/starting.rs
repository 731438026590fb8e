//! A whole process with files that cannot be used.

use crate::{
    support::process::Process,
    world::{HOST, World},
};

/// Starts a process whose start must fail, and returns what it says.
fn fails(world: &World) -> String {
    let mut process = Process::start("127.0.0.1:0", &world.flags());
    let line = process.wait(|line| line["message"] == "TLS cannot be set up");
    assert!(!process.ended().success());
    line["error"].as_str().unwrap().to_owned()
}

#[test]
fn a_file_that_cannot_be_used_is_named_with_what_is_wrong_in_it() {
    let world = World::new();
    let other = world.authority.issue(&[HOST]);
    let secret = other.key.lines().nth(1).unwrap().to_owned();
    let expect = |texts: &[&str]| {
        let error = fails(&world);
        assert!(texts.iter().all(|text| error.contains(text)), "{error}");
        assert!(!error.contains(&secret), "{error}");
    };
    world.files.write("server.key", &other.key);
    expect(&["server.key", "not that of the certificate in", "server.crt"]);
    world.files.write("server.key", &other.certificate);
    expect(&["server.key", "no private key"]);
    // A line is missing.
    world.files.write("server.key", other.key.replace("-----END PRIVATE KEY-----", ""));
    expect(&["server.key", "not PEM"]);
    world.give("server", &other);
    world.files.write("ca.crt", "");
    expect(&["ca.crt", "no certificate"]);
    std::fs::remove_file(world.files.path("ca.crt")).unwrap();
    expect(&["ca.crt", "cannot be read", "No such file"]);
}
