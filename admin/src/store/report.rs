//! What a check found.
use serde::Serialize;
use std::io::{self, Write};

/// Told in full; more are counted.
const TOLD_MAX: usize = 1000;

/// Something that is wrong, at its place.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Path below the store.
    pub(crate) file: String,
    /// Byte of that file.
    pub(crate) at: u64,
    pub(crate) what: String,
}

#[derive(Serialize, Debug, Default)]
pub(crate) struct Report {
    pub(crate) clean: bool,
    pub(crate) min_offset: u64,
    pub(crate) end_offset: u64,
    pub(crate) segments: u64,
    pub(crate) records: u64,
    pub(crate) record_bytes: u64,
    pub(crate) queues: u64,
    pub(crate) queue_entries: u64,
    pub(crate) index_files: u64,
    pub(crate) index_items: u64,
    pub(crate) fault_count: u64,
    pub(crate) faults: Vec<Fault>,
    /// What is no damage, but worth knowing.
    pub(crate) remarks: Vec<String>,
}

impl Report {
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.fault_count += 1;
        if self.faults.len() < TOLD_MAX {
            self.faults.push(fault);
        }
    }

    pub(crate) fn remark(&mut self, text: String) {
        if self.remarks.len() < TOLD_MAX {
            self.remarks.push(text);
        }
    }

    /// A fault, or only a remark when the next start puts it right without loss.
    pub(crate) fn found(&mut self, heals: bool, fault: Fault) {
        match heals {
            true => self.remark(format!("{} byte {}: {}; the next start sees to it", fault.file, fault.at, fault.what)),
            false => self.fault(fault),
        }
    }

    pub(crate) fn json(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }

    pub(crate) fn text(&self, mut out: impl Write) -> io::Result<()> {
        let stop = if self.clean { "stopped cleanly" } else { "not stopped cleanly" };
        writeln!(
            out,
            "log     {} to {}: {} records, {} bytes, in {} segments; {stop}",
            self.min_offset, self.end_offset, self.records, self.record_bytes, self.segments
        )?;
        writeln!(out, "queues  {}, {} entries", self.queues, self.queue_entries)?;
        writeln!(out, "index   {} files, {} items", self.index_files, self.index_items)?;
        for remark in &self.remarks {
            writeln!(out, "note    {remark}")?;
        }
        for Fault { file, at, what } in &self.faults {
            writeln!(out, "WRONG   {file} byte {at}: {what}")?;
        }
        if self.fault_count > self.faults.len() as u64 {
            writeln!(out, "WRONG   ... and {} more", self.fault_count - self.faults.len() as u64)?;
        }
        match self.fault_count {
            0 => writeln!(out, "sound"),
            count => writeln!(out, "{count} faults"),
        }
    }
}
