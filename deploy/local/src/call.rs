//! `microblog call`: calls any method of the gateway with a request that is JSON, and prints the answer.

mod methods;
mod sessions;
mod table;

use std::{
    env,
    io::{self, ErrorKind, Write as _},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::uri::PathAndQuery;
use microblog_chassis::json;
use microblog_local::{
    raw_call,
    remote::{self, CALL_TIMEOUT, GATEWAY_URL},
};
use prost_reflect::{
    DynamicMessage, FieldDescriptor, MethodDescriptor, ReflectMessage as _, Value,
    prost::Message as _,
};
use tonic::{Request, Status, metadata::AsciiMetadataValue, transport::Channel};
use tonic_types::StatusExt as _;
use uuid::Uuid;

/// The environment variable of a session token.
const TOKEN: &str = "MICROBLOG_TOKEN";

/// Calls a method of the gateway and prints its answer as JSON.
///
/// Requests and answers are Protobuf JSON: field names in requests may be as in the proto files, and
/// 64-bit numbers in answers are strings. If a request has a field `request_id` that is not given, a
/// random UUID is sent. Streams print a line for each message with something new, until they are
/// interrupted.
///
/// Login stores its session token in $XDG_STATE_HOME/microblog/sessions.json, which only its owner may
/// read; $XDG_STATE_HOME is ~/.local/state by default. Later calls of the same gateway URL send this
/// token. Logout removes it. If MICROBLOG_TOKEN is set, calls send that token instead. Login and Register
/// send none.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES, override_usage = USAGE)]
pub(crate) struct Args {
    /// The method; --list lists all.
    #[arg(
        value_parser = methods::Parser,
        hide_possible_values = true,
        ignore_case = true,
        required_unless_present = "list"
    )]
    method: Option<MethodDescriptor>,
    /// The request; `-` reads it from standard input, which keeps passwords off the command line.
    #[arg(value_name = "JSON", default_value = "{}")]
    json: String,
    /// Lists the methods, each with the first sentence of its description.
    #[arg(long)]
    list: bool,
    /// Prints the answer on one line.
    #[arg(long, conflicts_with = "table")]
    compact: bool,
    /// Prints a table for people: the list of the answer, or else its fields. It has the plain fields,
    /// also those of messages inside, unless they are empty everywhere. It has no page token.
    #[arg(long)]
    table: bool,
    /// Neither sends nor stores a session token.
    #[arg(long)]
    anonymous: bool,
    /// Name and secret of a service caller, in place of a session; not needed with a certificate.
    #[arg(long, value_name = "NAME:SECRET", env = "MICROBLOG_CALLER", hide_env_values = true)]
    caller: Option<String>,
    /// Id of the account for which the service caller acts.
    #[arg(long, value_name = "ID")]
    viewer: Option<u64>,
    /// URL of the gateway.
    #[arg(long, value_name = "URL", default_value = GATEWAY_URL, env = "MICROBLOG_GATEWAY_URL")]
    gateway_url: String,
    /// Deadline, such as `5s`; 60s by default, and none for streams.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
}

const USAGE: &str = "\
microblog call [OPTIONS] <METHOD> [JSON]
       microblog call --list";

const EXAMPLES: &str = "\
Examples:
  microblog call --list
  microblog call ViewFollowers '{\"user\": {\"name\": \"ada\"}}' --table

  read -rs password
  printf '{\"login\": \"ada\", \"password\": \"%s\"}' \"$password\" | microblog call Login -
  microblog call Publish '{\"text\": \"hello\"}'
  microblog call WatchHome
  microblog call Logout

  MICROBLOG_CALLER=search:$secret microblog call ChangeService/Watch";

/// How a call identifies its caller.
enum Credentials {
    None,
    Caller(String),
    /// A token from the environment.
    Variable(String),
    /// A token that an earlier Login has stored.
    Session(String),
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Some(method) = args.method.as_ref().filter(|_| !args.list) else {
        print(&methods::list())?;
        return Ok(ExitCode::SUCCESS);
    };
    if args.table && method.is_server_streaming() {
        bail!("--table is not possible for streams");
    }
    let credentials = args.credentials(method)?;
    let request = args.request(message(method, &args.json)?, method, &credentials)?;
    let path = PathAndQuery::try_from(format!("/{}", json::path(method)))?;
    let channel = remote::connect(&args.gateway_url).await?;
    if method.is_server_streaming() {
        print_stream(method, channel, path, request, &credentials).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let answer = raw_call::unary(channel, path, request).await;
    let answer = answer.map_err(|status| explain(&status, &credentials))?;
    let answer = DynamicMessage::decode(method.output(), answer)?;
    args.update_sessions(method, &answer, &credentials)?;
    let text = if args.table {
        table::table(&answer)?
    } else if args.compact {
        serde_json::to_string(&answer)?
    } else {
        serde_json::to_string_pretty(&answer)?
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn credentials(&self, method: &MethodDescriptor) -> anyhow::Result<Credentials> {
        // Both ignore session tokens. None is read or sent, so a broken one prevents no log-in.
        if self.anonymous || matches!(method.name(), "Login" | "Register") {
            return Ok(Credentials::None);
        }
        if let Some(caller) = &self.caller {
            return Ok(Credentials::Caller(caller.clone()));
        }
        if let Some(token) = env::var(TOKEN).ok().filter(|token| !token.is_empty()) {
            return Ok(Credentials::Variable(token));
        }
        let token = sessions::token(&self.gateway_url)?;
        Ok(token.map_or(Credentials::None, Credentials::Session))
    }

    fn request(
        &self,
        message: Bytes,
        method: &MethodDescriptor,
        credentials: &Credentials,
    ) -> anyhow::Result<Request<Bytes>> {
        let mut request = Request::new(message);
        let by_default = (!method.is_server_streaming()).then_some(CALL_TIMEOUT);
        if let Some(timeout) = self.timeout.or(by_default) {
            request.set_timeout(timeout);
        }
        let (value, source) = match credentials {
            Credentials::None => (None, ""),
            Credentials::Caller(caller) => (Some(format!("Caller {caller}")), "--caller"),
            Credentials::Variable(token) => (Some(format!("Bearer {token}")), TOKEN),
            Credentials::Session(token) => (Some(format!("Bearer {token}")), "the stored token"),
        };
        if let Some(value) = value {
            let value = AsciiMetadataValue::try_from(value);
            let value = value.with_context(|| format!("{source} has invalid characters"))?;
            request.metadata_mut().insert("authorization", value);
        }
        if let Some(viewer) = self.viewer {
            request.metadata_mut().insert("microblog-viewer", viewer.into());
        }
        Ok(request)
    }

    /// Stores the token of a new session; removes that of a session that the call has ended.
    fn update_sessions(
        &self,
        method: &MethodDescriptor,
        answer: &DynamicMessage,
        credentials: &Credentials,
    ) -> anyhow::Result<()> {
        match (method.name(), credentials) {
            ("Login", _) if !self.anonymous => {
                let token = answer.get_field_by_name("token");
                let token = token.as_deref().and_then(Value::as_str);
                sessions::store(&self.gateway_url, token)
                    .context("cannot store the session (with --anonymous, it is not stored)")
            }
            ("Logout" | "ChangePassword" | "DeleteAccount", Credentials::Session(_)) => {
                sessions::store(&self.gateway_url, None).context("cannot remove the session")
            }
            _ => Ok(()),
        }
    }
}

/// Encodes a request that is JSON.
fn message(method: &MethodDescriptor, json: &str) -> anyhow::Result<Bytes> {
    let json = match json {
        "-" => io::read_to_string(io::stdin()).context("cannot read standard input")?,
        json => json.to_owned(),
    };
    let mut deserializer = serde_json::Deserializer::from_str(&json);
    // Unlike servers, it rejects unknown fields: a person would not notice a wrong name.
    let message = DynamicMessage::deserialize(method.input(), &mut deserializer);
    let message = message.and_then(|message| deserializer.end().map(|()| message));
    let mut message = message.with_context(|| {
        let fields = methods::fields(&method.input());
        format!("invalid request of {}, which has the fields {fields}", method.name())
    })?;
    if message.get_field_by_name("request_id").is_some_and(|id| id.as_str() == Some("")) {
        message.set_field_by_name("request_id", Value::String(Uuid::new_v4().to_string()));
    }
    Ok(message.encode_to_vec().into())
}

async fn print_stream(
    method: &MethodDescriptor,
    channel: Channel,
    path: PathAndQuery,
    request: Request<Bytes>,
    credentials: &Credentials,
) -> anyhow::Result<()> {
    let explain = |status| explain(&status, credentials);
    let messages = raw_call::server_streaming(channel, path, request).await;
    let mut messages = messages.map_err(explain)?;
    let mut silence = DynamicMessage::new(method.output());
    while let Some(message) = messages.message().await.map_err(explain)? {
        let message = DynamicMessage::decode(method.output(), message)?;
        if message == silence {
            continue;
        }
        if !print(&serde_json::to_string(&message)?)? {
            break;
        }
        silence = without_lists(message);
    }
    Ok(())
}

/// Returns a message without its lists: what a stream repeats after silence.
fn without_lists(mut message: DynamicMessage) -> DynamicMessage {
    for list in message.descriptor().fields().filter(FieldDescriptor::is_list) {
        message.clear_field(&list);
    }
    message
}

/// Returns the error of a call, with what to do about it.
fn explain(status: &Status, credentials: &Credentials) -> anyhow::Error {
    let mut text = remote::error_message(status);
    if let Some(wait) = status.get_details_retry_info().and_then(|info| info.retry_delay) {
        text += &format!("; retry after {}", humantime::format_duration(wait));
    }
    match (remote::reason(status).as_str(), credentials) {
        ("TOKEN_INVALID", Credentials::Variable(_)) => {
            text += &format!("\nhint: {TOKEN} is not, or no longer, a valid token");
        }
        ("TOKEN_INVALID", _) => {
            text += "\nhint: log in again with `microblog call Login -`, or use --anonymous";
        }
        ("TOKEN_MISSING", _) => text += "\nhint: log in with `microblog call Login -`",
        _ => {}
    }
    anyhow!(text)
}

/// Prints a line. Returns false if the reader of standard output has closed it.
fn print(line: &str) -> anyhow::Result<bool> {
    let mut output = io::stdout().lock();
    match writeln!(output, "{line}").and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => written.context("cannot write to standard output").map(|()| true),
    }
}
