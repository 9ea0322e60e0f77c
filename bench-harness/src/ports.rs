//! Ports for the servers that a measurement or a test starts.
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};

/// Where the kernel takes the ports of outgoing connections from (ip(7), ip_local_port_range).
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Below are the ports that well-known servers have.
const FIRST: u16 = 10_000;
const TRIES: u64 = 1000;

/// A port of the loopback address that was free a moment ago, with its neighbours: a broker also listens on the one two below, its slaves
/// call the one above, and Apache's binds the one below. It is none that the kernel gives to outgoing connections: a client that knocks
/// at a port while its server is down would be given that very port one day, and the server would not come back.
pub fn free_port() -> io::Result<u16> {
    let range = std::fs::read_to_string(EPHEMERAL)?;
    let first_ephemeral = range.split_whitespace().next().and_then(|low| low.parse().ok()).unwrap_or(u16::MAX);
    let end = match first_ephemeral {
        low if low > 2 * FIRST => low,
        _ => u16::MAX, // a machine that gives nearly all of them away
    };
    let random = RandomState::new();
    (0..TRIES)
        .map(|n| FIRST + (random.hash_one(n) % u64::from(end - FIRST - 1)) as u16)
        .find(|&port| {
            let held: Result<Vec<_>, _> = [port - 2, port - 1, port, port + 1]
                .map(|p| TcpListener::bind((Ipv4Addr::LOCALHOST, p)))
                .into_iter()
                .collect();
            held.is_ok()
        })
        .ok_or_else(|| io::Error::other("no free port with free neighbours"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_none_that_an_outgoing_connection_gets() {
        let range = std::fs::read_to_string(EPHEMERAL).unwrap();
        let bounds: Vec<u16> = range.split_whitespace().map(|n| n.parse().unwrap()).collect();
        for _ in 0..100 {
            let port = free_port().unwrap();
            assert!(port >= FIRST);
            assert!(bounds[0] <= 2 * FIRST || !(bounds[0]..=bounds[1]).contains(&port), "{port}");
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
