use super::*;
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;

fn temp_dir(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("uringmq-start-{name}-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    dir
}

/// Mounts `kind` on `dir`; prints why and gives `None` where that is forbidden. By system call: the child of a fork would
/// hold the locks of the tests beside this one until it has become another program.
struct Mounted(CString);

impl Mounted {
    fn new(kind: &CStr, name: &str) -> Option<Self> {
        let at = CString::new(temp_dir(name).into_os_string().into_vec()).unwrap();
        // SAFETY: the strings end in NUL and live through the call; no data is given.
        if unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), kind.as_ptr(), 0, std::ptr::null()) } == 0 {
            return Some(Mounted(at));
        }
        println!("skipped: {kind:?} cannot be mounted here: {}", io::Error::last_os_error());
        fs::remove_dir(OsStr::from_bytes(at.as_bytes())).unwrap();
        None
    }

    fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.0.as_bytes()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: the string ends in NUL and lives through the call.
        unsafe { libc::umount(self.0.as_ptr()) };
        let _ = fs::remove_dir(self.path());
    }
}

#[test]
fn a_store_on_ramfs_is_refused_and_one_on_tmpfs_warned_of() {
    if let Some(ramfs) = Mounted::new(c"ramfs", "ramfs") {
        let refused = check(1, &ramfs.path().join("store"), &[]).unwrap_err();
        assert!(matches!(&refused, StartError::NoDirectIo { .. }), "{refused}");
        assert!(refused.to_string().contains("put the store on"), "{refused}");
    }
    if let Some(tmpfs) = Mounted::new(c"tmpfs", "tmpfs") {
        let warning = direct_io(tmpfs.path()).unwrap().expect("a warning");
        assert!(warning.contains("tmpfs"), "{warning}");
    }
}

#[test]
fn a_disk_passes_and_the_probe_leaves_nothing_behind() {
    let root = temp_dir("disk").join("a/b");
    let log = root.join("commitlog");
    let checked = check(1, &root, &[&log]).unwrap();
    let names: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "commitlog and lock, no probe: {names:?}");
    assert_eq!(fs::read_dir(&log).unwrap().count(), 0);
    let second = check(1, &root, &[]).unwrap_err().to_string();
    assert!(second.contains("has this store open"), "{second}");
    drop(checked);
    check(1, &root, &[]).unwrap();
    fs::remove_dir_all(temp_dir("disk")).unwrap();
}

#[test]
fn a_store_that_is_a_file_is_named() {
    let dir = temp_dir("file");
    let file = dir.join("store");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let refused = direct_io(&file).unwrap_err();
    assert!(matches!(&refused, StartError::Directory { path, .. } if *path == file), "{refused}");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn limits_are_raised_or_the_need_is_told() {
    locked_memory(1).unwrap();
    let bytes =
        |limit: u64| StartError::LockedMemory { limit_bytes: limit, need_bytes: 1 << 20, need_kib: 1024, executors: 2 };
    let text = bytes(65536).to_string();
    assert!(text.contains("ulimit -l 1024") && text.contains("LimitMEMLOCK=1048576"), "{text}");
    open_files();
    let limit = machine::limit(libc::RLIMIT_NOFILE).unwrap();
    assert_eq!(limit.rlim_cur, limit.rlim_max);
}

#[test]
fn a_forbidden_ring_is_told_apart() {
    let case = |errno, disabled, filtered| diagnose(io::Error::from_raw_os_error(errno), disabled, filtered, "4.18");
    assert!(matches!(case(libc::EPERM, Some(2), true), StartError::IoUringDisabled { value: 2 }));
    assert!(matches!(case(libc::EPERM, Some(1), false), StartError::IoUringDisabled { value: 1 }));
    assert!(matches!(case(libc::EPERM, Some(0), true), StartError::IoUringFiltered));
    assert!(matches!(case(libc::EPERM, None, true), StartError::IoUringFiltered));
    assert!(matches!(case(libc::ENOSYS, Some(0), true), StartError::IoUringFiltered));
    assert!(matches!(case(libc::ENOSYS, None, false), StartError::NoIoUring { .. }));
    assert!(matches!(case(libc::EPERM, Some(0), false), StartError::IoUring(_)));
    assert!(matches!(case(libc::ENOMEM, Some(0), false), StartError::IoUring(_)));
    let text = case(libc::ENOSYS, None, false).to_string();
    assert!(text.contains("4.18") && text.contains("Linux 5.8"), "{text}");
}

/// A real filter, on a thread of its own: it lasts as long as the thread.
#[test]
fn a_real_seccomp_filter_is_recognised() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        let refused = std::thread::spawn(move || {
            forbid_io_uring(errno as u32);
            io_uring().unwrap_err()
        });
        let refused = refused.join().unwrap();
        assert!(matches!(refused, StartError::IoUringFiltered), "{refused}");
        assert!(refused.to_string().contains("deploy/"), "{refused}");
    }
    io_uring().unwrap();
}

/// Lets io_uring_setup fail with `errno` on this thread from now on.
fn forbid_io_uring(errno: u32) {
    const LOAD_WORD: u16 = 0x20; // BPF_LD | BPF_W | BPF_ABS
    const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(LOAD_WORD, 0, 0, 0), // seccomp_data.nr
        step(JUMP_EQUAL, 0, 1, libc::SYS_io_uring_setup as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: plain numbers; affects this thread only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: `program` points to `steps`, both alive through the call, which copies them.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) }, 0);
}

const TABLE: &str = "           CPU0       CPU1       CPU3
 35:          0          1          0  PCI-MSIX-0000:00:02.0   0-edge      virtio1-config
 36:          3     185402          0  PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 37:         90          0          0  PCI-MSIX-0000:00:02.0   1-edge      virtio11-req.0
 40:         50          0          0  PCI-MSI 1 edge      nvme0q0
 41:          0          0         70  PCI-MSI 2 edge      nvme0q1
 42:          0          0          0  PCI-MSI 3 edge      nvme0q2
 43:          9          0          0  PCI-MSI 2 edge      nvme1q1
 44:          0          8          0  PCI-MSI 3 edge      nvme1q2
LOC:     785108     825418          0  Local timer interrupts
";

#[test]
fn the_core_of_a_disk_s_interrupts() {
    let by_count = |prefix| interrupt_cpu(TABLE, prefix, |_| None);
    assert_eq!(by_count("virtio1-req."), Some(1));
    assert_eq!(by_count("virtio11-req."), Some(0));
    assert_eq!(by_count("nvme0q"), Some(3), "named by its column, the idle queue and the admin queue left out");
    assert_eq!(by_count("nvme1q"), None, "a queue for each core");
    assert_eq!(by_count("virtio9-req."), None);
    let moved = |irq: &str| (irq == "36").then(|| "3\n".to_owned());
    assert_eq!(interrupt_cpu(TABLE, "virtio1-req.", moved), Some(3));
    assert_eq!(interrupt_cpu(TABLE, "virtio1-req.", |_| Some("0-1\n".to_owned())), Some(1));
    assert_eq!(interrupt_cpu("", "virtio1-req.", |_| None), None);
}

#[test]
fn a_disk_s_interrupts_by_its_directory() {
    let prefix = |dir: &str| interrupt_prefix(Path::new(dir));
    let virtio = "/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/vda/vda1";
    assert_eq!(prefix(virtio).as_deref(), Some("virtio1-req."));
    assert_eq!(prefix("/sys/devices/pci0000:00/0000:00:1d.0/nvme/nvme0/nvme0n1/nvme0n1p2").as_deref(), Some("nvme0q"));
    assert_eq!(prefix("/sys/devices/virtual/block/loop0"), None);
    let mounts = "22 27 0:21 / /proc rw - proc proc rw\n30 1 0:33 /@ / rw shared:1 - btrfs /dev/sda2 rw\n";
    assert_eq!(mount_source(mounts, "0:33"), Some("/dev/sda2"));
    assert_eq!(mount_source(mounts, "0:21"), None);
    // Whatever this machine has, asking is harmless.
    println!("interrupts of the disk below here go to core {:?}", disk_interrupt_cpu(Path::new(".")));
}
