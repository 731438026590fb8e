//! Follows and blocks, and the lists that show them.

use anyhow::ensure;
use microblog_proto::{gateway, relation::RelationState};

use crate::demo::format::{check_list, lines, list_entry, relation_name, wait_for_next_ms};
use crate::demo::person::Person;

/// Afterwards ada and bob follow each other, and cleo follows both.
pub(super) async fn tour(ada: &Person, bob: &Person, cleo: &Person) -> anyhow::Result<()> {
    println!("\nThey follow each other; a response has the new relation to the other account");
    follow(ada, bob, RelationState::Following).await?;
    follow(bob, ada, RelationState::Mutual).await?;
    follow(cleo, ada, RelationState::Following).await?;
    follow(cleo, bob, RelationState::Following).await?;
    let message = gateway::FollowRequest { user: ada.as_ref() };
    ada.expect_error("follows herself", "SELF_RELATION", message, async |mut c, r| {
        c.follow(r).await
    })
    .await?;

    println!("\nA list of followers has the viewer's relation to each, newest first");
    followers(bob, ada, &[(cleo, RelationState::Follower), (bob, RelationState::Self_)]).await?;
    followers(ada, bob, &[(cleo, RelationState::Follower), (ada, RelationState::Self_)]).await?;
    profile(cleo, ada).await?;

    println!("\nA block ends the follows between two accounts and prevents new ones");
    block(bob, cleo).await?;
    followers(ada, bob, &[(ada, RelationState::Self_)]).await?;
    let message = gateway::FollowRequest { user: bob.as_ref() };
    let what = format!("follows {}", bob.name);
    cleo.expect_error(&what, "BLOCKED_BY_TARGET", message, async |mut c, r| c.follow(r).await)
        .await?;
    unblock(bob, cleo).await?;
    follow(cleo, bob, RelationState::Following).await
}

/// Follows an account, and checks the new relation.
pub(super) async fn follow(
    from: &Person,
    to: &Person,
    expected: RelationState,
) -> anyhow::Result<()> {
    wait_for_next_ms().await;
    let what = format!("follows {}", to.name);
    let message = gateway::FollowRequest { user: to.as_ref() };
    let call = from.call(
        &what,
        message,
        async |mut c, r| c.follow(r).await,
        |a| relation_name(a.relation()).to_owned(),
    );
    ensure!(call.await?.relation() == expected, "{what}: expected {}", relation_name(expected));
    Ok(())
}

/// Unfollows an account, and checks the new relation.
pub(super) async fn unfollow(
    from: &Person,
    to: &Person,
    expected: RelationState,
) -> anyhow::Result<()> {
    let what = format!("unfollows {}", to.name);
    let message = gateway::UnfollowRequest { user: to.as_ref() };
    let call = from.call(
        &what,
        message,
        async |mut c, r| c.unfollow(r).await,
        |a| relation_name(a.relation()).to_owned(),
    );
    ensure!(call.await?.relation() == expected, "{what}: expected {}", relation_name(expected));
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
        |a| lines(&a.users, list_entry),
    );
    check_list(&what, &call.await?.users, expected)
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
                "following {}, followers {}, mutuals {}; both of them follow {}; followed by {} whom \
                 the viewer follows",
                counts.following,
                counts.followers,
                counts.mutuals,
                a.common_following,
                a.followed_by_count
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
    let followed_by: Vec<_> = answer.followed_by.iter().map(|user| user.id).collect();
    ensure!(
        answer.followed_by_count == followed_by.len() as u64 && followed_by.len() == 1,
        "{what}: expected one follower whom the viewer follows"
    );
    Ok(())
}

/// Blocks an account.
pub(super) async fn block(from: &Person, to: &Person) -> anyhow::Result<()> {
    let message = gateway::BlockRequest { user: to.as_ref() };
    let what = format!("blocks {}", to.name);
    from.call(&what, message, async |mut c, r| c.block(r).await, |_| "done".to_owned()).await?;
    Ok(())
}

/// Unblocks an account.
pub(super) async fn unblock(from: &Person, to: &Person) -> anyhow::Result<()> {
    let message = gateway::UnblockRequest { user: to.as_ref() };
    let what = format!("unblocks {}", to.name);
    from.call(&what, message, async |mut c, r| c.unblock(r).await, |_| "done".to_owned()).await?;
    Ok(())
}
