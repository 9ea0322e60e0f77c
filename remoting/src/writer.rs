//! The writing task of a connection: woken by the first output of a turn, it writes all of that turn at once, and closes when asked.
use crate::connection::Conn;
use crate::shared::SPARE_BYTES_MAX;
use futures_lite::future::or;
use glommio::timer::Timer;
use std::future::poll_fn;
use std::net::Shutdown;
use std::rc::Rc;
use std::time::Duration;
use tracing::debug;

/// How long a closing connection may take to send what waits.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// How long it then waits for the peer to close its side, before the socket goes.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// Runs until the connection is closed and what waited was sent, or cannot be sent.
pub(crate) async fn run(conn: Rc<Conn>) {
    let mut spare = Vec::new();
    loop {
        while conn.is_open() && !conn.has_output() {
            conn.writer_bell().heard().await;
        }
        let Some(output) = conn.take_output(std::mem::take(&mut spare)) else { break };
        let sent = or(send(&conn, &output), async {
            conn.closing().await;
            Timer::new(FLUSH_MAX).await;
            Err(std::io::ErrorKind::TimedOut.into())
        });
        if let Err(error) = sent.await {
            debug!(peer = %conn.peer(), %error, "write");
            conn.abort();
            break;
        }
        spare = output;
        spare.clear();
        if !conn.has_output() || spare.capacity() > SPARE_BYTES_MAX {
            conn.shared().put_spare(std::mem::take(&mut spare));
        }
    }
    if conn.shut(Shutdown::Write) {
        or(conn.read_ended(), async {
            Timer::new(LINGER_MAX).await;
        })
        .await;
    }
    conn.abort();
}

async fn send(conn: &Conn, output: &[u8]) -> std::io::Result<()> {
    let mut sent = 0;
    while sent < output.len() {
        sent += poll_fn(|cx| conn.poll_write(cx, &output[sent..])).await?;
        conn.set_sending(output.len() - sent);
    }
    Ok(())
}
