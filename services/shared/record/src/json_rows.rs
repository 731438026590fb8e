//! Rows of texts and numbers as one parameter of a statement, in JSON: its text is the same for any number
//! of rows, so each connection prepares it once. [`number_rows`](crate::number_rows) takes less time, but
//! has no texts.

use serde_json::Value;
use sqlx::{Any, any::AnyArguments, query::Query};

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Numbers below 2^63.
    Number,
    /// Texts, which must not contain U+0000: PostgreSQL has none with it.
    Text,
}

/// Returns the table of rows as an expression, `json_rows`, with columns of some names. Its parameter is
/// `$parameter`.
pub fn table(is_embedded: bool, parameter: usize, columns: &[(&str, Type)]) -> String {
    let column = |(at, (name, column)): (usize, &(&str, Type))| match (is_embedded, column) {
        (true, _) => format!("value ->> {at} AS {name}"),
        (false, Type::Number) => format!("CAST(value ->> {at} AS bigint) AS {name}"),
        (false, Type::Text) => format!("value ->> {at} AS {name}"),
    };
    let columns = columns.iter().enumerate().map(column).collect::<Vec<_>>().join(", ");
    let rows = match is_embedded {
        true => format!("json_each(${parameter})"),
        false => format!("json_array_elements(CAST(${parameter} AS json))"),
    };
    format!("(SELECT {columns} FROM {rows}) AS json_rows")
}

/// Binds the rows of a [`table`] as the next parameter.
pub fn bind<const COLUMNS: usize>(
    query: Query<'static, Any, AnyArguments>,
    rows: impl IntoIterator<Item = [Value; COLUMNS]>,
) -> Query<'static, Any, AnyArguments> {
    query.bind(parameter(rows))
}

/// Returns the parameter that [`bind`] binds.
pub fn parameter<const COLUMNS: usize>(rows: impl IntoIterator<Item = [Value; COLUMNS]>) -> String {
    let rows = rows.into_iter().map(|row| Value::from(row.to_vec())).collect();
    Value::Array(rows).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_names_and_types() {
        let columns = [("id", Type::Number), ("name", Type::Text)];
        assert_eq!(
            table(false, 2, &columns),
            "(SELECT CAST(value ->> 0 AS bigint) AS id, value ->> 1 AS name \
             FROM json_array_elements(CAST($2 AS json))) AS json_rows"
        );
        assert_eq!(
            table(true, 1, &columns),
            "(SELECT value ->> 0 AS id, value ->> 1 AS name FROM json_each($1)) AS json_rows"
        );
    }
}
