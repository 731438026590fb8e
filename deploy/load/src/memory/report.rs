//! What was measured, as a table for people and as JSON.

use serde::Serialize;

use super::kinds::Kinds;

/// The step that the one before it is measured beside.
pub(super) const PLAIN: &str = "the same in two plain sorted sets";

/// All that was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) steps: Vec<Step>,
    /// All keys at the end.
    pub(super) keys: Kinds,
    /// Keys that pass by themselves, and that nothing else counts.
    pub(super) passing: Kinds,
}

/// Things of one kind, and how much more of Redis' memory was used with them than without.
#[derive(Debug, Serialize)]
pub(super) struct Step {
    pub(super) what: String,
    pub(super) count: u64,
    /// Bytes of all that Redis uses.
    pub(super) used: i64,
    /// Bytes of the keys by themselves.
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
        if let Some([ours, plain]) = self.compared() {
            let ratio = |ours, plain| format!("{:.2}", ours as f64 / plain as f64);
            let (used, keys) = (ratio(ours.used, plain.used), ratio(ours.keys, plain.keys));
            table += &row(["follows, beside these", "", &used, &keys]);
        }
        table += "\n";
        table += &row(["keys at the end", "count", "bytes each", "bytes"]);
        table += &kinds(&self.keys);
        table += "\n";
        table += &row(["not counted, gone in a day", "count", "bytes each", "bytes"]);
        table += &kinds(&self.passing);
        table
    }

    /// Returns the follows as they are kept, and as they would be in plain sorted sets.
    fn compared(&self) -> Option<[&Step; 2]> {
        let plain = self.steps.iter().position(|step| step.what == PLAIN)?;
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
        Report { steps, keys: Kinds::new(), passing: Kinds::new() }
    }

    #[test]
    fn follows_are_told_beside_plain_sorted_sets() {
        let steps = vec![step("follows", 100, 5000, 4000), step(PLAIN, 100, 20_000, 10_000)];
        let table = report(steps).table();
        let compared = table.lines().find(|line| line.starts_with("follows, beside")).unwrap();
        assert!(compared.split_whitespace().collect::<Vec<_>>().ends_with(&["0.25", "0.40"]));
        assert!(table.contains("50.0") && table.contains("200.0"), "{table}");
    }

    #[test]
    fn a_graph_without_follows_has_a_table_too() {
        let table = report(vec![step("follows", 0, 10, 0), step(PLAIN, 0, -3, 0)]).table();
        assert!(!table.contains("beside") && !table.contains("NaN"), "{table}");
    }
}
