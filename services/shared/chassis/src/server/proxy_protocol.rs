//! The PROXY protocol, versions 1 and 2: a balancer of layer 4 tells who connects to it
//! (<https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>). Its header comes before everything
//! else, also before TLS.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How a header of version 2 begins.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Length of the longest header of version 1.
const LINE_MAX: usize = 107;

// Version 2 with its commands, and families with their protocol.
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// Reads the header of a connection, and nothing beyond it. Returns the client's address; `None` if the
/// balancer names none, as on connections of its own.
pub(super) async fn read_header(
    connection: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<SocketAddr>> {
    // The shortest header is longer.
    let mut begin = [0; SIGNATURE.len()];
    connection.read_exact(&mut begin).await?;
    if begin == SIGNATURE {
        return read_version_2(connection).await;
    }
    let mut line = begin.to_vec();
    while line.starts_with(b"PROXY ") && !line.ends_with(b"\r\n") && line.len() < LINE_MAX {
        line.push(connection.read_u8().await?);
    }
    let text = str::from_utf8(&line).ok().and_then(|text| text.strip_suffix("\r\n"));
    text.and_then(parse_version_1).ok_or_else(invalid)
}

/// Parses `PROXY TCP4 198.51.100.1 203.0.113.1 35646 443`, or `PROXY UNKNOWN` with anything after it.
fn parse_version_1(line: &str) -> Option<Option<SocketAddr>> {
    let mut words = line.strip_prefix("PROXY ")?.split(' ');
    let is_family: fn(&IpAddr) -> bool = match words.next()? {
        "UNKNOWN" => return Some(None),
        "TCP4" => IpAddr::is_ipv4,
        "TCP6" => IpAddr::is_ipv6,
        _ => return None,
    };
    let mut address = || words.next()?.parse::<IpAddr>().ok().filter(is_family);
    let (client, _balancer) = (address()?, address()?);
    let mut port = || words.next()?.parse::<u16>().ok();
    let (client_port, _balancer_port) = (port()?, port()?);
    words.next().is_none().then(|| Some(SocketAddr::new(client, client_port)))
}

async fn read_version_2(
    connection: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<SocketAddr>> {
    let (command, family) = (connection.read_u8().await?, connection.read_u8().await?);
    let length = connection.read_u16().await?;
    // Addresses, and extensions that say nothing here.
    let mut rest = vec![0; length.into()];
    connection.read_exact(&mut rest).await?;
    match (command, family) {
        (PROXY, TCP_OVER_IPV4) => client::<4>(&rest, |&address| Ipv4Addr::from(address).into()),
        (PROXY, TCP_OVER_IPV6) => client::<16>(&rest, |&address| Ipv6Addr::from(address).into()),
        (PROXY | LOCAL, _) => Ok(None),
        _ => Err(invalid()),
    }
}

/// Reads the client's address and port out of both addresses, followed by both ports.
fn client<const LENGTH: usize>(
    addresses: &[u8],
    address: fn(&[u8; LENGTH]) -> IpAddr,
) -> io::Result<Option<SocketAddr>> {
    let (from, rest) = addresses.split_first_chunk().ok_or_else(invalid)?;
    let ports = rest.get(LENGTH..LENGTH + 4).ok_or_else(invalid)?;
    Ok(Some(SocketAddr::new(address(from), u16::from_be_bytes([ports[0], ports[1]]))))
}

fn invalid() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "no header of the PROXY protocol")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// Reads a header out of bytes that are all there. Returns how many follow it.
    fn read(mut bytes: &[u8]) -> Result<(Option<String>, usize), io::ErrorKind> {
        let header = read_header(&mut bytes).now_or_never().expect("it waits for nothing");
        let client = header.map_err(|error| error.kind())?;
        Ok((client.map(|client| client.to_string()), bytes.len()))
    }

    fn version_2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [&SIGNATURE[..], &[command, family], &length, rest].concat()
    }

    #[test]
    fn headers_name_the_client_and_end_before_its_first_byte() {
        let v4 = [&[198, 51, 100, 1, 203, 0, 113, 1][..], &[0x8b, 0x3e, 1, 187]].concat();
        let v6 = [&Ipv6Addr::LOCALHOST.octets()[..], &[9; 16], &[0x8b, 0x3e, 1, 187]].concat();
        let extended = [&v4[..], &[3, 0, 4, 1, 2, 3, 4]].concat();
        for (header, expected) in [
            (b"PROXY TCP4 198.51.100.1 203.0.113.1 35646 443\r\n".to_vec(), "198.51.100.1:35646"),
            (b"PROXY TCP6 ::1 2001:db8::1 35646 443\r\n".to_vec(), "[::1]:35646"),
            (b"PROXY UNKNOWN\r\n".to_vec(), ""),
            (b"PROXY UNKNOWN ::1 2001:db8::1 35646 443\r\n".to_vec(), ""),
            (version_2(PROXY, TCP_OVER_IPV4, &v4), "198.51.100.1:35646"),
            (version_2(PROXY, TCP_OVER_IPV4, &extended), "198.51.100.1:35646"),
            (version_2(PROXY, TCP_OVER_IPV6, &v6), "[::1]:35646"),
            (version_2(PROXY, 0, &[]), ""),
            (version_2(PROXY, 0x31, &[7; 216]), ""),
            (version_2(LOCAL, 0, &[]), ""),
            (version_2(LOCAL, TCP_OVER_IPV4, &v4), ""),
        ] {
            let expected = (!expected.is_empty()).then(|| expected.to_owned());
            let bytes = [&header[..], b"\r\nbytes"].concat();
            assert_eq!(read(&bytes), Ok((expected, 7)), "{}", String::from_utf8_lossy(&header));
        }
    }

    #[test]
    fn what_is_no_header_is_rejected() {
        let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_MAX - 16));
        assert_eq!(read(longest.as_bytes()), Ok((None, 0)));
        let too_long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(LINE_MAX - 15));
        for bytes in [
            too_long.as_bytes(),
            b"POST / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"PROXY TCP4 198.51.100.1 203.0.113.1 35646\r\n",
            b"PROXY TCP4 198.51.100.1 203.0.113.1 35646 443 1\r\n",
            b"PROXY TCP4 198.51.100.1  203.0.113.1 35646 443\r\n",
            b"PROXY TCP4 ::1 2001:db8::1 35646 443\r\n",
            b"PROXY TCP6 198.51.100.1 203.0.113.1 35646 443\r\n",
            b"PROXY TCP4 198.51.100.1 203.0.113.1 65536 443\r\n",
            b"PROXY UDP4 198.51.100.1 203.0.113.1 35646 443\r\n",
            b"PROXY \xff\xff\xff\xff\xff\xff\r\n",
            &version_2(0x22, TCP_OVER_IPV4, &[0; 12]),
            &version_2(0x11, TCP_OVER_IPV4, &[0; 12]),
            &version_2(PROXY, TCP_OVER_IPV4, &[0; 11]),
            &version_2(PROXY, TCP_OVER_IPV6, &[0; 12]),
        ] {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(read(bytes), Err(io::ErrorKind::InvalidData), "{text}");
        }
        for bytes in [&b""[..], b"PROXY TCP4 198.51.100.1", &version_2(PROXY, 0, &[1])[..16]] {
            assert_eq!(read(bytes), Err(io::ErrorKind::UnexpectedEof));
        }
    }

    #[test]
    fn any_bytes_are_a_header_or_an_error() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let _ = read(bytes);
            let _ = read(&[&b"PROXY TCP4 "[..], bytes].concat());
            let _ = read(&[&SIGNATURE[..], bytes].concat());
        });
    }
}
