// Requests as no client of check.js makes them: the server cases of Connect's conformance suite
// (https://github.com/connectrpc/conformance, testsuites/data) that a server with methods of its own can
// answer, and rules of the protocol (https://connectrpc.com/docs/protocol) that the suite leaves to
// clients. The suite's runner is a Go program, and needs a server of its ConformanceService.

import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import { BinaryWriter, WireType } from "@bufbuild/protobuf/wire";
import { Code } from "@connectrpc/connect";
import { createNodeHttpClient } from "@connectrpc/connect-node";
import { createEnvelopeReadableStream, encodeEnvelope, readAllBytes } from "@connectrpc/connect/protocol";
import * as connect from "@connectrpc/connect/protocol-connect";
import * as grpc from "@connectrpc/connect/protocol-grpc";
import * as grpcWeb from "@connectrpc/connect/protocol-grpc-web";

const SERVICE = "/microblog.gateway.v1.GatewayService";
const MESSAGE_BYTES_MAX = 4 * 1024 * 1024;
const EMPTY = new Uint8Array();
const utf8 = (text) => new TextEncoder().encode(text);
const ONE = encodeEnvelope(0, EMPTY);
const TWO = Buffer.concat([ONE, ONE]);
const COMPRESSED = encodeEnvelope(1, EMPTY);
// The largest message: a field that no message has, and that servers therefore ignore.
const LARGEST = new BinaryWriter().tag(2047, WireType.LengthDelimited)
  .bytes(new Uint8Array(MESSAGE_BYTES_MAX - 6)).finish();

/** The envelopes of a body: their flags and data. */
async function envelopes(bytes) {
  const read = [];
  for await (const envelope of createEnvelopeReadableStream(new Blob([bytes]).stream())) {
    read.push(envelope);
  }
  return read;
}

// How clients read the error of a response, undefined if the call succeeded.
const READERS = {
  connect: ({ status, bytes }) => (status === 200
    ? undefined
    : connect.errorFromJsonBytes(bytes.length ? bytes : utf8("{}"), undefined,
      { code: connect.codeFromHttpStatus(status) })),
  async stream({ status, bytes }) {
    if (status !== 200) {
      return { code: connect.codeFromHttpStatus(status) };
    }
    const last = (await envelopes(bytes)).at(-1);
    assert.equal(last.flags, connect.endStreamFlag, "the last envelope ends the stream");
    return connect.endStreamFromJson(last.data).error;
  },
  grpc({ status, header, trailer }) {
    const found = [trailer, header].find((headers) => headers.has("grpc-status"));
    return found ? grpc.findTrailerError(found) : { code: grpc.codeFromHttpStatus(status) };
  },
  async web(response) {
    const last = (await envelopes(response.bytes)).at(-1);
    const trailer = last?.flags === grpcWeb.trailerFlag ? grpcWeb.trailerParse(last.data) : new Headers();
    return READERS.grpc({ ...response, trailer });
  },
};
const CONTENT_TYPES = {
  connect: "application/proto",
  stream: "application/connect+proto",
  grpc: "application/grpc+proto",
  web: "application/grpc-web+proto",
};
// In the headers of all protocols.
const TIMEOUT = { "connect-timeout-ms": "20000", "grpc-timeout": "20S" };
const SOON = { "connect-timeout-ms": "500", "grpc-timeout": "500m" };

/** Makes a request, and returns its response with the error in it. */
async function exchange(baseUrl, token, httpVersion, protocol, request) {
  const { method = "POST", path = protocol === "stream" ? "WatchHome" : "Me", headers } = request;
  // Node.js sends no body with other methods over HTTP/2.
  const body = method === "POST" ? request.body ?? (protocol === "connect" ? EMPTY : ONE) : undefined;
  const { body: received, ...response } = await createNodeHttpClient({ httpVersion })({
    url: `${baseUrl}${path.startsWith("/") ? path : `${SERVICE}/${path}`}`,
    method,
    header: new Headers({
      authorization: `Bearer ${token}`,
      ...(method === "GET" ? {} : { "content-type": CONTENT_TYPES[protocol] }),
      ...(body ? { "content-length": body.length } : {}),
      ...(protocol === "grpc" ? { te: "trailers" } : {}),
      ...TIMEOUT,
      ...headers,
    }),
    ...(body ? { body: (async function* yieldBody() { yield body; })() } : {}),
  });
  const bytes = await readAllBytes(received, MESSAGE_BYTES_MAX);
  return { ...response, bytes, error: await READERS[protocol]({ ...response, bytes }) };
}

// Each case: its name, the code, the request, the HTTP status if it is prescribed, and the code that the
// gateway has in place of the right one, if it does not conform.
const SUCCESS = "success";
// The suite takes any of these where no document says which.
const UNKNOWN = ["Unknown", "Internal", "Unimplemented"];
const text = (contentType, message, headers) =>
  ({ headers: { "content-type": contentType, ...headers }, body: utf8(message) });
const json = (message, headers) => text("application/json", message, headers);
const get = (path, parameters) => ({ method: "GET", path: `${path}?${new URLSearchParams(parameters)}` });
const getMe = (parameters) => get("Me", parameters);

const CASES = {
  "Connect, unary": ["connect", [
    ["unexpected-content-type", "Unknown", text("image/jpeg", "12345678"), 415, "Unimplemented"],
    ["unexpected-verb", "Unknown", { method: "DELETE" }, 405, "Unimplemented"],
    ["unexpected-uri", "Unimplemented", { path: "/unknown.Service/Method" }, 404],
    ["unexpected-codec", "Unknown", text("application/foo", ""), 415, "Unimplemented"],
    ["unexpected-compression", "Unimplemented", { headers: { "content-encoding": "foo" } }],
    ["empty-request", SUCCESS, {}, 200],
    ["request-equal-to-server-limit", SUCCESS, { body: LARGEST }, 200],
    // Rules of the protocol.
    ["gzip", SUCCESS, { headers: { "content-encoding": "gzip" }, body: gzipSync(EMPTY) }, 200],
    ["malformed gzip", "InvalidArgument", { headers: { "content-encoding": "gzip" }, body: ONE }, 400],
    ["protocol-version", SUCCESS, { headers: { "connect-protocol-version": "1" } }, 200],
    ["unknown-protocol-version", "InvalidArgument", { headers: { "connect-protocol-version": "2" } }, 400],
    ...["soon", "-1", "+5000", "1.5", "12345678901"].map((timeout) =>
      [`timeout ${timeout}`, "InvalidArgument", { headers: { "connect-timeout-ms": timeout } }, 400]),
    ["timeout 0", "DeadlineExceeded", { headers: { "connect-timeout-ms": "0" } }, 504],
    ["malformed message", "InvalidArgument", { body: Uint8Array.of(0xff) }, 400],
    ["malformed JSON", "InvalidArgument", json("{"), 400],
    ["no JSON", "InvalidArgument", json(""), 400],
    ["unknown field of JSON", SUCCESS, json('{"unknown": [{}]}'), 200],
    ["character set of JSON", SUCCESS, text("application/json; charset=utf-8", "{}"), 200],
    ["content type in capitals", SUCCESS, text("Application/JSON", "{}"), 200],
    ["stream called as unary", "Unimplemented", { path: "WatchHome" }, 415],
    ["health check", SUCCESS, { path: "/grpc.health.v1.Health/Check" }, 200],
    // The HTTP status of codes.
    ["unauthenticated", "Unauthenticated", { headers: { authorization: "Bearer x" } }, 401],
    ["permission denied", "PermissionDenied", { headers: { "sec-fetch-site": "cross-site" } }, 403],
    ["not found", "NotFound", { path: "ViewPost", ...json('{"postId": "1"}') }, 404],
    ["resource exhausted", "ResourceExhausted", { headers: { "x-large": "x".repeat(20_000) } }, 429],
  ]],
  "Connect, GET": ["connect", [
    ["success", SUCCESS, getMe({ connect: "v1", encoding: "json", message: "{}" }), 200],
    ["binary", SUCCESS, getMe({ encoding: "proto", message: "" }), 200],
    ["base64", SUCCESS, getMe({ encoding: "json", base64: "1", message: "e30" }), 200],
    ["base64 with padding", SUCCESS, getMe({ encoding: "json", base64: "1", message: "e30=" }), 200],
    ["invalid base64", "InvalidArgument", getMe({ encoding: "json", base64: "1", message: "!" }), 400],
    ["no message", "InvalidArgument", getMe({ encoding: "json" }), 400],
    ["no codec", "InvalidArgument", getMe({ message: "{}" }), 400],
    ["unexpected-codec", "Unknown", getMe({ encoding: "foo", message: "{}" }), 415, "Unimplemented"],
    ["no compression", SUCCESS, getMe({ encoding: "json", compression: "identity", message: "{}" }), 200],
    ["gzip", SUCCESS, getMe({ encoding: "json", base64: "1", compression: "gzip",
      message: gzipSync("{}").toString("base64url") }), 200],
    ["unexpected-compression", "Unimplemented",
      getMe({ encoding: "json", compression: "foo", message: "{}" }), 501],
    ["unknown-protocol-version", "InvalidArgument",
      getMe({ connect: "v2", encoding: "json", message: "{}" }), 400],
    ["timeout", "InvalidArgument", { ...getMe({ encoding: "json", message: "{}" }),
      headers: { "connect-timeout-ms": "soon" } }, 400],
    ["method that writes", "Unimplemented", get("Logout", { encoding: "json", message: "{}" }), 405],
    ["stream", "Unimplemented", get("WatchHome", { encoding: "json", message: "{}" }), 405],
  ]],
  "Connect, streams": ["stream", [
    ["server-stream/no-request", "Unimplemented", { body: EMPTY }, 200],
    ["server-stream/multiple-requests", "Unimplemented", { body: TWO }, 200],
    ["unexpected-compressed-message", "Internal",
      { headers: { "connect-content-encoding": "identity" }, body: COMPRESSED }, 200],
    ["empty-request, timeout", "DeadlineExceeded", { headers: SOON }, 200],
    // Rules of the protocol.
    ["gzip", "DeadlineExceeded", { headers: { ...SOON, "connect-content-encoding": "gzip" },
      body: encodeEnvelope(1, gzipSync(EMPTY)) }, 200],
    ["unexpected-compression", "Unimplemented",
      { headers: { "connect-content-encoding": "foo" } }, 200],
    ["unexpected-codec", "Unknown", text("application/connect+foo", ""), 415],
    ["unexpected-uri", "Unimplemented", { path: "WatchNothing" }, 200],
    ["unknown-protocol-version", "InvalidArgument",
      { headers: { ...SOON, "connect-protocol-version": "2" } }, 200],
    ["invalid timeout", "InvalidArgument", { headers: { "connect-timeout-ms": "soon" } }, 200],
    ["incomplete message", "InvalidArgument", { body: Uint8Array.of(0, 0, 0, 0, 9) }, 200],
    ["incomplete prefix", "InvalidArgument", { body: Uint8Array.of(0, 0, 0) }, 200],
    ["length above the limit", "ResourceExhausted", { body: Uint8Array.of(0, 1, 0, 0, 0) }, 200],
    ["unary called as stream", "Unimplemented", { path: "Me" }, 200],
    ["unauthenticated", "Unauthenticated", { headers: { authorization: "Bearer x" } }, 200],
  ]],
  "gRPC-Web": ["web", enveloped("application/grpc-web", {})],
  gRPC: ["grpc", enveloped("application/grpc", {
    "unexpected-verb": "InvalidArgument",
    "unexpected-codec": SUCCESS,
  })],
};

/** The cases that gRPC and gRPC-Web have in common. The library `tonic` does not conform in all. */
function enveloped(contentType, known) {
  const cases = [
    ["with-proto-sub-format", SUCCESS, text(`${contentType}+proto`, "\0\0\0\0\0"), 200],
    ["without-proto-sub-format", SUCCESS, text(contentType, "\0\0\0\0\0"), 200],
    ["unary/no-request", "Unimplemented", { body: EMPTY }, 200, "InvalidArgument"],
    ["unary/multiple-requests", "Unimplemented", { body: TWO }, 200, SUCCESS],
    ["server-stream/no-request", "Unimplemented", { path: "WatchHome", body: EMPTY }, 200,
      "InvalidArgument"],
    ["server-stream/multiple-requests", "Unimplemented",
      { path: "WatchHome", headers: SOON, body: TWO }, 200, "DeadlineExceeded"],
    ["unexpected-verb", UNKNOWN, { method: "DELETE" }],
    ["unexpected-uri", "Unimplemented", { path: "/unknown.Service/Method" }, 200],
    ["unexpected-codec", UNKNOWN, text(`${contentType}+foo`, "\0\0\0\0\0")],
    ["unexpected-compression", "Unimplemented", { headers: { "grpc-encoding": "foo" } }, 200],
    ["unexpected-compressed-message", "Internal",
      { headers: { "grpc-encoding": "identity" }, body: COMPRESSED }, 200, "InvalidArgument"],
    ["gzip", SUCCESS,
      { headers: { "grpc-encoding": "gzip" }, body: encodeEnvelope(1, gzipSync(EMPTY)) }, 200],
    ["timeout", "DeadlineExceeded", { path: "WatchHome", headers: SOON }, 200],
    ["length above the limit", "ResourceExhausted", { body: Uint8Array.of(0, 1, 0, 0, 0) }, 200],
  ];
  return cases.map(([name, right, request, status, actual = known[name]]) =>
    [name, right, request, status, actual]);
}

export async function conformance(baseUrl, token, step) {
  for (const [title, [protocol, cases]] of Object.entries(CASES)) {
    // Only gRPC needs HTTP/2.
    for (const httpVersion of protocol === "grpc" ? ["2"] : ["1.1", "2"]) {
      await step(`conformance: ${title}, HTTP/${httpVersion} (${cases.length} cases)`, async () => {
        for (const [name, right, request, status, known] of cases) {
          const response = await exchange(baseUrl, token, httpVersion, protocol, request);
          const code = response.error ? Code[response.error.code] : SUCCESS;
          const expected = known ?? right;
          assert.ok([expected].flat().includes(code), `${name}: ${code} in place of ${expected}`);
          assert.ok(!status || response.status === status, `${name}: HTTP ${response.status}`);
        }
      });
    }
    for (const [name, right, , , known] of cases.filter(([, , , , it]) => it)) {
      console.log(`known: ${title}: ${name}: ${known} in place of ${right}`);
    }
  }

  await step("errors and answers have the JSON of their protocols", async () => {
    const decode = ({ bytes }) => JSON.parse(new TextDecoder().decode(bytes));
    const call = (protocol, request) => exchange(baseUrl, token, "1.1", protocol, request);
    assert.match(decode(await call("connect", json("{}"))).account.user.id, /^[1-9][0-9]{9,}$/);
    const invalid = { authorization: "Bearer x" };
    const { message, ...error } = decode(await call("connect", json("{}", invalid)));
    assert.ok(message);
    const details = [{
      type: "google.rpc.ErrorInfo",
      // Base64 without padding.
      value: Buffer.from("\n\rTOKEN_INVALID\x12\tmicroblog").toString("base64").replace(/=+$/, ""),
      debug: { reason: "TOKEN_INVALID", domain: "microblog" },
    }];
    assert.deepEqual(error, { code: "unauthenticated", details });
    const { bytes } = await call("stream", { headers: invalid });
    const [end] = await envelopes(bytes);
    assert.deepEqual(decode({ bytes: end.data }), { error: { ...error, message } });
  });
}
