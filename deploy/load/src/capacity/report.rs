//! The result in Markdown.

use std::fmt::Write as _;

use super::model::{
    Assumptions, Inputs, KINDS, Plan, largest_push, last_year_of_ids, publish_share,
};

/// A table in Markdown.
struct Table(String);

impl Table {
    fn new(columns: &[&str]) -> Self {
        let rule = vec!["---"; columns.len()];
        Self(format!("| {} |\n| {} |\n", columns.join(" | "), rule.join(" | ")))
    }

    fn row(&mut self, name: impl AsRef<str>, values: impl IntoIterator<Item = String>) {
        // `write!` to a `String` does not fail.
        let _ = write!(self.0, "| {}", name.as_ref());
        for value in values {
            let _ = write!(self.0, " | {value}");
        }
        self.0.push_str(" |\n");
    }
}

/// Returns all tables.
pub(super) fn markdown(inputs: &Inputs, assumed: &Assumptions, plans: &[Plan]) -> String {
    let sections = [
        ("Measured processor time", times(inputs)),
        ("Measured bytes and rows", costs(inputs)),
        ("Assumptions", assumptions(assumed)),
        ("Load and cores at peak", load(inputs, plans)),
        ("Redis memory", redis(assumed, plans)),
        ("SQL", sql(plans)),
        ("Limits", limits(inputs, plans)),
    ];
    let section = |(title, text): &(&str, String)| format!("## {title}\n\n{text}");
    sections.iter().map(section).collect::<Vec<_>>().join("\n")
}

fn times(inputs: &Inputs) -> String {
    let mut table = Table::new(&[
        "layout, process",
        "`mixed`, µs",
        "`like`, µs",
        "`publish` to no followers, µs",
        "to each follower, µs",
    ]);
    for layout in &inputs.layouts {
        for process in &layout.processes {
            let times =
                [process.mixed_us, process.like_us, process.publish_us, process.delivery_us];
            table.row(format!("{}: {}", layout.layout, process.name), times.map(number));
        }
    }
    let mut text = table.0;
    for layout in &inputs.layouts {
        let _ = write!(
            text,
            "\n{}: in `mixed`, authors have {} followers on average. The time to each follower is the \
             difference between authors with {} and with {}. Of all accounts, {} have a home timeline \
             in Redis.\n",
            layout.layout,
            number(layout.followers),
            number(layout.followers_few),
            number(layout.followers_many),
            number(layout.readers),
        );
    }
    text
}

fn costs(inputs: &Inputs) -> String {
    let mut table = Table::new(&[
        "of each",
        "measured",
        "Redis, bytes",
        "SQL rows",
        "SQL rows written",
        "SQL on disk, bytes",
        "PostgreSQL, µs",
    ]);
    for ((kind, _), cost) in KINDS.iter().zip(&inputs.costs) {
        let values =
            [cost.redis_bytes, cost.sql_rows, cost.sql_written, cost.sql_bytes, cost.sql_us];
        let count = number(cost.measured as f64);
        table.row(kind, [count].into_iter().chain(values.map(number)));
    }
    let none = || "-".to_owned();
    let home = number(inputs.home_entry_bytes);
    table.row("entries of home timelines", [none(), home, none(), none(), none(), none()]);
    table.0
}

fn assumptions(assumed: &Assumptions) -> String {
    let mut table = Table::new(&["option", "value", "meaning"]);
    let mut row = |option: &str, value: f64, meaning: &str| {
        table.row(format!("`{option}`"), [number(value), meaning.to_owned()]);
    };
    row("--active", assumed.active, "share of accounts that are active on a day");
    row(
        "--readers",
        assumed.readers,
        "share of accounts with a home timeline, and lists of follows, in Redis",
    );
    row("--followers", assumed.followers.into(), "followers of an account, on average");
    row("--operations", assumed.operations, "operations of `mixed` of an active account a day");
    row("--peak", assumed.peak, "peak load relative to the mean load");
    row("--kept-posts", assumed.kept_posts.into(), "posts of an account in Redis");
    row("--likes", assumed.likes.into(), "likes of a post");
    row("--comments", assumed.comments.into(), "comments on a post");
    row("--years", assumed.years, "years of posts in SQL and in user timelines");
    row("--utilization", assumed.utilization, "target utilization of a core");
    row("--redis-gb", assumed.redis_gb, "memory of a Redis primary, GB");
    row("--redis-share", assumed.redis_share, "share of it for data");
    row("--replicas", assumed.replicas.into(), "replicas of a Redis primary");
    row("--sql-cores", assumed.sql_cores, "cores of the SQL server of a service");
    table.0
}

fn load(inputs: &Inputs, plans: &[Plan]) -> String {
    let mut table = sizes(plans);
    let mut row = |name: String, value: &dyn Fn(&Plan) -> f64| {
        table.row(name, plans.iter().map(|plan| number(value(plan))));
    };
    let posts = publish_share() * 100.0;
    row(format!("operations a second, {posts:.0}% posts"), &|plan| plan.peak.operations);
    row("likes and comments a second".to_owned(), &|plan| plan.peak.likes + plan.peak.comments);
    row("deliveries a second".to_owned(), &|plan| plan.peak.deliveries);
    for (index, layout) in inputs.layouts.iter().enumerate() {
        for (process, time) in layout.processes.iter().enumerate() {
            let name = format!("cores, {}: {}", layout.layout, time.name);
            row(name, &|plan| plan.cores[index][process].cores);
        }
        let name = format!("cores, {}: all", layout.layout);
        row(name, &|plan| plan.cores[index].iter().map(|cores| cores.cores).sum());
    }
    table.0
}

fn redis(assumed: &Assumptions, plans: &[Plan]) -> String {
    let mut table = sizes(plans);
    let Some(first) = plans.first() else { return table.0 };
    for (index, kind) in first.memory.iter().enumerate() {
        let name = format!("{}: {}", kind.keyspace, kind.kind);
        table.row(name, plans.iter().map(|plan| bytes(plan.memory[index].bytes)));
    }
    let sum = |plan: &Plan| plan.memory.iter().map(|memory| memory.bytes).sum();
    table.row("all", plans.iter().map(|plan| bytes(sum(plan))));
    for (index, keyspace) in first.keyspaces.iter().enumerate() {
        let name = format!("primaries of {}", keyspace.name);
        table.row(name, plans.iter().map(|plan| number(plan.keyspaces[index].primaries)));
    }
    table.row("primaries of one cluster for all", plans.iter().map(|plan| number(plan.primaries)));
    let nodes = |plan: &Plan| number(plan.primaries * (1.0 + f64::from(assumed.replicas)));
    table.row("the same, with replicas", plans.iter().map(nodes));
    table.0
}

fn sql(plans: &[Plan]) -> String {
    let mut table = sizes(plans);
    table.row("rows written a second at peak", plans.iter().map(|plan| number(plan.sql.written)));
    table.row("cores of PostgreSQL at peak", plans.iter().map(|plan| number(plan.sql.cores)));
    for (index, (kind, _)) in KINDS.iter().enumerate() {
        let since = if index > 1 { ", with `--years`" } else { "" };
        let name = format!("on disk: {kind}{since}");
        table.row(name, plans.iter().map(|plan| bytes(plan.sql.bytes[index])));
    }
    table.row("all rows", plans.iter().map(|plan| number(plan.sql.rows.iter().sum())));
    let all = |plan: &Plan| bytes(plan.sql.bytes.iter().sum());
    table.row("all on disk", plans.iter().map(all));
    table.0
}

fn limits(inputs: &Inputs, plans: &[Plan]) -> String {
    let Some(last) = plans.last() else { return String::new() };
    let accounts = plans.iter().map(|plan| millions(plan.accounts as f64));
    let mut columns = vec!["ratio to the limit".to_owned(), "limit".to_owned()];
    columns.extend(accounts);
    columns.push("reached at".to_owned());
    let mut table = Table::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for (index, limit) in last.limits.iter().enumerate() {
        let most = match limit.unit {
            "bytes" => bytes(limit.limit),
            unit => format!("{} {unit}", number(limit.limit)).trim_end().to_owned(),
        };
        let ratios = plans.iter().map(|plan| number(plan.limits[index].ratio));
        let reached = millions(limit.accounts);
        table.row(&limit.name, [most].into_iter().chain(ratios).chain([reached]));
    }
    let mut text = table.0 + "\n";
    for plan in plans {
        let nearest = plan.limits.iter().max_by(|a, b| a.ratio.total_cmp(&b.ratio));
        if let Some(nearest) = nearest {
            let size = millions(plan.accounts as f64);
            let _ = writeln!(
                text,
                "- Nearest with {size} accounts: {} ({}).",
                nearest.name,
                number(nearest.ratio)
            );
        }
    }
    let delivery = inputs.layouts.iter().map(|layout| {
        let us: f64 = layout.processes.iter().map(|process| process.delivery_us).sum();
        let ms = us * largest_push() as f64 / 1e3;
        format!("{} ms of processor time in layout {}", number(ms), layout.layout)
    });
    let delivery = delivery.collect::<Vec<_>>().join(", ");
    let push = number(largest_push() as f64);
    let year = last_year_of_ids();
    text + &format!(
        "- A post is pushed to at most {push} followers: {delivery}. Posts of authors with more are \
         pulled.\n- Ids end in {year}, at any size.\n"
    )
}

/// Returns a table with a column for each number of accounts.
fn sizes(plans: &[Plan]) -> Table {
    let sizes: Vec<_> = plans.iter().map(|plan| millions(plan.accounts as f64)).collect();
    let columns: Vec<_> =
        ["accounts"].into_iter().chain(sizes.iter().map(String::as_str)).collect();
    Table::new(&columns)
}

fn millions(accounts: f64) -> String {
    format!("{} million", number(accounts / 1e6))
}

/// Formats bytes with a decimal unit.
fn bytes(bytes: f64) -> String {
    let units = [(1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB")];
    let unit = units.into_iter().find(|(unit, _)| bytes >= *unit);
    let (unit, name) = unit.unwrap_or((1.0, "bytes"));
    format!("{} {name}", number(bytes / unit))
}

/// Formats a number with three significant digits, or all digits before the point.
fn number(value: f64) -> String {
    let decimals = match value {
        value if value >= 100.0 || value.fract() == 0.0 => 0,
        value if value >= 10.0 => 1,
        value if value >= 1.0 => 2,
        value if value >= 0.1 => 3,
        _ => 4,
    };
    let text = format!("{value:.decimals$}");
    let (digits, rest) = text.split_once('.').unwrap_or((&text, ""));
    let mut grouped = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    // `0.100` is shorter as `0.1`.
    let rest = rest.trim_end_matches('0');
    if rest.is_empty() { grouped } else { format!("{grouped}.{rest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_are_short() {
        let numbers = [0.0, 0.01234, 0.1, 1.0, 9.87654, 12.34, 1234.5, 50_000_000.0].map(number);
        assert_eq!(numbers, ["0", "0.0123", "0.1", "1", "9.88", "12.3", "1,234", "50,000,000"]);
        assert_eq!(bytes(29.6e12), "29.6 TB");
        assert_eq!(bytes(512.0), "512 bytes");
    }
}
