//! The controller's configuration: Apache's keys and defaults (replication sheet 12), read once at the start; codes 1009 and 1010 change
//! and show it.
use crate::peers::Peers;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use thiserror::Error;
use uringmq_proto::properties;
use uringmq_proto::settings::{ConfigError, ConfigValue, Place, readable};

/// No update at run time may name these, whatever `configBlackList` says: who the controllers are, and where things lie, is read at the
/// start alone.
const NEVER_UPDATED: [&str; 10] = [
    "bindAddress",
    "configBlackList",
    "configStorePath",
    "controllerDLegerGroup",
    "controllerDLegerPeers",
    "controllerDLegerSelfId",
    "controllerStorePath",
    "controllerType",
    "listenPort",
    "rocketmqHome",
];

/// Apache's keys that have no meaning here: thread pools and sockets of the Java server, its logs' files, its meters, the other Raft
/// library. Taken quietly and listed back.
const ACCEPTED: &[(&str, &str)] = &[
    ("controllerRequestThreadPoolQueueCapacity", "50000"),
    ("controllerThreadPoolNums", "16"),
    ("electMasterMaxRetryCount", "3"),
    ("enableShutdownGracefully", "false"),
    ("isProcessReadEvent", "false"),
    ("mappedFileSize", "1073741824"),
    ("metricGrpcExporterIntervalInMills", "60000"),
    ("metricGrpcExporterTimeOutInMills", "3000"),
    ("metricLoggingExporterIntervalInMills", "10000"),
    ("metricsExporterType", "DISABLE"),
    ("metricsGrpcExporterHeader", ""),
    ("metricsGrpcExporterTarget", ""),
    ("metricsInDelta", "false"),
    ("metricsLabel", ""),
    ("metricsPromExporterHost", ""),
    ("metricsPromExporterPort", "5557"),
    ("rocketmqHome", ""),
    ("serverAsyncSemaphoreValue", "64"),
    ("serverCallbackExecutorThreads", "0"),
    ("serverNettyWorkerGroupEnable", "true"),
    ("serverOnewaySemaphoreValue", "256"),
    ("serverPooledByteBufAllocatorEnable", "true"),
    ("serverSelectorThreads", "3"),
    ("serverSocketBacklog", "1024"),
    ("serverSocketRcvBufSize", "0"),
    ("serverSocketSndBufSize", "0"),
    ("serverWorkerThreads", "8"),
    ("shutdownWaitTimeSeconds", "30"),
    ("useEpollNativeSelector", "false"),
    ("writeBufferHighWaterMark", "0"),
    ("writeBufferLowWaterMark", "0"),
];

/// One row a key; from this list come the struct, the defaults, reading and printing.
macro_rules! config_keys {
    ($( $(#[$doc:meta])* $key:literal => $field:ident: $kind:ty = $default:expr; )*) => {
        /// The configuration with every default filled in.
        #[derive(Clone, Debug)]
        pub struct ControllerConfig {
            $( $(#[$doc])* pub $field: $kind, )*
            /// Values given for keys that are not in this table.
            others: BTreeMap<String, String>,
            /// The file names a listenPort.
            listen_port_given: bool,
            /// The file is a name server's.
            inside: bool,
        }

        impl Default for ControllerConfig {
            /// Apache's defaults; the paths are below the user's home directory.
            fn default() -> Self {
                ControllerConfig { $( $field: $default, )* others: BTreeMap::new(), listen_port_given: false, inside: false }
            }
        }

        impl ControllerConfig {
            fn assign(&mut self, key: &str, text: &str) -> Option<Result<(), String>> {
                match key {
                    $( $key => Some(<$kind>::read(text).map(|value| self.$field = value)), )*
                    _ => None,
                }
            }

            fn rows(&self) -> Vec<(&'static str, String)> {
                vec![$( ($key, self.$field.show()) ),*]
            }
        }
    };
}

config_keys! {
    /// Where one controller alone listens, and where one of several listens besides its port among the peers if the file names it. 0
    /// takes a free port (for tests).
    "listenPort" => listen_port: u16 = 19876;
    "bindAddress" => bind_address: String = "0.0.0.0".to_owned();
    "controllerType" => controller_type: String = "DLedger".to_owned();
    /// What the controllers have in common; a controller of another group is refused.
    "controllerDLegerGroup" => group: String = String::new();
    /// `n0-host:port;n1-host:port`: where each is found, by brokers and by the others. Empty: one controller alone.
    "controllerDLegerPeers" => peers: String = String::new();
    "controllerDLegerSelfId" => self_id: String = String::new();
    /// Each controller has a directory of its own in it.
    "controllerStorePath" => store_dir: PathBuf = home().join("DLedgerController");
    /// A replica outside the SyncStateSet may become master where no member is left: what it has not is lost.
    "enableElectUncleanMaster" => unclean: bool = false;
    "notifyBrokerRoleChanged" => notify: bool = true;
    /// Between two looks for brokers that gave no sign for their time.
    "scanNotActiveBrokerInterval" => scan_ms: u64 = 5_000;
    /// Between two looks for groups that need a master.
    "scanInactiveMasterInterval" => scan_master_ms: u64 = 5_000;
    /// Keys, separated by `;`, that a run-time update may not touch, besides the built-in ones.
    "configBlackList" => config_black_list: String = "configBlackList;configStorePath".to_owned();
    /// Where a run-time update is written; the `-c` file when there is one.
    "configStorePath" => store_path: PathBuf = home().join("controller/controller.properties");
    /// A connection without traffic for so long is closed.
    "serverChannelMaxIdleTimeSeconds" => idle_seconds: u64 = 120;
    /// Ours: after so many changes the log begins anew with a snapshot.
    "controllerSnapshotEntries" => snapshot_entries: u64 = 1_000;
}

fn home() -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| PathBuf::from("."))
}

/// Why a run-time update (code 1009) is refused; nothing of it was applied.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UpdateError {
    #[error("Can not update config in black list.")]
    BlackList,
    #[error("a controller inside a name server is configured by the name server's file alone")]
    Inside,
    #[error("string2Properties error")]
    Syntax,
    #[error("{key} = '{value}' {why}")]
    Value { key: String, value: String, why: String },
}

impl ControllerConfig {
    /// Defaults, then the file. The second value holds warnings, to be logged once each.
    ///
    /// # Errors
    /// A file that cannot be read, and a value that cannot be: with key, file and line.
    pub fn load(file: Option<&Path>) -> Result<(ControllerConfig, Vec<String>), ConfigError> {
        let Some(path) = file else { return Ok((ControllerConfig::default(), Vec::new())) };
        let bytes = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_text(path, &String::from_utf8_lossy(&bytes))
    }

    /// The controller inside a name server: its keys stand in the name server's file, where `listenPort` is the name server's, so there
    /// have to be peers. The warnings are of the name server's keys too.
    ///
    /// # Errors
    /// As [`ControllerConfig::load`]; no peers.
    pub fn load_inside(file: Option<&Path>) -> Result<(ControllerConfig, Vec<String>), ConfigError> {
        let (mut config, warnings) = Self::load(file)?;
        if config.all_peers().is_empty() {
            return Err(ConfigError::Value {
                place: Place::Default,
                key: "controllerDLegerPeers".to_owned(),
                value: String::new(),
                why: "is missing: enableControllerInNamesrv needs to know where the controller listens".to_owned(),
            });
        }
        (config.listen_port_given, config.inside) = (false, true);
        Ok((config, warnings))
    }

    /// [`ControllerConfig::load`] with the file's text given.
    pub fn from_text(path: &Path, text: &str) -> Result<(ControllerConfig, Vec<String>), ConfigError> {
        let pairs = properties::parse(text).map_err(|source| ConfigError::Syntax { path: path.to_owned(), source })?;
        let (mut config, mut warnings, mut lines) = (ControllerConfig::default(), Vec::new(), HashMap::new());
        for pair in pairs {
            let place = Place::File { path: path.to_owned(), line: pair.line };
            if let Some(before) = lines.insert(pair.key.clone(), pair.line) {
                warnings
                    .push(format!("{place}: {} was already given in line {before}; the later value counts", pair.key));
            } else if config.get(&pair.key).is_none() {
                warnings.push(format!("{place}: {} is not a known key", pair.key));
                config.others.insert(pair.key.clone(), String::new());
            }
            config.put(&pair.key, &pair.value).map_err(|why| ConfigError::Value {
                place,
                key: pair.key.clone(),
                value: pair.value.clone(),
                why,
            })?;
        }
        config.store_path = path.to_owned();
        config.listen_port_given = lines.contains_key("listenPort");
        config.check().map_err(|(key, why)| ConfigError::Value {
            place: match lines.get(key) {
                Some(line) => Place::File { path: path.to_owned(), line: *line },
                None => Place::Default,
            },
            key: key.to_owned(),
            value: config.get(key).unwrap_or_default(),
            why,
        })?;
        Ok((config, warnings))
    }

    /// Sets a known key.
    fn put(&mut self, key: &str, value: &str) -> Result<(), String> {
        let text = readable(value)?;
        match self.assign(key, text) {
            Some(outcome) => outcome,
            None => {
                self.others.insert(key.to_owned(), text.to_owned());
                Ok(())
            }
        }
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.bind_address.parse::<IpAddr>().is_err() {
            return Err(("bindAddress", "is not an IP address".to_owned()));
        }
        if self.controller_type != "DLedger" {
            let why = "is not supported: name the controllers in controllerDLegerPeers and leave controllerType alone";
            return Err(("controllerType", why.to_owned()));
        }
        for (key, value) in [
            ("scanNotActiveBrokerInterval", self.scan_ms),
            ("scanInactiveMasterInterval", self.scan_master_ms),
            ("serverChannelMaxIdleTimeSeconds", self.idle_seconds),
            ("controllerSnapshotEntries", self.snapshot_entries),
        ] {
            if value == 0 {
                return Err((key, "must be above 0".to_owned()));
            }
        }
        self.check_peers()
    }

    fn check_peers(&self) -> Result<(), (&'static str, String)> {
        let peers = Peers::read(&self.peers).map_err(|why| ("controllerDLegerPeers", why))?;
        if peers.is_empty() {
            return match self.self_id.as_str() {
                "" => Ok(()),
                _ => Err(("controllerDLegerSelfId", "needs controllerDLegerPeers beside it".to_owned())),
            };
        }
        if self.group.is_empty() {
            return Err((
                "controllerDLegerGroup",
                "is missing: the controllers of controllerDLegerPeers share it".to_owned(),
            ));
        }
        match Peers::number(&self.self_id) {
            Some(number) if peers.address(number).is_some() => Ok(()),
            _ => Err(("controllerDLegerSelfId", "is none of the ids in controllerDLegerPeers".to_owned())),
        }
    }

    /// Applies the body of code 1009 to a copy: all of it or nothing. Keys that nobody knows are left out.
    pub fn update(&self, text: &str) -> Result<ControllerConfig, UpdateError> {
        let pairs = properties::parse(text).map_err(|_| UpdateError::Syntax)?;
        if self.inside && !pairs.is_empty() {
            return Err(UpdateError::Inside);
        }
        let listed = |key: &str| self.config_black_list.split(';').any(|item| item.trim() == key);
        if pairs.iter().any(|pair| NEVER_UPDATED.contains(&pair.key.as_str()) || listed(&pair.key)) {
            return Err(UpdateError::BlackList);
        }
        let mut config = self.clone();
        for pair in pairs.into_iter().filter(|pair| self.get(&pair.key).is_some()) {
            let set = config.put(&pair.key, &pair.value).and_then(|()| config.check().map_err(|(_, why)| why));
            set.map_err(|why| UpdateError::Value { key: pair.key, value: pair.value, why })?;
        }
        Ok(config)
    }

    /// Every known key with its value, and the strangers of the file; sorted by key.
    fn effective(&self) -> Vec<(String, String)> {
        let accepted = ACCEPTED.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        let mut all: BTreeMap<String, String> = accepted.collect();
        all.extend(self.others.clone());
        all.extend(self.rows().into_iter().map(|(key, text)| (key.to_owned(), text)));
        all.into_iter().collect()
    }

    /// One value; `None` for a key that nobody knows.
    pub fn get(&self, key: &str) -> Option<String> {
        self.effective().into_iter().find(|row| row.0 == key).map(|row| row.1)
    }

    /// Sorted `key=value` lines: the answer of code 1010, the text written back, and what `-p` prints.
    pub fn to_text(&self) -> String {
        properties::write(&mut self.effective())
    }

    fn bound(&self, port: u16) -> SocketAddr {
        let ip = self.bind_address.parse().expect("checked when the configuration was read");
        SocketAddr::new(ip, port)
    }

    pub fn all_peers(&self) -> Peers {
        Peers::read(&self.peers).expect("checked when the configuration was read")
    }

    /// This controller's number among the peers; 0 alone.
    pub fn number(&self) -> u64 {
        Peers::number(&self.self_id).unwrap_or_default()
    }

    /// Where this controller listens; the first address is the one that others are told.
    pub fn listen_addrs(&self) -> Vec<SocketAddr> {
        match self.all_peers().port(self.number()) {
            None => vec![self.bound(self.listen_port)],
            Some(port) if self.listen_port_given && port != self.listen_port => {
                vec![self.bound(port), self.bound(self.listen_port)]
            }
            Some(port) => vec![self.bound(port)],
        }
    }

    /// The directory of this controller alone.
    pub fn own_dir(&self) -> PathBuf {
        self.store_dir.join(format!("uringmq-n{}", self.number()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<(ControllerConfig, Vec<String>), ConfigError> {
        ControllerConfig::from_text(Path::new("c.conf"), text)
    }

    const THREE: &str = "controllerDLegerGroup=g\ncontrollerDLegerSelfId=n1\n\
        controllerDLegerPeers=n0-127.0.0.1:9877;n1-127.0.0.1:9878;n2-127.0.0.1:9879\n";

    fn ports(config: &ControllerConfig) -> Vec<u16> {
        config.listen_addrs().iter().map(SocketAddr::port).collect()
    }

    #[test]
    fn one_alone_needs_no_file_and_three_take_apache_s() {
        let alone = ControllerConfig::default();
        assert_eq!((alone.check(), alone.number(), ports(&alone)), (Ok(()), 0, vec![19876]));
        let (three, warnings) = load(THREE).unwrap();
        assert_eq!(warnings, Vec::<String>::new());
        assert_eq!((three.number(), ports(&three)), (1, vec![9878]));
        assert!(three.own_dir().ends_with("uringmq-n1"));
        let (more, _) = load(&format!("{THREE}listenPort=1234")).unwrap();
        assert_eq!(ports(&more), [9878, 1234]);
        let (same, _) = load(&format!("{THREE}listenPort=9878")).unwrap();
        assert_eq!(ports(&same), [9878]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, want) in [
            ("\nlistenPort=x", "c.conf line 2: listenPort = 'x' is not a whole number"),
            ("scanNotActiveBrokerInterval=0", "c.conf line 1: scanNotActiveBrokerInterval = '0' must be above 0"),
            ("controllerSnapshotEntries=0", "c.conf line 1: controllerSnapshotEntries = '0' must be above 0"),
            ("bindAddress=x", "c.conf line 1: bindAddress = 'x' is not an IP address"),
            ("controllerType=jRaft", "c.conf line 1: controllerType = 'jRaft' is not supported"),
            ("controllerDLegerSelfId=n0", "controllerDLegerSelfId = 'n0' needs controllerDLegerPeers"),
            ("controllerDLegerPeers=n0-a:1", "default: controllerDLegerGroup = '' is missing"),
            ("controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-a:1", "controllerDLegerSelfId = '' is none of the ids"),
            (
                "controllerDLegerGroup=g\ncontrollerDLegerSelfId=n1\ncontrollerDLegerPeers=n0-a:1",
                "line 2: controllerDLegerSelfId = 'n1' is none of the ids",
            ),
            ("controllerDLegerPeers=n0", "line 1: controllerDLegerPeers = 'n0' has"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
        assert!(ControllerConfig::load(Some(&std::env::temp_dir())).is_err());
    }

    #[test]
    fn unknown_keys_warn_and_printed_text_reads_back() {
        let (config, warnings) = load("myKey=x\nserverWorkerThreads=4\nlistenPort=1").unwrap();
        assert_eq!(warnings, ["c.conf line 1: myKey is not a known key"]);
        let text = config.to_text();
        let again = load(&text).unwrap().0;
        assert_eq!(again.to_text().replace("c.conf", ""), text.replace("c.conf", ""));
        let keys: Vec<&str> = text.lines().map(|line| line.split_once('=').unwrap().0).collect();
        assert!(keys.is_sorted());
        assert_eq!(config.get("serverWorkerThreads").as_deref(), Some("4"));
    }

    #[test]
    fn an_update_is_whole_or_nothing() {
        let (config, _) = load(THREE).unwrap();
        for text in ["configStorePath=/x", "enableElectUncleanMaster=true\ncontrollerDLegerPeers=", "listenPort=1"] {
            assert_eq!(config.update(text).map(|_| ()), Err(UpdateError::BlackList), "{text}");
        }
        assert_eq!(config.update("a=\\u1").map(|_| ()), Err(UpdateError::Syntax));
        assert!(config.update("enableElectUncleanMaster=true\nscanInactiveMasterInterval=0").is_err());
        let new = config.update("enableElectUncleanMaster=true\nnobodyKnows=1").unwrap();
        assert!(new.unclean && !config.unclean);
        assert_eq!((new.get("nobodyKnows"), ports(&new)), (None, ports(&config)));
    }
}
