//! The length-prefixed frame. Source: wire-protocol sheet 1.1 and 1.7.
//!
//! | at | bytes | field                                                    |
//! | -- | ----- | -------------------------------------------------------- |
//! | 0  | 4     | bytes that follow this field: 4 + header + body          |
//! | 4  | 1     | serialize type: 0 JSON, 1 binary                         |
//! | 5  | 3     | header bytes                                             |
//! | 8  | h     | header                                                   |
//! | 8+h| rest  | body, opaque                                             |
//!
//! Used by every connection, server or client. It knows nothing of what header and body mean.
use thiserror::Error;

/// Largest frame, its length prefix included (Java: `com.rocketmq.remoting.frameMaxLength`).
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Length prefix and header word, in front of the header.
pub const PREFIX_BYTES: usize = 8;
/// Largest header the 24-bit header word can tell of.
pub const HEADER_BYTES_MAX: usize = 0xFF_FFFF;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serialize {
    Json,
    Binary,
}

#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    pub serialize: Serialize,
    pub header: &'a [u8],
    pub body: &'a [u8],
}

/// What the start of a buffer holds.
#[derive(Debug)]
pub enum Split<'a> {
    /// Not a whole frame yet; the frame will be `need` bytes long in all (0 when even that is not known).
    More { need: usize },
    /// A frame of `bytes` bytes, its prefix included.
    Whole { frame: Frame<'a>, bytes: usize },
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    #[error("frame of {bytes} bytes, limit {FRAME_BYTES_MAX}")]
    TooLong { bytes: u64 },
    #[error("frame length {0} is shorter than a header word")]
    TooShort(u32),
    #[error("header of {header} bytes in a frame of {frame}")]
    HeaderTooLong { header: usize, frame: usize },
    #[error("unknown serialize type {0}")]
    UnknownSerialize(u8),
    /// The first bytes are those of another protocol; the text names the likely mistake.
    #[error("not a remoting frame: {0}")]
    OtherProtocol(&'static str),
}

/// How other protocols begin. None of these can be a legal frame: its first byte is 0, since its length is below 16 MiB.
const OTHERS: &[(&[u8], &str)] = &[
    (&[0x16, 0x03], "a TLS handshake on a port without TLS"),
    (b"PRI * HTTP/2.0", "an HTTP/2 (gRPC) client on the remoting port"),
    (b"GET ", "an HTTP request on the remoting port"),
    (b"POST", "an HTTP request on the remoting port"),
    (b"PUT ", "an HTTP request on the remoting port"),
    (b"HEAD", "an HTTP request on the remoting port"),
    (b"DELETE ", "an HTTP request on the remoting port"),
    (b"OPTIONS ", "an HTTP request on the remoting port"),
    (b"PROXY ", "a HAProxy PROXY preamble, which is not supported here"),
    (b"\r\n\r\n\0\r\nQUIT\n", "a HAProxy PROXY v2 preamble, which is not supported here"),
];

/// Splits the first frame off `buf`. `first` is true while nothing was read from this connection before: then the
/// start is also tested for TLS, HTTP and HTTP/2 (known fault P04), so that it is refused at once.
pub fn split(buf: &[u8], first: bool) -> Result<Split<'_>, FrameError> {
    let Some(prefix) = buf.first_chunk::<4>() else {
        if first && buf.starts_with(OTHERS[0].0) {
            return Err(FrameError::OtherProtocol(OTHERS[0].1));
        }
        return Ok(Split::More { need: 0 });
    };
    let length = u32::from_be_bytes(*prefix);
    let bytes = length as usize + 4;
    if bytes > FRAME_BYTES_MAX {
        // Judged on what is here: four bytes of a longer greeting are enough to name it.
        let other = OTHERS.iter().find(|(start, _)| {
            let seen = start.len().min(buf.len());
            start[..seen] == buf[..seen]
        });
        return Err(match other {
            Some((_, mistake)) if first => FrameError::OtherProtocol(mistake),
            _ => FrameError::TooLong { bytes: length as u64 + 4 },
        });
    }
    if length < 4 {
        return Err(FrameError::TooShort(length));
    }
    let Some(&[kind, h2, h1, h0]) = buf.get(4..8).and_then(|word| word.first_chunk::<4>()) else {
        return Ok(Split::More { need: bytes });
    };
    let serialize = match kind {
        0 => Serialize::Json,
        1 => Serialize::Binary,
        other => return Err(FrameError::UnknownSerialize(other)),
    };
    let header = u32::from_be_bytes([0, h2, h1, h0]) as usize;
    if header > bytes - PREFIX_BYTES {
        return Err(FrameError::HeaderTooLong { header, frame: bytes });
    }
    match buf.get(PREFIX_BYTES..bytes) {
        None => Ok(Split::More { need: bytes }),
        Some(rest) => {
            let (header, body) = rest.split_at(header);
            Ok(Split::Whole { frame: Frame { serialize, header, body }, bytes })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, header: &[u8], body: &[u8]) -> Vec<u8> {
        let mut out = ((4 + header.len() + body.len()) as u32).to_be_bytes().to_vec();
        out.extend_from_slice(&(((kind as u32) << 24) | header.len() as u32).to_be_bytes());
        out.extend_from_slice(header);
        out.extend_from_slice(body);
        out
    }

    #[test]
    fn whole_frames_are_split_and_the_rest_is_left() {
        let mut buf = frame(0, b"{}", b"body");
        let bytes = buf.len();
        buf.extend_from_slice(&frame(1, &[0; 21], b""));
        for first in [false, true] {
            let Split::Whole { frame, bytes: took } = split(&buf, first).unwrap() else { panic!("not whole") };
            assert_eq!(
                (frame.serialize, frame.header, frame.body, took),
                (Serialize::Json, &b"{}"[..], &b"body"[..], bytes)
            );
            let Split::Whole { frame, bytes: took } = split(&buf[bytes..], first).unwrap() else { panic!("not whole") };
            assert_eq!((frame.serialize, frame.header.len(), frame.body.len(), took), (Serialize::Binary, 21, 0, 29));
        }
    }

    #[test]
    fn every_prefix_of_a_frame_asks_for_more() {
        let whole = frame(0, b"{\"code\":1}", b"x");
        for cut in 0..whole.len() {
            match split(&whole[..cut], true).unwrap() {
                Split::More { need } => assert_eq!(need, if cut < 4 { 0 } else { whole.len() }),
                Split::Whole { .. } => panic!("whole at {cut}"),
            }
        }
    }

    /// Known fault P01, a to d; e and f are header faults.
    #[test]
    fn short_long_and_garbled_frames_are_errors() {
        assert_eq!(split(&[0, 0, 0, 0], true).unwrap_err(), FrameError::TooShort(0));
        assert_eq!(split(&[0, 0, 0, 2, 1, 1], true).unwrap_err(), FrameError::TooShort(2));
        assert_eq!(split(&[0, 0, 0, 8, 7, 0, 0, 4, 0, 0, 0, 0], true).unwrap_err(), FrameError::UnknownSerialize(7));
        assert_eq!(
            split(&[0, 0, 0, 8, 0, 0, 0, 5], false).unwrap_err(),
            FrameError::HeaderTooLong { header: 5, frame: 12 }
        );
        assert_eq!(split(&[255; 4], false).unwrap_err(), FrameError::TooLong { bytes: u32::MAX as u64 + 4 });
        let limit = (FRAME_BYTES_MAX as u32 - 4).to_be_bytes();
        assert!(matches!(split(&limit, true), Ok(Split::More { need: FRAME_BYTES_MAX })));
        let beyond = (FRAME_BYTES_MAX as u32 - 3).to_be_bytes();
        assert_eq!(split(&beyond, true).unwrap_err(), FrameError::TooLong { bytes: FRAME_BYTES_MAX as u64 + 1 });
    }

    /// Known fault P04.
    #[test]
    fn other_protocols_are_named_at_once_on_a_fresh_connection_only() {
        let greetings: [&[u8]; 8] = [
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET / HTTP/1.1\r\n",
            b"POST /x HTTP/1.1\r\n",
            b"PUT /x HTTP/1.1\r\n",
            b"HEAD / HTTP/1.1\r\n",
            &[0x16, 3, 1, 2, 0, 1],
            b"PROXY TCP4 1.2.3.4",
            b"\r\n\r\n\0\r\nQUIT\n",
        ];
        for greeting in greetings {
            for cut in 4..=greeting.len() {
                let error = split(&greeting[..cut], true).unwrap_err();
                assert!(matches!(error, FrameError::OtherProtocol(_)), "{greeting:?} cut at {cut}: {error}");
                assert!(matches!(split(&greeting[..cut], false).unwrap_err(), FrameError::TooLong { .. }));
            }
        }
        assert!(matches!(split(&[0x16, 3], true).unwrap_err(), FrameError::OtherProtocol(m) if m.contains("TLS")));
        assert!(matches!(split(b"GXYZ", true).unwrap_err(), FrameError::TooLong { .. }));
    }
}
