//! Results of `memory`, as a table and as JSON.

use serde::Serialize;

use super::key_kinds::Kinds;

/// The baseline of the step before it.
pub(super) const BASELINE: &str = "the same in two plain sorted sets";

/// The results.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) steps: Vec<Step>,
    /// All keys at the end.
    pub(super) keys: Kinds,
    /// Expiring keys, which no step counts.
    #[serde(rename = "passing")]
    pub(super) expiring: Kinds,
}

/// One kind of data, and the growth of memory by it.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub(super) what: String,
    pub(super) count: u64,
    /// Growth of the memory that Redis uses, in bytes.
    pub(super) used: i64,
    /// Growth of the sum of `MEMORY USAGE` over all keys, in bytes.
    pub(super) keys: i64,
}

impl Report {
    pub(super) fn print(&self) {
        print!("{}", self.table());
    }

    fn table(&self) -> String {
        let mut table = row(["", "count", "bytes each", "of its keys"]);
        for step in &self.steps {
            let count = step.count.to_string();
            let (used, keys) = (each(step.used, step.count), each(step.keys, step.count));
            table += &row([&step.what, &count, &used, &keys]);
        }
        if let Some([ours, baseline]) = self.comparison() {
            let ratio = |ours, baseline| format!("{:.2}", ours as f64 / baseline as f64);
            let (used, keys) = (ratio(ours.used, baseline.used), ratio(ours.keys, baseline.keys));
            table += &row(["follows, ratio to these", "", &used, &keys]);
        }
        table += "\n";
        table += &row(["keys at the end", "count", "bytes each", "bytes"]);
        table += &kinds(&self.keys);
        table += "\n";
        table += &row(["not counted, expire in a day", "count", "bytes each", "bytes"]);
        table += &kinds(&self.expiring);
        table
    }

    /// Returns the step of the follows and its baseline.
    fn comparison(&self) -> Option<[&Step; 2]> {
        let plain = self.steps.iter().position(|step| step.what == BASELINE)?;
        Some([self.steps.get(plain.checked_sub(1)?)?, &self.steps[plain]])
            .filter(|[_, plain]| plain.count > 0)
    }
}

fn kinds(kinds: &Kinds) -> String {
    let rows = kinds.iter().filter(|(_, kind)| kind.keys > 0).map(|(name, kind)| {
        let each = each(kind.bytes as i64, kind.keys);
        row([name, &kind.keys.to_string(), &each, &kind.bytes.to_string()])
    });
    rows.collect()
}

fn each(bytes: i64, count: u64) -> String {
    if count == 0 { "-".to_owned() } else { format!("{:.1}", bytes as f64 / count as f64) }
}

fn row([name, a, b, c]: [&str; 4]) -> String {
    format!("{name:<36}{a:>12}{b:>14}{c:>14}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(what: &str, count: u64, used: i64, keys: i64) -> Step {
        Step { what: what.to_owned(), count, used, keys }
    }

    fn report(steps: Vec<Step>) -> Report {
        Report { steps, keys: Kinds::new(), expiring: Kinds::new() }
    }

    #[test]
    fn the_table_compares_follows_with_the_baseline() {
        let steps = vec![step("follows", 100, 5000, 4000), step(BASELINE, 100, 20_000, 10_000)];
        let table = report(steps).table();
        let compared = table.lines().find(|line| line.starts_with("follows, ratio")).unwrap();
        assert!(compared.split_whitespace().collect::<Vec<_>>().ends_with(&["0.25", "0.40"]));
        assert!(table.contains("50.0") && table.contains("200.0"), "{table}");
    }

    #[test]
    fn the_table_omits_the_comparison_without_follows() {
        let table = report(vec![step("follows", 0, 10, 0), step(BASELINE, 0, -3, 0)]).table();
        assert!(!table.contains("ratio") && !table.contains("NaN"), "{table}");
    }
}
