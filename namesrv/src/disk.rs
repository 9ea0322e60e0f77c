//! The name server's two small files, written whole: a new file beside, synced, then put in the place of the old one, which stays as
//! `.bak`. The blocking calls run on the runtime's own blocking thread, never on the shard. Knows no content.
use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use thiserror::Error;

/// Why a file cannot be used.
#[derive(Debug, Error)]
pub enum DiskError {
    #[error("{path} cannot be read: {source}")]
    Read { path: PathBuf, source: io::Error },
    /// Neither the file nor its `.bak` is readable; starting with nothing would lose what they held.
    #[error(
        "{path} is damaged ({why}) and so is its .bak; repair one of them, or move both away to start with an empty table"
    )]
    Damaged { path: PathBuf, why: String },
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    PathBuf::from(name)
}

/// Durable when it returns; at each moment the file or its `.bak` is a whole one. Blocking.
pub fn save(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(dir)?;
    let tmp = beside(path, ".tmp");
    let mut file = File::create(&tmp)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    match fs::rename(path, beside(path, ".bak")) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::rename(&tmp, path)?;
    File::open(dir)?.sync_all()
}

/// The file if `parse` takes it, else its `.bak` (the second value then says why); `None` when there is neither. Blocking.
pub fn load<T>(
    path: &Path,
    parse: impl Fn(&[u8]) -> Result<T, String>,
) -> Result<(Option<T>, Option<String>), DiskError> {
    let mut why = None;
    for path in [path.to_owned(), beside(path, ".bak")] {
        match fs::read(&path) {
            Ok(bytes) => match parse(&bytes) {
                Ok(value) => return Ok((Some(value), why)),
                Err(fault) => {
                    why = Some(why.unwrap_or(format!("{} is damaged ({fault}); its .bak is used", path.display())))
                }
            },
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(source) => return Err(DiskError::Read { path, source }),
        }
    }
    match why {
        None => Ok((None, None)),
        Some(why) => Err(DiskError::Damaged { path: path.to_owned(), why }),
    }
}

type Done = Box<dyn FnOnce(&Result<(), String>)>;

struct Job {
    path: PathBuf,
    bytes: Vec<u8>,
    done: Done,
}

/// Writes files in the order asked, one at a time. What is asked while a write runs is written together: of each path the newest
/// content, once.
#[derive(Default)]
pub struct Saver {
    jobs: RefCell<Vec<Job>>,
    running: Cell<bool>,
    /// Dropped when the work is done.
    idlers: RefCell<Vec<flume::Sender<()>>>,
}

impl Saver {
    /// `done` is called on this executor once `bytes`, or a newer content of the same file, is durable, or could not be written.
    pub fn submit(self: &Rc<Self>, path: &Path, bytes: Vec<u8>, done: impl FnOnce(&Result<(), String>) + 'static) {
        self.jobs.borrow_mut().push(Job { path: path.to_owned(), bytes, done: Box::new(done) });
        if !self.running.replace(true) {
            glommio::spawn_local(self.clone().work()).detach();
        }
    }

    /// Resolves when nothing waits to be written.
    pub async fn idle(&self) {
        if self.running.get() {
            let (sender, receiver) = flume::bounded::<()>(0);
            self.idlers.borrow_mut().push(sender);
            let _ = receiver.recv_async().await; // the end of the work drops the sender
        }
    }

    async fn work(self: Rc<Self>) {
        loop {
            let mut jobs = self.jobs.take();
            if jobs.is_empty() {
                self.running.set(false);
                self.idlers.borrow_mut().clear();
                return;
            }
            let paths: Vec<PathBuf> = jobs.iter().map(|job| job.path.clone()).collect();
            let mut outcomes: Vec<Option<Result<(), String>>> = vec![None; jobs.len()];
            for newest in 0..jobs.len() {
                if paths[newest + 1..].contains(&paths[newest]) {
                    continue;
                }
                let (path, bytes) = (paths[newest].clone(), std::mem::take(&mut jobs[newest].bytes));
                let saving = move || save(&path, &bytes).map_err(|error| format!("{}: {error}", path.display()));
                let outcome = glommio::executor().spawn_blocking(saving).await;
                for at in (0..=newest).filter(|at| paths[*at] == paths[newest]) {
                    outcomes[at] = Some(outcome.clone());
                }
            }
            for (job, outcome) in jobs.into_iter().zip(outcomes) {
                (job.done)(&outcome.expect("each path has a newest job"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use glommio::LocalExecutor;

    fn temp_dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("uringmq-ns-disk-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    fn text(bytes: &[u8]) -> Result<String, String> {
        let text = String::from_utf8_lossy(bytes).into_owned();
        if text.starts_with("good") { Ok(text) } else { Err("not good".to_owned()) }
    }

    #[test]
    fn saved_whole_with_the_previous_one_kept() {
        let dir = temp_dir("save");
        let path = dir.join("a/kv.json");
        assert_eq!(load(&path, text).unwrap(), (None, None));
        save(&path, b"good 1").unwrap();
        save(&path, b"good 2").unwrap();
        assert_eq!(load(&path, text).unwrap(), (Some("good 2".to_owned()), None));
        assert_eq!(fs::read(beside(&path, ".bak")).unwrap(), b"good 1");
        for damage in ["", "\0\0\0\0", "goo"] {
            fs::write(&path, damage).unwrap();
            let (found, warning) = load(&path, text).unwrap();
            assert_eq!(found.as_deref(), Some("good 1"));
            assert!(warning.unwrap().contains("kv.json is damaged"), "{damage:?}");
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(load(&path, text).unwrap(), (Some("good 1".to_owned()), None), "a crash between the two renames");
        fs::write(beside(&path, ".bak"), "bad").unwrap();
        let refused = load(&path, text).unwrap_err().to_string();
        assert!(refused.contains("repair one of them"), "{refused}");
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir_all(&path).unwrap();
        assert!(matches!(load(&path, text), Err(DiskError::Read { .. })));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn jobs_are_answered_in_order_and_the_newest_content_stays() {
        let dir = temp_dir("saver");
        let (one, two) = (dir.join("one"), dir.join("two"));
        let order = Rc::new(RefCell::new(Vec::new()));
        let (sender, receiver) = (order.clone(), order.clone());
        LocalExecutor::default().run(async {
            let saver = Rc::new(Saver::default());
            let (last, all_done) = flume::bounded(1);
            for n in 0..10 {
                let path = if n % 3 == 0 { &two } else { &one };
                let (order, last) = (sender.clone(), last.clone());
                saver.submit(path, format!("good {n}").into_bytes(), move |outcome| {
                    assert_eq!(outcome, &Ok(()));
                    order.borrow_mut().push(n);
                    if n == 9 {
                        last.send(()).unwrap();
                    }
                });
            }
            all_done.recv_async().await.unwrap();
            assert_eq!(fs::read(&one).unwrap(), b"good 8");
            assert_eq!(fs::read(&two).unwrap(), b"good 9");
            saver.submit(Path::new("/proc/no/such/dir/file"), Vec::new(), move |outcome| {
                assert!(outcome.as_ref().unwrap_err().contains("/proc/no/such/dir/file"));
                last.send(()).unwrap();
            });
            all_done.recv_async().await.unwrap();
        });
        assert_eq!(*receiver.borrow(), (0..10).collect::<Vec<_>>());
        fs::remove_dir_all(&dir).unwrap();
    }
}
