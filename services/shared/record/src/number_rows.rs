//! Rows of numbers as parameters of a statement: its text is the same for any number of rows, so each
//! connection prepares it once.

use std::fmt::Write as _;

use sqlx::{Any, any::AnyArguments, query::Query};

use crate::sql;

/// Returns the table of rows as an expression, `numbers`, with the columns `column1`, `column2` and so on.
/// Its parameters begin with `$first`.
pub fn table(is_embedded: bool, first: usize, columns: usize) -> String {
    let join =
        |column: &dyn Fn(usize) -> String| (0..columns).map(column).collect::<Vec<_>>().join(", ");
    if is_embedded {
        let values = join(&|at| format!("value ->> {at} AS column{}", at + 1));
        return format!("(SELECT {values} FROM json_each(${first})) AS numbers");
    }
    let arrays = join(&|at| format!("CAST(${} AS bigint[])", first + at));
    let names = join(&|at| format!("column{}", at + 1));
    format!("unnest({arrays}) AS numbers ({names})")
}

/// Binds the rows of a [`table`] as the next parameters: an array for each column in PostgreSQL, JSON in
/// SQLite.
pub fn bind<const COLUMNS: usize>(
    query: Query<'static, Any, AnyArguments>,
    is_embedded: bool,
    rows: &[[u64; COLUMNS]],
) -> Query<'static, Any, AnyArguments> {
    parameters(is_embedded, rows).into_iter().fold(query, Query::bind)
}

/// Returns the parameters that [`bind`] binds.
pub fn parameters<const COLUMNS: usize>(is_embedded: bool, rows: &[[u64; COLUMNS]]) -> Vec<String> {
    if is_embedded {
        let rows = rows.iter().map(|row| list("[]", row.iter().copied()));
        return vec![format!("[{}]", rows.collect::<Vec<_>>().join(","))];
    }
    let column = |at: usize| list("{}", rows.iter().map(|row| row[at]));
    (0..COLUMNS).map(column).collect()
}

/// Returns the condition that a column is one of some numbers, the parameter `$parameter`. PostgreSQL looks
/// each up in an index, where a join might read the whole index of a small table, and keep that plan.
pub fn contains(is_embedded: bool, column: &str, parameter: usize) -> String {
    match is_embedded {
        true => format!("{column} IN (SELECT value ->> 0 FROM json_each(${parameter}))"),
        false => format!("{column} = ANY (CAST(${parameter} AS bigint[]))"),
    }
}

/// Binds one column of numbers.
pub fn bind_column(
    query: Query<'static, Any, AnyArguments>,
    is_embedded: bool,
    numbers: impl IntoIterator<Item = u64>,
) -> Query<'static, Any, AnyArguments> {
    let rows: Vec<[u64; 1]> = numbers.into_iter().map(|number| [number]).collect();
    bind(query, is_embedded, &rows)
}

fn list(brackets: &str, numbers: impl Iterator<Item = u64>) -> String {
    let (open, close) = brackets.split_at(1);
    let mut text = open.to_owned();
    for number in numbers {
        let separator = if text.len() == 1 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{separator}{}", sql::number(number));
    }
    text.push_str(close);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_numbered() {
        assert_eq!(
            table(false, 2, 2),
            "unnest(CAST($2 AS bigint[]), CAST($3 AS bigint[])) AS numbers (column1, column2)"
        );
        assert_eq!(
            table(true, 2, 2),
            "(SELECT value ->> 0 AS column1, value ->> 1 AS column2 FROM json_each($2)) AS numbers"
        );
    }
}
