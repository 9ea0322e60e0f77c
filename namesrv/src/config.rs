//! The name server's configuration: Apache's keys and defaults (behaviour sheet 1.8), read once at the start; codes 318 and 319 change
//! and show it.
use crate::route_table::Rules;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use uringmq_proto::listed_config;
use uringmq_proto::settings::listed::{Settings, home};

/// Apache's keys that have no meaning here: thread pools and sockets of the Java server, another environment.
/// Taken quietly and listed back.
const ACCEPTED: &[(&str, &str)] = &[
    ("clientRequestThreadPoolNums", "8"),
    ("clientRequestThreadPoolQueueCapacity", "50000"),
    ("clusterTest", "false"),
    ("defaultThreadPoolNums", "16"),
    ("defaultThreadPoolQueueCapacity", "10000"),
    ("enableShutdownGracefully", "false"),
    ("productEnvName", "center"),
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
    ("unRegisterBrokerQueueCapacity", "3000"),
    ("useEpollNativeSelector", "false"),
    ("writeBufferHighWaterMark", "0"),
    ("writeBufferLowWaterMark", "0"),
];

listed_config! {
    /// The configuration with every default filled in.
    NamesrvConfig own {}

    /// 0 takes a free port (for tests).
    "listenPort" => listen_port: u16 = 9876;
    "bindAddress" => bind_address: String = "0.0.0.0".to_owned();
    "kvConfigPath" => kv_path: PathBuf = home().join("namesrv/kvConfig.json");
    /// Where a run-time update is written; the `-c` file when there is one.
    "configStorePath" => store_path: PathBuf = home().join("namesrv/namesrv.properties");
    /// Routes carry the order configuration of their topic.
    "orderMessageEnable" => order_message: bool = false;
    "returnOrderTopicConfigToBroker" => return_order_config: bool = true;
    "scanNotActiveBrokerInterval" => scan_ms: u64 = 5_000;
    "supportActingMaster" => support_acting_master: bool = false;
    "enableAllTopicList" => all_topic_list: bool = true;
    "enableTopicList" => topic_list: bool = true;
    /// A controller in this process, configured by the same file (docs/controller.md).
    "enableControllerInNamesrv" => controller_inside: bool = false;
    "notifyMinBrokerIdChanged" => notify_min_broker_id_changed: bool = false;
    /// No route is given before the server has been up for `wait_seconds`.
    "needWaitForService" => wait_for_service: bool = false;
    "waitSecondsForService" => wait_seconds: u64 = 45;
    "deleteTopicWithBrokerRegistration" => delete_topic_with_broker_registration: bool = false;
    /// Keys, separated by `;`, that a run-time update may not touch, besides the built-in ones.
    "configBlackList" => config_black_list: String = "configBlackList;configStorePath;kvConfigPath".to_owned();
    /// A connection without traffic for so long is closed.
    "serverChannelMaxIdleTimeSeconds" => idle_seconds: u64 = 120;
}

impl Settings for NamesrvConfig {
    const NEVER_UPDATED: &'static [&'static str] =
        &["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"];
    const ACCEPTED: &'static [(&'static str, &'static str)] = ACCEPTED;

    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.bind_address.parse::<IpAddr>().is_err() {
            return Err(("bindAddress", "is not an IP address".to_owned()));
        }
        for (key, value) in
            [("scanNotActiveBrokerInterval", self.scan_ms), ("serverChannelMaxIdleTimeSeconds", self.idle_seconds)]
        {
            if value == 0 {
                return Err((key, "must be above 0".to_owned()));
            }
        }
        Ok(())
    }

    fn black_list(&self) -> &str {
        &self.config_black_list
    }

    fn read_from(&mut self, path: &Path, _: impl Fn(&str) -> bool) {
        self.store_path = path.to_owned();
    }
}

impl NamesrvConfig {
    pub fn listen_addr(&self) -> SocketAddr {
        let ip = self.bind_address.parse().expect("checked when the configuration was read");
        SocketAddr::new(ip, self.listen_port)
    }

    /// The switches that the route table obeys.
    pub fn rules(&self) -> Rules {
        Rules {
            delete_topic_with_broker_registration: self.delete_topic_with_broker_registration,
            notify_min_broker_id_changed: self.notify_min_broker_id_changed,
            support_acting_master: self.support_acting_master,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uringmq_proto::settings::ConfigError;
    use uringmq_proto::settings::listed::UpdateError;

    fn load(text: &str) -> Result<(NamesrvConfig, Vec<String>), ConfigError> {
        NamesrvConfig::from_text(Path::new("n.conf"), text)
    }

    #[test]
    fn defaults_and_a_file_over_them() {
        let (config, warnings) = NamesrvConfig::load(None).unwrap();
        assert_eq!((config.listen_addr().to_string().as_str(), warnings.len()), ("0.0.0.0:9876", 0));
        assert!(config.kv_path.ends_with("namesrv/kvConfig.json"));
        let (config, warnings) =
            load("\u{feff}listenPort = 19876 \r\nserverWorkerThreads=4\nmyKey=1\nmyKey=2").unwrap();
        assert_eq!((config.listen_port, config.store_path.as_path()), (19876, Path::new("n.conf")));
        assert_eq!(
            (config.get("serverWorkerThreads").as_deref(), config.get("myKey").as_deref()),
            (Some("4"), Some("2"))
        );
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("line 3: myKey is not a known key"), "{warnings:?}");
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, start) in [
            ("\nlistenPort=98 76", "n.conf line 2: listenPort = '98 76' is not a whole number"),
            ("enableTopicList=yes", "n.conf line 1: enableTopicList = 'yes' is neither true nor false"),
            ("scanNotActiveBrokerInterval=0", "n.conf line 1: scanNotActiveBrokerInterval = '0' must be above 0"),
            ("bindAddress=x", "n.conf line 1: bindAddress = 'x' is not an IP address"),
            ("a=\\u1", "configuration file n.conf, line 1"),
        ] {
            let error = load(text).unwrap_err().to_string();
            assert!(error.starts_with(start), "{error}");
        }
        let missing = NamesrvConfig::load(Some(Path::new("no/such/file"))).unwrap_err().to_string();
        assert!(missing.contains("no/such/file"), "{missing}");
        assert!(NamesrvConfig::load(Some(&std::env::temp_dir())).is_err());
    }

    #[test]
    fn printed_text_reads_back_the_same() {
        let text = load("listenPort=1\nmyKey=x").unwrap().0.to_text();
        let again = load(&text).unwrap().0;
        assert_eq!(again.to_text().replace("n.conf", ""), text.replace("n.conf", ""));
        let keys: Vec<&str> = text.lines().map(|line| line.split_once('=').unwrap().0).collect();
        assert!(keys.is_sorted());
    }

    #[test]
    fn an_update_is_whole_or_nothing() {
        let (config, _) = load("configBlackList=productEnvName;listenPort").unwrap();
        for text in [
            "kvConfigPath=/x",
            "orderMessageEnable=true\nconfigStorePath=/x",
            "productEnvName=y",
            "rocketmqHome=/",
            "configBlackList=",
        ] {
            assert_eq!(config.update(text).map(|_| ()), Err(UpdateError::BlackList), "{text}");
        }
        assert_eq!(config.update("a=\\u1").map(|_| ()), Err(UpdateError::Syntax));
        let refused = config.update("orderMessageEnable=true\nscanNotActiveBrokerInterval=x").map(|_| ());
        assert!(matches!(refused, Err(UpdateError::Value { key, .. }) if key == "scanNotActiveBrokerInterval"));
        assert!(config.update("orderMessageEnable=true\\nkvConfigPath=/x").is_err(), "no new lines by way of a value");
        let new = config.update("orderMessageEnable=true\nnobodyKnows=1\nserverWorkerThreads=2").unwrap();
        assert!(new.order_message && !config.order_message);
        assert_eq!(new.get("serverWorkerThreads").as_deref(), Some("2"));
        assert_eq!(new.get("nobodyKnows"), None);
    }
}
