//! The reference of all calls, `proto/README.md`, says what the protos say.

#[path = "../examples/reference/contract.rs"]
mod contract;
#[path = "../examples/reference/page.rs"]
mod page;
#[path = "../examples/reference/prose.rs"]
mod prose;

use std::{collections::HashSet, fs};

#[test]
fn the_reference_is_that_of_the_protos() {
    let kept = fs::read_to_string(page::FILE).unwrap_or_default();
    let made = page::write(&contract::read(microblog_proto::DESCRIPTORS).unwrap());
    let at = kept.lines().zip(made.lines()).take_while(|(kept, made)| kept == made).count();
    assert!(
        kept == made,
        "proto/README.md is behind the protos from line {} on; make it anew:\n\
         cargo run --package microblog-proto --example reference",
        at + 1
    );
}

#[test]
fn every_call_and_type_is_in_the_reference_with_its_comment() {
    let packages = contract::read(microblog_proto::DESCRIPTORS).unwrap();
    let made = page::write(&packages);
    for package in packages {
        for service in package.services {
            assert!(made.contains(&format!("\n## {}\n", service.name)), "{}", service.name);
            for method in service.methods {
                let heading = format!("\n### {}.{}\n", service.name, method.name);
                assert!(made.contains(&heading) && !method.comment.is_empty(), "{}", method.name);
            }
        }
        for message in package.messages {
            let name = message.name.rsplit('.').next().unwrap().to_owned();
            assert!(made.contains(&name) && !message.comment.is_empty(), "{name}");
        }
    }
}

#[test]
fn every_link_leads_to_one_heading() {
    let made = page::write(&contract::read(microblog_proto::DESCRIPTORS).unwrap());
    let mut anchors = HashSet::new();
    for heading in made.lines().filter(|line| line.starts_with('#')) {
        let heading = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        let anchor: String =
            heading.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect();
        assert!(anchors.insert(anchor.clone()), "{anchor} is there twice");
    }
    for link in made.split("](#").skip(1) {
        let anchor = link.split(')').next().unwrap();
        assert!(anchors.contains(anchor), "nothing is called {anchor}");
    }
}
