//! The steps of the tour with their expected responses: accounts and sessions here, the rest by
//! topic.

mod blocks;
mod feed;
mod graph;
mod posts;
mod reactions;
mod reposts;

use anyhow::ensure;
use microblog_proto::gateway;

use super::person::Person;

/// Runs the whole tour.
pub(super) async fn tour(people: &mut [Person; 3]) -> anyhow::Result<()> {
    println!("Three people register and log in");
    for person in &mut *people {
        person.register().await?;
        person.log_in().await?;
    }
    let [ada, bob, cleo] = people;
    name_is_taken(ada, bob).await?;

    graph::tour(ada, bob, cleo).await?;
    let post = posts::publishing(ada, bob, cleo).await?;
    reactions::likes(&post, ada, bob, cleo).await?;
    reactions::comments(&post, ada, bob, cleo).await?;
    let repost = reposts::reposts(&post, ada, bob, cleo).await?;
    blocks::of_posts(&post, &repost, ada, cleo).await?;
    posts::deleting(&post, &repost, ada, bob).await?;
    feed::tour(&repost, ada, bob, cleo).await?;

    println!("\nA logout ends the session");
    ada.call(
        "logs out",
        gateway::LogoutRequest {},
        async |mut c, r| c.logout(r).await,
        |_| "the token is now invalid".to_owned(),
    )
    .await?;
    let message = gateway::MeRequest {};
    ada.expect_error("views the own account", "TOKEN_INVALID", message, async |mut c, r| {
        c.me(r).await
    })
    .await?;
    Ok(())
}

async fn name_is_taken(owner: &Person, viewer: &Person) -> anyhow::Result<()> {
    // Names are case-insensitive.
    let name = owner.name.to_uppercase();
    let what = format!("checks whether {name} is available");
    let message = gateway::CheckAvailabilityRequest { name };
    let call = viewer.call(
        &what,
        message,
        async |mut c, r| c.check_availability(r).await,
        |a| {
            if a.name_available() { "available".to_owned() } else { "taken".to_owned() }
        },
    );
    ensure!(!call.await?.name_available(), "a taken name is reported as available");
    Ok(())
}
