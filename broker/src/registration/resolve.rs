//! Names to addresses, off the shard's core: the system's resolver blocks, for half a minute if it must.
use crate::config::HostPort;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The addresses of `at` in the resolver's order, IPv4 first; literals need no resolver.
///
/// # Errors
/// What the resolver says, ready for a log line.
pub async fn resolve(at: &HostPort) -> Result<Vec<SocketAddr>, String> {
    if let Ok(ip) = at.host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, at.port)]);
    }
    let (answer, answered) = flume::bounded(1);
    let (host, port) = (at.host.clone(), at.port);
    // A thread of its own: the runtime's one blocking thread also opens and renames files, which must not wait for a name.
    let asking = std::thread::Builder::new().name("resolve".to_owned()).spawn(move || {
        let found = (host.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
        let _ = answer.send(found); // nobody waits any more: the broker stops
    });
    asking.map_err(|error| error.to_string())?;
    let mut found = match answered.recv_async().await {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err("the resolver gave no answer".to_owned()),
    };
    found.sort_by_key(SocketAddr::is_ipv6);
    match found.is_empty() {
        true => Err("the name has no address".to_owned()),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_lite::future::block_on;

    fn at(host: &str, port: u16) -> HostPort {
        HostPort { host: host.to_owned(), port }
    }

    #[test]
    fn literals_need_no_resolver() {
        assert_eq!(block_on(resolve(&at("10.0.0.1", 9876))).unwrap(), ["10.0.0.1:9876".parse().unwrap()]);
        assert_eq!(block_on(resolve(&at("::1", 9876))).unwrap(), ["[::1]:9876".parse().unwrap()]);
    }

    #[test]
    fn names_are_asked_for_and_a_wrong_one_says_so() {
        let found = block_on(resolve(&at("localhost", 1))).unwrap();
        assert!(found.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 1), "{found:?}");
        assert!(block_on(resolve(&at("no such host", 1))).is_err());
    }
}
