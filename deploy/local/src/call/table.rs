//! Tables of answers, for people.

use prost_reflect::{
    DynamicMessage, Kind, MessageDescriptor, ReflectMessage as _, SerializeOptions,
};
use serde_json::Value;

/// Longer cells of a list are cut.
const CELL_CHARS: usize = 60;

/// Returns the table of an answer. If its first field is a list of messages, the table has a row for each
/// entry, below the names of the columns. Otherwise, it has a row for each field.
pub(super) fn table(answer: &DynamicMessage) -> serde_json::Result<String> {
    let list = answer.descriptor().fields().next().filter(|field| field.is_list());
    let entry = list.as_ref().and_then(|list| list.kind().as_message().cloned());
    let (Some(list), Some(entry)) = (list, entry) else {
        let (answer, columns) = (json(answer, true)?, columns(&answer.descriptor(), 0));
        let rows = columns.iter().filter_map(|column| {
            answer.pointer(column).map(|value| vec![header(column), text(value)])
        });
        return Ok(aligned(&rows.collect::<Vec<_>>()));
    };
    let entries = answer.get_field(&list);
    let entries =
        entries.as_list().unwrap_or_default().iter().filter_map(|entry| entry.as_message());
    let entries: Vec<_> = entries.collect();
    let all = |only_set| entries.iter().map(move |entry| json(entry, only_set));
    let set = all(true).collect::<Result<Vec<_>, _>>()?;
    let columns: Vec<_> = columns(&entry, 0)
        .into_iter()
        .filter(|column| set.is_empty() || set.iter().any(|entry| entry.pointer(column).is_some()))
        .collect();
    let mut rows = vec![columns.iter().map(|column| header(column)).collect()];
    for entry in all(false) {
        let entry = entry?;
        let cell = |column: &String| entry.pointer(column).map(text).unwrap_or_default();
        rows.push(columns.iter().map(|column| cut(cell(column))).collect());
    }
    Ok(aligned(&rows))
}

/// Returns the JSON of a message, with or without fields that are not set.
fn json(message: &DynamicMessage, only_set: bool) -> serde_json::Result<Value> {
    let options = SerializeOptions::new().skip_default_fields(only_set);
    message.serialize_with_options(serde_json::value::Serializer, &options)
}

/// Returns JSON pointers to the plain fields of a message and of the messages in it. Two levels deep is
/// only the name of an account: the author of a post, whose other fields would fill the screen.
fn columns(message: &MessageDescriptor, depth: usize) -> Vec<String> {
    let fields = message.fields().filter(|field| !field.is_list() && !field.is_map());
    let pointers = fields.flat_map(|field| match field.kind() {
        Kind::Message(inner) if !inner.full_name().starts_with("google.protobuf.") => {
            let inner = if depth < 2 { columns(&inner, depth + 1) } else { Vec::new() };
            inner.into_iter().map(|pointer| format!("/{}{pointer}", field.json_name())).collect()
        }
        _ if depth == 2 && field.name() != "name" => Vec::new(),
        _ => vec![format!("/{}", field.json_name())],
    });
    pointers.collect()
}

fn header(pointer: &str) -> String {
    pointer.trim_start_matches('/').replace('/', ".")
}

fn text(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    // Line breaks, and what a terminal would execute.
    text.replace(char::is_control, " ")
}

fn cut(cell: String) -> String {
    match cell.char_indices().nth(CELL_CHARS) {
        None => cell,
        Some((end, _)) => format!("{}…", &cell[..end]),
    }
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}
