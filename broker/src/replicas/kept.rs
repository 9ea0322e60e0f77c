//! Sockets that outlive the program that opened them: a start over executes the same program anew in the same process, and the controller
//! takes the end of a heartbeat's connection for the broker's death.
use crate::config::HostPort;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, RawFd};

#[derive(Debug, Default)]
pub struct Kept(pub Vec<(HostPort, TcpStream)>);

fn close_on_exec(fd: RawFd, on: bool) -> io::Result<()> {
    let flag = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: F_SETFD on a descriptor number touches no memory; a wrong number is an error.
    match unsafe { libc::fcntl(fd, libc::F_SETFD, flag) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Kept {
    /// In the environment of the next start: `address=descriptor` entries separated by `,`.
    pub const VARIABLE: &str = "URINGMQ_HEARTBEATS";

    /// Leaves the sockets open for the next program; the value of [`Kept::VARIABLE`] for it.
    pub fn hand_on(self) -> String {
        let entry = |(at, stream): (HostPort, TcpStream)| {
            close_on_exec(stream.as_raw_fd(), false).ok()?;
            Some(format!("{at}={}", stream.into_raw_fd()))
        };
        self.0.into_iter().filter_map(entry).collect::<Vec<_>>().join(",")
    }

    /// What the program before handed on. What is no connected socket is left alone.
    pub fn take_over() -> Self {
        std::env::var(Self::VARIABLE).map_or_else(|_| Kept::default(), |text| Self::of_text(&text))
    }

    fn of_text(text: &str) -> Self {
        let entry = |entry: &str| {
            let (at, fd) = entry.rsplit_once('=')?;
            let (at, fd) = (HostPort::read(at).ok()?, fd.parse::<RawFd>().ok().filter(|fd| *fd > 2)?);
            close_on_exec(fd, true).ok()?;
            // SAFETY: the number was handed on by this process before it executed this program, which has opened no descriptor by a number of
            // its own; nobody else owns it.
            let stream = unsafe { TcpStream::from_raw_fd(fd) };
            match stream.peer_addr() {
                Ok(_) => Some((at, stream)),
                Err(_) => {
                    let _ = stream.into_raw_fd(); // something else's
                    None
                }
            }
        };
        Kept(text.split(',').filter_map(entry).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn a_socket_goes_on_under_its_number() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut ours = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut theirs = listener.accept().unwrap().0;
        ours.write_all(b"a").unwrap();
        let at = HostPort { host: "127.0.0.1".into(), port };
        let text = Kept(vec![(at.clone(), ours)]).hand_on();
        let mut taken = Kept::of_text(&format!("{text},nonsense,h:1=1"));
        assert_eq!(taken.0.len(), 1);
        let (back, mut stream) = taken.0.remove(0);
        stream.write_all(b"b").unwrap();
        drop(stream);
        let mut all = String::new();
        theirs.read_to_string(&mut all).unwrap();
        assert_eq!((back, all.as_str()), (at, "ab"));
    }
}
