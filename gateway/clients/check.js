// Checks the gateway with the official npm clients: in every protocol, format and version of HTTP that
// they offer. Prints a line for each step, and fails at the first one that does not hold. `check` in
// this folder installs the clients and starts this:
//
//   node check.js http://127.0.0.1:50050 proto/released.binpb

import assert from "node:assert/strict";
import { randomBytes, randomUUID } from "node:crypto";
import { subscribe } from "node:diagnostics_channel";
import { readFileSync } from "node:fs";
import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema, MethodOptions_IdempotencyLevel } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import * as node from "@connectrpc/connect-node";
import * as web from "@connectrpc/connect-web";
import { conformance } from "./conformance.js";

const [baseUrl, image] = process.argv.slice(2);
const PASSWORD = "correct horse battery";
const TEXT = "你好，世界！𠮷 🐦 #microblog";
// Defaults of the gateway: --max-watches-per-viewer and --max-message-bytes.
const WATCHES_MAX = 8;
const MESSAGE_BYTES_MAX = 4 * 1024 * 1024;
// Far longer than needed, because machines are shared. Shorter than what ends idle connections.
const PATIENCE_MS = 20_000;
const CONNECTION = { baseUrl, defaultTimeoutMs: PATIENCE_MS };

const protos = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync(image)));
const GatewayService = protos.getService("microblog.gateway.v1.GatewayService");
const RelationState = protos.getEnum("microblog.relation.v1.RelationState");
const ErrorInfo = protos.getMessage("google.rpc.ErrorInfo");
const BadRequest = protos.getMessage("google.rpc.BadRequest");

// The HTTP method of the last request since it was reset: of fetch, of HTTP/1.1 and of HTTP/2. Node.js
// reports those of HTTP/2 from 22.17 and 24.1 on.
let sent;
subscribe("undici:request:create", ({ request }) => { sent = request.method; });
subscribe("http.client.request.start", ({ request }) => { sent = request.method; });
subscribe("http2.client.stream.created", ({ headers }) => { sent = headers[":method"]; });

/** Yields the clients: their transport, content type of unary calls, and whether they use GET. */
function* clients(nodeOptions = {}) {
  const client = (name, transport, contentType, useHttpGet = false) =>
    ({ name, transport, rpc: createClient(GatewayService, transport), contentType, useHttpGet });
  // Node.js's fetch() speaks HTTP/1.1.
  const versions = ["1.1", "2"];
  for (const useBinaryFormat of [false, true]) {
    const contentType = useBinaryFormat ? "application/proto" : "application/json";
    for (const useHttpGet of [false, true]) {
      const name = `Connect, ${contentType}, ${useHttpGet ? "GET" : "POST"}`;
      const options = { ...CONNECTION, useBinaryFormat, useHttpGet };
      yield client(`connect-web: ${name}, HTTP/1.1`, web.createConnectTransport(options), contentType, useHttpGet);
      for (const httpVersion of versions) {
        const transport = node.createConnectTransport({ ...options, ...nodeOptions, httpVersion });
        yield client(`connect-node: ${name}, HTTP/${httpVersion}`, transport, contentType, useHttpGet);
      }
    }
  }
  const grpcWeb = "application/grpc-web+proto";
  yield client("connect-web: gRPC-Web, HTTP/1.1",
    web.createGrpcWebTransport({ ...CONNECTION, useBinaryFormat: true }), grpcWeb);
  for (const httpVersion of versions) {
    const transport = node.createGrpcWebTransport({ ...CONNECTION, ...nodeOptions, httpVersion });
    yield client(`connect-node: gRPC-Web, HTTP/${httpVersion}`, transport, grpcWeb);
  }
  yield client("connect-node: gRPC, HTTP/2", node.createGrpcTransport({ ...CONNECTION, ...nodeOptions }),
    "application/grpc");
}

/** Returns options of a call by an account. */
const as = ({ token }, options) => ({ headers: { authorization: `Bearer ${token}` }, ...options });

/** Makes a unary call, and checks its HTTP method and the headers of its response. */
async function call(client, method, request, options) {
  const descriptor = GatewayService.method[method];
  const reads = descriptor.idempotency === MethodOptions_IdempotencyLevel.NO_SIDE_EFFECTS;
  let header;
  sent = undefined;
  const response = await client.rpc[method](request, { ...options, onHeader: (it) => { header = it; } });
  const isGet = reads && client.useHttpGet;
  assert.equal(sent, isGet ? "GET" : "POST", `${method}: ${sent}`);
  assert.equal(header.get("content-type"), client.contentType);
  assert.equal(header.get("cache-control"), isGet ? "no-store" : null);
  assert.equal(header.get("content-encoding"), null);
  return response;
}

/** Checks that a call fails with a code, a reason, and a message that came through unchanged. */
async function fails(promise, code, reason) {
  const succeeds = (value) => assert.fail(`succeeds in place of ${Code[code]}: ${Object.keys(value)}`);
  const error = await promise.then(succeeds, ConnectError.from);
  assert.equal(Code[error.code], Code[code], error.message);
  const { domain, reason: found } = error.findDetails(ErrorInfo)[0] ?? {};
  assert.deepEqual([domain, found], reason ? ["microblog", reason] : [undefined, undefined]);
  return error;
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
      await new Promise((resolve) => { setTimeout(resolve, 50); });
    }
  }
}

async function register(client) {
  const name = `check_${randomBytes(6).toString("hex")}`;
  const email = `${name}@example.org`;
  const request = { requestId: randomUUID(), email, name, password: PASSWORD };
  const { user } = await call(client, "register", request);
  const wrong = client.rpc.login({ login: name, password: "another password" });
  await fails(wrong, Code.Unauthenticated, "BAD_CREDENTIALS");
  const session = await call(client, "login", { login: email, password: PASSWORD });
  assert.deepEqual(session.user, user);
  // Ids do not fit into a number of JavaScript's JSON, where they are strings.
  assert.ok(user.id > 2n ** 32n);
  return { ...user, token: session.token };
}

const publish = (client, viewer, text, requestId = randomUUID()) =>
  call(client, "publish", { text, requestId }, as(viewer)).then(({ post }) => post);

/** Opens a stream of the home timeline, and reads its first message. */
async function watch({ rpc }, viewer) {
  const abort = new AbortController();
  // After its deadline, a stream that the gateway has not let go would not count any more.
  const options = as(viewer, { signal: abort.signal, timeoutMs: 2 * PATIENCE_MS });
  sent = undefined;
  const messages = rpc.watchHome({}, options)[Symbol.asyncIterator]();
  const { value } = await messages.next();
  assert.equal(sent, "POST");
  assert.notEqual(value.sinceToken, "");
  return { messages, abort };
}

/** Aborts a stream, which then ends. */
async function close({ messages, abort }) {
  abort.abort();
  await fails(messages.next(), Code.Canceled);
}

const STEPS = {
  async "two people register and log in"(client) {
    client.ann = await register(client);
    client.bob = await register(client);
  },

  async "a post in Chinese, published once for a request id, is in the timeline of a follower"(client) {
    const { ann, bob } = client;
    await call(client, "follow", { user: { ref: { case: "id", value: ann.id } } }, as(bob));
    const requestId = randomUUID();
    const post = await publish(client, ann, TEXT, requestId);
    assert.equal((await publish(client, ann, TEXT, requestId)).id, post.id);
    await eventually(async () => {
      const { posts } = await call(client, "viewHome", { pageSize: 10 }, as(bob));
      assert.deepEqual(posts.map((it) => [it.post.id, it.post.text]), [[post.id, TEXT]]);
    });
  },

  async "followers, by name, with their ids and relations"(client) {
    const { ann, bob } = client;
    const user = { ref: { case: "name", value: ann.name } };
    const { users } = await call(client, "viewFollowers", { user }, as(bob));
    assert.deepEqual(users.map((it) => [it.user.id, it.user.name]), [[bob.id, bob.name]]);
    assert.equal(RelationState.value[users[0].relation].name, "RELATION_STATE_SELF");
  },

  async "errors have a code, a reason and the fields"({ rpc, ann }) {
    const invalid = rpc.register({ requestId: "x", name: "not a name", email: "e", password: "short" });
    const error = await fails(invalid, Code.InvalidArgument, "INVALID_FIELD");
    const [{ fieldViolations }] = error.findDetails(BadRequest);
    assert.deepEqual(fieldViolations.map(({ field }) => field).sort(),
      ["email", "name", "password", "request_id"]);
    assert.ok(fieldViolations.every(({ description }) => description));
    const missing = await fails(rpc.viewHome({}), Code.Unauthenticated, "TOKEN_MISSING");
    assert.match(missing.rawMessage, /`authorization: Bearer <token>`/);
    await fails(rpc.viewHome({}, as({ token: "x" })), Code.Unauthenticated, "TOKEN_INVALID");
    const nobody = { ref: { case: "id", value: 1n } };
    await fails(rpc.viewFollowers({ user: nobody }, as(ann)), Code.NotFound, "USER_NOT_FOUND");
    const email = `${randomUUID()}@example.org`;
    const taken = { requestId: randomUUID(), email, name: ann.name, password: PASSWORD };
    await fails(rpc.register(taken), Code.AlreadyExists, "NAME_TAKEN");
  },

  async "a method that does not exist is unimplemented"({ transport }) {
    const methods = GatewayService.methods.map((method) => ({ ...method, name: `${method.name}Not` }));
    const rpc = createClient({ ...GatewayService, methods }, transport);
    await fails(rpc.viewHome({}), Code.Unimplemented, "METHOD_UNKNOWN");
    const stream = rpc.watchHome({})[Symbol.asyncIterator]();
    await fails(stream.next(), Code.Unimplemented, "METHOD_UNKNOWN");
  },

  async "a message above the limit is rejected"({ rpc, ann }) {
    const request = { requestId: randomUUID(), text: "x".repeat(MESSAGE_BYTES_MAX) };
    await fails(rpc.publish(request, as(ann)), Code.ResourceExhausted, "MESSAGE_TOO_LARGE");
  },

  async "a stream without a session is rejected; with a timeout, it ends"({ rpc, bob }) {
    await fails(rpc.watchHome({})[Symbol.asyncIterator]().next(), Code.Unauthenticated, "TOKEN_MISSING");
    const ended = Array.fromAsync(rpc.watchHome({}, as(bob, { timeoutMs: 500 })));
    // From the gateway, it has a reason. The client's own clock may be faster.
    const error = await ended.then(assert.fail, ConnectError.from);
    assert.equal(Code[error.code], Code[Code.DeadlineExceeded], error.message);
  },

  async "a stream receives a post at once, and ends when it is aborted"(client) {
    const { ann, bob } = client;
    const stream = await watch(client, bob);
    const { id } = await publish(client, ann, TEXT);
    const { value } = await stream.messages.next();
    assert.deepEqual(value.posts.map((it) => [it.post.id, it.post.text]), [[id, TEXT]]);
    await close(stream);
  },

  async "aborted streams do not count for the limit of a viewer"(client) {
    for (let round = 0; round < 3; round += 1) {
      const streams = [];
      while (streams.length < WATCHES_MAX) {
        streams.push(await eventually(() => watch(client, client.bob)));
      }
      await fails(watch(client, client.bob), Code.ResourceExhausted, "WATCH_LIMIT");
      await Promise.all(streams.map(close));
    }
  },
};

/** Prints a step after it succeeded. */
async function step(title, check) {
  try {
    await check();
  } catch (error) {
    console.log(`FAILED: ${title}: ${error.stack}`);
    process.exit(1);
  }
  console.log(`ok: ${title}`);
}

const all = [...clients()];
for (const [title, check] of Object.entries(STEPS)) {
  await step(`${title} (${all.length} clients)`, async () => {
    for (const client of all) {
      try {
        await check(client);
      } catch (error) {
        error.stack = `${client.name}: ${error.stack}`;
        throw error;
      }
    }
  });
}

/** The clients of connect-node, with compressed requests. */
function compressing(sendCompression) {
  const found = clients({ sendCompression, compressMinBytes: 0 });
  return [...found].filter(({ name }) => name.startsWith("connect-node"));
}

await step("requests may be compressed with gzip, also of streams", async () => {
  const [{ ann }] = all;
  for (const { rpc } of compressing(node.compressionGzip)) {
    await rpc.viewHome({ pageSize: 1 }, as(ann));
    const stream = rpc.watchHome({ sinceToken: "x" }, as(ann))[Symbol.asyncIterator]();
    await fails(stream.next(), Code.InvalidArgument, "PAGE_TOKEN_INVALID");
  }
});

await step("other compressions are rejected with a reason", async () => {
  const [{ ann }] = all;
  for (const { rpc } of compressing(node.compressionBrotli)) {
    await fails(rpc.viewHome({ pageSize: 1 }, as(ann)), Code.Unimplemented, "COMPRESSION_UNSUPPORTED");
  }
});

await conformance(baseUrl, all[0].ann.token, step);
console.log("all steps succeeded");
// Connections of HTTP/2 are kept alive.
process.exit(0);
