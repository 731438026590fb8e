//! Clients that send what no honest one sends.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use microblog_local::{raw_call, remote};
use microblog_proto::DESCRIPTORS;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, Request};

use super::separate;
use crate::trial::{Bite, Fault, Trial};

/// No message of a method begins with these bytes: a field without its value, of a wrong or unknown
/// wire type, with a length beyond the end, with the number 0; a number without an end.
const MALFORMED: [&[u8]; 6] = [
    &[0x0a],
    &[0x0f, 1, 2, 3],
    &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f, 1],
    &[0x00, 1],
    &[0xff; 11],
    &[0x0b; 200],
];
const TIMEOUT: Duration = Duration::from_secs(10);

/// How often a frame of an attack is sent.
const FRAMES: u32 = 20_000;
/// How long an attacker waits for the end of its connection.
const ATTACK: Duration = Duration::from_secs(10);
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// `:method POST`, `:scheme http`, `:path /`, `:authority x`, `content-type application/grpc`.
const HEADERS: &[u8] = b"\x83\x86\x84\x41\x01x\x5f\x10application/grpc";

const HEADERS_TYPE: u8 = 1;
const RST_STREAM_TYPE: u8 = 3;
const SETTINGS_TYPE: u8 = 4;
const PING_TYPE: u8 = 6;
const CONTINUATION_TYPE: u8 = 9;
const END_HEADERS: u8 = 4;

/// Returns these faults.
pub(super) fn all() -> Vec<Fault> {
    vec![
        Fault::new(
            "malformed-requests",
            "malformed messages for each method of each server",
            "all are rejected",
            separate(),
            |trial| Box::pin(malformed_requests(trial)),
        ),
        Fault::new(
            "http2-abuse",
            "connections that send 20,000 reset streams, open streams, CONTINUATION, PING or \
             SETTINGS frames to the gateway, and read nothing",
            "the connections with reset streams and CONTINUATION are closed",
            separate(),
            |trial| Box::pin(http2_abuse(trial)),
        ),
    ]
}

/// Each method of each server gets malformed messages.
async fn malformed_requests(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let mut codes: BTreeMap<String, usize> = BTreeMap::new();
    for url in trial.system.all_urls() {
        let channel = remote::channel(url)?;
        for path in methods()? {
            for message in MALFORMED {
                let mut request = Request::new(Bytes::from_static(message));
                request.set_timeout(TIMEOUT);
                let path = path.parse()?;
                let answer = timeout(2 * TIMEOUT, raw_call::unary(channel.clone(), path, request));
                let status = answer.await.context("a malformed request is not answered")?;
                let code = status.err().map_or(Code::Ok, |status| status.code());
                let is_rejection = matches!(
                    code,
                    Code::InvalidArgument
                        | Code::Internal
                        | Code::Unauthenticated
                        | Code::PermissionDenied
                        | Code::Unimplemented
                );
                ensure!(is_rejection, "a malformed request has the status {code:?}");
                *codes.entry(format!("{code:?}")).or_default() += 1;
            }
        }
    }
    trial.after().await;
    let seen = codes.iter().map(|(code, count)| format!("{count} {code}"));
    let is_seen = codes.get("InvalidArgument").is_some_and(|count| *count > 0);
    Ok(Bite::seen_if(is_seen, seen.collect::<Vec<_>>().join(", ")))
}

/// Returns the paths of all methods.
fn methods() -> Result<Vec<String>> {
    let set = FileDescriptorSet::decode(DESCRIPTORS)?;
    let mut paths = Vec::new();
    for file in &set.file {
        for service in &file.service {
            let service_name = format!("{}.{}", file.package(), service.name());
            let path = |method: &prost_types::MethodDescriptorProto| {
                format!("/{service_name}/{}", method.name())
            };
            paths.extend(service.method.iter().map(path));
        }
    }
    Ok(paths)
}

/// Returns the frames of a step of an attack.
type Frames = fn(u32) -> Vec<u8>;

/// Attacks that misuse HTTP/2, one after the other, each on a connection of its own.
async fn http2_abuse(trial: &mut Trial) -> Result<Bite> {
    trial.before().await;
    let since = trial.load.shared.log.len();
    let attacks: [(&str, Frames); 5] = [
        ("reset streams", |number| {
            let stream = 2 * number + 1;
            let cancel = frame(RST_STREAM_TYPE, 0, stream, &8_u32.to_be_bytes());
            [frame(HEADERS_TYPE, END_HEADERS, stream, HEADERS), cancel].concat()
        }),
        ("open streams", |number| frame(HEADERS_TYPE, END_HEADERS, 2 * number + 1, HEADERS)),
        ("CONTINUATION", |number| match number {
            0 => frame(HEADERS_TYPE, 0, 1, HEADERS),
            _ => frame(CONTINUATION_TYPE, 0, 1, b"\x00\x04name\x05value"),
        }),
        ("PING", |_| frame(PING_TYPE, 0, 0, &[0; 8])),
        ("SETTINGS", |_| frame(SETTINGS_TYPE, 0, 0, &[0, 4, 0, 0, 0, 1])),
    ];
    let (mut seen, mut closed) = (Vec::new(), Vec::new());
    for (name, frames) in attacks {
        let (sent, is_closed) = attack(&trial.system.urls().gateway, frames).await?;
        closed.extend(is_closed.then_some(name));
        let end = if is_closed { " (closed)" } else { "" };
        seen.push(format!("{sent} {name}{end}"));
    }
    trial.after().await;
    let unknown = trial.load.shared.log.unknown(since);
    let is_seen = ["reset streams", "CONTINUATION"].iter().all(|name| closed.contains(name));
    Ok(Bite::seen_if(is_seen, format!("{}, {unknown} unknown outcomes", seen.join(", "))))
}

/// Sends frames until the server closes the connection or accepts no more. Reads nothing until then.
/// Returns how many were sent, and whether the server closed the connection.
async fn attack(gateway: &str, frames: Frames) -> Result<(u32, bool)> {
    let mut connection = TcpStream::connect(gateway.trim_start_matches("http://")).await?;
    let settings = frame(SETTINGS_TYPE, 0, 0, &[]);
    connection.write_all(&[PREFACE, &settings].concat()).await?;
    let mut sent = 0;
    while sent < FRAMES {
        match timeout(ATTACK, connection.write_all(&frames(sent))).await {
            Ok(Ok(())) => sent += 1,
            Ok(Err(_)) => return Ok((sent, true)),
            // It waits until somebody reads.
            Err(_) => break,
        }
    }
    let mut buffer = vec![0; 64 * 1024];
    let closed = async {
        // An error closes it as well.
        while connection.read(&mut buffer).await.unwrap_or_default() > 0 {}
    };
    Ok((sent, timeout(ATTACK, closed).await.is_ok()))
}

/// Encodes a frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}
