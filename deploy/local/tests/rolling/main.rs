//! Rolling restart and kill of replicas under load: with retries, no call fails.
//!
//! Each server is its own process, of the programs beside `microblog`, which a build or test of the
//! workspace creates. By default the test restarts the same programs. With the programs of another
//! version, it starts with those, upgrades to these, and rolls back.
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
    system::{CALLED_FIRST, REPLICAS, System},
};

/// Enough for calls in flight to every server at any time.
const PEOPLE: usize = 8;
/// Number of calls to wait for before a server stops, while it is down, and after its restart.
const CALLS_BETWEEN: u64 = 5 * PEOPLE as u64;

#[tokio::test]
async fn no_call_fails_during_rolling_restarts_and_kills() {
    let current = Programs::built();
    let previous = env::var_os("MICROBLOG_PREVIOUS_PROGRAMS").map(Programs::in_directory);
    let mut system = System::start(previous.as_ref().unwrap_or(&current)).await;
    let tally = Rc::new(Tally::default());
    let mut people = register(&system, &tally).await;
    let names: Vec<String> = people.iter().map(|person| person.name().to_owned()).collect();

    let lives = join_all(people.iter_mut().map(|person| person.live(&names)));
    let script = async {
        roll(&mut system, &current, &CALLED_FIRST, &tally).await;
        lose(&mut system, &current, &tally).await;
        if let Some(previous) = &previous {
            let mut order = CALLED_FIRST;
            order.reverse();
            roll(&mut system, previous, &order, &tally).await;
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

/// Restarts every server, one after the other, with these programs.
async fn roll(system: &mut System, programs: &Programs, order: &[&str], tally: &Tally) {
    for service in order {
        for replica in 0..REPLICAS {
            tally.more(CALLS_BETWEEN).await;
            system.stop(service, replica).await;
            tally.more(CALLS_BETWEEN).await;
            system.start_again(service, replica, programs).await;
        }
    }
    tally.more(CALLS_BETWEEN).await;
}

/// Kills and restarts one server of each service, one after the other.
async fn lose(system: &mut System, programs: &Programs, tally: &Tally) {
    for service in CALLED_FIRST {
        tally.more(CALLS_BETWEEN).await;
        system.kill(service, 0);
        tally.more(CALLS_BETWEEN).await;
        system.start_again(service, 0, programs).await;
    }
    tally.more(CALLS_BETWEEN).await;
}
