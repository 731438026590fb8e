// The view for operators: plots, and a table of the gateway's methods, from the metrics of the process.

import { fill, h } from "./elements.js";
import { growth, hasReset, quantile, scrape, select, sum } from "./metrics.js";
import { language, t } from "./texts.js";

const POLL_MS = 2_000;
// The time that the plots show, and that the table is computed from.
const PLOT_MS = 300_000;
const TABLE_MS = 60_000;
// Points that are further apart are not connected.
const GAP_MS = 10_000;
// The coordinates of a plot; style.css has its size.
const [WIDTH, HEIGHT] = [300, 100];

const CALLS = "rpc_server_call_duration_seconds_count";
const BUCKETS = "rpc_server_call_duration_seconds_bucket";
// The status codes of server errors, as in deploy/telemetry/alerts.yaml.
const SERVER_ERRORS = ["UNKNOWN", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];
// Streams last as long as the caller keeps them open: their duration is no latency.
const STREAM = /^(Watch|Snapshot)/;

const isServerError = (labels) => SERVER_ERRORS.includes(labels.rpc_response_status_code);
// Each plot shows the rate of a counter or the value of a gauge.
const PLOTS = [
  { title: "callRate", counter: CALLS, unit: "/s" },
  { title: "errorRate", counter: CALLS, where: isServerError, unit: "/s" },
  { title: "deliveryRate", counter: "microblog_timeline_deliveries_total", unit: "/s" },
  { title: "fanOutAge", gauge: "microblog_timeline_queue_age_seconds", unit: " s" },
  { title: "fanOutDepth", gauge: "microblog_timeline_queue_depth" },
  { title: "redisMemory", gauge: "microblog_redis_memory_bytes", divisor: 2 ** 20, unit: " MiB" },
  { title: "undelivered", gauge: "microblog_post_undelivered" },
];
const NAMES = [BUCKETS, ...PLOTS.map(({ counter, gauge }) => counter ?? gauge)];
// The other services of the process measure their calls too.
const isShown = (name, { rpc_method: method }) =>
  NAMES.includes(name) && (!method || method.startsWith("microblog.gateway."));

// Both are kept when the view is left. Points: { at, values }, with a value for each plot.
let points = [];
// Scrapes of one process in the last minute: { at, samples }.
let scrapes = [];

// Returns the elements of the view. Polls until `signal` is aborted, while the page is visible.
export function operators(signal) {
  const error = h("p", { class: "error", role: "alert" });
  const plots = PLOTS.map(plot);
  const methods = h("section");
  async function poll() {
    if (signal.aborted) return;
    try {
      if (!document.hidden) {
        add(await scrape(signal, isShown));
        show();
        error.textContent = "";
      }
    } catch (failure) {
      fail(failure);
    }
    setTimeout(poll, POLL_MS);
  }
  function fail({ message }) {
    // Once: screen readers announce each change.
    if (!error.textContent) error.textContent = t("scrapeFailed", message);
  }
  function show() {
    plots.forEach((one) => one.show());
    fill(methods, methodTable());
  }
  show();
  // If the view was just left, not at once: a rate over less time has large errors.
  setTimeout(poll, POLL_MS - (performance.now() - (scrapes.at(-1)?.at ?? -Infinity)));
  return [h("h1", {}, t("operators")), h("p", { class: "note" }, t("operatorsNote")), error,
    h("section", { class: "plots" }, plots.map(({ element }) => element)), methods];
}

function add(scraped) {
  const { at, samples } = scraped;
  const isRestarted = scrapes.length > 0 && hasReset(scrapes.at(-1), scraped);
  scrapes = isRestarted ? [] : scrapes.filter((one) => at - one.at <= TABLE_MS);
  const previous = scrapes.at(-1);
  scrapes.push(scraped);
  const recent = previous && growth(previous, scraped);
  const values = PLOTS.map(({ counter, gauge, where, divisor = 1 }) => {
    if (counter) return recent && sum(recent, counter, where) / (at - previous.at) * 1_000;
    const value = select(samples, gauge, where)[0]?.value;
    return value && value / divisor;
  });
  points = [...points.filter((one) => at - one.at <= PLOT_MS), { at, values }];
}

function plot({ title, unit = "" }, index) {
  const line = h("path");
  const viewBox = `0 0 ${WIDTH} ${HEIGHT}`;
  const image = h("svg", { role: "img", viewBox, preserveAspectRatio: "none" }, line);
  const value = h("strong");
  const peak = h("span", { class: "note" });
  const element = h("figure", { class: "card" },
    h("figcaption", {}, t(title)), h("p", {}, value, " ", peak), image);
  function show() {
    const known = points.map(({ at, values }) => [at, values[index]]).filter(([, one]) => one !== undefined);
    const last = points.at(-1);
    const current = last?.values[index];
    const top = Math.max(...known.map(([, one]) => one));
    value.textContent = current === undefined ? t("noData") : number(current, unit);
    peak.textContent = known.length ? t("peak", number(top)) : "";
    image.setAttribute("aria-label", `${t(title)}: ${value.textContent} ${peak.textContent}`);
    line.setAttribute("d", known.map(([at, one], order) => {
      const isConnected = at - known[order - 1]?.[0] < GAP_MS;
      const x = WIDTH * (1 - (last.at - at) / PLOT_MS);
      const y = HEIGHT * (1 - one / (top || 1));
      return `${isConnected ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    }).join(""));
  }
  return { element, show };
}

function methodTable() {
  const [first, last] = [scrapes[0], scrapes.at(-1)];
  if (first === last) return h("p", {}, t("noRates"));
  const perSecond = (count) => number(count / (last.at - first.at) * 1_000);
  const calls = growth(first, last).filter(({ labels }) => labels.rpc_method);
  const rows = [...Map.groupBy(calls, ({ labels }) => labels.rpc_method.split("/")[1])]
    .map(([method, samples]) => ({ method, samples, count: sum(samples, CALLS) }))
    .filter(({ count }) => count > 0)
    .sort((one, other) => other.count - one.count)
    .map(({ method, samples, count }) => h("tr", {},
      h("th", { scope: "row" }, method),
      h("td", {}, perSecond(count)),
      h("td", {}, perSecond(sum(samples, CALLS, isServerError))),
      [0.5, 0.99].map((q) =>
        h("td", {}, STREAM.test(method) ? "–" : number(quantile(q, samples, BUCKETS) * 1_000)))));
  if (!rows.length) return h("p", {}, t("noCalls"));
  const heads = ["method", "calls", "errors", "p50", "p99"];
  return [
    h("table", {}, h("caption", {}, t("methods")),
      h("thead", {}, h("tr", {}, heads.map((key) => h("th", { scope: "col" }, t(key))))),
      h("tbody", {}, rows)),
    h("p", { class: "note" }, t("streamsNote")),
  ];
}

function number(value, unit = "") {
  return value.toLocaleString(language, { maximumFractionDigits: value < 10 ? 2 : 0 }) + unit;
}
