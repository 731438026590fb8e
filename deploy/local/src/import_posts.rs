//! `microblog import-posts`: imports posts with their times from a file and prints a report.

use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap},
    io::{BufRead, Read as _},
    process::ExitCode,
    time::Instant,
};

use anyhow::{Context as _, anyhow};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use indicatif::HumanCount;
use microblog_proto::post::{
    ImportPostsRequest, ImportPostsResponse, ImportedPost, post_service_client::PostServiceClient,
};
use serde::Deserialize;
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::{
    edges,
    graph::{self, Accounts},
    import::{UNCLEAR, rate, report_accounts},
    input,
    keys::SignedChannel,
    progress::Progress,
    remote::{self, CALL_TIMEOUT, POST_URL},
};

/// The most posts of a call.
const POSTS_PER_CALL: usize = 200;

/// Concurrent calls: the database commits those of several calls together.
const CALLS: usize = 8;

/// The most posts that are read before they are sent, and the most bytes of their lines.
const PART_POSTS: usize = 20_000;
const PART_BYTES: usize = 16 << 20;

/// The longest line: a text of 70,000 bytes, each of which JSON may escape.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Imports posts with the times at which they were made: one JSON object per line.
///
/// Each has `author`, the name of an account, `created_at` in RFC 3339 format, from 2006-01-01 on, and
/// `text`. Other fields are ignored. Accounts that do not exist are created. Nobody is notified, and
/// nothing is pushed: followers find the posts on older pages of their home timelines.
///
/// An import can be repeated, and goes on where it ended: a post of the same author, time and text is not
/// made again. Exits with 1 if an account could not be created, and with 2 if the import fails.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The posts, plain or gzipped; - reads standard input.
    file: String,
    /// URL of the post service.
    #[arg(long, value_name = "URL", default_value = POST_URL, env = "MICROBLOG_POST_URL")]
    post_url: String,
    #[command(flatten)]
    accounts: Accounts,
}

const EXAMPLES: &str = "\
Example:
  echo '{\"author\": \"ada\", \"created_at\": \"2019-03-01T12:00:00Z\", \"text\": \"Hello\"}' \\
    | microblog import-posts -";

/// A line of the file.
#[derive(Deserialize)]
struct Line {
    author: String,
    created_at: String,
    text: String,
}

/// A post of a line.
struct Post {
    line: u64,
    /// The author's name, in the spelling of the line.
    author: String,
    post: ImportedPost,
}

/// The sum of what an import has done.
#[derive(Default)]
struct Done {
    /// Accounts by their names in lower case; 0 for one that could not be created.
    ids: HashMap<String, u64>,
    created: u64,
    unclear: u64,
    outcome: ImportPostsResponse,
    /// Posts that existed before, or that an attempt made whose answer is missing.
    unclear_posts: u64,
    /// Posts whose account could not be created.
    dropped: u64,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let name = input::name(&args.file);
    let mut input = input::open(&args.file).with_context(|| format!("cannot read {name}"))?;
    let channels = graph::channels(&args.post_url, &args.accounts.keys).await?;
    let progress = Progress::start_uncounted("posts");
    let (mut done, mut line) = (Done::default(), 0);
    loop {
        let posts = read_part(&mut *input, name, &mut line)?;
        if posts.is_empty() {
            break;
        }
        done.add_accounts(&posts, &args.accounts).await?;
        done.send(posts, &channels, name, &progress).await?;
    }
    progress.finish();
    let rejected = done.ids.values().filter(|&&id| id == 0).count() as u64;
    done.report(rejected);
    let took = begun.elapsed();
    let sent = done.outcome.created + done.outcome.unchanged + done.outcome.rejected;
    println!("took       {:.1} s", took.as_secs_f64());
    println!("rate       {} posts/s", rate(sent + done.unclear_posts, took));
    Ok(if rejected > 0 { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Reads the next posts; none at the end.
fn read_part(input: &mut dyn BufRead, file: &str, line: &mut u64) -> anyhow::Result<Vec<Post>> {
    let (mut posts, mut bytes, mut text) = (Vec::new(), 0, Vec::new());
    while posts.len() < PART_POSTS && bytes < PART_BYTES {
        text.clear();
        let read = input.take(LINE_BYTES_MAX).read_until(b'\n', &mut text);
        let read = read.with_context(|| format!("cannot read {file}"))?;
        if read == 0 {
            break;
        }
        *line += 1;
        bytes += read;
        let number = *line;
        let post = parse(number, &text);
        posts.extend(post.map_err(|problem| anyhow!("{file}, line {number}: {problem}"))?);
    }
    Ok(posts)
}

/// Parses a line; `None` if it is blank.
fn parse(number: u64, line: &[u8]) -> Result<Option<Post>, String> {
    if line.len() as u64 == LINE_BYTES_MAX {
        return Err(format!("is longer than {LINE_BYTES_MAX} bytes"));
    }
    // Some editors write a byte-order mark.
    let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
    if line.is_empty() {
        return Ok(None);
    }
    let found = serde_json::from_slice::<Line>(line);
    // Without the text of the error, which may have parts of the line.
    let Line { author, created_at, text } = found.map_err(|error| match error.is_data() {
        true => "must have `author`, `created_at` and `text`, each a string".to_owned(),
        false => format!("is no JSON object: `{}`", edges::excerpt(line)),
    })?;
    edges::name(author.as_bytes())?;
    let time = created_at.parse();
    let time = time.map_err(|_| {
        format!("`{}` is no time of RFC 3339", edges::excerpt(created_at.as_bytes()))
    })?;
    let post = ImportedPost { author_id: 0, created_at: Some(time), text };
    Ok(Some(Post { line: number, author, post }))
}

impl Done {
    /// Creates the accounts of posts that do not exist.
    async fn add_accounts(&mut self, posts: &[Post], target: &Accounts) -> anyhow::Result<()> {
        let named = posts.iter().map(|post| (post.author.to_ascii_lowercase(), &*post.author));
        let new: BTreeMap<String, &str> =
            named.filter(|(key, _)| !self.ids.contains_key(key)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = new.values().copied().collect();
        let users = graph::accounts(&names, target).await?;
        self.created += users.created;
        self.unclear += users.unclear;
        self.ids.extend(new.into_keys().zip(users.ids));
        Ok(())
    }

    /// Sends posts.
    async fn send(
        &mut self,
        posts: Vec<Post>,
        channels: &[SignedChannel],
        file: &str,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let count = posts.len() as u64;
        let id = |mut post: Post| {
            let id = self.ids.get(&post.author.to_ascii_lowercase());
            post.post.author_id = id.copied().unwrap_or_default();
            post
        };
        let posts: Vec<_> =
            posts.into_iter().map(id).filter(|post| post.post.author_id != 0).collect();
        self.dropped += count - posts.len() as u64;
        let calls = posts.chunks(POSTS_PER_CALL).zip(channels.iter().cycle());
        let calls = calls.map(async |(posts, channel)| {
            let is_unclear = Cell::new(false);
            let mut answer = import_posts(channel, posts, &is_unclear)
                .await
                .map_err(|status| error(file, posts, &status))?;
            progress.add(posts.len() as u64);
            let unclear = if is_unclear.get() { std::mem::take(&mut answer.unchanged) } else { 0 };
            anyhow::Ok((answer, unclear))
        });
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(CALLS).try_collect().await?;
        for (answer, unclear) in answers {
            self.outcome.created += answer.created;
            self.outcome.unchanged += answer.unchanged;
            self.outcome.rejected += answer.rejected;
            self.unclear_posts += unclear;
        }
        Ok(())
    }

    fn report(&self, rejected: u64) {
        let existing = self.ids.len() as u64 - self.created - self.unclear - rejected;
        report_accounts([self.created, existing, self.unclear, rejected]);
        let ImportPostsResponse { created, unchanged, .. } = self.outcome;
        println!("posts      {} created, {} existing", HumanCount(created), HumanCount(unchanged));
        for (count, what) in [
            (self.unclear_posts, format!("created or existing: {UNCLEAR}")),
            (self.outcome.rejected, "rejected: account deleted".to_owned()),
            (self.dropped, "rejected: account could not be created".to_owned()),
        ] {
            if count > 0 {
                println!("           {} {what}", HumanCount(count));
            }
        }
    }
}

async fn import_posts(
    channel: &SignedChannel,
    posts: &[Post],
    is_unclear: &Cell<bool>,
) -> Result<ImportPostsResponse, Status> {
    graph::retry(is_unclear, async || {
        let posts = posts.iter().map(|post| post.post.clone()).collect();
        let request = remote::request(ImportPostsRequest { posts }, CALL_TIMEOUT);
        Ok(PostServiceClient::new(channel.clone()).import_posts(request).await?.into_inner())
    })
    .await
}

/// Returns the error of a call: with the line of the post that was rejected, if there is one.
fn error(file: &str, posts: &[Post], status: &Status) -> anyhow::Error {
    let rejected = || {
        let violations = status.get_details_bad_request()?.field_violations;
        let violation = violations.first().filter(|_| status.code() == Code::InvalidArgument)?;
        let (index, field) = violation.field.strip_prefix("posts[")?.split_once("].")?;
        let post = posts.get(index.parse::<usize>().ok()?)?;
        Some(anyhow!("{file}, line {}: {field} {}", post.line, violation.description))
    };
    rejected().unwrap_or_else(|| graph::import_error("posts", status))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Vec<Post>> {
        read_part(&mut text.as_bytes(), "posts", &mut 0)
    }

    #[test]
    fn posts_are_read_with_their_lines() {
        let text = "\u{feff}{\"author\":\"Ada\",\"created_at\":\"2019-03-01T12:00:00Z\",\"text\":\"one\"}\n\
            \r\n\
            {\"kind\":\"post\",\"text\":\"two\",\"author\":\"bob\",\"created_at\":\"2019-03-01T12:00:00.5+01:00\"}";
        let posts = read(text).unwrap();
        let found: Vec<_> =
            posts.iter().map(|post| (post.line, &*post.author, &*post.post.text)).collect();
        assert_eq!(found, [(1, "Ada", "one"), (3, "bob", "two")]);
        let time = posts[1].post.created_at.unwrap();
        assert_eq!((time.seconds, time.nanos), (1_551_438_000, 500_000_000));
        assert!(read("").unwrap().is_empty() && read("\n\n").unwrap().is_empty());
    }

    #[test]
    fn invalid_lines_are_rejected_with_the_line_number() {
        let good = "{\"author\":\"a\",\"created_at\":\"2019-03-01T12:00:00Z\",\"text\":\"x\"}";
        for (line, problem) in [
            ("ada bob", "is no JSON object"),
            ("{\"author\":\"a\"}", "must have"),
            ("{\"author\":7,\"created_at\":\"\",\"text\":\"\"}", "must have"),
            (&good.replace("\"a\"", "\"a b\""), "cannot be an account's name"),
            (&good.replace("\"a\"", "\"\""), "cannot be an account's name"),
            (&good.replace("2019-03-01T12:00:00Z", "yesterday\\u0007"), "is no time"),
        ] {
            let Err(error) = read(&format!("{good}\n{line}\n")) else { panic!("{line}") };
            let error = error.to_string();
            assert!(error.starts_with("posts, line 2: ") && error.contains(problem), "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
