//! A controller inside a name server (enableControllerInNamesrv).
use crate::common::{Client, Process, free_port, test_dir};
use crate::{apply_id, led_by};
use std::net::SocketAddr;

#[test]
fn a_name_server_and_its_controller_are_one_process_with_one_file() {
    let mut process = Process::new("namesrv", test_dir("controller-inside"));
    let (names, port) = (free_port(), free_port());
    let without = format!(
        "listenPort={names}\nkvConfigPath={}\nenableControllerInNamesrv=true\nmyKey=1\n",
        process.dir.join("kv.json").display()
    );
    let why = process.start(&without).expect_err("it starts");
    assert!(why.contains("controllerDLegerPeers = '' is missing"), "{why}");
    let conf = format!(
        "{without}controllerDLegerGroup=g\ncontrollerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId=n0\n\
         controllerStorePath={}\n",
        process.store().display()
    );
    let before = process.log().len();
    process.start(&conf).expect("a name server");
    let addr = SocketAddr::from(([127, 0, 0, 1], port));
    led_by(&[addr]);
    let mut controller = Client::connect(addr);
    apply_id(&mut controller, "broker-a", 1, "127.0.0.1:1");
    assert_eq!(controller.call(1009, &[], b"scanInactiveMasterInterval=4000").code, 16, "one file, one writer");
    let mut name_server = Client::connect(SocketAddr::from(([127, 0, 0, 1], names)));
    name_server.ok(106, &[], b"");
    assert_eq!(name_server.call(1005, &[], b"").code, 3, "each on its own port");
    let log = process.log().split_off(before);
    assert!(log.contains("myKey is not a known key") && !log.contains("controllerDLegerPeers is not"), "{log}");
    assert!(process.stop().success(), "{}", process.log());
    process.start(&conf).expect("it starts again");
    led_by(&[addr]);
    let next = Client::connect(addr).ok(1012, &[("clusterName", "c"), ("brokerName", "broker-a")], b"");
    assert_eq!(next.get("nextBrokerId"), Some("2"));
}
