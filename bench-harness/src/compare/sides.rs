//! The servers that are compared, and how each is configured and started.
use super::{CompareArgs, broker};
use crate::error::BenchError;
use crate::process::shown;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    Async,
    Sync,
}

/// One broker: its name, the command before the configuration file's path, and lines for that file.
pub(super) struct Side {
    name: &'static str,
    command: Vec<String>,
    conf: Vec<String>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Wants a home to look for things in.
    Apache,
    Ours,
    /// As Apache's, from its environment.
    Rust,
    /// Stores nothing and reads no configuration.
    Null,
}

impl Side {
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn stores(&self) -> bool {
        self.kind != Kind::Null
    }

    /// Whether gigabytes can be sent to it in minutes.
    pub(super) fn fills(&self) -> bool {
        matches!(self.kind, Kind::Apache | Kind::Ours)
    }

    pub(super) fn is_ours(&self) -> bool {
        self.kind == Kind::Ours
    }

    /// Writes the configuration into `dir`, for ours with these lines more, and gives the command line to run.
    pub(super) fn command(&self, dir: &Path, flush: Flush, ours_more: &[&str]) -> Result<String, BenchError> {
        self.command_with(dir, flush, if self.is_ours() { ours_more } else { &[] })
    }

    /// As [`Side::command`], with these lines more for any side; they go before lines of the same key.
    pub(super) fn command_with(
        &self,
        dir: &Path,
        flush: Flush,
        more: &[impl AsRef<str>],
    ) -> Result<String, BenchError> {
        if self.kind == Kind::Null {
            return Ok(self.command.join(" "));
        }
        std::fs::create_dir_all(dir).map_err(BenchError::io(format!("making {}", dir.display())))?;
        let dir = dir.canonicalize().map_err(BenchError::io(format!("finding {}", dir.display())))?;
        let flush = match flush {
            Flush::Async => "ASYNC_FLUSH",
            Flush::Sync => "SYNC_FLUSH",
        };
        let store = dir.join("store");
        let mut conf = self.conf.clone();
        conf.push(format!("storePathRootDir={}", store.display()));
        conf.push(format!("storePathCommitLog={}", store.join("commitlog").display()));
        conf.push(format!("flushDiskType={flush}"));
        for line in more.iter().map(AsRef::as_ref) {
            let key = line.split_once('=').map_or(line, |(key, _)| key);
            conf.retain(|other| other.split_once('=').is_none_or(|(other, _)| other != key));
            conf.push(line.to_owned());
        }
        let file = dir.join("broker.conf");
        std::fs::write(&file, conf.join("\n") + "\n").map_err(BenchError::io(format!("writing {}", file.display())))?;
        let (mut command, home) = (self.command.join(" "), shown(&dir));
        match self.kind {
            Kind::Apache => {
                command = command.replacen("java ", &format!("java -Drocketmq.home.dir={home} -Duser.home={home} "), 1);
            }
            Kind::Rust => command = format!("env ROCKETMQ_HOME={home} HOME={home} {command}"),
            Kind::Ours | Kind::Null => {}
        }
        Ok(format!("{command} -c {}", shown(&file)))
    }
}

fn conf(args: &CompareArgs) -> Vec<String> {
    let port = args.port;
    [
        "brokerClusterName=DefaultCluster",
        "brokerName=broker-a",
        "brokerId=0",
        "brokerIP1=127.0.0.1",
        "brokerRole=ASYNC_MASTER",
        "autoCreateTopicEnable=true",
    ]
    .iter()
    .map(ToString::to_string)
    .chain([format!("listenPort={port}")])
    .collect()
}

fn pinned(args: &CompareArgs, rest: impl IntoIterator<Item = String>) -> Vec<String> {
    let pin = args.server_cpus.iter().flat_map(|cpus| ["taskset".to_owned(), "-c".to_owned(), cpus.clone()]);
    pin.chain(rest).collect()
}

/// The binary of ours that is measured.
pub(super) fn binary(args: &CompareArgs) -> Result<PathBuf, BenchError> {
    match &args.ours {
        Some(binary) => Ok(binary.clone()),
        None => std::env::current_exe().map_err(BenchError::io("finding this binary")),
    }
}

pub(super) fn null(args: &CompareArgs) -> Result<Side, BenchError> {
    let words = [shown(&binary(args)?), "bench null --listen".to_owned(), broker(args).to_string()];
    Ok(Side { name: "null", command: pinned(args, words), conf: Vec::new(), kind: Kind::Null })
}

pub(super) fn ours(args: &CompareArgs) -> Result<Side, BenchError> {
    let binary = binary(args)?;
    let mut conf = conf(args);
    conf.extend(args.our_conf.iter().cloned());
    let command = pinned(args, [shown(&binary), "broker".to_owned()]);
    Ok(Side { name: "uringmq", command, conf, kind: Kind::Ours })
}

/// The broker of the crate `rocketmq-broker`.
pub(super) fn rust(args: &CompareArgs) -> Result<Side, BenchError> {
    let Some(binary) = &args.rocketmq_rust else {
        let why = "the side of rocketmq-rust needs its binary (cargo install rocketmq-broker): give --rocketmq-rust";
        return Err(BenchError::Process(why.to_owned()));
    };
    let binary = binary.canonicalize().map_err(BenchError::io(format!("finding {}", binary.display())))?;
    let command = pinned(args, [shown(&binary), "--config-format properties".to_owned()]);
    Ok(Side { name: "rust", command, conf: conf(args), kind: Kind::Rust })
}

pub(super) fn apache(args: &CompareArgs) -> Result<Side, BenchError> {
    let lib = match (&args.apache_lib, &args.apache_cache) {
        (Some(lib), _) => lib.clone(),
        (None, Some(cache)) => fetched(cache, &args.apache_version)?,
        (None, None) => {
            let why = "Apache's side needs its jars: give --apache-lib or --apache-cache, or leave it out of --sides";
            return Err(BenchError::Process(why.to_owned()));
        }
    };
    let lib = lib.canonicalize().map_err(BenchError::io(format!("finding {}", lib.display())))?;
    let heap = &args.heap;
    let mut java: Vec<String> = vec!["java".to_owned()];
    java.extend([format!("-Xms{heap}"), format!("-Xmx{heap}"), format!("-XX:MaxDirectMemorySize={heap}")]);
    java.push("-XX:+UseG1GC".to_owned());
    for package in ["java.lang", "java.util", "java.nio"] {
        java.push(format!("--add-opens=java.base/{package}=ALL-UNNAMED"));
    }
    java.push("--add-opens=java.base/sun.nio.ch=ALL-UNNAMED".to_owned());
    java.push("--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED".to_owned());
    java.push(format!("-cp {}", shown(&lib.join("*"))));
    java.push("org.apache.rocketmq.broker.BrokerStartup".to_owned());
    Ok(Side { name: "apache", command: pinned(args, java), conf: conf(args), kind: Kind::Apache })
}

/// The jars in `cache`, fetched by Maven when they are not there yet.
fn fetched(cache: &Path, version: &str) -> Result<PathBuf, BenchError> {
    let lib = cache.join(format!("lib-{version}"));
    if lib.join(format!("rocketmq-broker-{version}.jar")).exists() {
        return Ok(lib);
    }
    std::fs::create_dir_all(cache).map_err(BenchError::io(format!("making {}", cache.display())))?;
    let pom = cache.join(format!("pom-{version}.xml"));
    let text = format!(
        r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>uringmq</groupId>
  <artifactId>apache-broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.rocketmq</groupId>
      <artifactId>rocketmq-broker</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"#
    );
    std::fs::write(&pom, text).map_err(BenchError::io(format!("writing {}", pom.display())))?;
    let lib_shown = std::path::absolute(&lib).map_err(BenchError::io("finding the cache"))?;
    let maven = Command::new("mvn")
        .args(["-q", "-B", "-f"])
        .arg(&pom)
        .arg("dependency:copy-dependencies")
        .arg(format!("-DoutputDirectory={}", lib_shown.display()))
        .status()
        .map_err(BenchError::io("running mvn"))?;
    if maven.success() { Ok(lib) } else { Err(BenchError::Process("mvn could not fetch Apache's broker".to_owned())) }
}
