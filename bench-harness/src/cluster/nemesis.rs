//! What goes wrong, by the dice: which fault, whom it meets, how long it stays.
use super::net::{Cut, HOST};
use super::nodes::{BROKERS, NodeId, Nodes, Role};
use crate::error::BenchError;
use crate::peer::mix;
use clap::ValueEnum;
use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// SIGKILL, and a start when a new master serves
    Kill,
    /// SIGSTOP for some seconds
    Pause,
    /// Nothing arrives between a node and others, either way
    Partition,
    /// What a node sends does not arrive, or nothing arrives at it
    OneWay,
    /// A node's link is slow
    Slow,
    /// A broker's disk is full
    DiskFull,
    /// A broker's writes are slow
    SlowDisk,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::Pause => "pause",
            Kind::Partition => "partition",
            Kind::OneWay => "one-way",
            Kind::Slow => "slow",
            Kind::DiskFull => "disk-full",
            Kind::SlowDisk => "slow-disk",
        }
    }

    pub(super) fn needs_disk(self) -> bool {
        matches!(self, Kind::DiskFull | Kind::SlowDisk)
    }
}

/// From whom a node is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Everybody,
    /// All but the clients, who still reach it.
    Nodes,
    Controllers,
    Brokers,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Kill,
    Pause,
    Cut { from: From, out: bool, into: bool },
    Slow { kbit: u32 },
    DiskFull,
    SlowDisk { bytes: u64 },
}

/// A fault that was chosen.
pub(super) struct Fault {
    pub(super) kind: Kind,
    what: What,
    pub(super) target: NodeId,
    /// It is to cost the group its master, so that a new one is waited for.
    pub(super) of_master: bool,
    /// How long it stays; behind the new master's first acknowledgement where one is waited for.
    pub(super) hold: Duration,
}

/// Numbers that follow from a seed.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % end.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

impl Fault {
    /// Chooses a fault of a kind while broker `master` leads. With `masters_only`, one of the master, and one that costs the group its
    /// master where the kind can.
    pub(super) fn choose(dice: &mut Dice, kind: Kind, master: usize, masters_only: bool) -> Fault {
        let target = match dice.below(10) {
            _ if masters_only => NodeId::broker(master),
            0..=6 => NodeId::broker(master),
            7 | 8 => NodeId::broker((master + 1 + dice.below(BROKERS as u64 - 1) as usize) % BROKERS),
            _ if kind.needs_disk() => NodeId::broker(master),
            _ => {
                let others: Vec<NodeId> = [Role::Controller, Role::Namesrv].into_iter().flat_map(NodeId::all).collect();
                dice.pick(&others)
            }
        };
        let long = masters_only || dice.below(2) == 0;
        let (what, costs) = match kind {
            Kind::Kill => (What::Kill, true),
            Kind::Pause => (What::Pause, long),
            Kind::Partition => {
                let shapes: &[From] = match masters_only {
                    true => &[From::Everybody, From::Nodes, From::Controllers],
                    false => &[From::Everybody, From::Nodes, From::Controllers, From::Brokers],
                };
                let from = dice.pick(shapes);
                (What::Cut { from, out: true, into: true }, from != From::Brokers)
            }
            Kind::OneWay => {
                let out = dice.below(2) == 0;
                (What::Cut { from: dice.pick(&[From::Everybody, From::Nodes]), out, into: !out }, true)
            }
            Kind::Slow => (What::Slow { kbit: dice.pick(&[200, 1000, 4000]) }, false),
            Kind::DiskFull => (What::DiskFull, false),
            Kind::SlowDisk => (What::SlowDisk { bytes: dice.pick(&[64 << 10, 512 << 10]) }, false),
        };
        let of_master = costs && target == NodeId::broker(master);
        let hold = match (kind, of_master) {
            (Kind::Kill, _) | (_, true) => dice.below(3000),
            (Kind::Pause, _) => 2000 + dice.below(5000),
            _ => 6000 + dice.below(14_000),
        };
        Fault { kind, what, target, of_master, hold: Duration::from_millis(hold) }
    }

    pub(super) fn begin(&self, nodes: &mut Nodes) -> Result<(), BenchError> {
        match self.what {
            What::Kill => nodes.kill(self.target),
            What::Pause => nodes.signal(self.target, libc::SIGSTOP),
            What::Cut { .. } => nodes.net.cut(&self.cuts())?,
            What::Slow { kbit } => nodes.net.slow(self.target.host(), Some(kbit))?,
            What::DiskFull => nodes.disks[self.target.index].fill()?,
            What::SlowDisk { bytes } => nodes.disks[self.target.index].slow(Some(bytes))?,
        }
        Ok(())
    }

    pub(super) fn heal(&self, nodes: &mut Nodes) -> Result<(), BenchError> {
        match self.what {
            What::Kill => nodes.start(self.target)?,
            What::Pause => nodes.signal(self.target, libc::SIGCONT),
            What::Cut { .. } => nodes.net.cut(&[])?,
            What::Slow { .. } => nodes.net.slow(self.target.host(), None)?,
            What::DiskFull => nodes.disks[self.target.index].empty(),
            What::SlowDisk { .. } => nodes.disks[self.target.index].slow(None)?,
        }
        Ok(())
    }

    fn cuts(&self) -> Vec<Cut> {
        let What::Cut { from, out, into } = self.what else { return Vec::new() };
        let node = self.target.host();
        let hosts = |ids: Vec<NodeId>| ids.into_iter().map(NodeId::host).filter(|host| *host != node).collect();
        let others: Vec<u8> = match from {
            From::Everybody => [vec![HOST], hosts(NodeId::everybody())].concat(),
            From::Nodes => hosts(NodeId::everybody()),
            From::Controllers => hosts(NodeId::all(Role::Controller).collect()),
            From::Brokers => hosts(NodeId::all(Role::Broker).collect()),
        };
        let both = others.into_iter().flat_map(|other| [(out, (node, other)), (into, (other, node))]);
        both.filter_map(|(cut, pair)| cut.then_some(pair)).collect()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.kind.word(), self.target)?;
        match self.what {
            What::Cut { from, out, into } => {
                let from = format!("{from:?}").to_lowercase();
                let way = match (out, into) {
                    (true, false) => ", what it sends",
                    (false, true) => ", what is sent to it",
                    _ => "",
                };
                write!(f, " from {from}{way}")
            }
            What::Slow { kbit } => write!(f, ", {kbit} kbit/s"),
            What::SlowDisk { bytes } => write!(f, ", {} KiB/s", bytes >> 10),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_and_all_kinds_come() {
        let texts = |seed: u64| -> Vec<String> {
            let mut dice = Dice(seed);
            let kinds = Kind::value_variants().iter().cycle().take(200);
            kinds.map(|kind| Fault::choose(&mut dice, *kind, 1, false).to_string()).collect()
        };
        assert_eq!(texts(5), texts(5));
        assert_ne!(texts(5), texts(6));
        for kind in Kind::value_variants() {
            assert!(texts(5).iter().any(|text| text.starts_with(kind.word())), "{kind:?}");
        }
    }

    #[test]
    fn cuts_are_one_way_or_both_and_never_of_a_node_from_itself() {
        let fault = |what| Fault {
            kind: Kind::Partition,
            what,
            target: NodeId::broker(0),
            of_master: true,
            hold: Duration::ZERO,
        };
        let both = fault(What::Cut { from: From::Brokers, out: true, into: true }).cuts();
        assert_eq!(both, [(11, 12), (12, 11), (11, 13), (13, 11)]);
        let out = fault(What::Cut { from: From::Controllers, out: true, into: false }).cuts();
        assert_eq!(out, [(11, 21), (11, 22), (11, 23)]);
        let all = fault(What::Cut { from: From::Everybody, out: false, into: true }).cuts();
        assert_eq!(all.len(), 8);
        assert!(all.contains(&(HOST, 11)) && !all.contains(&(11, 11)));
        assert!(!fault(What::Cut { from: From::Nodes, out: true, into: true }).cuts().contains(&(11, HOST)));
    }

    #[test]
    fn a_run_for_failovers_meets_masters_only() {
        let mut dice = Dice(1);
        for kind in [Kind::Kill, Kind::Pause, Kind::Partition, Kind::OneWay].into_iter().cycle().take(100) {
            let fault = Fault::choose(&mut dice, kind, 2, true);
            assert!(fault.of_master && fault.target == NodeId::broker(2), "{fault}");
        }
    }
}
