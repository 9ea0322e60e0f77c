//! A small disk of a broker's own: an ext4 image behind a loop device, which can be filled and made slow.
use super::net::succeed;
use crate::error::BenchError;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What fills a disk.
const FILLER: &str = "filler";
const CGROUP_V1: &str = "/sys/fs/cgroup/blkio";
const CGROUP_V2: &str = "/sys/fs/cgroup";

/// Mounted until it is dropped.
pub(super) struct Disk {
    mount: PathBuf,
    /// The group of processes whose writes are held; `None` where the kernel has no such control.
    group: Option<Group>,
}

struct Group {
    dir: PathBuf,
    v1: bool,
    /// `major:minor` of the loop device.
    device: String,
}

impl Disk {
    /// Makes an image of so many MiB beside `mount` and mounts it there. What was mounted there before goes.
    pub(super) fn make(mount: &Path, mib: u32, group: &str) -> Result<Disk, BenchError> {
        unmount(mount);
        fs::create_dir_all(mount).map_err(BenchError::io(mount.display().to_string()))?;
        let image = mount.with_extension("img");
        let file = File::create(&image).map_err(BenchError::io(image.display().to_string()))?;
        file.set_len(u64::from(mib) << 20).map_err(BenchError::io(image.display().to_string()))?;
        let mut mkfs = Command::new("mkfs.ext4");
        mkfs.args(["-q", "-F", "-m", "0"]).arg(&image);
        succeed(mkfs, true)?;
        let mut command = Command::new("mount");
        command.args(["-o", "loop"]).arg(&image).arg(mount);
        succeed(command, true)?;
        let mut disk = Disk { mount: mount.to_owned(), group: None };
        let device = fs::metadata(mount).map_err(BenchError::io(mount.display().to_string()))?.dev();
        disk.group = Group::make(group, &format!("{}:{}", libc::major(device), libc::minor(device)));
        Ok(disk)
    }

    pub(super) fn can_be_slow(&self) -> bool {
        self.group.is_some()
    }

    /// The process is one of those whose writes may be held.
    pub(super) fn admit(&self, pid: u32) -> Result<(), BenchError> {
        let Some(group) = &self.group else { return Ok(()) };
        fs::write(group.dir.join("cgroup.procs"), pid.to_string()).map_err(BenchError::io("a process into its cgroup"))
    }

    /// Writes go with so many bytes a second; `None`: as fast as it goes.
    pub(super) fn slow(&self, bytes: Option<u64>) -> Result<(), BenchError> {
        let Some(group) = &self.group else { return Ok(()) };
        let (file, text) = match (group.v1, bytes) {
            (true, bytes) => {
                ("blkio.throttle.write_bps_device", format!("{} {}", group.device, bytes.unwrap_or_default()))
            }
            (false, Some(bytes)) => ("io.max", format!("{} wbps={bytes}", group.device)),
            (false, None) => ("io.max", format!("{} wbps=max", group.device)),
        };
        fs::write(group.dir.join(file), text).map_err(BenchError::io(file))
    }

    /// Takes all the space that there is.
    pub(super) fn fill(&self) -> Result<(), BenchError> {
        let path = self.mount.join(FILLER);
        let file = File::create(&path).map_err(BenchError::io(path.display().to_string()))?;
        let (mut at, mut step) = (0i64, 64i64 << 20);
        while step >= 4096 {
            // SAFETY: plain system call on a descriptor that `file` keeps open.
            if unsafe { libc::fallocate(file.as_raw_fd(), 0, at, step) } == 0 {
                at += step;
                continue;
            }
            match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENOSPC) => step /= 2,
                error => return Err(BenchError::io("filling the disk")(error)),
            }
        }
        Ok(())
    }

    pub(super) fn empty(&self) {
        let _ = fs::remove_file(self.mount.join(FILLER)); // it may not be full
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.mount);
    }
}

impl Group {
    fn make(name: &str, device: &str) -> Option<Group> {
        let v1 = Path::new(CGROUP_V1).join("blkio.throttle.write_bps_device").exists()
            || Path::new(CGROUP_V1).join("cgroup.procs").exists();
        let root = Path::new(if v1 { CGROUP_V1 } else { CGROUP_V2 });
        if !v1 && !fs::read_to_string(root.join("cgroup.subtree_control")).ok()?.contains("io") {
            return None;
        }
        let dir = root.join(name);
        if !dir.exists() {
            fs::create_dir(&dir).ok()?;
        }
        Some(Group { dir, v1, device: device.to_owned() })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.dir); // the next run uses it where its processes are not gone yet
    }
}

/// Unmounts what is mounted there, if anything is.
pub(super) fn unmount(mount: &Path) {
    let _ = Command::new("umount").args(["-l"]).arg(mount).stdout(Stdio::null()).stderr(Stdio::null()).status();
}
