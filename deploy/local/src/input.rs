//! Input files: plain or gzipped, or standard input.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;

const READ_BUFFER_BYTES: usize = 256 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Returns the name of a file in messages.
pub fn name(file: &str) -> &str {
    if file == "-" { "standard input" } else { file }
}

/// Opens a file, gzipped or plain; `-` is standard input.
pub fn open(file: &str) -> io::Result<Box<dyn BufRead>> {
    if file == "-" {
        return unpacked(BufReader::new(io::stdin()));
    }
    unpacked(BufReader::with_capacity(READ_BUFFER_BYTES, File::open(Path::new(file))?))
}

/// Unpacks what is gzipped. Detects gzip by its magic number, not by the file name, so that standard input may
/// be gzipped.
pub fn unpacked<'a>(mut input: impl BufRead + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    Ok(match input.fill_buf()?.starts_with(&GZIP_MAGIC) {
        true => Box::new(BufReader::with_capacity(READ_BUFFER_BYTES, MultiGzDecoder::new(input))),
        false => Box::new(input),
    })
}
