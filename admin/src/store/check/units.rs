//! The extension of one queue: what the units hold that its entries lead to. Source: store-format sheet 4.5.
use crate::store::ToolError;
use crate::store::files::{Parts, read_at};
use std::path::Path;
use uringmq_store::EXTENSION_DIR;
use uringmq_store::consume_queue::extension::{EXTENSION_FILE_BYTES_MIN, Read, Unit, place_of};

/// Bytes read at once: at least the largest unit.
const WINDOW_BYTES: u64 = 2 * EXTENSION_FILE_BYTES_MIN;

pub(super) struct Units {
    files: Parts,
    /// Bytes as they were read, from this place on.
    window_from: u64,
    window: Vec<u8>,
}

impl Units {
    /// Of a plain queue; without files where it has no extension.
    pub(super) fn open(root: &Path, topic: &str, queue: u32) -> Result<Units, ToolError> {
        let files = Parts::list(&root.join(EXTENSION_DIR).join(topic).join(queue.to_string()))?;
        Ok(Units { files, window_from: 0, window: Vec::new() })
    }

    /// tagsCode and store time (ms) of the unit with this address; `None` where none is.
    pub(super) fn unit(&mut self, address: i64) -> Result<Option<(i64, i64)>, ToolError> {
        let place = place_of(address);
        if let Read::Cut = self.look(place) {
            let Some(part) = self.files.part_of(place) else { return Ok(None) };
            self.window.resize(WINDOW_BYTES.min(part.end() - place) as usize, 0);
            let (path, mut file) = self.files.open(part)?;
            let read = read_at(&mut file, place - part.start, &mut self.window);
            self.window.truncate(read.map_err(ToolError::io("read", &path))?);
            self.window_from = place;
        }
        Ok(match self.look(place) {
            Read::Unit { tags_code, stored_ms, .. } => Some((tags_code, stored_ms)),
            Read::None | Read::Cut => None,
        })
    }

    fn look(&self, place: u64) -> Read<'_> {
        let bytes = place.checked_sub(self.window_from).and_then(|skip| self.window.get(skip as usize..));
        bytes.map_or(Read::Cut, Unit::decode)
    }
}
