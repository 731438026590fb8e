//! Makes Markdown of comments. Knows nothing of what they are about.
//!
//! Comments are paragraphs with empty lines between them; what is indented is a command.

/// Returns a comment as paragraphs and blocks of code.
pub(crate) fn paragraphs(comment: &str) -> String {
    let blocks: Vec<_> = blocks(comment).iter().map(|lines| block(lines)).collect();
    blocks.join("\n\n")
}

/// Returns a comment on one line, for the cell of a table.
pub(crate) fn cell(comment: &str) -> String {
    let blocks: Vec<_> = blocks(comment).iter().map(|lines| escaped(&lines.join(" "))).collect();
    blocks.join("<br>").replace('|', "\\|")
}

/// Returns the first sentence of a comment, for the cell of a table.
pub(crate) fn first_sentence(comment: &str) -> String {
    let text = blocks(comment).first().map(|lines| lines.join(" ")).unwrap_or_default();
    let end = text.find(". ").map_or(text.len(), |dot| dot + 1);
    cell(&text[..end])
}

fn blocks(comment: &str) -> Vec<Vec<&str>> {
    let lines: Vec<_> =
        comment.lines().map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let blocks = lines.split(|line| line.trim().is_empty());
    blocks.filter(|lines| !lines.is_empty()).map(<[_]>::to_vec).collect()
}

fn block(lines: &[&str]) -> String {
    let code: Option<Vec<_>> = lines.iter().map(|line| line.strip_prefix("  ")).collect();
    match code {
        Some(code) => format!("```sh\n{}\n```", code.join("\n")),
        None => escaped(&lines.join(" ")),
    }
}

/// Keeps what stands in angle brackets from being taken for HTML, but in code, where it is not.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts: Vec<_> = parts
        .map(|(at, part)| if at % 2 == 0 { part.replace('<', "&lt;") } else { part.to_owned() })
        .collect();
    parts.join("`")
}
