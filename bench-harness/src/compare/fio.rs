//! What the disk itself gives, by `fio` where it is installed: the limit that a figure of ours is to be held against.
use crate::error::BenchError;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Larger than a drive's own cache would like, small enough to be written anew in a second or two.
const FILE_BYTES: u64 = 512 << 20;
const SECS: u32 = 4;

/// `fio` and the file that it works on.
pub(super) struct Fio {
    file: PathBuf,
}

impl Fio {
    /// With a file of zeros in `dir`, written whole: writes over it need no new blocks, as in a warmed segment. `None` without fio.
    pub(super) fn on(dir: &Path) -> Result<Option<Fio>, BenchError> {
        let version = Command::new("fio").arg("--version").stdout(Stdio::null()).status();
        if !version.is_ok_and(|status| status.success()) {
            return Ok(None);
        }
        std::fs::create_dir_all(dir).map_err(BenchError::io(format!("making {}", dir.display())))?;
        let fio = Fio { file: dir.join("fio.dat") };
        fio.run(&["--rw=write", "--bs=1m", "--end_fsync=1"])?;
        Ok(Some(fio))
    }

    /// Writes of so many bytes, each followed by fdatasync, one after the other: how many a second.
    pub(super) fn synced_writes_per_s(&self, bytes: u64) -> Result<f64, BenchError> {
        let block = format!("--bs={bytes}");
        let seconds = format!("--runtime={SECS}");
        let said = self.run(&["--rw=write", &block, "--fdatasync=1", "--overwrite=1", "--time_based", &seconds])?;
        figure(&said, "write", "iops")
    }

    /// Direct reads of 1 MiB in order, four under way: bytes a second.
    pub(super) fn read_bytes_per_s(&self) -> Result<f64, BenchError> {
        let seconds = format!("--runtime={SECS}");
        let said = self.run(&["--rw=read", "--bs=1m", "--iodepth=4", "--time_based", &seconds])?;
        figure(&said, "read", "bw_bytes")
    }

    fn run(&self, more: &[&str]) -> Result<serde_json::Value, BenchError> {
        let output = Command::new("fio")
            .args(["--name=disk", "--ioengine=io_uring", "--direct=1", "--output-format=json"])
            .arg(format!("--filename={}", self.file.display()))
            .arg(format!("--size={FILE_BYTES}"))
            .args(more)
            .stdin(Stdio::null())
            .output()
            .map_err(BenchError::io("running fio"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let json = text.find('{').and_then(|at| serde_json::from_str(&text[at..]).ok());
        json.filter(|_| output.status.success())
            .ok_or_else(|| BenchError::Process(format!("fio: {text}{}", String::from_utf8_lossy(&output.stderr))))
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

fn figure(said: &serde_json::Value, direction: &str, name: &str) -> Result<f64, BenchError> {
    let found = said["jobs"][0][direction][name].as_f64().filter(|value| *value > 0.0);
    found.ok_or_else(|| BenchError::Process(format!("fio tells no {direction}.{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_what_fio_says() {
        let said = serde_json::json!({"jobs": [{"write": {"iops": 4321.5, "bw_bytes": 1}, "read": {"iops": 0.0}}]});
        assert_eq!(figure(&said, "write", "iops").unwrap(), 4321.5);
        assert!(figure(&said, "read", "iops").is_err() && figure(&said, "trim", "iops").is_err());
    }
}
