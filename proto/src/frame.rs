//! The length-prefixed frame. Source: wire-protocol sheet 1.1 and 1.7.
use thiserror::Error;

/// Largest frame, its length prefix included (Java: `com.rocketmq.remoting.frameMaxLength`).
pub const FRAME_BYTES_MAX: usize = 16 * 1024 * 1024;

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

/// Splits the first frame off `buf`. `first` is true while nothing was read from this connection before: then the
/// start is also tested for TLS, HTTP and HTTP/2 (known fault P04), so that it is refused at once.
pub fn split(buf: &[u8], first: bool) -> Result<Split<'_>, FrameError> {
    let _ = (buf, first);
    todo!()
}
