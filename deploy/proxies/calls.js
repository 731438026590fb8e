// Calls gateways through proxies, with the official npm clients: in each protocol, over HTTP/1.1 and
// HTTP/2. `check` in this folder starts it, once for each part:
//
//   node calls.js calls|silence|drain SETTINGS

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { setTimeout } from "node:timers/promises";
import { createFileRegistry, fromBinary, fromJson } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import * as node from "@connectrpc/connect-node";

const [part, settings] = process.argv.slice(2);
const { image, certificate, author, silent_author: silentAuthor, proxies } = JSON.parse(settings);
// Far longer than needed, because machines are shared.
const PATIENCE_MS = 20_000;
// Defaults of the gateway: --max-watches-per-viewer and --max-message-bytes.
const WATCHES_MAX = 8;
const MESSAGE_BYTES_MAX = 4 * 1024 * 1024;
// Many more calls than each address may make through both gateways in a minute.
const LIMITED_CALLS = 120;
// Between the calls of one caller during a drain.
const PAUSE_MS = 20;

const protos = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(image)));
const GatewayService = protos.getService("microblog.gateway.v1.GatewayService");
// The image lacks the details of errors, since no proto of this project imports them.
const string = (name, number) => ({ name, number, type: "TYPE_STRING", label: "LABEL_OPTIONAL" });
const ErrorInfo = createFileRegistry(fromJson(FileDescriptorSetSchema, {
  file: [{
    name: "google/rpc/error_details.proto",
    package: "google.rpc",
    syntax: "proto3",
    messageType: [{ name: "ErrorInfo", field: [string("reason", 1), string("domain", 2)] }],
  }],
})).getMessage("google.rpc.ErrorInfo");

/** Returns the clients of a proxy, with connections of their own from a local address. */
function clients({ url, name }, localAddress = "127.0.0.1") {
  const nodeOptions = { ca: readFileSync(certificate), localAddress };
  const options = (httpVersion) =>
    ({ baseUrl: url, httpVersion, nodeOptions, defaultTimeoutMs: PATIENCE_MS });
  const client = (protocol, transport) =>
    ({ name: `${name}, ${protocol}`, rpc: createClient(GatewayService, transport) });
  return [
    client("gRPC", node.createGrpcTransport(options("2"))),
    ...["1.1", "2"].flatMap((version) => [
      client(`gRPC-Web, HTTP/${version}`, node.createGrpcWebTransport(options(version))),
      client(`Connect, HTTP/${version}`, node.createConnectTransport({ ...options(version), useBinaryFormat: false })),
    ]),
  ];
}

const as = (token, more) => ({ headers: { authorization: `Bearer ${token}` }, ...more });
const publish = ({ rpc }, token, text) => rpc.publish({ text, requestId: randomUUID() }, as(token));

/** Returns the code and the reason of a call that fails, and undefined for one that succeeds. */
async function failure(promise) {
  try {
    await promise;
    return undefined;
  } catch (cause) {
    const error = ConnectError.from(cause);
    return `${Code[error.code]} ${error.findDetails(ErrorInfo)[0]?.reason ?? error.rawMessage}`;
  }
}

/** Opens a stream, without a deadline if that is 0, and reads its first message. */
async function watch({ rpc }, token, timeoutMs = PATIENCE_MS) {
  const abort = new AbortController();
  const options = as(token, { signal: abort.signal, timeoutMs });
  const messages = rpc.watchHome({}, options)[Symbol.asyncIterator]();
  const patience = setTimeout(PATIENCE_MS, undefined, { ref: false }).then(() => { throw new Error("no message"); });
  await Promise.race([messages.next(), patience]);
  return { messages, abort };
}

/** Reads a stream until it has a post with a text. */
async function receives({ messages }, text) {
  for (;;) {
    const { done, value } = await messages.next();
    assert.ok(!done, "the stream ended");
    if (value.posts.some(({ post }) => post.text === text)) {
      return;
    }
  }
}

/** Repeats something until it does not throw. */
async function eventually(attempt) {
  for (const until = Date.now() + PATIENCE_MS; ;) {
    try {
      return await attempt();
    } catch (error) {
      if (Date.now() > until) {
        throw error;
      }
      await setTimeout(50);
    }
  }
}

const STEPS = {
  async "a call"({ rpc }, { reader }) {
    const { account } = await rpc.me({}, as(reader));
    assert.notEqual(account.id, 0n);
  },

  async "a message of the largest size"({ rpc }, { reader }) {
    // A field that no message has, and that servers therefore ignore. JSON has none.
    const unknown = [{ no: 2047, wireType: 2, data: new Uint8Array(MESSAGE_BYTES_MAX - 16) }];
    await rpc.me({ $unknown: unknown }, as(reader));
  },

  async "errors have their code and reason"({ rpc }, { reader }) {
    assert.equal(await failure(rpc.me({}, as("x"))), "Unauthenticated TOKEN_INVALID");
    const nobody = { user: { ref: { case: "id", value: 1n } } };
    assert.equal(await failure(rpc.viewUser(nobody, as(reader))), "NotFound USER_NOT_FOUND");
    const stream = rpc.watchHome({}, as("x"))[Symbol.asyncIterator]();
    assert.equal(await failure(stream.next()), "Unauthenticated TOKEN_INVALID");
  },

  async "a message and metadata above the limits are rejected with a reason"({ rpc }) {
    const large = { text: "x".repeat(MESSAGE_BYTES_MAX), requestId: randomUUID() };
    assert.equal(await failure(rpc.publish(large, as(author))), "ResourceExhausted MESSAGE_TOO_LARGE");
    const metadata = { headers: { "x-large": "x".repeat(17_000) } };
    // After a message that was not read, HTTP/1.1 closes the connection, maybe while this call takes it.
    await eventually(async () =>
      assert.equal(await failure(rpc.me({}, metadata)), "ResourceExhausted METADATA_TOO_LARGE"));
  },

  async "a stream receives a post at once"(client, { reader }) {
    const stream = await watch(client, reader);
    const text = randomUUID();
    await publish(client, author, text);
    await receives(stream, text);
    stream.abort.abort();
  },

  async "a stream that the caller aborts ends at the gateway"(client, { reader }) {
    for (let round = 0; round < 3; round += 1) {
      // Each gateway has this limit for itself. Streams that it still has would soon be as many.
      const streams = await Promise.all(Array.from({ length: WATCHES_MAX }, () =>
        eventually(() => watch(client, reader))));
      streams.forEach(({ abort }) => abort.abort());
    }
  },
};

/** Checks that the limit of an address holds for each caller, whatever it forwards, and for no other. */
async function limits(client, strangers) {
  const [caller, other] = strangers;
  const available = ({ rpc }, options) => failure(rpc.checkAvailability({ name: "somebody" }, options));
  const forwarding = (n) => ({ headers: { "x-forwarded-for": `203.0.113.${n}` } });
  const calls = Array.from({ length: LIMITED_CALLS }, (_, n) => available(caller, forwarding(n)));
  const failures = (await Promise.all(calls)).filter((it) => it);
  assert.deepEqual([...new Set(failures)], ["ResourceExhausted RATE_LIMITED"]);
  assert.ok(failures.length > LIMITED_CALLS / 2, `${failures.length} of ${LIMITED_CALLS} are rejected`);
  assert.equal(await available(other, {}), undefined, "another address");
}

/** Calls through one proxy in all ways. Returns what is wrong. */
async function calls(proxy) {
  const wrong = [];
  const attempt = async (title, check) => check().catch((error) => wrong.push(`${title}: ${error.message}`));
  const strangers = proxy.strangers.map((address) => clients(proxy, address));
  for (const [index, client] of clients(proxy).entries()) {
    for (const [title, check] of Object.entries(STEPS)) {
      await attempt(`${client.name}: ${title}`, () => check(client, proxy));
    }
    await attempt(`${client.name}: limits by address`, () => limits(client, strangers.map((it) => it[index])));
  }
  return wrong;
}

/** Prints a line once all clients of all proxies have begun, for `check`. */
let beginning = proxies.length * 5;
function begin() {
  beginning -= 1;
  if (beginning === 0) {
    console.log("begun");
  }
}

/** Opens a stream by each client of a proxy, which must still receive a post at the end of the input. */
async function silence(proxy) {
  const text = randomUUID();
  const wrong = [];
  await Promise.all(clients(proxy).map(async (client) => {
    const begun = Date.now();
    try {
      const stream = await watch(client, proxy.silent, 0).finally(begin);
      ended.then(() => publish(client, silentAuthor, text)).catch(() => {});
      await receives(stream, text);
    } catch (error) {
      const after = Math.round((Date.now() - begun) / 1000);
      wrong.push(`${client.name}: a stream ends after ${after} s: ${error.message}`);
    }
  }));
  return wrong;
}

/** Calls through a proxy until the end of the input. No call may fail. */
async function drain(proxy) {
  const wrong = [];
  let isEnded = false;
  ended.then(() => { isEnded = true; });
  await Promise.all(clients(proxy).map(async (client) => {
    const calls = [await failure(client.rpc.me({}, as(proxy.reader)))];
    begin();
    while (!isEnded) {
      calls.push(await failure(client.rpc.me({}, as(proxy.reader))));
      await setTimeout(PAUSE_MS);
    }
    const failed = calls.filter((it) => it);
    if (failed.length > 0) {
      wrong.push(`${client.name}: ${failed.length} of ${calls.length} calls fail: ${[...new Set(failed)].join("; ")}`);
    }
  }));
  return wrong;
}

const PARTS = { calls, silence, drain };
const ended = once(process.stdin.resume(), "end");
for (const finding of (await Promise.all(proxies.map(PARTS[part]))).flat()) {
  console.log(finding.replaceAll(/\s+/g, " "));
}
// Connections of HTTP/2 are kept alive.
process.exit(0);
