//! The result of a benchmark, as a table and as JSON.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::Context as _;

use crate::{load_driver::Measurements, system::Usage};

/// The result of one scenario.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct ScenarioResult {
    pub(crate) scenario: String,
    pub(crate) calls: u64,
    pub(crate) seconds: f64,
    pub(crate) calls_per_second: f64,
    /// Of successful calls; none if there are none, or if latency is not measured per call.
    pub(crate) latency_us: Option<Latency>,
    /// Number of failed calls by status code.
    pub(crate) errors: BTreeMap<String, u64>,
    /// Resources that the system used for all calls.
    pub(crate) usage: Usage,
}

/// Latency quantiles in microseconds.
#[derive(Clone, Debug, serde::Serialize)]
pub(crate) struct Latency {
    pub(crate) mean: f64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    pub(crate) max: u64,
}

impl ScenarioResult {
    /// Returns the result of a measurement.
    pub(crate) fn new(scenario: String, measured: &Measurements, usage: Usage) -> Self {
        let quantile = |share| measured.quantile_us(share);
        let latency = || Latency {
            mean: measured.latencies.mean(),
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            max: measured.latencies.max(),
        };
        Self {
            scenario,
            calls: measured.latencies.len(),
            seconds: measured.seconds,
            calls_per_second: measured.calls_per_second(),
            latency_us: (!measured.latencies.is_empty()).then(latency),
            errors: measured.errors.clone(),
            usage,
        }
    }

    /// Returns the CPU time of all processes per call.
    pub(crate) fn cpu_us_per_call(&self) -> f64 {
        self.each(self.usage.processes.iter().map(|process| process.cpu_us).sum())
    }

    fn each(&self, amount: u64) -> f64 {
        amount as f64 / (self.calls.max(1)) as f64
    }

    /// Returns a table: the result, then the usage of each process and the errors.
    pub(crate) fn table(&self) -> String {
        let mut text = format!(
            "{:<16}{:>11}{:>10}{:>10}{:>12}{:>10}{:>13}{:>12}\n",
            "", "calls/s", "p50 ms", "p99 ms", "CPU us", "commands", "round trips", "bytes"
        );
        let milliseconds = |quantile: fn(&Latency) -> u64| {
            let latency = self.latency_us.as_ref().map(|latency| quantile(latency) as f64 / 1e3);
            latency.map_or("-".to_owned(), |latency| format!("{latency:.2}"))
        };
        // `write!` to a `String` does not fail.
        let _ = write!(
            text,
            "{:<16}{:>11.0}{:>10}{:>10}{:>12.1}",
            self.scenario,
            self.calls_per_second,
            milliseconds(|latency| latency.p50),
            milliseconds(|latency| latency.p99),
            self.cpu_us_per_call(),
        );
        if let Some(redis) = &self.usage.redis {
            let _ = write!(
                text,
                "{:>10.1}{:>13.2}{:>12.0}",
                self.each(redis.commands),
                self.each(redis.round_trips),
                self.each(redis.bytes_in + redis.bytes_out),
            );
        }
        text.push('\n');
        for process in &self.usage.processes {
            let cpu_us = self.each(process.cpu_us);
            let _ = writeln!(text, "{}, {cpu_us:>8.1} us of CPU a call", process.memory());
        }
        for (code, count) in &self.errors {
            let _ = writeln!(text, "{count} calls failed with {code}");
        }
        text
    }
}

/// Returns the name of a value on the command line.
pub(crate) fn name(value: impl clap::ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Writes a value as JSON to a file, if one is given.
pub(crate) fn write_json(file: Option<&Path>, what: &impl serde::Serialize) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(what)?;
    fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::sleep;
    use tonic::Status;

    use super::*;
    use crate::load_driver::{LoadModel, run_for};

    #[tokio::test]
    async fn a_result_without_successful_calls_has_no_latency() {
        let step = |_| async {
            sleep(Duration::from_millis(1)).await;
            Err(Status::unavailable("unavailable"))
        };
        let measured = run_for(LoadModel::Closed(2), Duration::from_secs(1), "calls", step).await;
        let outcome = ScenarioResult::new("home".to_owned(), &measured, Usage::default());
        assert!(outcome.latency_us.is_none());
        let text = outcome.table();
        assert!(text.contains("calls failed with Unavailable") && !text.contains("0.00"), "{text}");
    }
}
