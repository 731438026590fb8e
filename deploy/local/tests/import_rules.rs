//! Checks the import rules between crates in `services/README.md`. Dev-dependencies are exempt. Also
//! checks the names of module files.

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

const DOMAIN: &str = "microblog-domain";
const FILES: &str = "microblog-files";
const PROTO: &str = "microblog-proto";
const CHASSIS: &str = "microblog-chassis";
const KEYSPACE: &str = "microblog-keyspace";
const RECORD: &str = "microblog-record";
const STORAGE: &str = "microblog-storage";
const TESTKIT: &str = "microblog-testkit";
const LAUNCHER: &str = "microblog";
const REDIS_CLIENTS: [&str; 2] = ["redis", "deadpool-redis"];

fn metadata() -> Metadata {
    MetadataCommand::new().no_deps().other_options(["--offline".to_owned()]).exec().unwrap()
}

/// Returns the directory of a package, relative to the workspace's root.
fn directory(metadata: &Metadata, package: &Package) -> String {
    let path = package.manifest_path.parent().unwrap();
    path.strip_prefix(&metadata.workspace_root).unwrap().to_string()
}

/// Returns the crates that the crate in this directory may import, or `None` if there is no rule.
fn allowed(directory: &str, all: &BTreeSet<&str>) -> Option<BTreeSet<String>> {
    let these = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
    match directory {
        "proto"
        | "services/shared/domain"
        | "services/shared/files"
        | "services/shared/testkit" => these(&[]),
        "services/shared/keyspace" => these(&[DOMAIN, FILES, CHASSIS]),
        "services/shared/record" => these(&[PROTO, FILES, CHASSIS]),
        "services/shared/storage" => these(&[PROTO, DOMAIN, CHASSIS, KEYSPACE, RECORD]),
        "services/shared/chassis" => these(&[PROTO, DOMAIN, FILES]),
        "gateway" => these(&[PROTO, DOMAIN, FILES, CHASSIS]),
        "deploy/load" => these(&all.iter().copied().collect::<Vec<_>>()),
        "deploy/local" => {
            Some(all.iter().filter(|&&name| name != TESTKIT).map(|&name| name.to_owned()).collect())
        }
        "deploy/faults" => these(&[PROTO, LAUNCHER, TESTKIT]),
        service if service.strip_prefix("services/").is_some_and(|name| !name.contains('/')) => {
            these(&[PROTO, DOMAIN, CHASSIS, KEYSPACE, RECORD, STORAGE])
        }
        _ => None,
    }
}

fn imports(package: &Package) -> BTreeSet<String> {
    let shipped = package.dependencies.iter().filter(|d| d.kind != DependencyKind::Development);
    shipped.map(|dependency| dependency.name.clone()).collect()
}

#[test]
fn each_crate_imports_only_allowed_crates() {
    let metadata = metadata();
    let packages = metadata.workspace_packages();
    let all: BTreeSet<&str> = packages.iter().map(|package| package.name.as_str()).collect();
    let mut violations = BTreeMap::new();
    for package in &packages {
        let directory = directory(&metadata, package);
        let allowed =
            allowed(&directory, &all).unwrap_or_else(|| panic!("no import rule for {directory}"));
        let ours = imports(package).into_iter().filter(|name| all.contains(name.as_str()));
        let forbidden: Vec<_> = ours.filter(|name| !allowed.contains(name)).collect();
        if !forbidden.is_empty() {
            violations.insert(directory, forbidden);
        }
    }
    assert!(violations.is_empty(), "crates with forbidden imports: {violations:?}");
}

#[test]
fn only_keyspace_and_the_testkit_depend_on_a_redis_client() {
    for package in metadata().workspace_packages() {
        let imports = imports(package);
        let uses_redis = REDIS_CLIENTS.iter().any(|&client| imports.contains(client));
        let may = [KEYSPACE, TESTKIT].contains(&package.name.as_str());
        assert!(may || !uses_redis, "{} depends on a Redis client", package.name);
    }
}

#[test]
fn only_services_with_a_database_depend_on_a_sql_client() {
    for package in metadata().workspace_packages() {
        let services = ["user", "relation", "post", "notice"];
        let services = services.map(|service| format!("microblog-{service}"));
        let may = [RECORD, STORAGE].contains(&package.name.as_str())
            || services.iter().any(|name| package.name == *name);
        assert!(may || !imports(package).contains("sqlx"), "{} depends on sqlx", package.name);
    }
}

#[test]
fn every_crate_inherits_the_workspace_lints() {
    for package in metadata().workspace_packages() {
        let manifest = fs::read_to_string(&package.manifest_path).unwrap();
        assert!(manifest.contains("[lints]\nworkspace = true"), "{}", package.manifest_path);
    }
}

/// Adds the files below a directory that are called `mod.rs`, except those of test support.
fn find_mod_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find_mod_files(&path, found);
        } else if path.ends_with("mod.rs") && !path.ends_with("support/mod.rs") {
            found.push(path);
        }
    }
}

// In `support`, the name keeps cargo from building the file as a test or benchmark.
#[test]
fn only_test_support_is_in_files_called_mod() {
    let mut found = Vec::new();
    for package in metadata().workspace_packages() {
        let crate_root = package.manifest_path.parent().unwrap();
        for sources in ["src", "build", "tests", "benches"].map(|name| crate_root.join(name)) {
            if sources.is_dir() {
                find_mod_files(sources.as_std_path(), &mut found);
            }
        }
    }
    assert!(found.is_empty(), "rename `a/mod.rs` to `a.rs`: {found:?}");
}
