//! Edge list parser: files with one `follower following` per line. Independent of services.

use std::{
    borrow::Cow,
    io::{self, BufRead, Read as _},
};

use indexmap::IndexMap;

use crate::input;

// Bounds memory if the file is not text.
const LINE_BYTES_MAX: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 30;

/// A follow graph from a file.
#[derive(Debug, Default)]
pub struct EdgeList {
    /// Names in the order of their first occurrence. Names are case-insensitive, as in the user
    /// service.
    names: IndexMap<Box<str>, Box<str>>,
    /// The follows, in the order of the file.
    pub edges: Vec<Edge>,
    /// Number of self-follows, which are not in `edges`.
    pub self_follows: u64,
}

/// A follow, as indexes into [`EdgeList::names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Index of the follower.
    pub follower: u32,
    /// Index of the followed account.
    pub target: u32,
}

/// Errors of reading an edge list.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot read {file}")]
    /// The file cannot be read.
    Read {
        /// The file's name.
        file: String,
        /// The I/O error.
        source: io::Error,
    },
    #[error("{file}, line {line}: {problem}")]
    /// A line is invalid.
    Line {
        /// The file's name.
        file: String,
        /// The line number, from 1.
        line: u64,
        /// The reason.
        problem: String,
    },
}

/// Reads an edge list, gzipped or plain; `-` is standard input.
pub fn read(file: &str) -> Result<EdgeList, Error> {
    let unreadable = |source| Error::Read { file: file.to_owned(), source };
    parse(input::name(file), input::open(file).map_err(unreadable)?)
}

/// Parses an edge list. Errors contain the name `file`.
pub fn parse(file: &str, mut input: impl BufRead) -> Result<EdgeList, Error> {
    let mut list = EdgeList::default();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(|source| Error::Read { file: file.to_owned(), source })? == 0 {
            break;
        }
        list.add(&line).map_err(|problem| Error::Line {
            file: file.to_owned(),
            line: number,
            problem,
        })?;
    }
    Ok(list)
}

impl EdgeList {
    /// Creates a list from distinct names (case-insensitive) and edges between their indexes.
    pub fn new(names: impl IntoIterator<Item = String>, edges: Vec<Edge>) -> Self {
        let keyed = |name: String| (name.to_ascii_lowercase().into(), name.into());
        Self { names: names.into_iter().map(keyed).collect(), edges, self_follows: 0 }
    }

    /// Returns the names in their first spelling.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.values().map(|name| &**name)
    }

    fn add(&mut self, line: &[u8]) -> Result<(), String> {
        if line.len() as u64 == LINE_BYTES_MAX {
            return Err(format!("is longer than {LINE_BYTES_MAX} bytes"));
        }
        // Some editors write a byte-order mark.
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line).trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            return Ok(());
        }
        let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let (Some(follower), Some(target), None) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(format!("expected `follower following`, found `{}`", excerpt(line)));
        };
        let edge = Edge { follower: self.index(follower)?, target: self.index(target)? };
        if edge.follower == edge.target {
            self.self_follows += 1;
        } else {
            self.edges.push(edge);
        }
        Ok(())
    }

    /// Returns the index of a name, and adds the name if it is new.
    fn index(&mut self, field: &[u8]) -> Result<u32, String> {
        let name = name(field)?;
        let key = if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
            Cow::Owned(name.to_ascii_lowercase())
        } else {
            Cow::Borrowed(name)
        };
        let index = match self.names.get_index_of(&*key) {
            Some(index) => index,
            None => self.names.insert_full(key.into(), name.into()).0,
        };
        u32::try_from(index).map_err(|_| "more than 2^32 names".to_owned())
    }
}

/// Returns the name of an account, or why the bytes are none.
pub fn name(field: &[u8]) -> Result<&str, String> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    match str::from_utf8(field) {
        Ok(name) if (1..=NAME_BYTES_MAX).contains(&name.len()) && field.iter().all(allowed) => {
            Ok(name)
        }
        _ => Err(format!(
            "`{}` cannot be an account's name: 1 to 30 of A-Z, a-z, 0-9 and underscore",
            excerpt(field)
        )),
    }
}

/// Returns a prefix of the bytes, escaped for a terminal.
pub fn excerpt(bytes: &[u8]) -> String {
    const EXCERPT_BYTES: usize = 40;
    let end = bytes.len().min(EXCERPT_BYTES);
    let rest = if end < bytes.len() { "…" } else { "" };
    format!("{}{rest}", String::from_utf8_lossy(&bytes[..end]).escape_debug())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn read_text(text: impl AsRef<[u8]>) -> Result<EdgeList, Error> {
        let unreadable = |source| Error::Read { file: "graph".to_owned(), source };
        parse("graph", input::unpacked(text.as_ref()).map_err(unreadable)?)
    }

    fn edges(list: &EdgeList) -> Vec<(&str, &str)> {
        let names: Vec<_> = list.names().collect();
        let named = |edge: &Edge| (names[edge.follower as usize], names[edge.target as usize]);
        list.edges.iter().map(named).collect()
    }

    fn gzipped(text: &str) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(text.as_bytes()).unwrap();
        packer.finish().unwrap()
    }

    #[test]
    fn comments_blank_lines_and_any_white_space_are_accepted() {
        let list = read_text("\u{feff}# a\tb c d\r\n\r\n1 2\r\n  2\t 1 \n\n#\nada_L 1").unwrap();
        assert_eq!(edges(&list), [("1", "2"), ("2", "1"), ("ada_L", "1")]);
    }

    #[test]
    fn an_empty_file_is_an_empty_graph() {
        assert!(read_text("").unwrap().edges.is_empty());
        assert_eq!(read_text("# nothing").unwrap().names().len(), 0);
    }

    #[test]
    fn self_follows_are_counted_and_keep_the_account() {
        let list = read_text("1 1\n1 2\n3 3\n").unwrap();
        assert_eq!(list.self_follows, 2);
        assert_eq!(edges(&list), [("1", "2")]);
        assert_eq!(list.names().collect::<Vec<_>>(), ["1", "2", "3"]);
    }

    #[test]
    fn names_that_differ_in_case_are_one_account() {
        let list = read_text("Ada bob\nBOB ada\nADA aDa\n").unwrap();
        assert_eq!(edges(&list), [("Ada", "bob"), ("bob", "Ada")]);
        assert_eq!(list.self_follows, 1);
    }

    #[test]
    fn invalid_lines_are_rejected_with_the_line_number() {
        let too_long = "x".repeat(31);
        let lines =
            ["1", "1 2 3", "1 b-c", "1 \0", "é 1", "\u{1b}[2J 1", &format!("1 {too_long}"), "1,2"];
        for line in lines {
            let error = read_text(format!("# a\n1 2\n\n{line}\n3 4\n")).unwrap_err().to_string();
            assert!(error.starts_with("graph, line 4: "), "{line:?}: {error}");
            assert!(!error.contains(char::is_control), "{line:?}: {error:?}");
        }
        assert!(read_text([0xff; 5]).unwrap_err().to_string().starts_with("graph, line 1: "));
        assert!(
            read_text(vec![b'#'; 1 << 20]).unwrap_err().to_string().contains("line 1: is longer")
        );
    }

    #[test]
    fn gzip_is_detected_by_content_and_may_have_several_members() {
        let packed = [gzipped("1 2\n2"), gzipped(" 3\n")].concat();
        assert_eq!(edges(&read_text(packed).unwrap()), [("1", "2"), ("2", "3")]);
    }

    #[test]
    fn the_error_for_truncated_gzip_names_the_file() {
        let packed = gzipped(&"1 2\n".repeat(1000));
        let error = read_text(&packed[..packed.len() - 9]).unwrap_err();
        assert_eq!(error.to_string(), "cannot read graph");
    }
}
