use super::*;
use std::path::PathBuf;

/// A machine that never changes under a test.
fn machine() -> Machine {
    let address = |interface: &str, ip: &str| Address { interface: interface.to_owned(), ip: ip.parse().unwrap() };
    Machine {
        host_name: "host-a".to_owned(),
        home: PathBuf::from("/home/mq"),
        addresses: vec![address("lo", "127.0.0.1"), address("eth0", "10.0.0.5")],
        namesrv_addr: None,
        cpus: 4,
        resolve: |host| match host {
            "known.host" => Ok("10.9.9.9".parse().unwrap()),
            _ => host.trim_matches(['[', ']']).parse().map_err(|_| std::io::Error::other("no such name")),
        },
    }
}

fn load_on(machine: &Machine, text: &str, flag: Option<&str>) -> Result<(BrokerConfig, Vec<String>), ConfigError> {
    BrokerConfig::from_text(Some(Path::new("b.conf")), text, flag, machine)
}

fn load(text: &str) -> BrokerConfig {
    load_on(&machine(), text, None).unwrap_or_else(|error| panic!("{text:?}: {error}")).0
}

fn warnings(text: &str) -> Vec<String> {
    load_on(&machine(), text, None).unwrap().1
}

fn refusal(text: &str) -> String {
    load_on(&machine(), text, None).err().unwrap_or_else(|| panic!("{text:?} was accepted")).to_string()
}

#[test]
fn defaults_are_apache_s_and_follow_the_machine() {
    let (config, warnings) = BrokerConfig::from_text(None, "", None, &machine()).unwrap();
    assert_eq!(warnings, Vec::<String>::new());
    assert_eq!((config.broker_name.as_str(), config.cluster_name.as_str()), ("host-a", "DefaultCluster"));
    assert_eq!((config.listen_port, config.ha_listen_port, config.fast_listen_addr().port()), (10911, 10912, 10909));
    assert_eq!(config.broker_addr(10911), "10.0.0.5:10911");
    assert_eq!(config.ha_addr(), "10.0.0.5:10912");
    assert_eq!(config.store_root, Path::new("/home/mq/store"));
    assert_eq!(config.commit_log_dir, Path::new("/home/mq/store/commitlog"));
    assert_eq!(config.shard_count(4), 4);
    let store = config.to_store_config();
    assert_eq!((store.segment_bytes, store.queue_file_bytes), (1 << 30, 6_000_000));
    assert_eq!(store.record_bytes_max, (4 << 20) + (64 << 10));
    assert_eq!(store.delay_levels_ms.len(), 18);
    let policy = config.retention_policy();
    assert_eq!((policy.reserved_ms, policy.hours), (72 * 3_600_000, vec![4]));
    assert_eq!((policy.max_used_percent, policy.force_percent, policy.full_percent), (75, 85, 90));
}

#[test]
fn paths_names_and_ports_follow_each_other() {
    let config = load("storePathRootDir=/data/mq\nlistenPort=20911\nbrokerName=b");
    assert_eq!(config.commit_log_dir, Path::new("/data/mq/commitlog"));
    assert_eq!((config.ha_listen_port, config.fast_listen_addr().port()), (20912, 20909));
    let config = load("listenPort=0");
    assert_eq!((config.ha_listen_port, config.fast_listen_addr().port()), (0, 0));
    assert!(refusal("listenPort=2").starts_with("b.conf line 1: listenPort = '2' leaves no port"));
    assert!(refusal("listenPort=65535").contains("haListenPort"));
}

/// Known fault A05.
#[test]
fn blanks_are_trimmed_and_a_value_that_cannot_be_read_stops_the_start() {
    for text in
        ["autoCreateTopicEnable=false", "autoCreateTopicEnable = False \t\r\n", "\u{feff}autoCreateTopicEnable=false"]
    {
        assert!(!load(text).auto_create_topic, "{text:?}");
    }
    for text in ["listenPort=20911 ", "listenPort\t:\t20911\r", "\u{feff}listenPort 20911"] {
        assert_eq!(load(text).listen_port, 20911, "{text:?}");
    }
    for (text, key, line) in [
        ("# first\n\nlistenPort=10 911", "listenPort", 3),
        ("traceOn=yes", "traceOn", 1),
        ("brokerId=１", "brokerId", 1),
        ("fileReservedTime=1_0", "fileReservedTime", 1),
        ("fileReservedTime=", "fileReservedTime", 1),
        ("flushDiskType=SYNC", "flushDiskType", 1),
        ("brokerRole=async_master", "brokerRole", 1),
        ("messageDelayLevel=1s 5x", "messageDelayLevel", 1),
        ("deleteWhen=25", "deleteWhen", 1),
        ("a=1\nosPageCacheBusyTimeOutMills=1 0", "osPageCacheBusyTimeOutMills", 2),
        ("warmMapedFileEnable=yes", "warmMapedFileEnable", 1),
        ("brokerName=a\\nlistenPort=1", "brokerName", 1),
        ("brokerName=\u{fffd}", "brokerName", 1),
        ("flushIntervalCommitLog=0", "flushIntervalCommitLog", 1),
        ("maxErrorRateOfBloomFilter=100", "maxErrorRateOfBloomFilter", 1),
        ("expectConsumerNumUseFilter=0", "expectConsumerNumUseFilter", 1),
        ("enableConsumeQueueExt=true\nexpectConsumerNumUseFilter=100000", "expectConsumerNumUseFilter", 2),
        ("enableConsumeQueueExt=true\nmappedFileSizeConsumeQueueExt=32770", "mappedFileSizeConsumeQueueExt", 2),
    ] {
        let refused = refusal(text);
        assert!(refused.starts_with(&format!("b.conf line {line}: {key} = '")), "{refused}");
    }
    assert!(refusal("k=\\u12").starts_with("configuration file b.conf, line 1"));
}

#[test]
fn of_duplicates_the_last_wins_with_a_warning() {
    let text = "brokerName=a\nlistenPort=1000\nbrokerName=b\n";
    assert_eq!(load(text).broker_name, "b");
    assert_eq!(
        warnings(text),
        ["b.conf line 3: brokerName was already given at b.conf line 1; the later value counts"]
    );
}

#[test]
fn strangers_are_warned_of_once_and_listed_back() {
    let text = "myKey=1\nmyKey=2\nmyKey=3\nuseABSLock=true\nsendMessageThreadPoolNums=32";
    let warned = warnings(text);
    assert_eq!(warned.iter().filter(|line| line.contains("not a known key")).count(), 1, "{warned:?}");
    let config = load(text);
    assert_eq!(config.get("myKey", 4).as_deref(), Some("3"));
    assert_eq!(config.get("useABSLock", 4).as_deref(), Some("true"));
    assert_eq!(config.get("sendMessageThreadPoolNums", 4).as_deref(), Some("32"));
}

#[test]
fn misspelt_keys_of_old_articles_are_named_and_not_applied() {
    let text = "mapedFileSizeCommitLog=4096\nmapedFileSizeConsumeQueue=20\nstorePathConsumeQueue=/x\n";
    let config = load(text);
    assert_eq!((config.segment_bytes, config.queue_file_bytes), (1 << 30, 6_000_000));
    assert_eq!(config.get("storePathConsumeQueue", 4), None);
    let warned = warnings(text);
    assert_eq!(warned.len(), 3);
    assert_eq!(
        warned[0],
        "b.conf line 1: mapedFileSizeCommitLog is not a key and was not applied; the right one is mappedFileSizeCommitLog"
    );
}

/// Known fault A07.
#[test]
fn name_server_lists_are_checked_and_the_key_is_named() {
    for bad in ["a:1,b:2", ";a:1", "a", "a:99999", "a:1 # note", "::1:9876"] {
        let refused = refusal(&format!("namesrvAddr={bad}"));
        assert!(refused.starts_with("b.conf line 1: namesrvAddr = '"), "{refused}");
    }
    assert_eq!(load("namesrvAddr=a:1; ").namesrv_addr.show(), "a:1");
    assert_eq!(load("namesrvAddr=no.such.host:9876;[::1]:9876").namesrv_addr.0.len(), 2);
}

/// Known fault A08: the order of flags cannot matter, as the flag is applied after the file.
#[test]
fn flag_over_file_over_environment() {
    let environment = Machine { namesrv_addr: Some("env:1".to_owned()), ..machine() };
    let addr = |text: &str, flag: Option<&str>| load_on(&environment, text, flag).unwrap().0.namesrv_addr.show();
    assert_eq!(addr("", None), "env:1");
    assert_eq!(addr("namesrvAddr=file:1", None), "file:1");
    assert_eq!(addr("namesrvAddr=file:1", Some("flag:1;flag:2")), "flag:1;flag:2");
    let bad = |text: &str, flag| load_on(&environment, text, flag).unwrap_err().to_string();
    assert!(bad("", Some("x")).starts_with("flag -n: namesrvAddr = 'x' "));
    let environment = Machine { namesrv_addr: Some("env".to_owned()), ..machine() };
    let refused = load_on(&environment, "", None).unwrap_err().to_string();
    assert!(refused.starts_with("environment variable NAMESRV_ADDR: namesrvAddr = 'env' "), "{refused}");
    let (_, warned) = load_on(&machine(), "namesrvAddr=file:1", Some("flag:1")).unwrap();
    assert_eq!(warned, Vec::<String>::new(), "overriding is no duplicate");
}

/// Known fault A08.
#[test]
fn a_file_that_cannot_be_read_is_named() {
    let load = |path: &Path| BrokerConfig::load(Some(path), None, &machine()).map(|_| ()).map_err(|e| e.to_string());
    let dir = std::env::temp_dir();
    let refused = load(&dir).unwrap_err();
    assert!(refused.contains(&dir.display().to_string()), "{refused}");
    let missing = dir.join("uringmq-no-such-file.conf");
    assert!(load(&missing).unwrap_err().contains("uringmq-no-such-file.conf"));
    let empty = dir.join(format!("uringmq-empty-{}.conf", std::process::id()));
    std::fs::write(&empty, "").unwrap();
    assert_eq!(load(&empty), Ok(()));
    // A comment in another encoding, as old files have; a value must be readable.
    std::fs::write(&empty, b"# \xd6\xd0\xce\xc4\nbrokerName=a\n").unwrap();
    assert_eq!(load(&empty), Ok(()));
    std::fs::write(&empty, b"brokerName=\xd6\xd0\n").unwrap();
    assert!(load(&empty).unwrap_err().contains("line 1: brokerName"));
    std::fs::remove_file(&empty).unwrap();
}

/// Known fault A09.
#[test]
fn own_address_must_resolve_and_loopback_is_loud() {
    assert!(refusal("brokerIP1=no.such.host").contains("brokerIP1 = 'no.such.host' does not resolve"));
    assert!(refusal("brokerIP2=no.such.host").contains("brokerIP2"));
    let config = load("brokerIP1=known.host");
    assert_eq!(config.broker_addr(10911), "known.host:10911");
    assert_eq!(config.store_host(10911), "10.9.9.9:10911".parse().unwrap());
    let config = load("brokerIP1=2001:db8::7");
    assert_eq!(config.broker_addr(10911), "[2001:db8::7]:10911");
    assert_eq!(load("brokerIP1=[2001:db8::7]").broker_addr(1), "[2001:db8::7]:1");
    assert!(warnings("brokerIP1=127.0.0.1")[0].contains("cannot reach this broker"));
    let lonely = Machine { addresses: machine().addresses[..1].to_vec(), ..machine() };
    let (config, warned) = load_on(&lonely, "", None).unwrap();
    assert_eq!(config.broker_addr(10911), "127.0.0.1:10911");
    assert!(warned[0].contains("set brokerIP1"), "{warned:?}");
}

#[test]
fn roles_and_ids() {
    assert!(refusal("brokerRole=SLAVE").contains("brokerId = '0' must be above 0"));
    assert!(!load("brokerRole=SLAVE\nbrokerId=1\ninSyncReplicas=2").awaits_slaves());
    assert!(
        !load("inSyncReplicas=2").awaits_slaves() && load("brokerRole=SYNC_MASTER\ninSyncReplicas=2").awaits_slaves()
    );
    assert!(warnings("brokerRole=SYNC_MASTER")[0].contains("set inSyncReplicas=2"));
    assert!(
        warnings("brokerRole=SYNC_MASTER\ninSyncReplicas=2").is_empty()
            && warnings("brokerRole=ASYNC_MASTER").is_empty()
    );
    for text in ["inSyncReplicas=0", "haTransferBatchSize=0", "haTransferBatchSize=4194305", "haMasterAddress=master"] {
        assert!(refusal(text).contains(&text[..text.find('=').unwrap()]), "{text}");
    }
    let text = "brokerRole=SYNC_MASTER\nbrokerId=3";
    assert_eq!(load(text).broker_id, 0);
    assert!(warnings(text)[0].contains("brokerId 3"));
    for text in [
        "enableDLegerCommitLog=true",
        "enableControllerMode=true\nfetchControllerAddrByDnsLookup=true\ncontrollerAddr=h:1",
        "authenticationEnabled=true",
        "authorizationEnabled=TRUE",
        "storeType=defaultRocksDB",
    ] {
        assert!(refusal(text).contains("b.conf line"), "{text}");
    }
    let alone = refusal("enableControllerMode=true");
    assert!(alone.contains("controllerAddr") && alone.contains("blank"), "{alone}");
    let led = load("enableControllerMode=true\ncontrollerAddr=h:1;h:2\nbrokerRole=SLAVE\nbrokerId=0");
    assert_eq!((led.role, led.controller_addr.0.len(), led.confirms()), (BrokerRole::SyncMaster, 2, false));
    let all = load("enableControllerMode=true\ncontrollerAddr=h:1\nallAckInSyncStateSet=true");
    assert!(all.confirms() && all.awaits_slaves() && !load("allAckInSyncStateSet=true").awaits_slaves());
    for text in ["controllerAddr=h", "minInSyncReplicas=0", "checkSyncStateSetPeriod=0"] {
        assert!(refusal(text).contains(&text[..text.find('=').unwrap()]), "{text}");
    }
    let dledger = refusal("enableDLegerCommitLog=true");
    assert!(dledger.contains("enableDLegerCommitLog") && dledger.contains("controller mode"), "{dledger}");
    load("aclEnable=true\nstoreType=default\nenableDLegerCommitLog=false\ninSyncReplicas=2");
}

#[test]
fn sizes_and_ratios() {
    assert!(
        refusal("mappedFileSizeCommitLog=1000000")
            .contains("mappedFileSizeCommitLog = '1000000' is not a multiple of 4096")
    );
    assert!(refusal("mappedFileSizeCommitLog=4294967296").contains("mappedFileSizeCommitLog"));
    assert!(refusal("mappedFileSizeCommitLog=0").contains("mappedFileSizeCommitLog"));
    let config = load("mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=1001\nbatchBytesMax=5000");
    assert_eq!((config.segment_bytes, config.queue_file_bytes, config.batch_bytes_max), (1 << 20, 1020, 8192));
    assert_eq!(config.to_store_config().record_bytes_max, (1 << 20) - 8);
    let text = "diskMaxUsedSpaceRatio=99\ndiskSpaceCleanForciblyRatio=1\ndiskSpaceWarningLevelRatio=95";
    let policy = load(text).retention_policy();
    assert_eq!((policy.max_used_percent, policy.force_percent, policy.full_percent), (95, 30, 90));
    assert_eq!(warnings(text).len(), 3);
    for text in [
        "storePathRootDir=/d\nstorePathCommitLog=/d/",
        "storePathCommitLog=/a,/b",
        "shards=100000",
        "brokerPermission=64",
        "bindAddress=everywhere",
        "writerCpu=-2",
        "writerConnections=2",
        "maxIndexNum=1",
    ] {
        refusal(text);
    }
    let config = load("cpuSet=1-2\nshards=0");
    assert_eq!(config.shard_count(4), 2);
    assert_eq!(load("shards=9\ncpuSet=0").shard_count(4), 9);
    let counts = |text: &str| [0, 1, 2, 3, 32].map(|cpus| load(text).shard_count(cpus));
    assert_eq!(counts(""), [1, 1, 1, 3, 32]);
    assert_eq!(counts("cpuSet=0-1"), [2; 5]);
}

#[test]
fn the_printed_configuration_reads_back_the_same() {
    let config =
        load("brokerName=b\nlistenPort=30911\nmyKey=a\\\\b\nnamesrvAddr=a:1;b:2;\ncpuSet=0-1\nuseABSLock=true");
    let text = config.to_text(4, false);
    let again = load(&text);
    assert_eq!(again.to_text(4, false), text);
    let keys: Vec<&str> = text.lines().map(|line| line.split_once('=').unwrap().0).collect();
    assert!(keys.is_sorted(), "sorted");
    for line in [
        "brokerName=b",
        "listenPort=30911",
        "haListenPort=30912",
        "namesrvAddr=a:1;b:2",
        "shards=0",
        "brokerClusterName=DefaultCluster",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}");
    }
    let important = config.to_text(4, true);
    assert_eq!(important.lines().count(), IMPORTANT.len());
    assert!(important.contains("listenPort=30911\n"));
}

#[test]
fn run_time_update_is_whole_or_nothing() {
    let config = load("configBlackList=configBlackList;brokerConfigPath;regionId\nmyKey=1");
    for text in ["traceOn=false\nbrokerConfigPath=/x", "configBlackList=a", "rocketmqHome=/x", "regionId=r"] {
        assert_eq!(config.update(text).map(|_| ()), Err(UpdateError::BlackList), "{text}");
    }
    assert_eq!(config.update("k=\\u12").map(|_| ()), Err(UpdateError::Syntax));
    let refused = config.update("traceOn=false\nfileReservedTime=abc").map(|_| ()).unwrap_err();
    assert!(refused.to_string().starts_with("fileReservedTime = 'abc' "), "{refused}");
    assert!(config.update("traceOn=false\\nregionId=x").is_err(), "no new lines by way of a value");
    assert!(config.update("flushDiskType=x").is_err());
    assert!(config.update("authenticationEnabled=true").is_err(), "what the next start would refuse");
    assert!(config.update("cleanResourceInterval=0").is_err(), "checked now, though it counts from the next start");

    let (new, updated) = config
        .update("traceOn=false\nlistenPort=1234\nuseABSLock=true\nmyKey=2\nnobodyKnows=1\ndiskMaxUsedSpaceRatio=99")
        .unwrap();
    assert!(!new.trace_on && config.trace_on);
    assert_eq!(new.disk_max_used_percent, 95, "clamped as at the start");
    assert_eq!(new.listen_port, 10911, "the running value stays");
    assert_eq!(new.get("listenPort", 4).as_deref(), Some("1234"), "and the next start's is shown");
    assert_eq!(new.get("nobodyKnows", 4), None);
    assert_eq!(new.get("myKey", 4).as_deref(), Some("2"));
    let effect = |key: &str| updated.set.iter().find(|row| row.0 == key).map(|row| row.1);
    assert_eq!(effect("traceOn"), Some(Effect::AtOnce));
    assert_eq!(effect("listenPort"), Some(Effect::Restart));
    assert_eq!(effect("useABSLock"), Some(Effect::Inert));
    assert_eq!(updated.ignored, ["nobodyKnows"]);
}
