//! `microblog export`: complete exports, and detectable incomplete ones.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use microblog_testkit::PATIENCE;

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    launcher::{Ended, Launcher, PROGRAM, run},
    service_clients::ServiceClients,
};

// More than two pages.
const POSTS: u32 = 401;
const STOP: Duration = PATIENCE;
const ACCOUNTS: &str = "ada bob\nbob ada\ncleo ada\ndan bob\neve eve\n";

fn start(data: &Path) -> Launcher {
    let mut command = Command::new(PROGRAM);
    command.env("MICROBLOG_POSTS_PER_MINUTE", "0");
    let launcher = Launcher::start_by(command, data, &[]);
    launcher.import(ACCOUNTS);
    launcher
}

fn export(launcher: &Launcher, args: &[&str]) -> Ended {
    export_by(launcher, &launcher.url(3), args)
}

fn export_by(launcher: &Launcher, post_url: &str, args: &[&str]) -> Ended {
    let [users, relation] = [1, 2].map(|server| launcher.url(server));
    let urls = ["--user-url", &users, "--relation-url", &relation, "--post-url", post_url];
    run(&[&["export"], &urls[..], args].concat(), "")
}

fn lines(exported: &str) -> Vec<Value> {
    exported.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Returns the lines of a kind.
fn of<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["kind"] == kind).collect()
}

#[test]
fn an_export_is_complete_and_ordered() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(&dir.path().join("data"));
    let clients = ServiceClients::of(&launcher);
    let [ada, bob, dan] = ["ada", "bob", "dan"].map(|name| clients.id(name));
    clients.block(ada, dan);
    clients.mute(ada, bob);
    let posts = clients.publish(ada, POSTS);
    let [root, deleted] = [clients.publish(bob, 1)[0], clients.publish(bob, 1)[0]];
    let [repost, orphan] = [clients.repost(ada, root), clients.repost(ada, deleted)];
    clients.delete(bob, deleted);
    let comment = clients.comment(ada, root, 0);
    let answer = clients.comment(ada, root, clients.comment(bob, root, comment));
    clients.like(ada, root);
    clients.like(ada, posts[7]);

    let ended = export(&launcher, &["ada"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let exported = lines(&ended.stdout);
    let kinds: Vec<_> = exported.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    let mut expected = vec!["account", "following", "follower", "follower", "block", "mute"];
    expected.extend(["post"].repeat(posts.len() + 2));
    expected.extend(["like", "like", "comment", "comment", "end"]);
    assert_eq!(kinds, expected);
    assert_eq!((&exported[0]["id"], &exported[0]["name"]), (&json!(ada), &json!("ada")));
    assert_eq!(exported[0]["email"], "ada@import.invalid");
    assert_eq!((&exported[1]["user_id"], &exported[1]["name"]), (&json!(bob), &json!("bob")));
    let followers: BTreeSet<_> = exported[2..4].iter().map(|line| line["name"].as_str()).collect();
    assert_eq!(followers, BTreeSet::from([Some("bob"), Some("cleo")]));
    assert_eq!((&exported[4]["user_id"], &exported[5]["user_id"]), (&json!(dan), &json!(bob)));

    let written = of(&exported, "post");
    let ids: Vec<_> = written.iter().map(|post| post["id"].as_u64().unwrap()).collect();
    let made: Vec<_> = [orphan, repost].iter().chain(posts.iter().rev()).copied().collect();
    assert_eq!(ids, made);
    assert_eq!(
        (&written[0]["root_id"], &written[0]["root_deleted"]),
        (&json!(deleted), &json!(true))
    );
    assert_eq!((&written[1]["root_id"], &written[1]["reposted_id"]), (&json!(root), &json!(root)));
    assert_eq!((&written[2]["text"], &written[2]["likes"]), (&json!("post 400"), &json!(0)));
    assert_eq!(written[2].get("root_id"), None);
    let time = written[2]["created_at"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
    let [second, first] = &of(&exported, "comment")[..] else { panic!("two comments") };
    assert_eq!((&second["id"], &first["id"]), (&json!(answer), &json!(comment)));
    assert_eq!((&first["post_id"], &first["in_reply_to_id"]), (&json!(root), &Value::Null));
    assert!(second["in_reply_to_id"].is_u64() && second["text"] == format!("about {root}"));
    let counts = json!({
        "account": 1, "following": 1, "follower": 2, "block": 1, "mute": 1, "post": POSTS + 2,
        "like": 2, "comment": 2,
    });
    let end = exported.last().unwrap();
    assert_eq!(end["lines"], counts);
    assert_eq!(end["omitted"], json!(["password", "sessions", "notices"]));
    let likes = of(&exported, "like");
    let liked: Vec<_> = likes.iter().map(|like| like["post_id"].as_u64().unwrap()).collect();
    assert_eq!(liked, [root, posts[7]], "the newest post first");
    assert!(likes[0]["since"].as_str().unwrap().starts_with("20"));

    // The same export by id and by @name, and to a file.
    assert_eq!(export(&launcher, &[&ada.to_string()]).stdout, ended.stdout);
    assert_eq!(export(&launcher, &["@ADA"]).stdout, ended.stdout);
    let file = dir.path().join("ada.jsonl");
    let into_file = export(&launcher, &["ada", "--output", file.to_str().unwrap()]);
    assert_eq!(into_file.code, Some(0), "{into_file:?}");
    assert!(into_file.stdout.starts_with("wrote 414 lines to "), "{into_file:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), ended.stdout);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn an_empty_account_is_exported_and_a_missing_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(&dir.path().join("data"));
    let ended = export(&launcher, &["eve"]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let exported = lines(&ended.stdout);
    assert_eq!((&exported[0]["name"], exported.len()), (&json!("eve"), 2));
    let mut counts = json!({
        "account": 1, "following": 0, "follower": 0, "block": 0, "mute": 0, "post": 0, "like": 0,
    });
    let omitted = ["password", "sessions", "notices", "comments"];
    // Omitted comments have no count, rather than 0.
    let without = lines(&export(&launcher, &["eve", "--without-comments"]).stdout);
    assert_eq!(without[1], json!({ "kind": "end", "lines": counts, "omitted": omitted }));
    counts["comment"] = json!(0);
    let omitted = &omitted[..3];
    assert_eq!(exported[1], json!({ "kind": "end", "lines": counts, "omitted": omitted }));

    let file = dir.path().join("nobody.jsonl");
    for user in ["nobody", "@nobody", "7000000000000015", "1", "not a name"] {
        let ended = export(&launcher, &[user, "--output", file.to_str().unwrap()]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(&format!("account `{user}` not found")), "{ended:?}");
        assert!(!file.exists());
    }
}

#[test]
fn an_export_is_complete_after_the_launcher_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("a data & database directory?");
    let mut launcher = start(&data);
    let clients = ServiceClients::of(&launcher);
    let posts = clients.publish(clients.id("ada"), POSTS);
    launcher.signal(Signal::SIGKILL);
    launcher.ended(STOP);
    let database = data.join("post.sqlite").canonicalize().unwrap();
    assert_eq!(fs::metadata(&database).unwrap().permissions().mode() & 0o777, 0o600);

    let launcher = start(&data);
    assert!(launcher.output().contains(&format!("  database  of post: {}\n", database.display())));
    let ended = export(&launcher, &["ada"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let exported = lines(&ended.stdout);
    let ids: Vec<_> =
        of(&exported, "post").iter().map(|post| post["id"].as_u64().unwrap()).collect();
    assert!(ids.iter().rev().eq(&posts), "{ids:?}");
}

#[test]
fn an_interrupted_export_has_no_end_line() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = start(&dir.path().join("data"));
    let clients = ServiceClients::of(&launcher);
    clients.publish(clients.id("ada"), POSTS);
    // Enough for the first page of posts, and not for all.
    let cut = || cut_after(&launcher, 10_000);

    let ended = export_by(&launcher, &cut(), &["ada"]);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("error: export failed: "), "{}", ended.stderr);
    let exported = lines(&ended.stdout);
    assert!((1..POSTS as usize).contains(&of(&exported, "post").len()));
    assert!(of(&exported, "end").is_empty());

    let target = tempfile::tempdir().unwrap();
    let file = target.path().join("ada.jsonl");
    fs::write(&file, "an earlier one").unwrap();
    let ended = export_by(&launcher, &cut(), &["ada", "--output", file.to_str().unwrap()]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "an earlier one");
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 1);
}

/// Returns the URL of a proxy of the post service, which closes after this many response bytes.
fn cut_after(launcher: &Launcher, bytes: u64) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let post = ("127.0.0.1", launcher.port_base + 3);
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(post).unwrap();
        let (requests, answered) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || pass(requests, server, u64::MAX));
        pass(answered, client, bytes);
    });
    address
}

/// Forwards this many bytes, and closes both connections.
fn pass(mut from: TcpStream, mut to: TcpStream, bytes: u64) {
    let mut left = usize::try_from(bytes).unwrap();
    let mut buffer = [0; 1_000];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let count = count.min(left);
        left -= count;
        if to.write_all(&buffer[..count]).is_err() || left == 0 {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
