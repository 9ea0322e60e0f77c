//! Servers that are of no use: one whose connections are made and never served, and one whose connections are never made.
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// More than a full queue of connections takes.
const FILL_MAX: usize = 64;

/// The kernel takes connections for it, and nobody reads them.
pub fn accepting() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

/// Whether something was sent on a connection.
pub fn hears_something(conn: &mut TcpStream) -> bool {
    conn.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    conn.read(&mut [0; 16]).is_ok_and(|bytes| bytes > 0)
}

/// Holds the connections that keep everybody else out.
pub struct Dropping {
    pub addr: SocketAddr,
    _listener: TcpListener,
    _fill: Vec<TcpStream>,
}

/// Its queue of connections is full, so the first packet of another one is dropped, as by a firewall.
pub fn dropping() -> Dropping {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    // SAFETY: a plain system call on a socket that is open; listening again sets the queue's length.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let addr = listener.local_addr().expect("its address");
    let mut fill = Vec::new();
    while let Ok(conn) = TcpStream::connect_timeout(&addr, Duration::from_millis(300)) {
        fill.push(conn);
        assert!(fill.len() < FILL_MAX, "its queue has no end");
    }
    Dropping { addr, _listener: listener, _fill: fill }
}
