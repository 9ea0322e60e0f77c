//! A progress bar on standard error, when that is a terminal.
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Steps below this are not drawn one by one.
const STEP_BYTES: u64 = 1 << 20;

pub(crate) struct Bar {
    bar: ProgressBar,
    from: u64,
    told: u64,
}

impl Bar {
    /// Of the way through the log from `from` to `to`.
    pub(crate) fn new(what: &'static str, from: u64, to: u64) -> Bar {
        let bar = ProgressBar::with_draw_target(Some(to.saturating_sub(from)), ProgressDrawTarget::stderr());
        let style = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        bar.set_style(ProgressStyle::with_template(style).expect("a constant template that is right"));
        bar.set_message(what);
        Bar { bar, from, told: from }
    }

    pub(crate) fn at(&mut self, at: u64) {
        if at >= self.told.saturating_add(STEP_BYTES) {
            self.told = at;
            self.bar.set_position(at.saturating_sub(self.from));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
