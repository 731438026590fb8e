// The gateway's API in a browser: the Connect protocol with JSON, by `fetch` alone.
//
//   setToken((await call("Login", { login: "ada", password })).token);
//   const { posts, nextPageToken } = await call("ViewHome", { pageSize: 20 });
//   for await (const { posts } of watch("WatchHome", {}, signal)) show(posts);
//
// Fields are those of proto/microblog/gateway/v1 in lowerCamelCase. Fields with a default value (0, "",
// false, an empty list) are absent. 64-bit integers are strings.

const SERVICE = "/microblog.gateway.v1.GatewayService/";
// A lost network may leave a call pending for minutes.
const CALL_TIMEOUT_MS = 30_000;
const RETRY_MS = 1_000;
const RETRY_MS_MAX = 30_000;
// After these codes, a stream may be resumed. Other ends without a reason are those of a proxy.
const TRANSIENT = ["unavailable", "resource_exhausted", "deadline_exceeded", "internal"];
// An envelope of a stream: flags, the length of the message in big-endian order, the message.
const HEADER_BYTES = 5;
const END_OF_STREAM = 2;

// The session token, or null.
let token = null;

// Sets the session token that all calls send.
export function setToken(value) {
  token = value;
}

// The error of a call.
export class CallError extends Error {
  constructor({ code = "unknown", message = code, details = [] }) {
    super(message);
    const detail = (type) => details.find((one) => one.type === `google.rpc.${type}`)?.debug ?? {};
    // The gRPC code, such as `unavailable`.
    this.code = code;
    // The reason from error.proto, such as `NAME_TAKEN`. Callers match on it; messages may change.
    this.reason = detail("ErrorInfo").reason;
    // The invalid fields: [{ field, description }].
    this.violations = detail("BadRequest").fieldViolations ?? [];
    // The time to wait, if a rate limit is exceeded.
    this.retryAfterS = parseFloat(detail("RetryInfo").retryDelay ?? 0);
  }
}

// Calls a method, and returns its response.
export async function call(method, message = {}) {
  const signal = AbortSignal.timeout(CALL_TIMEOUT_MS);
  const response = await post(method, "application/json", JSON.stringify(message), signal);
  return response.json().catch(lost);
}

// Calls a method that streams, and yields its messages until `signal` is aborted or the loop is left.
export async function* watch(method, message, signal) {
  const body = new TextEncoder().encode(JSON.stringify(message));
  const header = new DataView(new ArrayBuffer(HEADER_BYTES));
  header.setUint32(1, body.length);
  const response = await post(method, "application/connect+json", new Blob([header, body]), signal);
  const reader = response.body.getReader();
  let received = new Uint8Array();
  try {
    while (true) {
      const { done, value } = await reader.read().catch(lost);
      if (done) lost();
      received = joined(received, value);
      while (received.length >= HEADER_BYTES) {
        const end = HEADER_BYTES + new DataView(received.buffer).getUint32(1);
        if (received.length < end) break;
        const answer = JSON.parse(new TextDecoder().decode(received.slice(HEADER_BYTES, end)));
        if (received[0] & END_OF_STREAM) {
          if (answer.error) throw new CallError(answer.error);
          return;
        }
        received = received.slice(end);
        yield answer;
      }
    }
  } finally {
    // Closes the stream if the caller left the loop.
    reader.cancel().catch(() => {});
  }
}

// Passes the first message of WatchHome or WatchNotices, and those with posts or notices, to `show` until
// `signal` is aborted. Resumes a broken stream from its last `sinceToken`, so no message is missed. A
// hidden page closes its stream: a browser opens only six HTTP/1.1 connections to a host, for all its
// tabs.
export async function keepWatching(method, sinceToken, signal, show) {
  let waitMs = RETRY_MS;
  while (!signal.aborted) {
    const changed = new AbortController();
    const { signal: change } = changed;
    document.addEventListener("visibilitychange", () => changed.abort(), { signal: change });
    const stop = AbortSignal.any([signal, change]);
    if (document.hidden) {
      await aborted(stop);
      continue;
    }
    let isFirst = true;
    try {
      for await (const message of watch(method, { sinceToken }, stop)) {
        waitMs = RETRY_MS;
        sinceToken = message.sinceToken;
        if (isFirst || message.posts || message.notices) show(message);
        isFirst = false;
      }
    } catch (error) {
      const isFinal = !(error instanceof CallError) || error.reason;
      if (!stop.aborted && isFinal && !TRANSIENT.includes(error.code)) throw error;
    }
    await aborted(AbortSignal.any([stop, AbortSignal.timeout(waitMs)]));
    waitMs = Math.min(2 * waitMs, RETRY_MS_MAX);
    // Removes the listener.
    changed.abort();
  }
}

// Returns a new `request_id`. `crypto.randomUUID` exists only with HTTPS or on localhost.
export function requestId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

async function post(method, type, body, signal) {
  const headers = { "content-type": type, "connect-protocol-version": "1" };
  if (token) headers.authorization = `Bearer ${token}`;
  // The token is the only credential: no cookies.
  const options = { method: "POST", headers, body, signal, credentials: "omit" };
  const response = await fetch(SERVICE + method, options).catch(lost);
  if (response.ok) return response;
  // A proxy in between may answer without JSON.
  const code = response.status >= 500 ? "unavailable" : "unknown";
  const plain = { code, message: `HTTP ${response.status}` };
  throw new CallError(await response.json().catch(() => plain));
}

function joined(first, second) {
  const both = new Uint8Array(first.length + second.length);
  both.set(first);
  both.set(second, first.length);
  return both;
}

function lost() {
  throw new CallError({ code: "unavailable", message: "the connection to the gateway is lost" });
}

function aborted(signal) {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener("abort", resolve, { once: true });
  });
}
