//! A directory of one test, removed when it ends.
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

pub struct TestDir(pub PathBuf);

impl TestDir {
    pub fn new(name: &str) -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("uringmq-{name}-{}-{number}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir); // of an earlier process with this id
        std::fs::create_dir_all(&dir).expect("a directory for the test");
        TestDir(dir)
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
