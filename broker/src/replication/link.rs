//! One socket of the protocol, read and written by different futures of one executor; closed when dropped.
use futures_lite::{AsyncRead, AsyncWrite};
use glommio::net::TcpStream;
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

pub struct Link {
    pub peer: SocketAddr,
    /// Borrowed within a poll only.
    stream: RefCell<TcpStream>,
}

impl Link {
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok(Link { peer, stream: RefCell::new(stream) })
    }

    pub async fn connect(peer: SocketAddr, timeout: Duration) -> io::Result<Self> {
        Link::new(TcpStream::connect_timeout(peer, timeout).await?)
    }

    /// Some bytes; `UnexpectedEof` when the peer closed.
    pub async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        match poll_fn(|cx| Pin::new(&mut *self.stream.borrow_mut()).poll_read(cx, buf)).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => Ok(bytes),
        }
    }

    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match poll_fn(|cx| Pin::new(&mut *self.stream.borrow_mut()).poll_write(cx, bytes)).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                wrote => bytes = &bytes[wrote..],
            }
        }
        Ok(())
    }
}
