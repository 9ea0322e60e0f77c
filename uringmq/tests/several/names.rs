//! Names of a test's own: a hosts file that one process sees in place of the machine's.
use std::path::{Path, PathBuf};

/// Put before a command line: mounts the hosts file over the machine's, in a mount namespace of the process's own, and becomes the rest.
const SCRIPT: &str = "mount --bind \"$0\" /etc/hosts && exec \"$@\"";

pub struct Hosts {
    file: PathBuf,
}

impl Hosts {
    /// Knows no name but localhost.
    pub fn new(dir: &Path) -> Self {
        let hosts = Hosts { file: dir.join("hosts") };
        hosts.say("");
        hosts
    }

    /// From now on it has this line. It is written in place: a process that sees it mounted has this very file.
    pub fn say(&self, line: &str) {
        std::fs::write(&self.file, format!("127.0.0.1 localhost\n{line}\n")).expect("the hosts file");
    }

    /// For [`super::common::Process::through`]. Without root the process is root of a namespace of its own.
    pub fn seen_by(&self) -> Vec<String> {
        // SAFETY: a plain system call that cannot fail.
        let root = unsafe { libc::geteuid() } == 0;
        let namespaces = if root { "--mount" } else { "--map-root-user" };
        // Other names are asked of a server that may not be there; nobody is to wait for it.
        let words = ["env", "RES_OPTIONS=timeout:1 attempts:1", "unshare", namespaces, "--mount", "sh", "-c", SCRIPT];
        words.iter().map(ToString::to_string).chain([self.file.display().to_string()]).collect()
    }
}
