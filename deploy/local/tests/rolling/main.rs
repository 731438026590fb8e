//! Rolling restart and kill of replicas under load: with retries, no call fails.
//!
//! In each layout: a process for each service, all services in one, and a mixed one. The programs are
//! those beside `microblog`, which a build or test of the workspace creates. By default the test
//! restarts the same programs. With the programs of another version, it starts separate processes of
//! those, upgrades to these, and rolls back.
//!
//! ```sh
//! git worktree add /tmp/previous v1
//! (cd /tmp/previous && CARGO_TARGET_DIR=/tmp/previous-target cargo build --workspace --bins
//! --locked)
//! MICROBLOG_PREVIOUS_PROGRAMS=/tmp/previous-target/debug \
//! cargo test -p microblog --test rolling -- --nocapture
//! ```

#![allow(clippy::unwrap_used, reason = "a test's helper fails with the test")]

mod checks;
mod person;
mod programs;
mod retrying_client;
mod system;

use std::{env, rc::Rc};

use futures::future::{join, join_all};

use self::{
    person::Person,
    programs::Programs,
    retrying_client::{RetryingClient, Tally},
    system::{COLOCATED, Layout, MIXED, REPLICAS, SEPARATE, System},
};

/// Enough for calls in flight to every server at any time.
const PEOPLE: usize = 8;
/// Number of calls to wait for before a server stops, while it is down, and after its restart.
const CALLS_BETWEEN: u64 = 5 * PEOPLE as u64;

#[tokio::test]
async fn no_call_fails_during_rolling_restarts_and_kills_of_five_processes() {
    let previous = env::var_os("MICROBLOG_PREVIOUS_PROGRAMS").map(Programs::in_directory);
    check(SEPARATE, previous).await;
}

#[tokio::test]
async fn no_call_fails_during_rolling_restarts_and_kills_of_one_process() {
    check(COLOCATED, None).await;
}

#[tokio::test]
async fn no_call_fails_during_rolling_restarts_and_kills_of_a_mixed_layout() {
    check(MIXED, None).await;
}

async fn check(layout: &Layout, previous: Option<Programs>) {
    let current = Programs::built();
    let mut system = System::start(layout, previous.as_ref().unwrap_or(&current)).await;
    checks::assert_tour(&system, &current);
    let tally = Rc::new(Tally::default());
    let mut people = register(&system, &tally).await;
    let names: Vec<String> = people.iter().map(|person| person.name().to_owned()).collect();

    let lives = join_all(people.iter_mut().map(|person| person.live(&names)));
    let script = async {
        let processes = 0..layout.len();
        roll(&mut system, &current, processes.clone(), &tally).await;
        lose(&mut system, &current, processes.clone(), &tally).await;
        if let Some(previous) = &previous {
            roll(&mut system, previous, processes.rev(), &tally).await;
        }
        tally.end();
    };
    join(script, lives).await;

    tally.assert_none_failed();
    println!("{tally}");
    checks::assert_no_write_is_lost(&people).await;
    for programs in [Some(&current), previous.as_ref()].into_iter().flatten() {
        checks::assert_verified(&system, programs).await;
    }
}

async fn register(system: &System, tally: &Rc<Tally>) -> Vec<Person> {
    let gateways = system.urls("gateway");
    let joining = (0..PEOPLE).map(|number| {
        Person::join(format!("person_{number}"), RetryingClient::new(&gateways, tally))
    });
    join_all(joining).await
}

/// Restarts every replica, one after the other, with these programs.
async fn roll(
    system: &mut System,
    programs: &Programs,
    processes: impl Iterator<Item = usize>,
    tally: &Tally,
) {
    for process in processes {
        for replica in 0..REPLICAS {
            tally.more(CALLS_BETWEEN).await;
            system.stop(process, replica).await;
            tally.more(CALLS_BETWEEN).await;
            system.start_again(process, replica, programs).await;
        }
    }
    tally.more(CALLS_BETWEEN).await;
}

/// Kills and restarts one replica of each process, one after the other.
async fn lose(
    system: &mut System,
    programs: &Programs,
    processes: impl Iterator<Item = usize>,
    tally: &Tally,
) {
    for process in processes {
        tally.more(CALLS_BETWEEN).await;
        system.kill(process, 0);
        tally.more(CALLS_BETWEEN).await;
        system.start_again(process, 0, programs).await;
    }
    tally.more(CALLS_BETWEEN).await;
}
