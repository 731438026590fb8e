//! The steps of the tour, each with what its answer must be.

use std::time::Duration;

use anyhow::ensure;
use microblog_proto::{
    gateway::{self, ListedUser},
    relation::RelationState,
};

use super::person::Person;

/// Takes the whole tour.
pub(super) async fn tour(people: &mut [Person; 3]) -> anyhow::Result<()> {
    println!("Three people register and log in");
    for person in &mut *people {
        person.register().await?;
        person.log_in().await?;
    }
    let [ada, bob, cleo] = people;
    name_is_taken(ada, bob).await?;

    println!("\nThey follow each other; an answer says how the other now stands to the viewer");
    follow(ada, bob, RelationState::Following).await?;
    follow(bob, ada, RelationState::Mutual).await?;
    follow(cleo, ada, RelationState::Following).await?;
    follow(cleo, bob, RelationState::Following).await?;
    let message = gateway::FollowRequest { user: ada.as_ref() };
    ada.refused("follows herself", "SELF_RELATION", message, async |mut c, r| c.follow(r).await)
        .await?;

    println!("\nAnybody's list is seen through the viewer's eyes, newest first");
    followers(bob, ada, &[(cleo, RelationState::Follower), (bob, RelationState::None)]).await?;
    followers(ada, bob, &[(cleo, RelationState::Follower), (ada, RelationState::None)]).await?;
    profile(cleo, ada).await?;

    println!("\nA block ends the follows between two people, and no new one can begin");
    block(bob, cleo).await?;
    followers(ada, bob, &[(ada, RelationState::None)]).await?;
    let message = gateway::FollowRequest { user: bob.as_ref() };
    let what = format!("follows {}", bob.name);
    cleo.refused(&what, "BLOCKED_BY_TARGET", message, async |mut c, r| c.follow(r).await).await?;
    unblock(bob, cleo).await?;
    follow(cleo, bob, RelationState::Following).await?;

    println!("\nA session ends when its owner says so");
    ada.call(
        "logs out",
        gateway::LogoutRequest {},
        async |mut c, r| c.logout(r).await,
        |_| "the token is worth nothing now".to_owned(),
    )
    .await?;
    ada.refused("asks who she is", "TOKEN_INVALID", gateway::MeRequest {}, async |mut c, r| {
        c.me(r).await
    })
    .await
}

async fn name_is_taken(owner: &Person, asker: &Person) -> anyhow::Result<()> {
    // Names are one without regard to case.
    let name = owner.name.to_uppercase();
    let what = format!("asks whether {name} is free");
    let message = gateway::CheckAvailabilityRequest { name: Some(name), email: None };
    let call = asker.call(
        &what,
        message,
        async |mut c, r| c.check_availability(r).await,
        |a| {
            if a.name_available() { "free".to_owned() } else { "taken".to_owned() }
        },
    );
    ensure!(!call.await?.name_available(), "a name that has an account is said to be free");
    Ok(())
}

async fn follow(from: &Person, to: &Person, expected: RelationState) -> anyhow::Result<()> {
    // Lists are in the order of time, to the millisecond.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let what = format!("follows {}", to.name);
    let message = gateway::FollowRequest { user: to.as_ref() };
    let call = from.call(
        &what,
        message,
        async |mut c, r| c.follow(r).await,
        |a| word(a.relation()).to_owned(),
    );
    ensure!(call.await?.relation() == expected, "{what}: expected {}", word(expected));
    Ok(())
}

async fn followers(
    viewer: &Person,
    owner: &Person,
    expected: &[(&Person, RelationState)],
) -> anyhow::Result<()> {
    let whose = if viewer.name == owner.name { "own" } else { &format!("{}'s", owner.name) };
    let what = format!("views {whose} followers");
    let message = gateway::ViewFollowersRequest { user: owner.as_ref(), ..Default::default() };
    let call = viewer.call(
        &what,
        message,
        async |mut c, r| c.view_followers(r).await,
        |a| a.users.iter().map(entry).collect::<Vec<_>>().join("\n"),
    );
    let listed = call.await?.users;
    let seen = listed.iter().map(|listed| (name(listed), listed.relation()));
    let expected = expected.iter().map(|(person, state)| (person.name.as_str(), *state));
    ensure!(seen.eq(expected), "{what}: not the followers, states or order that there should be");
    Ok(())
}

async fn profile(viewer: &Person, owner: &Person) -> anyhow::Result<()> {
    let what = format!("views {}", owner.name);
    let message = gateway::ViewUserRequest { user: owner.as_ref() };
    let call = viewer.call(
        &what,
        message,
        async |mut c, r| c.view_user(r).await,
        |a| {
            let counts = a.counts.unwrap_or_default();
            format!(
                "following {}, followers {}, mutuals {}; both of them follow {}",
                counts.following, counts.followers, counts.mutuals, a.common_following
            )
        },
    );
    let answer = call.await?;
    let counts = answer.counts.unwrap_or_default();
    ensure!(
        (counts.following, counts.followers, counts.mutuals) == (1, 2, 1),
        "{what}: expected 1 following, 2 followers, 1 mutual"
    );
    ensure!(answer.common_following == 1, "{what}: expected one account that both follow");
    Ok(())
}

async fn block(from: &Person, to: &Person) -> anyhow::Result<()> {
    let message = gateway::BlockRequest { user: to.as_ref() };
    let what = format!("blocks {}", to.name);
    from.call(&what, message, async |mut c, r| c.block(r).await, |_| "done".to_owned()).await?;
    Ok(())
}

async fn unblock(from: &Person, to: &Person) -> anyhow::Result<()> {
    let message = gateway::UnblockRequest { user: to.as_ref() };
    let what = format!("takes the block of {} back", to.name);
    from.call(&what, message, async |mut c, r| c.unblock(r).await, |_| "done".to_owned()).await?;
    Ok(())
}

fn name(listed: &ListedUser) -> &str {
    listed.user.as_ref().map_or("", |user| &user.name)
}

fn entry(listed: &ListedUser) -> String {
    format!("{}: {}", name(listed), word(listed.relation()))
}

fn word(state: RelationState) -> &'static str {
    match state {
        RelationState::Unspecified => "unknown",
        RelationState::None => "none",
        RelationState::Following => "following",
        RelationState::Follower => "follower",
        RelationState::Mutual => "mutual",
    }
}
