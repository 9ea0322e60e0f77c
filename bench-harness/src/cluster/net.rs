//! Network namespaces for the nodes: a bridge on the host, where the clients are, and a link to each node's namespace.
//!
//! Every neighbour is a permanent entry. A direction is cut by naming a hardware address that nobody has: what is sent is then lost
//! without a word, as behind a broken switch, and what comes the other way still arrives. It needs neither netfilter nor netem.
use crate::error::BenchError;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};

/// Last byte of the host's address.
pub(super) const HOST: u8 = 1;
/// A hardware address of nobody.
const NOBODY: &str = "02:75:71:ff:ff:fe";

/// The namespaces of one run. They are gone when it is dropped.
pub(super) struct Net {
    prefix: String,
    subnet: [u8; 3],
    /// Last bytes of the nodes' addresses.
    nodes: Vec<u8>,
}

/// A direction in which nothing arrives: last bytes of the addresses of who sends and who would receive.
pub(super) type Cut = (u8, u8);

impl Net {
    /// Removes what an earlier run left, then makes bridge and namespaces.
    pub(super) fn make(prefix: &str, subnet: [u8; 3], nodes: &[u8]) -> Result<Net, BenchError> {
        if Command::new("ip").arg("-V").output().is_err() {
            return Err(BenchError::Process("'ip' is missing: install iproute2".to_owned()));
        }
        let net = Net { prefix: prefix.to_owned(), subnet, nodes: nodes.to_vec() };
        net.remove();
        let bridge = net.bridge();
        let host = net.address(HOST);
        let mut lines = format!(
            "link add {bridge} address {} type bridge\naddr add {host}/24 dev {bridge}\nlink set {bridge} up\n",
            mac(HOST)
        );
        for &node in nodes {
            let (space, outer) = (net.space(node), net.outer(node));
            batch(None, &format!("netns add {space}\n"))?;
            lines += &format!("link add {outer} type veth peer name eth0 address {} netns {space}\n", mac(node));
            lines += &format!("link set {outer} master {bridge} up\n");
        }
        batch(None, &lines)?;
        for &node in nodes {
            let lines = format!("addr add {}/24 dev eth0\nlink set lo up\nlink set eth0 up\n", net.address(node));
            batch(Some(&net.space(node)), &lines)?;
        }
        net.cut(&[])?;
        Ok(net)
    }

    fn bridge(&self) -> String {
        format!("{}br", self.prefix)
    }

    fn outer(&self, node: u8) -> String {
        format!("{}h{node}", self.prefix)
    }

    /// Name of a node's namespace.
    pub(super) fn space(&self, node: u8) -> String {
        format!("{}{node}", self.prefix)
    }

    pub(super) fn address(&self, node: u8) -> Ipv4Addr {
        let [a, b, c] = self.subnet;
        Ipv4Addr::new(a, b, c, node)
    }

    pub(super) fn at(&self, node: u8, port: u16) -> SocketAddr {
        SocketAddr::from((self.address(node), port))
    }

    /// These directions are cut, all others are whole.
    pub(super) fn cut(&self, cuts: &[Cut]) -> Result<(), BenchError> {
        let all: Vec<u8> = self.nodes.iter().copied().chain([HOST]).collect();
        for &from in &all {
            let device = if from == HOST { self.bridge() } else { "eth0".to_owned() };
            let lines: String = all.iter().filter(|to| **to != from).fold(String::new(), |lines, to| {
                let lost = cuts.contains(&(from, *to));
                let mac = if lost { NOBODY.to_owned() } else { mac(*to) };
                lines + &format!("neigh replace {} lladdr {mac} dev {device} nud permanent\n", self.address(*to))
            });
            let space = self.space(from);
            batch((from != HOST).then_some(&space), &lines)?;
        }
        Ok(())
    }

    /// What a node sends and gets is held to so many bits a second each way; `None`: as fast as it goes.
    pub(super) fn slow(&self, node: u8, kbit: Option<u32>) -> Result<(), BenchError> {
        let (space, outer) = (self.space(node), self.outer(node));
        for (space, device) in [(Some(&space[..]), "eth0"), (None, &outer[..])] {
            let mut command = Command::new("tc");
            if let Some(space) = space {
                command.args(["-n", space]);
            }
            match kbit {
                Some(kbit) => {
                    let rate = format!("{kbit}kbit");
                    command.args(["qdisc", "replace", "dev", device, "root", "tbf", "rate", &rate]);
                    command.args(["burst", "16kb", "latency", "500ms"]);
                }
                None => {
                    command.args(["qdisc", "del", "dev", device, "root"]);
                }
            }
            succeed(command, kbit.is_some())?;
        }
        Ok(())
    }

    /// Ends what still runs in the namespaces, and removes them.
    fn remove(&self) {
        for &node in &self.nodes {
            let space = self.space(node);
            let Ok(pids) = Command::new("ip").args(["netns", "pids", &space]).stderr(Stdio::null()).output() else {
                return;
            };
            for pid in String::from_utf8_lossy(&pids.stdout).lines().filter_map(|pid| pid.trim().parse().ok()) {
                // SAFETY: plain system call. The process is in a namespace of our name, which nobody else uses.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            quiet(&["netns", "del", &space]);
            quiet(&["link", "del", &self.outer(node)]);
        }
        quiet(&["link", "del", &self.bridge()]);
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.remove();
    }
}

fn mac(node: u8) -> String {
    format!("02:75:71:00:00:{node:02x}")
}

fn quiet(args: &[&str]) {
    let _ = Command::new("ip").args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
}

/// Runs `ip` on lines of its commands, in a namespace when one is named.
fn batch(space: Option<&String>, lines: &str) -> Result<(), BenchError> {
    let mut command = Command::new("ip");
    if let Some(space) = space {
        command.args(["-n", space]);
    }
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let failed = || BenchError::io("running ip");
    let mut child = command.spawn().map_err(failed())?;
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).map_err(failed())?;
    let output = child.wait_with_output().map_err(failed())?;
    if output.status.success() {
        return Ok(());
    }
    Err(BenchError::Process(format!("ip: {}; of:\n{lines}", String::from_utf8_lossy(&output.stderr).trim())))
}

/// Runs a command; its failure is an error when `must`.
pub(super) fn succeed(mut command: Command, must: bool) -> Result<(), BenchError> {
    let shown = format!("{command:?}");
    let output = command.stdin(Stdio::null()).output().map_err(BenchError::io(shown.clone()))?;
    if output.status.success() || !must {
        return Ok(());
    }
    Err(BenchError::Process(format!("{shown}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
