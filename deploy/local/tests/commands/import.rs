//! `microblog import` whose answers get lost.

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
