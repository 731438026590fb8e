// Reads the metrics of the process, in Prometheus' text format, and computes rates and quantiles.
//
// A sample is { series, name, labels, value }. Its series is the name with the labels, as text.

const TIMEOUT_MS = 10_000;

// Returns the samples for which `accepts(name, labels)` holds, and when they were read.
export async function scrape(signal, accepts) {
  const stop = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]);
  const response = await fetch("/metrics", { signal: stop });
  if (!response.ok) throw new Error(`HTTP ${response.status}`);
  const samples = parse(await response.text()).filter(({ name, labels }) => accepts(name, labels));
  return { samples, at: performance.now() };
}

function parse(text) {
  return Array.from(text.matchAll(/^((\w+)(?:\{(.*)\})?) (\S+)$/gm), ([, series, name, pairs = "", value]) => {
    const labels = Array.from(pairs.matchAll(/(\w+)="([^"]*)"/g), ([, key, label]) => [key, label]);
    return { series, name, labels: Object.fromEntries(labels), value: Number(value) };
  });
}

// Returns by how much each sample grew between two scrapes. New counters began at 0.
export function growth(before, now) {
  const values = valuesOf(before);
  return now.samples.map((one) => ({ ...one, value: one.value - (values.get(one.series) ?? 0) }));
}

// Whether counters were reset between two scrapes, by a restart of the process.
export function hasReset(before, now) {
  const values = valuesOf(now);
  return before.samples.some(({ series, name, value }) =>
    /_(count|total)$/.test(name) && !(values.get(series) >= value));
}

function valuesOf({ samples }) {
  return new Map(samples.map(({ series, value }) => [series, value]));
}

// Returns the samples of a metric whose labels satisfy `where`.
export function select(samples, name, where = () => true) {
  return samples.filter((one) => one.name === name && where(one.labels));
}

export function sum(samples, name, where) {
  return select(samples, name, where).reduce((total, { value }) => total + value, 0);
}

// Returns a quantile of the buckets `name`, interpolated as by Prometheus' histogram_quantile. At least one
// call must be in them.
export function quantile(q, samples, name) {
  const bound = ({ labels }) => Number(labels.le.replace("Inf", "Infinity"));
  const buckets = [...Map.groupBy(select(samples, name), bound)]
    .map(([end, all]) => ({ end, count: sum(all, name) }))
    .sort((one, other) => one.end - other.end);
  const rank = q * buckets.at(-1).count;
  const index = buckets.findIndex(({ count }) => count >= rank);
  const { end, count } = buckets[index];
  const { end: start, count: before } = buckets[index - 1] ?? { end: 0, count: 0 };
  return end === Infinity ? start : start + (end - start) * (rank - before) / (count - before);
}
