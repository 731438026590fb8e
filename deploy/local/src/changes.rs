//! `microblog changes`: prints the change feed as JSON Lines.

use std::{
    io::{self, ErrorKind, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use microblog_proto::{
    common::{Change, ChangeKind},
    gateway::{SnapshotRequest, WatchRequest, change_service_client::ChangeServiceClient},
};
use serde::Serialize;
use tokio::time::sleep;
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    transport::Channel,
};

use crate::remote::{self, GATEWAY_URL};

/// How long a broken stream pauses before it is opened again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Prints changes of accounts, relations and posts as JSON Lines, as they happen.
///
/// Needs a service caller of the gateway's --callers-file that may call ChangeService.Watch and
/// ChangeService.Snapshot. An account whose profile has changed has "updated":true.
///
/// After the changes of each message comes a line with the cursor behind them.
/// Continues after failures of servers, until it is interrupted.
///
/// Exits with 2 if the call is rejected, also because the cursor has expired: then take a snapshot.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// URL of the gateway.
    #[arg(long, value_name = "URL", default_value = GATEWAY_URL, env = "MICROBLOG_GATEWAY_URL")]
    gateway_url: String,
    /// Name and secret of the service caller; not needed with a certificate.
    #[arg(long, value_name = "NAME:SECRET", env = "MICROBLOG_CALLER", hide_env_values = true)]
    caller: Option<String>,
    /// The kinds of changes, separated by commas; all that the caller may see by default.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KINDS")]
    kinds: Vec<Kind>,
    /// The cursor to continue behind. Without it, begins now.
    #[arg(long, value_name = "CURSOR", conflicts_with = "snapshot")]
    cursor: Option<String>,
    /// Prints what exists instead, and ends with the cursor to continue behind.
    #[arg(long)]
    snapshot: bool,
}

const EXAMPLES: &str = "\
Examples:
  export MICROBLOG_CALLER=search:$secret
  microblog changes --kinds follow,post
  microblog changes --snapshot > state.jsonl
  microblog changes --cursor $(tail -n 1 state.jsonl | jq --raw-output .cursor)";

/// A kind of changes.
#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    Account,
    Follow,
    Block,
    Mute,
    Post,
    Repost,
    Comment,
    Like,
}

impl Kind {
    fn to_wire(self) -> ChangeKind {
        match self {
            Self::Account => ChangeKind::Account,
            Self::Follow => ChangeKind::Follow,
            Self::Block => ChangeKind::Block,
            Self::Mute => ChangeKind::Mute,
            Self::Post => ChangeKind::Post,
            Self::Repost => ChangeKind::Repost,
            Self::Comment => ChangeKind::Comment,
            Self::Like => ChangeKind::Like,
        }
    }
}

/// A line of a change.
#[derive(Serialize)]
struct Line {
    kind: String,
    ended: bool,
    #[serde(skip_serializing_if = "is_not")]
    updated: bool,
    #[serde(skip_serializing_if = "is_zero")]
    user_id: u64,
    #[serde(skip_serializing_if = "is_zero")]
    target_id: u64,
    #[serde(skip_serializing_if = "is_zero")]
    post_id: u64,
    #[serde(skip_serializing_if = "is_zero")]
    repost_id: u64,
    #[serde(skip_serializing_if = "is_zero")]
    comment_id: u64,
    version: u64,
}

/// The line behind the changes of a message.
#[derive(Serialize)]
struct CursorLine<'a> {
    cursor: &'a str,
}

/// Why the command ends.
enum End {
    /// The reader of standard output has closed it.
    Closed,
    /// Standard output fails.
    Output(io::Error),
    Failed(Status),
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let channel = remote::connect(&args.gateway_url).await?;
    let caller = args.caller.as_deref().map(|caller| format!("Caller {caller}").parse());
    let caller = caller.transpose().context("--caller has invalid characters")?;
    let kinds = args.kinds.iter().map(|kind| kind.to_wire().into()).collect();
    let feed = Feed { client: ChangeServiceClient::new(channel), caller, kinds };
    let ended = match args.snapshot {
        true => feed.print_snapshot().await,
        false => feed.print_changes(args.cursor.unwrap_or_default()).await,
    };
    match ended {
        Ok(()) | Err(End::Closed) => Ok(ExitCode::SUCCESS),
        Err(End::Output(error)) => Err(error).context("cannot write to standard output"),
        Err(End::Failed(status)) => Err(anyhow!(remote::error_message(&status))),
    }
}

struct Feed {
    client: ChangeServiceClient<Channel>,
    caller: Option<MetadataValue<Ascii>>,
    kinds: Vec<i32>,
}

impl Feed {
    /// Prints changes behind a cursor. Opens a stream again that fails for the moment.
    async fn print_changes(&self, mut cursor: String) -> Result<(), End> {
        let mut has_begun = false;
        loop {
            match self.print_until_failure(&mut cursor, &mut has_begun).await {
                Err(End::Failed(status)) if may_go_on(&status, has_begun) => {
                    eprintln!("interrupted, retrying: {}", remote::error_message(&status));
                    sleep(RETRY_DELAY).await;
                }
                ended => return ended,
            }
        }
    }

    /// Prints changes until the stream ends. Sets `has_begun` once a message has arrived.
    async fn print_until_failure(
        &self,
        cursor: &mut String,
        has_begun: &mut bool,
    ) -> Result<(), End> {
        let request = WatchRequest { kinds: self.kinds.clone(), cursor: cursor.clone() };
        let mut messages = self
            .client
            .clone()
            .watch(self.request(request))
            .await
            .map_err(End::Failed)?
            .into_inner();
        while let Some(message) = messages.message().await.map_err(End::Failed)? {
            print(&message.changes, &message.cursor)?;
            (*cursor, *has_begun) = (message.cursor, true);
        }
        Err(End::Failed(Status::unavailable("the gateway has ended the stream")))
    }

    async fn print_snapshot(&self) -> Result<(), End> {
        // A new database is filled first.
        let opened = remote::retry(|| {
            let request = self.request(SnapshotRequest { kinds: self.kinds.clone() });
            let mut client = self.client.clone();
            async move { client.snapshot(request).await }
        });
        let mut messages = opened.await.map_err(End::Failed)?.into_inner();
        while let Some(message) = messages.message().await.map_err(End::Failed)? {
            print(&message.changes, &message.cursor)?;
        }
        Ok(())
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(caller) = &self.caller {
            request.metadata_mut().insert("authorization", caller.clone());
        }
        request
    }
}

/// Returns whether a stream that ended may go on: once it has worked, after any end but with a reason
/// about the caller or the request. A proxy in between may end it with any code, without a reason.
fn may_go_on(status: &Status, has_begun: bool) -> bool {
    const FINAL: [&str; 6] = [
        "CALLER_INVALID",
        "CALLER_NOT_ALLOWED",
        "CURSOR_EXPIRED",
        "INVALID_FIELD",
        "PAGE_TOKEN_INVALID",
        "PAGE_TOKEN_MISMATCH",
    ];
    remote::is_transient(status) || has_begun && !FINAL.contains(&remote::reason(status).as_str())
}

fn print(changes: &[Change], cursor: &str) -> Result<(), End> {
    let write = || {
        let mut output = io::stdout().lock();
        for change in changes {
            serde_json::to_writer(&mut output, &line(change))?;
            writeln!(output)?;
        }
        if !cursor.is_empty() {
            serde_json::to_writer(&mut output, &CursorLine { cursor })?;
            writeln!(output)?;
        }
        output.flush()
    };
    write().map_err(|error: io::Error| match error.kind() {
        ErrorKind::BrokenPipe => End::Closed,
        _ => End::Output(error),
    })
}

fn line(change: &Change) -> Line {
    let kind = change.kind().as_str_name().trim_start_matches("CHANGE_KIND_").to_lowercase();
    let &Change { ended, updated, user_id, target_id, post_id, repost_id, .. } = change;
    let (comment_id, version) = (change.comment_id, change.version);
    Line { kind, ended, updated, user_id, target_id, post_id, repost_id, comment_id, version }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(id: &u64) -> bool {
    *id == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_not(flag: &bool) -> bool {
    !flag
}

#[cfg(test)]
mod tests {
    use microblog_chassis::status;
    use microblog_proto::common::ErrorReason;
    use tonic::Code;

    use super::*;

    #[test]
    fn an_update_is_not_a_registration() {
        let account = |ended, updated| Change {
            kind: ChangeKind::Account.into(),
            ended,
            updated,
            user_id: 4,
            version: 9,
            ..Change::default()
        };
        let printed = |change| serde_json::to_string(&line(&change)).unwrap();
        for (change, flags) in [
            (account(false, false), r#""ended":false"#),
            (account(false, true), r#""ended":false,"updated":true"#),
            (account(true, false), r#""ended":true"#),
        ] {
            let expected = format!(r#"{{"kind":"account",{flags},"user_id":4,"version":9}}"#);
            assert_eq!(printed(change), expected);
        }
    }

    #[test]
    fn a_stream_goes_on_after_any_end_without_a_reason() {
        for code in [Code::Unknown, Code::Internal, Code::InvalidArgument, Code::NotFound] {
            let of_a_proxy = Status::new(code, "of a proxy");
            assert_eq!(
                [false, true].map(|has_begun| may_go_on(&of_a_proxy, has_begun)),
                [false, true]
            );
        }
        let unavailable = Status::unavailable("draining");
        assert_eq!([false, true].map(|has_begun| may_go_on(&unavailable, has_begun)), [true; 2]);
        // The stream before may still be open on the gateway's side of a proxy.
        let limit = status::with_reason(Code::ResourceExhausted, ErrorReason::WatchLimit, "limit");
        assert_eq!([false, true].map(|has_begun| may_go_on(&limit, has_begun)), [false, true]);
        let expired = status::with_reason(Code::OutOfRange, ErrorReason::CursorExpired, "expired");
        assert_eq!([false, true].map(|has_begun| may_go_on(&expired, has_begun)), [false; 2]);
    }
}
