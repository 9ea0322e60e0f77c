//! The controller's configuration: Apache's keys and defaults (replication sheet 12), read once at the start; codes 1009 and 1010 change
//! and show it.
use crate::peers::Peers;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use uringmq_proto::listed_config;
use uringmq_proto::settings::listed::{Settings, home};
use uringmq_proto::settings::{ConfigError, Place};

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

listed_config! {
    /// The configuration with every default filled in.
    ControllerConfig own {
        /// The file names a listenPort.
        listen_port_given: bool = false;
        /// The file is a name server's.
        inside: bool = false;
    }

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

impl Settings for ControllerConfig {
    /// Who the controllers are, and where things lie, is read at the start alone.
    const NEVER_UPDATED: &'static [&'static str] = &[
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
    const ACCEPTED: &'static [(&'static str, &'static str)] = ACCEPTED;

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

    fn black_list(&self) -> &str {
        &self.config_black_list
    }

    fn read_from(&mut self, path: &Path, names: impl Fn(&str) -> bool) {
        self.store_path = path.to_owned();
        self.listen_port_given = names("listenPort");
    }
}

impl ControllerConfig {
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

    /// Whether the name server's file alone configures it: then no update may.
    pub fn is_inside(&self) -> bool {
        self.inside
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
    use uringmq_proto::settings::listed::UpdateError;

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
