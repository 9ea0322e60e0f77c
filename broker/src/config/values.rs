//! The broker's own kinds of configuration values: how each is read from its text and shown again. Knows no key.
use std::fmt;
use uringmq_proto::settings::ConfigValue;

/// Names as Apache spells its enumerations.
macro_rules! names {
    ($(#[$doc:meta])* $kind:ident { $($(#[$case_doc:meta])* $case:ident = $name:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind { $($(#[$case_doc])* $case),* }

        impl ConfigValue for $kind {
            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($kind::$case),)*
                    _ => Err(format!("is none of {}", [$($name),*].join(", "))),
                }
            }
            fn show(&self) -> String {
                match self { $($kind::$case => $name.to_owned()),* }
            }
        }
    };
}

names! {
    /// `brokerRole`.
    BrokerRole { AsyncMaster = "ASYNC_MASTER", SyncMaster = "SYNC_MASTER", Slave = "SLAVE" }
}
names! {
    /// `flushDiskType`: what an acknowledgement waits for.
    FlushDiskType {
        /// The direct write has completed.
        AsyncFlush = "ASYNC_FLUSH",
        /// The write is on stable storage.
        SyncFlush = "SYNC_FLUSH",
    }
}

/// One `host:port`; `host` is a name, an IPv4 or a bracketed IPv6 literal without its brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPort {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl HostPort {
    /// Reads one entry; the error names what is wrong with it.
    pub fn read(text: &str) -> Result<Self, String> {
        if text.contains(',') {
            return Err(format!("has ',' in '{text}': addresses are separated by ';'"));
        }
        if text.contains(['#', '!']) || text.contains(char::is_whitespace) {
            return Err(format!("has a blank or comment in '{text}'"));
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once("]:").ok_or_else(|| format!("has '{text}', not [IPv6]:port"))?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| format!("has '{host}', not an IPv6 address"))?;
                (host, port)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("has '{text}' without a port"))?;
                if host.contains(':') {
                    return Err(format!("has '{text}': an IPv6 address stands in brackets, [address]:port"));
                }
                (host, port)
            }
        };
        if host.is_empty() {
            return Err(format!("has '{text}' without a host"));
        }
        let digits = port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|port| digits && *port > 0);
        let port = port.ok_or_else(|| format!("has '{text}' whose port is not 1 to 65535"))?;
        Ok(HostPort { host: host.to_owned(), port })
    }
}

/// `namesrvAddr`: `host:port` entries separated by `;`, one `;` at the end tolerated (known fault A07). May be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesrvAddrs(pub Vec<HostPort>);

impl ConfigValue for NamesrvAddrs {
    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let text = text.strip_suffix(';').unwrap_or(text).trim_end();
        if text.is_empty() {
            return Ok(NamesrvAddrs::default());
        }
        let entry = |entry: &str| match entry.trim() {
            "" => Err("has an empty address between two ';'".to_owned()),
            entry => HostPort::read(entry),
        };
        Ok(NamesrvAddrs(text.split(';').map(entry).collect::<Result<_, _>>()?))
    }
    fn show(&self) -> String {
        self.0.iter().map(HostPort::to_string).collect::<Vec<_>>().join(";")
    }
}

/// `messageDelayLevel`: level 1 first, with the text it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayLevels {
    pub ms: Vec<u64>,
    text: String,
}

impl ConfigValue for DelayLevels {
    fn read(text: &str) -> Result<Self, String> {
        let level = |item: &str| {
            let bad = || format!("has '{item}', not a number with s, m, h or d");
            let unit_ms = match item.chars().last() {
                Some('s') => 1_000,
                Some('m') => 60_000,
                Some('h') => 3_600_000,
                Some('d') => 86_400_000,
                _ => return Err(bad()),
            };
            let count = &item[..item.len() - 1];
            if !count.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            count.parse::<u32>().map(|count| u64::from(count) * unit_ms).map_err(|_| bad())
        };
        let ms = text.split_ascii_whitespace().map(level).collect::<Result<Vec<_>, _>>()?;
        match ms.is_empty() {
            true => Err("has no level".to_owned()),
            false => Ok(DelayLevels { ms, text: text.to_owned() }),
        }
    }
    fn show(&self) -> String {
        self.text.clone()
    }
}

impl Default for DelayLevels {
    fn default() -> Self {
        Self::read("1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h").expect("the text is right")
    }
}

/// `deleteWhen`: hours of the local day, separated by `;`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hours(pub Vec<u8>);

impl ConfigValue for Hours {
    fn read(text: &str) -> Result<Self, String> {
        let hour = |item: &str| {
            let digits = (1..=2).contains(&item.len()) && item.bytes().all(|b| b.is_ascii_digit());
            let hour = item.parse().ok().filter(|hour| digits && *hour < 24);
            hour.ok_or_else(|| format!("has '{item}', not an hour from 00 to 23"))
        };
        let items = text.split(';').map(str::trim).filter(|item| !item.is_empty());
        Ok(Hours(items.map(hour).collect::<Result<_, _>>()?))
    }
    fn show(&self) -> String {
        self.0.iter().map(|hour| format!("{hour:02}")).collect::<Vec<_>>().join(";")
    }
}

/// `diskRefuseEarlyTopics`: names of topics, separated by `;`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicNames(pub Vec<String>);

impl ConfigValue for TopicNames {
    fn read(text: &str) -> Result<Self, String> {
        let items = text.split(';').map(str::trim).filter(|item| !item.is_empty());
        let checked = |item: &str| match uringmq_proto::names::check_topic(item) {
            Ok(()) => Ok(item.to_owned()),
            Err(e) => Err(format!("has '{item}', no name of a topic: {e}")),
        };
        Ok(TopicNames(items.map(checked).collect::<Result<_, _>>()?))
    }
    fn show(&self) -> String {
        self.0.join(";")
    }
}

/// `cpuSet`: cores as `0-3,5`; empty means all that the process may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet(pub Vec<usize>);

/// No machine has more cores than this; a larger number is a slip of the pen, not a list to build.
const CPUS_MAX: usize = 4096;

impl ConfigValue for CpuSet {
    fn read(text: &str) -> Result<Self, String> {
        let mut cpus = Vec::new();
        for item in text.split(',').map(str::trim).filter(|_| !text.is_empty()) {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < CPUS_MAX);
            match (number(first), number(last)) {
                (Some(first), Some(last)) if first <= last => cpus.extend(first..=last),
                _ => return Err(format!("has '{item}', not a core or a range of cores like 0-3,5")),
            }
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuSet(cpus))
    }
    fn show(&self) -> String {
        self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round<T: ConfigValue + PartialEq + fmt::Debug>(text: &str, want: T) {
        assert_eq!(T::read(text), Ok(want), "{text}");
        let value = T::read(text).unwrap();
        assert_eq!(T::read(&value.show()), Ok(value), "{text} shown");
    }

    #[test]
    fn name_server_lists_known_fault_a07() {
        let one = |host: &str, port| HostPort { host: host.to_owned(), port };
        round("a:1", NamesrvAddrs(vec![one("a", 1)]));
        round("a:1; ", NamesrvAddrs(vec![one("a", 1)]));
        round(" a:1 ; b.c:65535 ;", NamesrvAddrs(vec![one("a", 1), one("b.c", 65535)]));
        round("[::1]:9876;10.0.0.1:9876", NamesrvAddrs(vec![one("::1", 9876), one("10.0.0.1", 9876)]));
        round("", NamesrvAddrs::default());
        let bad = [
            "a:1,b:2",
            ";a:1",
            "a:1;;b:2",
            "a",
            "a:",
            ":1",
            "a:99999",
            "a:0",
            "a:+1",
            "a:x",
            "a:1 # note",
            "::1:9876",
            "[::1]",
            "[x]:1",
            "[::1]9876",
            "a:1;;",
        ];
        for bad in bad {
            assert!(NamesrvAddrs::read(bad).is_err(), "{bad}");
        }
        assert!(NamesrvAddrs::read("a:1,b:2").unwrap_err().contains("separated by ';'"));
    }

    #[test]
    fn delay_levels_hours_and_cores() {
        let levels = DelayLevels::default();
        assert_eq!((levels.ms.len(), levels.ms[0], levels.ms[17]), (18, 1_000, 7_200_000));
        assert_eq!(DelayLevels::read("2d").unwrap().ms, [172_800_000]);
        for bad in ["", "1", "s", "1x", "1 s", "-1s", "1.5s", "１s", "1é"] {
            assert!(DelayLevels::read(bad).is_err(), "{bad}");
        }
        round("04", Hours(vec![4]));
        round("04;16;", Hours(vec![4, 16]));
        for bad in ["24", "-1", "4h", "004", "4,5"] {
            assert!(Hours::read(bad).is_err(), "{bad}");
        }
        round("0-3,5", CpuSet(vec![0, 1, 2, 3, 5]));
        round("2,1,1", CpuSet(vec![1, 2]));
        round("", CpuSet::default());
        for bad in ["3-1", "a", "0-", ",", "0-99999999999"] {
            assert!(CpuSet::read(bad).is_err(), "{bad}");
        }
    }
}
