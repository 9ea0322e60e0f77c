//! Connections that said one thing and are silent since, as most clients of a broker are.
use crate::error::BenchError;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use uringmq_proto::codes::request::GET_MIN_OFFSET;
use uringmq_proto::command::write_request;
use uringmq_proto::headers::offset::GetMinOffset;

/// Other files of this process, generously.
const FILES_BESIDE: u64 = 1000;

/// Raises this process's limit of open files, as far as it may.
fn allow_files(wanted: u64) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is valid for the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0 && limit.rlim_cur < wanted {
        limit.rlim_cur = wanted.min(limit.rlim_max);
        // SAFETY: as above; a refusal shows when the connections are opened.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    }
}

/// Opens so many; they end with the list. What is answered stays unread.
pub(crate) fn open(broker: SocketAddr, count: usize) -> Result<Vec<TcpStream>, BenchError> {
    allow_files(count as u64 + FILES_BESIDE);
    let mut frame = Vec::new();
    // Something light: the answers of thousands of these at once must not be what is measured.
    let header = GetMinOffset { topic: "TBW102", queue_id: 0 };
    write_request(&mut frame, GET_MIN_OFFSET, 1, true, &header.ext(), b"");
    let open_one = || {
        let mut socket = TcpStream::connect(broker)?;
        socket.write_all(&frame)?;
        Ok(socket)
    };
    let sockets = (0..count).map(|_| open_one()).collect::<Result<Vec<_>, _>>();
    sockets.map_err(BenchError::io(format!("opening {count} connections")))
}
