//! What the configuration's defaults take from the machine: host name, home directory, own address, `NAMESRV_ADDR`, name look-up.
//! One value, so that tests give their own.
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::path::PathBuf;

pub struct Machine {
    pub host_name: String,
    pub home: PathBuf,
    /// Addresses of interfaces that are up, in the system's order, loopback included.
    pub addresses: Vec<Address>,
    /// The environment's `NAMESRV_ADDR`.
    pub namesrv_addr: Option<String>,
    pub cpus: usize,
    pub resolve: fn(&str) -> io::Result<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub interface: String,
    pub ip: IpAddr,
}

impl Machine {
    /// This one. Looks at the environment and the interfaces; called before any shard runs.
    pub fn this() -> Self {
        Machine {
            host_name: host_name(),
            home: std::env::home_dir().unwrap_or_else(|| PathBuf::from(".")),
            addresses: addresses(),
            namesrv_addr: std::env::var("NAMESRV_ADDR").ok(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            resolve,
        }
    }

    /// The address to give to clients when none is configured, and whether it is more than a loopback: IPv4 before IPv6, real
    /// interfaces before bridges of containers, which other hosts cannot reach.
    pub fn own_address(&self) -> Option<IpAddr> {
        let rank = |address: &&Address| (is_bridge(&address.interface), address.ip.is_ipv6());
        self.addresses.iter().filter(|address| is_global(address.ip)).min_by_key(rank).map(|address| address.ip)
    }
}

fn is_bridge(interface: &str) -> bool {
    ["docker", "br-", "veth", "virbr", "cni", "flannel"].iter().any(|prefix| interface.starts_with(prefix))
}

/// Neither loopback nor link-local nor unset.
fn is_global(ip: IpAddr) -> bool {
    let narrow = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !narrow && !ip.is_loopback() && !ip.is_unspecified()
}

/// The first IPv4 address of a name or literal, else its first address.
fn resolve(host: &str) -> io::Result<IpAddr> {
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let found: Vec<IpAddr> = (host, 0u16).to_socket_addrs()?.map(|addr| addr.ip()).collect();
    let first = found.iter().find(|ip| ip.is_ipv4()).or(found.first());
    first.copied().ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the name has no address"))
}

fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: the buffer is writable for its length less one, so its last byte stays 0.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0;
    match CStr::from_bytes_until_nul(&name) {
        Ok(name) if !failed && !name.is_empty() => name.to_string_lossy().into_owned(),
        _ => "DEFAULT_BROKER".to_owned(), // as Apache's broker without a host name
    }
}

fn addresses() -> Vec<Address> {
    let mut found = Vec::new();
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: `head` is a valid place for the list's address; on success the list stays until freeifaddrs below.
    if unsafe { libc::getifaddrs(&mut head) } != 0 {
        return found;
    }
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is a non-null element of the list that getifaddrs made and nobody has freed.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as libc::c_uint == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: `ifa_addr` is non-null and points to a socket address of the family that it states; the name is a C string.
        let (ip, interface) = unsafe { (ip_of(entry.ifa_addr), CStr::from_ptr(entry.ifa_name)) };
        if let Some(ip) = ip {
            found.push(Address { interface: interface.to_string_lossy().into_owned(), ip });
        }
    }
    // SAFETY: `head` came from getifaddrs and no reference into the list is left.
    unsafe { libc::freeifaddrs(head) };
    found
}

/// # Safety
/// `addr` points to a socket address whose size is that of its family.
unsafe fn ip_of(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: as the caller promises; every socket address starts with its family.
    match i32::from(unsafe { (*addr).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says that it is a sockaddr_in.
            let v4 = unsafe { (*addr.cast::<libc::sockaddr_in>()).sin_addr };
            Some(Ipv4Addr::from(u32::from_be(v4.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is a sockaddr_in6.
            let v6 = unsafe { (*addr.cast::<libc::sockaddr_in6>()).sin6_addr };
            Some(Ipv6Addr::from(v6.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with `interface=address` pairs.
    fn machine(addresses: &str) -> Machine {
        let address = |pair: &str| {
            let (interface, ip) = pair.split_once('=').unwrap();
            Address { interface: interface.to_owned(), ip: ip.parse().unwrap() }
        };
        Machine { addresses: addresses.split(' ').map(address).collect(), ..Machine::this() }
    }

    #[test]
    fn never_loopback_when_another_address_exists() {
        let cases = [
            ("lo=127.0.0.1 eth0=10.0.0.5", Some("10.0.0.5")),
            ("lo=127.0.0.1 docker0=172.17.0.1 eth0=192.168.1.9", Some("192.168.1.9")),
            ("docker0=172.17.0.1", Some("172.17.0.1")),
            ("lo=::1 eth0=fe80::1 eth0=2001:db8::7", Some("2001:db8::7")),
            ("eth0=2001:db8::7 eth0=10.0.0.5", Some("10.0.0.5")),
            ("eth0=169.254.3.3 lo=127.0.0.1 lo=::1", None),
        ];
        for (addresses, want) in cases {
            assert_eq!(machine(addresses).own_address(), want.map(|ip| ip.parse().unwrap()), "{addresses}");
        }
    }

    #[test]
    fn this_machine_has_a_name_and_a_loopback() {
        let machine = Machine::this();
        assert!(!machine.host_name.is_empty());
        assert!(machine.addresses.iter().any(|address| address.ip.is_loopback()), "{:?}", machine.addresses);
    }

    #[test]
    fn literals_resolve_without_a_name_server() {
        assert_eq!(resolve("10.1.2.3").unwrap(), "10.1.2.3".parse::<IpAddr>().unwrap());
        assert_eq!(resolve("[::1]").unwrap(), "::1".parse::<IpAddr>().unwrap());
        assert_eq!(resolve("::1").unwrap(), "::1".parse::<IpAddr>().unwrap());
        assert!(resolve("no such name").is_err());
    }
}
