//! `microblog import` whose answers get lost, and `microblog import-posts`.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use microblog_testkit::PATIENCE;

use crate::launcher::{Launcher, eventually, run};

/// More than a client sends before a call of an import, and less than its messages.
const CALL_BYTES: usize = 1_000;

/// Passes connections on to a server, but no answer to a call of an import until it is opened.
struct Proxy {
    url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_open: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    fn start(to: &str) -> Self {
        let to = to.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::<State>::default();
        let shared = state.clone();
        // Ends with the test.
        thread::spawn(move || {
            for client in listener.incoming() {
                shared.pass_on(client.unwrap(), TcpStream::connect(&to).unwrap());
            }
        });
        Self { url, state }
    }

    /// Cuts all connections. Later ones get their answers.
    fn open(&self) {
        self.state.is_open.store(true, SeqCst);
        for connection in self.state.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn pass_on(&self, client: TcpStream, server: TcpStream) {
        let sent = Arc::<AtomicUsize>::default();
        let is_open = self.is_open.load(SeqCst);
        self.connections.lock().unwrap().push(client.try_clone().unwrap());
        let (from, to, uploaded) =
            (client.try_clone().unwrap(), server.try_clone().unwrap(), sent.clone());
        thread::spawn(move || {
            copy(from, to, |bytes| {
                uploaded.fetch_add(bytes, SeqCst);
                true
            });
        });
        thread::spawn(move || copy(server, client, |_| is_open || sent.load(SeqCst) < CALL_BYTES));
    }
}

/// Copies what passes, until the end of one of the connections.
fn copy(mut from: TcpStream, mut to: TcpStream, mut passes: impl FnMut(usize) -> bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if passes(read) && to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

#[test]
fn what_an_import_may_have_created_does_not_count_as_existing() {
    const FOLLOWS: usize = 400;
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let (users, relations) = (Proxy::start(&launcher.url(1)), Proxy::start(&launcher.url(2)));
    let edges: String = (0..FOLLOWS).map(|n| format!("follower{n} star\n")).collect();
    let flags = [users.url.clone(), relations.url.clone()];
    let import = thread::spawn(move || {
        let [users, relations] = &flags;
        run(&["import", "-", "--user-url", users, "--relation-url", relations], &edges)
    });
    let gateway = launcher.url(0);
    let star = ["call", "ViewUser", r#"{"user": {"name": "star"}}"#, "--gateway-url", &gateway];
    // The names are imported in their order: it has the last one.
    let last = format!(r#"{{"user": {{"name": "follower{}"}}}}"#, FOLLOWS - 1);
    let last = ["call", "ViewUser", &last, "--gateway-url", &gateway];
    eventually("the answer of user is withheld", PATIENCE, || run(&last, "").code == Some(0));
    users.open();
    eventually("the answer of relation is withheld", PATIENCE, || {
        let shown = run(&star, "").stdout.replace(char::is_whitespace, "");
        shown.contains(&format!("\"followers\":\"{FOLLOWS}\""))
    });
    relations.open();
    let imported = import.join().unwrap();
    assert_eq!(imported.code, Some(0), "{imported:?}");
    for line in [
        "accounts   0 new, 0 existing\n           401 new or existing: calls were repeated",
        "follows    0 created, 0 unchanged\n           400 created or unchanged: calls were repeated",
    ] {
        assert!(imported.stdout.contains(line), "{line}: {imported:?}");
    }
}

const POSTS: &str = r#"{"author": "Ada", "created_at": "2019-03-01T12:00:00Z", "text": "the first of mine"}
{"author": "bob", "created_at": "2020-03-01T12:00:00.25+01:00", "text": "hello @ada"}
{"author": "ada", "created_at": "2019-03-01T12:00:00Z", "text": "at the same time"}
"#;

#[test]
fn posts_are_imported_once_with_their_times() {
    let dir = tempfile::tempdir().unwrap();
    let launcher = Launcher::start(&dir.path().join("data"), &[]);
    let (users, posts) = (launcher.url(1), launcher.url(3));
    let import = |lines: &str| {
        run(&["import-posts", "-", "--user-url", &users, "--post-url", &posts], lines)
    };
    for (accounts, expected) in [
        ("2 new, 0 existing", "3 created, 0 existing"),
        ("0 new, 2 existing", "0 created, 3 existing"),
    ] {
        let imported = import(POSTS);
        assert_eq!(imported.code, Some(0), "{imported:?}");
        for line in [format!("accounts   {accounts}\n"), format!("posts      {expected}\n")] {
            assert!(imported.stdout.contains(&line), "{line}: {imported:?}");
        }
    }
    let gateway = launcher.url(0);
    let view = |name: &str| {
        let user = format!(r#"{{"user": {{"name": "{name}"}}}}"#);
        let viewed = run(&["call", "ViewUserTimeline", &user, "--gateway-url", &gateway], "");
        assert_eq!(viewed.code, Some(0), "{viewed:?}");
        viewed.stdout
    };
    let of_ada = view("ada");
    assert_eq!(of_ada.matches("2019-03-01T12:00:00Z").count(), 2, "{of_ada}");
    for text in ["the first of mine", "at the same time"] {
        assert!(of_ada.contains(text), "{of_ada}");
    }
    assert!(view("bob").contains("2020-03-01T11:00:00.250Z"), "{}", view("bob"));

    // What is before the line that is wrong stays, and is not made again.
    let line = |time: &str, text: &str| {
        format!("{{\"author\": \"cleo\", \"created_at\": \"{time}\", \"text\": \"{text}\"}}\n")
    };
    let good = line("2021-03-01T12:00:00Z", "good");
    for (wrong, expected) in [
        (line("2021-03-01T12:00:00Z", ""), "line 5: text "),
        (line("1999-03-01T12:00:00Z", "too early"), "line 5: created_at "),
        (line("soon", "no time"), "line 5: `soon` is no time"),
        ("cleo\n".to_owned(), "line 5: is no JSON object"),
    ] {
        let failed = import(&format!("{POSTS}\n{wrong}{good}"));
        assert_eq!(failed.code, Some(2), "{failed:?}");
        let expected = format!("error: standard input, {expected}");
        assert!(failed.stderr.contains(&expected), "{expected}: {failed:?}");
    }
    let future = import(&line("2074-03-01T12:00:00Z", "too late"));
    assert_eq!(future.code, Some(2), "{future:?}");
    assert!(future.stderr.contains("line 1: created_at "), "{future:?}");
    let imported = import(&good);
    assert!(imported.stdout.contains("accounts   0 new, 1 existing\n"), "{imported:?}");
    assert!(launcher.verified().stdout.contains("no violations"));
}
