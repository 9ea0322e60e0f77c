//! Latencies as an HdrHistogram interval log (`.hlog`, format 1.3), which HistogramLogProcessor, HistogramLogAnalyzer and the like read: a
//! line a second, nanoseconds with the maximum told in milliseconds.
use crate::error::BenchError;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const INTERVAL: Duration = Duration::from_secs(1);
/// Intervals that may wait for the disk; a generator that must wait for it longer would measure its own log.
const WAITING_MAX: usize = 64;

struct Interval {
    /// Since the epoch.
    start: Duration,
    lasted: Duration,
    latency: Histogram<u64>,
}

/// A log that is being written, by a thread of its own.
pub(crate) struct Hlog {
    name: String,
    to_thread: flume::Sender<Interval>,
    thread: JoinHandle<io::Result<()>>,
    /// Of the round: what is in the log already, up to which moment, and when it began.
    told: Option<Histogram<u64>>,
    told_to: Duration,
    began: Option<Duration>,
}

impl Hlog {
    /// Creates or replaces the file.
    pub(crate) fn create(path: &Path, kind: &str) -> Result<Hlog, BenchError> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(BenchError::io(format!("creating {name}")))?;
        let comment = format!("uringmq bench {kind}, latencies in ns");
        let (to_thread, intervals) = flume::bounded(WAITING_MAX);
        let thread = std::thread::spawn(move || write(file, &comment, &intervals));
        Ok(Hlog { name, to_thread, thread, told: None, told_to: Duration::ZERO, began: None })
    }

    /// Takes what a round has measured so far, `over` since its measuring began; a second's worth or more goes into the log.
    pub(crate) fn note(&mut self, latency: &Histogram<u64>, over: Duration) {
        if over - self.told_to.min(over) >= INTERVAL {
            self.tell(latency, over);
        }
    }

    /// The round is over: the rest of it goes into the log.
    pub(crate) fn end_round(&mut self, latency: &Histogram<u64>, over: Duration) {
        self.tell(latency, over.max(self.told_to));
        (self.told, self.told_to, self.began) = (None, Duration::ZERO, None);
    }

    fn tell(&mut self, latency: &Histogram<u64>, over: Duration) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let began = *self.began.get_or_insert(now.saturating_sub(over));
        let mut since = latency.clone();
        if let Some(told) = &self.told {
            since.subtract(told).expect("what was measured stays measured");
        }
        let interval = Interval { start: began + self.told_to, lasted: over - self.told_to, latency: since };
        // A thread that ended says why in `finish`.
        let _ = self.to_thread.send(interval);
        (self.told, self.told_to) = (Some(latency.clone()), over);
    }

    /// Waits until all is written.
    pub(crate) fn finish(self) -> Result<(), BenchError> {
        let Hlog { name, to_thread, thread, .. } = self;
        drop(to_thread);
        thread.join().expect("the log's writer does not panic").map_err(BenchError::io(format!("writing {name}")))
    }
}

fn write(file: File, comment: &str, intervals: &flume::Receiver<Interval>) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    // The writer makes neither, and some readers look for them.
    writeln!(out, "#[Histogram log format version 1.3]")?;
    writeln!(out, "\"StartTimestamp\",\"Interval_Length\",\"Interval_Max\",\"Interval_Compressed_Histogram\"")?;
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new();
    log.add_comment(comment).with_start_time(SystemTime::now()).with_max_value_divisor(1e6);
    let mut log = log.begin_log_with(&mut out, &mut serializer)?;
    while let Ok(interval) = intervals.recv() {
        log.write_histogram(&interval.latency, interval.start, interval.lasted, None)
            .map_err(|e| io::Error::other(e.to_string()))?;
    }
    drop(log);
    out.flush()
}
