//! The steps of the tour with their expected responses.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use microblog_proto::{
    gateway::{self, ViewHomeResponse, ViewPostResponse},
    post::{Comment, Post},
};
use tokio::time;
use uuid::Uuid;

use super::{
    format,
    person::{Client, Person, done, print_response},
};

/// The text of bob's repost.
const WALK: &str = "Worth the walk";
// For responses that must be right after an earlier call.
const IMMEDIATE: Duration = Duration::ZERO;
// For asynchronous changes, which take milliseconds, or longer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs the whole tour.
pub(super) async fn run(people: &mut [Person; 3]) -> anyhow::Result<()> {
    println!("Three people register and log in");
    for person in &mut *people {
        person.register().await?;
        person.log_in().await?;
    }
    let people = people.each_ref();
    follows(people).await?;
    let post = publishing(people).await?;
    likes_and_comments(people, &post).await?;
    let repost = reposts(people, &post).await?;
    blocks(people, &post, &repost).await?;
    deleting(people, &post, &repost).await?;
    timelines(people).await?;

    println!("\nA logout ends the session");
    let [ada, ..] = people;
    ada.call("logs out", gateway::LogoutRequest {}, Client::logout, done).await?;
    let (what, message) = ("views the own account", gateway::MeRequest {});
    ada.expect_error(what, message, Client::me, "TOKEN_INVALID").await
}

/// Afterwards ada and bob follow each other, and cleo follows both.
async fn follows([ada, bob, cleo]: [&Person; 3]) -> anyhow::Result<()> {
    println!("\nThey follow each other; a response has the new relation to the other account");
    follow(ada, bob, "following").await?;
    follow(bob, ada, "mutual").await?;
    follow(cleo, ada, "following").await?;
    follow(cleo, bob, "following").await?;

    println!("\nA list of followers has the viewer's relation to each, newest first");
    followers(bob, ada, &format!("{cleo} (follower)\n{bob} (self)")).await?;
    followers(ada, bob, &format!("{cleo} (follower)\n{ada} (self)")).await?;
    let described = |a: &gateway::ViewUserResponse| {
        let counts = a.counts.unwrap_or_default();
        format!(
            "following {}, followers {}, mutuals {}\n\
             both follow {}, followed by {} whom the viewer follows",
            counts.following,
            counts.followers,
            counts.mutuals,
            a.common_following,
            a.followed_by_count
        )
    };
    let expected = "following 1, followers 2, mutuals 1\n\
                    both follow 1, followed by 1 whom the viewer follows";
    let message = gateway::ViewUserRequest { user: ada.user() };
    cleo.expect(&format!("views {ada}"), message, Client::view_user, described, expected).await
}

async fn follow(from: &Person, to: &Person, expected: &str) -> anyhow::Result<()> {
    let message = gateway::FollowRequest { user: to.user() };
    let described = |a: &gateway::FollowResponse| format::relation(a.relation());
    from.expect(&format!("follows {to}"), message, Client::follow, described, expected).await
}

async fn followers(viewer: &Person, owner: &Person, expected: &str) -> anyhow::Result<()> {
    let what = format!("views the followers of {owner}");
    let message = gateway::ViewFollowersRequest { user: owner.user(), ..Default::default() };
    let described = |a: &gateway::ViewFollowersResponse| format::users(&a.users);
    viewer.expect(&what, message, Client::view_followers, described, expected).await
}

/// Publishes a post of ada that mentions bob, and returns it.
async fn publishing([ada, bob, cleo]: [&Person; 3]) -> anyhow::Result<Post> {
    println!("\nA post has its mentions and hashtags; the same request id makes no second post");
    let text = format!("Good morning @{bob}, this is #a tour# of #microblog");
    let request_id = Uuid::new_v4().to_string();
    let post = publish(ada, &format!("publishes `{text}`"), &request_id, &text).await?;
    let expected = format!("@{bob} is {}\ntopic `a tour`\ntopic `microblog`", bob.id);
    ensure!(format::entities(&post) == expected, "the post: expected:\n{expected}");
    let again = publish(ada, "repeats that, with the same request id", &request_id, &text).await?;
    ensure!(again.id == post.id, "the same request made a second post");
    view(bob, &post, &format!("{ada} (mutual): `{text}`")).await?;
    view(cleo, &post, &format!("{ada} (following): `{text}`")).await?;
    Ok(post)
}

async fn publish(
    author: &Person,
    what: &str,
    request_id: &str,
    text: &str,
) -> anyhow::Result<Post> {
    let message =
        gateway::PublishRequest { request_id: request_id.to_owned(), text: text.to_owned() };
    let described = |a: &gateway::PublishResponse| {
        let post = a.post.clone().unwrap_or_default();
        format!("post {}\n{}", post.id, format::entities(&post))
    };
    let answer = author.call(what, message, Client::publish, described).await?;
    let post = answer.post.with_context(|| format!("{what}: response has no post"))?;
    ensure!(post.author_id == author.id && post.text == text, "{what}: response is another post");
    Ok(post)
}

async fn publish_text(author: &Person, text: &str) -> anyhow::Result<Post> {
    publish(author, &format!("publishes `{text}`"), &Uuid::new_v4().to_string(), text).await
}

async fn view(viewer: &Person, post: &Post, expected: &str) -> anyhow::Result<()> {
    let message = gateway::ViewPostRequest { post_id: post.id };
    let described = |a: &ViewPostResponse| a.post.as_ref().map_or_else(String::new, format::post);
    let what = format!("views post {}", post.id);
    viewer.expect(&what, message, Client::view_post, described, expected).await
}

/// Afterwards the post has a like and a comment of bob, and a reply of ada.
async fn likes_and_comments([ada, bob, cleo]: [&Person; 3], post: &Post) -> anyhow::Result<()> {
    println!("\nLikes are idempotent: an account counts once");
    let post_id = post.id;
    like(bob, post, "likes 1").await?;
    like(bob, post, "likes 1").await?;
    like(cleo, post, "likes 2").await?;
    let what = format!("views the likers of post {post_id}");
    let message = gateway::ViewLikersRequest { post_id, ..Default::default() };
    let described = |a: &gateway::ViewLikersResponse| format::users(&a.users);
    let expected = format!("{cleo} (follower)\n{bob} (mutual)");
    ada.expect(&what, message, Client::view_likers, described, &expected).await?;
    let message = gateway::UnlikeRequest { post_id };
    cleo.call(&format!("unlikes post {post_id}"), message, Client::unlike, done).await?;

    println!("\nComments answer a post, or each other");
    let question = comment(bob, post, "Where does it lead?", 0).await?;
    comment(ada, post, "Down this page", question.id).await?;
    let message = gateway::ViewCommentsRequest { post_id, ..Default::default() };
    let described = |a: &gateway::ViewCommentsResponse| format::comments(&a.comments);
    let expected = format!(
        "{bob} (following): `Where does it lead?`\n\
         {ada} (following) replies to {}: `Down this page`",
        question.id
    );
    cleo.expect("views the comments", message, Client::view_comments, described, &expected).await?;
    let counts = "likes 1 (own included), comments 2";
    view(bob, post, &format!("{ada} (mutual): `{}`, {counts}", post.text)).await
}

async fn like(person: &Person, post: &Post, expected: &str) -> anyhow::Result<()> {
    let message = gateway::LikeRequest { post_id: post.id };
    let described = |a: &gateway::LikeResponse| format!("likes {}", a.likes);
    let what = format!("likes post {}", post.id);
    person.expect(&what, message, Client::like, described, expected).await
}

/// Comments on a post. `in_reply_to_id` is the comment to reply to, or 0.
async fn comment(
    person: &Person,
    post: &Post,
    text: &str,
    in_reply_to_id: u64,
) -> anyhow::Result<Comment> {
    let what = match in_reply_to_id {
        0 => format!("comments on post {}: `{text}`", post.id),
        id => format!("replies to comment {id}: `{text}`"),
    };
    let (request_id, text) = (Uuid::new_v4().to_string(), text.to_owned());
    let message = gateway::CommentRequest { request_id, post_id: post.id, text, in_reply_to_id };
    let described = |a: &gateway::CommentResponse| {
        format!("comment {}", a.comment.as_ref().map_or(0, |comment| comment.id))
    };
    let answer = person.call(&what, message, Client::comment, described).await?;
    answer.comment.with_context(|| format!("{what}: response has no comment"))
}

/// Returns bob's repost of ada's post, which cleo reposts again.
async fn reposts([ada, bob, cleo]: [&Person; 3], post: &Post) -> anyhow::Result<Post> {
    println!("\nA repost of a repost repeats the same root, and both count it");
    let first = repost(bob, post, post, WALK).await?;
    repost(cleo, &first, post, "").await?;
    let what = format!("views the reposts of post {}", post.id);
    let message = gateway::ViewRepostsRequest { post_id: post.id, ..Default::default() };
    let described = |a: &gateway::ViewRepostsResponse| format::posts(&a.posts);
    let expected = format!("{cleo} (follower) reposted\n{bob} (mutual) reposted with `{WALK}`");
    ada.expect(&what, message, Client::view_reposts, described, &expected).await?;
    let root = format!("{ada} (following): `{}`, likes 1, comments 2, reposts 2", post.text);
    view(cleo, &first, &format!("{bob} (following) reposted with `{WALK}`: {root}")).await?;

    println!("\nA caller's own lists, such as search results, as the viewer may see them");
    let users = [ada, bob, cleo].map(Person::user).into_iter().flatten().collect();
    let message = gateway::ViewUsersRequest { users, ..Default::default() };
    let described = |a: &gateway::ViewUsersResponse| format::users(&a.users);
    let expected = format!("{ada} (following)\n{bob} (following)\n{cleo} (self)");
    cleo.expect("views three accounts", message, Client::view_users, described, &expected).await?;
    let message = gateway::ViewPostsRequest { post_ids: vec![first.id, post.id], unasked: true };
    let described = |a: &gateway::ViewPostsResponse| format::posts(&a.posts);
    let expected = format!("{bob} (following) reposted with `{WALK}`: {root}\n{root}");
    cleo.expect("views two posts", message, Client::view_posts, described, &expected).await?;
    Ok(first)
}

/// Reposts a post, and checks the root.
async fn repost(person: &Person, reposted: &Post, root: &Post, text: &str) -> anyhow::Result<Post> {
    let what = match text {
        "" => format!("reposts post {}", reposted.id),
        _ => format!("reposts post {} with `{text}`", reposted.id),
    };
    let (request_id, text) = (Uuid::new_v4().to_string(), text.to_owned());
    let message = gateway::RepostRequest { request_id, post_id: reposted.id, text };
    let described = |a: &gateway::RepostResponse| {
        let Post { id, root_id, .. } = a.post.clone().unwrap_or_default();
        format!("post {id}, its root is {root_id}")
    };
    let answer = person.call(&what, message, Client::repost, described).await?;
    let made = answer.post.with_context(|| format!("{what}: response has no post"))?;
    let is_right = (made.root_id, made.reposted_id) == (root.id, reposted.id);
    ensure!(is_right, "{what}: unexpected root");
    Ok(made)
}

/// Blocks cleo, and unblocks her.
async fn blocks([ada, bob, cleo]: [&Person; 3], post: &Post, repost: &Post) -> anyhow::Result<()> {
    println!("\nA block ends the follows between two accounts, and hides the author's posts");
    let message = gateway::BlockRequest { user: cleo.user() };
    ada.call(&format!("blocks {cleo}"), message, Client::block, done).await?;
    followers(ada, ada, &format!("{bob} (mutual)")).await?;
    let message = gateway::FollowRequest { user: ada.user() };
    let (what, blocked) = (format!("follows {ada}"), "BLOCKED_BY_TARGET");
    cleo.expect_error(&what, message, Client::follow, blocked).await?;
    let (what, message) =
        (format!("views post {}", post.id), gateway::ViewPostRequest { post_id: post.id });
    cleo.expect_error(&what, message, Client::view_post, blocked).await?;
    let hidden = "a post hidden from the viewer";
    view(cleo, repost, &format!("{bob} (following) reposted with `{WALK}`: {hidden}")).await?;
    let message = gateway::UnblockRequest { user: cleo.user() };
    ada.call(&format!("unblocks {cleo}"), message, Client::unblock, done).await?;
    follow(cleo, ada, "following").await
}

/// Deletes a post, and shows its repost.
async fn deleting([ada, bob, _]: [&Person; 3], post: &Post, repost: &Post) -> anyhow::Result<()> {
    println!("\nOnly the author can delete a post; its reposts stay, with a deleted root");
    let post_id = post.id;
    let what = format!("deletes post {post_id}");
    let message = gateway::DeletePostRequest { post_id };
    bob.expect_error(&what, message, Client::delete_post, "NOT_THE_AUTHOR").await?;
    ada.call(&what, message, Client::delete_post, done).await?;
    let (what, message) = (format!("views post {post_id}"), gateway::ViewPostRequest { post_id });
    bob.expect_error(&what, message, Client::view_post, "POST_NOT_FOUND").await?;
    view(ada, repost, &format!("{bob} (mutual) reposted with `{WALK}`: a deleted post")).await
}

/// Shows the timelines, and what follows and mutes change in them.
async fn timelines([ada, bob, cleo]: [&Person; 3]) -> anyhow::Result<()> {
    println!("\nThe home timeline has posts and reposts of followed accounts and one's own");
    let letter = publish_text(ada, "The tide left a bottle with a letter in it").await?;
    like(bob, &letter, "likes 1").await?;
    let letter = format!("`{}`, likes 1", letter.text);
    let walk = format!("reposted with `{WALK}`: a deleted post");
    let expected = format!("{ada} (following): {letter}\n{bob} (following) {walk}");
    home(cleo, TIMEOUT, "", &expected).await?;
    let own = format!("{ada} (self): {letter}");
    let walk = format!("{bob} (mutual) {walk}");
    let since_token = home(ada, TIMEOUT, "", &format!("{own}\n{walk}")).await?.since_token;

    println!("\nThe since token of a page counts and lists newer posts");
    let answer = publish_text(cleo, "Whoever finds this: I am writing back").await?;
    repost(bob, &answer, &answer, "").await?;
    let (what, message) =
        ("counts new posts", gateway::CountNewRequest { since_token: since_token.clone() });
    let described = |a: &gateway::CountNewResponse| format!("{} new", a.count);
    ada.expect_within(TIMEOUT, what, message, Client::count_new, described, "1 new").await?;
    let new = format!("{bob} (mutual) reposted: {cleo} (follower): `{}`, reposts 1", answer.text);
    home(ada, IMMEDIATE, &since_token, &new).await?;

    println!("\nPosts of an unfollowed account disappear at once, and return with the follow");
    let message = gateway::UnfollowRequest { user: bob.user() };
    let described = |a: &gateway::UnfollowResponse| format::relation(a.relation());
    let what = format!("unfollows {bob}");
    ada.expect(&what, message, Client::unfollow, described, "follower").await?;
    home(ada, IMMEDIATE, "", &own).await?;
    follow(ada, bob, "mutual").await?;
    home(ada, IMMEDIATE, "", &format!("{new}\n{own}\n{walk}")).await?;

    println!("\nA mute hides the posts of an account, and ends no follow");
    let message = gateway::MuteRequest { user: bob.user() };
    ada.call(&format!("mutes {bob}"), message, Client::mute, done).await?;
    home(ada, IMMEDIATE, "", &own).await?;
    let message = gateway::UnmuteRequest { user: bob.user() };
    ada.call(&format!("unmutes {bob}"), message, Client::unmute, done).await?;

    println!("\nThe friends timeline has posts and reposts of mutual follows");
    let (what, message) = ("views the friends timeline", gateway::ViewFriendsRequest::default());
    let described = |a: &gateway::ViewFriendsResponse| format::posts(&a.posts);
    let expected = format!("{new}\n{walk}");
    ada.expect(what, message, Client::view_friends, described, &expected).await?;
    watching(cleo, ada).await
}

/// Views the home timeline, or with a since token what is new in it.
async fn home(
    viewer: &Person,
    within: Duration,
    since_token: &str,
    expected: &str,
) -> anyhow::Result<ViewHomeResponse> {
    let what = if since_token.is_empty() { "views the home timeline" } else { "views new posts" };
    let since_token = since_token.to_owned();
    let message = gateway::ViewHomeRequest { since_token, ..Default::default() };
    let described = |a: &ViewHomeResponse| format::posts(&a.posts);
    viewer.expect_within(within, what, message, Client::view_home, described, expected).await
}

/// Shows that a stream delivers new posts.
async fn watching(viewer: &Person, author: &Person) -> anyhow::Result<()> {
    println!("\nA stream delivers new posts as they are published");
    let (what, message) = ("watches the home timeline", gateway::WatchHomeRequest::default());
    let described = |_: &_| "a stream of new posts".to_owned();
    let mut updates = viewer.call(what, message, Client::watch_home, described).await?;
    let first =
        time::timeout(TIMEOUT, updates.message()).await.context("the stream does not start")??;
    ensure!(
        first.is_some_and(|update| update.posts.is_empty()),
        "the stream starts with old posts"
    );
    let post = publish_text(author, "The bottle goes back to the sea").await?;
    let update = async {
        loop {
            let update = updates.message().await?.context("the stream ended")?;
            // Others come after silence.
            if !update.posts.is_empty() {
                return anyhow::Ok(update);
            }
        }
    };
    let update = time::timeout(TIMEOUT, update).await.context("the stream delivers nothing")??;
    let received = format::posts(&update.posts);
    viewer.print_call("receives");
    print_response(&received);
    let expected = format!("{author} (following): `{}`", post.text);
    ensure!(received == expected, "the stream: expected:\n{expected}");
    Ok(())
}
