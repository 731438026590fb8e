//! A file with a password: plain text, not percent-encoded.

use std::path::PathBuf;

use crate::text_file::TextFile;

// A token of a cloud, in place of a password, has some kilobytes.
const BYTES_MAX: u64 = 64 << 10;

/// Returns a file with a password. A newline at its end is not part of the password.
pub fn password_file(path: PathBuf) -> TextFile<String> {
    TextFile { path, bytes_max: BYTES_MAX, parse: password }
}

fn password(text: &str) -> Result<String, String> {
    let line = text.strip_suffix('\n').unwrap_or(text);
    match line.strip_suffix('\r').unwrap_or(line) {
        "" => Err("it has no password".to_owned()),
        password => Ok(password.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use microblog_testkit::Files;

    use super::*;
    use crate::{Loader as _, UnusableText};

    fn load(path: PathBuf) -> Result<String, UnusableText> {
        let file = password_file(path);
        file.read().and_then(|text| file.build(&text))
    }

    #[test]
    fn password_is_the_text_without_one_newline_at_its_end() {
        let files = Files::new();
        for (text, password) in [
            ("p%40ss:/@", "p%40ss:/@"),
            ("secret\n", "secret"),
            ("secret\r\n", "secret"),
            (" in ner \n\n", " in ner \n"),
        ] {
            assert_eq!(load(files.write("password", text)).unwrap(), password);
        }
    }

    #[test]
    fn unusable_file_is_named_without_its_content() {
        let files = Files::new();
        let long = "secret".repeat(11_000);
        for (path, expected) in [
            (files.path("missing"), "No such file"),
            (files.write("empty", ""), "no password"),
            (files.write("newline", "\n"), "no password"),
            (files.write("long", &long), "larger than 65536 bytes"),
        ] {
            let error = load(path.clone()).unwrap_err();
            let text = format!("{error}: {} {error:?}", error.source().unwrap());
            assert!(text.contains(&*path.to_string_lossy()) && text.contains(expected), "{text}");
            assert!(!text.contains("secret"), "{text}");
        }
    }
}
