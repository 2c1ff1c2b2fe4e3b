use std::io::Write as _;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::ui::{bytes_text, seconds_text};

/// Progress over a number of bytes. Shared by reference between threads.
#[derive(Debug)]
pub struct ByteProgress {
    bar: ProgressBar,
    label: String,
    started: Instant,
    line_at_end: bool,
}

impl ByteProgress {
    pub(crate) fn new(label: &str, total: u64, terminal: bool, quiet: bool) -> Self {
        let bar = if terminal && !quiet {
            let style = ProgressStyle::with_template(
                "{msg} [{bar:32}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left",
            )
            .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(total).with_style(style.progress_chars("=> ")).with_message(label.to_owned())
        } else {
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
        };
        Self { bar, label: label.to_owned(), started: Instant::now(), line_at_end: !terminal && !quiet }
    }

    /// Counts `bytes` more as done.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Sets how many bytes there are in all.
    pub fn set_total(&self, total: u64) {
        self.bar.set_length(total);
    }

    /// A line about one finished item, above the bar or on its own.
    pub fn item(&self, text: &str) {
        if self.line_at_end {
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        } else {
            self.bar.println(text);
        }
    }

    /// Removes the bar; without a terminal, writes one line about the whole.
    pub fn finish(&self) {
        // Finishing moves the position to the total, whatever was counted.
        let counted = self.bar.position();
        self.bar.finish_and_clear();
        if self.line_at_end && counted > 0 {
            let seconds = self.started.elapsed().as_secs_f64();
            let _ = writeln!(
                std::io::stderr().lock(),
                "{}: {} in {}",
                self.label,
                bytes_text(counted),
                seconds_text(seconds)
            );
        }
    }
}
