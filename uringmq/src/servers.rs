//! The servers: reads what configures one, checks, runs it until a signal, and says on standard output when it serves.
use crate::cli::{BrokerArgs, ControllerArgs, NamesrvArgs, StandaloneArgs};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::thread::JoinHandle;
use uringmq_broker::config::{BrokerConfig, HostPort, Machine};
use uringmq_broker::start_checks;
use uringmq_broker::startup::Beside;
use uringmq_broker::stop_signal::{self, StopHandle};
use uringmq_broker::{BrokerRun, Ended};
use uringmq_controller::ControllerConfig;
use uringmq_namesrv::NamesrvConfig;
use uringmq_proto::settings::listed::Settings;

/// What standalone is without a file: everything below one directory, and a name server for this machine and its neighbours.
const STANDALONE: &str = "storePathRootDir=uringmq-data\nnamesrvAddr=127.0.0.1:9876\n";
const NAMESRV_DEFAULT: &str = "127.0.0.1:9876";

/// Says why a server does not start; the exit status.
fn refuse(server: &str, why: &dyn std::fmt::Display) -> i32 {
    eprintln!("uringmq {server}: {why}");
    1
}

/// Lines on standard output. Nobody needs to read them: a closed pipe is no error.
fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

fn warn_of(warnings: &[String]) {
    warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
}

pub fn broker(args: BrokerArgs) -> i32 {
    let machine = Machine::this();
    let loaded = BrokerConfig::load(args.config_file.as_deref(), args.namesrv_addr.as_deref(), &machine);
    let (config, warnings) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return refuse("broker", &error),
    };
    warn_of(&warnings);
    if args.print || args.important {
        say(&config.to_text(machine.cpus, args.important));
        return 0;
    }
    let stop = StopHandle::new();
    if let Err(error) = stop_signal::on_signals(stop.clone()) {
        return refuse("broker", &error);
    }
    let (name, namesrv) = (config.broker_name.clone(), config.to_namesrv_text());
    let ip = config.clone();
    let ready = move |addr: SocketAddr| {
        let listens = ip.broker_addr(addr.port());
        let with = if namesrv.is_empty() { String::new() } else { format!(" and name server is {namesrv}") };
        say(&format!(
            "The broker[{name}, {listens}] boot success. serializeType=JSON{with}\nuringmq ready: broker {name} at {listens}\n"
        ));
    };
    end("broker", uringmq_broker::run(BrokerRun { config, beside: None, stop, ready: Box::new(ready) }))
}

/// The exit status, or the same program once more in this process, with nothing of this run in it: same id, arguments and environment.
fn end(server: &str, ended: Ended) -> i32 {
    let (variable, value) = match ended {
        Ended::Status(status) => return status,
        Ended::Again { variable, value } => (variable, value),
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "uringmq".into());
    let why = Command::new("/proc/self/exe").arg0(name).args(arguments).env(variable, value).exec();
    refuse(server, &format!("it cannot start over: {why}; start it again"))
}

/// What a broker's properties file says of its store; without one, Apache's defaults.
pub fn store_config(file: Option<&Path>) -> Result<uringmq_store::StoreConfig, String> {
    let (config, warnings) = BrokerConfig::load(file, None, &Machine::this()).map_err(|error| error.to_string())?;
    warn_of(&warnings);
    Ok(config.to_store_config())
}

pub fn namesrv(args: NamesrvArgs) -> i32 {
    let file = args.config_file.as_deref();
    let (config, mut warnings) = match NamesrvConfig::load(file) {
        Ok(loaded) => loaded,
        Err(error) => return refuse("namesrv", &error),
    };
    let inside = match config.controller_inside.then(|| ControllerConfig::load_inside(file)).transpose() {
        Ok(inside) => inside,
        Err(error) => return refuse("namesrv", &error),
    };
    if let Some((_, others)) = &inside {
        warnings.retain(|warning| others.contains(warning)); // a key that one of both knows is known
    }
    warn_of(&warnings);
    if args.print {
        say(&config.to_text());
        return 0;
    }
    let stop = StopHandle::new();
    if let Err(error) = stop_signal::on_signals(stop.clone()) {
        return refuse("namesrv", &error);
    }
    match start_checks::io_uring().and_then(|()| start_checks::locked_memory(1)) {
        Ok(warning) => warn_of(&Vec::from_iter(warning.into_iter().chain(start_checks::open_files()))),
        Err(error) => return refuse("namesrv", &error),
    }
    let inside = inside.map(|(config, _)| controller_inside(config, stop.clone()));
    let ends = stop.clone();
    let status = uringmq_namesrv::run(config, async move { ends.wait().await }, |addr| {
        say(&format!(
            "The Name Server boot success. serializeType=JSON, address {addr}\nuringmq ready: name server at {addr}\n"
        ));
    });
    stop.request();
    inside.map_or(status, |controller| status.max(controller.join().expect("a panic ends the process")))
}

/// A controller on threads of its own; its exit status. Neither it nor the name server runs without the other.
fn controller_inside(config: ControllerConfig, stop: StopHandle) -> JoinHandle<i32> {
    let run = move || {
        let ends = stop.clone();
        let status = uringmq_controller::run(config, async move { ends.wait().await }, |addr| {
            say(&format!("The Controller Server boot success. serializeType=JSON, address {addr}\n"));
        });
        stop.request();
        status
    };
    std::thread::Builder::new().name("controller".to_owned()).spawn(run).expect("a thread")
}

pub fn controller(args: ControllerArgs) -> i32 {
    let (config, warnings) = match ControllerConfig::load(args.config_file.as_deref()) {
        Ok(loaded) => loaded,
        Err(error) => return refuse("controller", &error),
    };
    warn_of(&warnings);
    if args.print {
        say(&config.to_text());
        return 0;
    }
    let stop = StopHandle::new();
    if let Err(error) = stop_signal::on_signals(stop.clone()) {
        return refuse("controller", &error);
    }
    warn_of(&Vec::from_iter(start_checks::open_files()));
    uringmq_controller::run(config, async move { stop.wait().await }, |addr| {
        say(&format!(
            "The Controller Server boot success. serializeType=JSON, address {addr}\nuringmq ready: controller at {addr}\n"
        ));
    })
}

pub fn standalone(args: StandaloneArgs) -> i32 {
    let machine = Machine::this();
    let loaded = match args.config_file.as_deref() {
        Some(file) => BrokerConfig::load(Some(file), None, &machine),
        None => BrokerConfig::from_text(None, STANDALONE, None, &machine),
    };
    let (mut config, warnings) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => return refuse("standalone", &error),
    };
    warn_of(&warnings);
    if config.namesrv_addr.0.is_empty() {
        config.namesrv_addr.0.push(HostPort::read(NAMESRV_DEFAULT).expect("a right address"));
    }
    let stop = StopHandle::new();
    if let Err(error) = stop_signal::on_signals(stop.clone()) {
        return refuse("standalone", &error);
    }
    let namesrv = beside(&config);
    let clients_use = config.namesrv_addr.0[0].to_string();
    let store = std::path::absolute(&config.store_root).unwrap_or_else(|_| config.store_root.clone());
    let addrs = config.clone();
    let ready =
        move |addr: SocketAddr| say(&greeting(&clients_use, &addrs.broker_addr(addr.port()), &store, addr.port()));
    let ended =
        uringmq_broker::run(BrokerRun { config, beside: Some(in_process(namesrv)), stop, ready: Box::new(ready) });
    end("standalone", ended)
}

/// Where it listens, where it stores, what to do next; and the line that scripts wait for.
fn greeting(namesrv: &str, broker: &str, store: &Path, port: u16) -> String {
    format!(
        "listens  name server {namesrv} (the namesrvAddr of clients), broker {broker}\n\
         stores   {}\n\
         try      uringmq bench send --broker 127.0.0.1:{port}\n\
         uringmq ready: name server {namesrv}, broker {broker}\n",
        store.display()
    )
}

/// The name server that serves where the first address of the broker's `namesrvAddr` says: its port, on all interfaces unless the host
/// is loopback. Its table lies below the broker's store.
fn beside(broker: &BrokerConfig) -> NamesrvConfig {
    let first = &broker.namesrv_addr.0[0];
    let loopback = match first.host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => Some(ip.to_string()),
        Err(_) if first.host == "localhost" => Some("127.0.0.1".to_owned()),
        _ => None,
    };
    let dir: PathBuf = broker.store_root.join("namesrv");
    let mut config = NamesrvConfig::default();
    config.listen_port = first.port;
    config.bind_address = loopback.unwrap_or_else(|| "0.0.0.0".to_owned());
    config.kv_path = dir.join("kvConfig.json");
    config.store_path = dir.join("namesrv.properties");
    config
}

fn in_process(config: NamesrvConfig) -> Beside {
    Box::new(move |gate: Rc<_>| {
        Box::pin(async move {
            uringmq_namesrv::start(config, gate).await.map(drop).map_err(|error| format!("name server: {error}"))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broker(text: &str) -> BrokerConfig {
        BrokerConfig::from_text(None, text, None, &Machine::this()).unwrap().0
    }

    #[test]
    fn the_name_server_beside_listens_where_the_broker_looks() {
        let beside =
            |addr: &str| beside(&broker(&format!("storePathRootDir=/d\nnamesrvAddr={addr}"))).listen_addr().to_string();
        assert_eq!(beside("127.0.0.1:19876"), "127.0.0.1:19876");
        assert_eq!(beside("localhost:1;other:2"), "127.0.0.1:1");
        assert_eq!(beside("[::1]:9876"), "[::1]:9876");
        assert_eq!(beside("10.1.2.3:9876"), "0.0.0.0:9876");
        assert_eq!(beside("some.host:9876"), "0.0.0.0:9876");
    }

    #[test]
    fn standalone_needs_no_file() {
        let config = broker(STANDALONE);
        assert_eq!(config.store_root, Path::new("uringmq-data"));
        assert_eq!(config.commit_log_dir, Path::new("uringmq-data/commitlog"));
        let namesrv = super::beside(&config);
        assert_eq!(namesrv.kv_path, Path::new("uringmq-data/namesrv/kvConfig.json"));
        let text = greeting("127.0.0.1:9876", "10.0.0.5:10911", Path::new("/x/uringmq-data"), 10911);
        assert_eq!(text.lines().count(), 4);
        assert!(text.lines().last().unwrap().starts_with("uringmq ready"));
    }
}
