//! Progress on standard error: a bar on a terminal, otherwise a line every few seconds.

use std::{
    cell::Cell,
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

const LINE_INTERVAL: Duration = Duration::from_secs(3);
const BAR: &str = "{msg:9} [{bar:40}] {human_pos}/{human_len}  {per_sec}  {eta} left";
const COUNT: &str = "{msg:9} {human_pos}  {per_sec}";

/// Progress of one task.
pub struct Progress {
    label: &'static str,
    total: Option<u64>,
    done: Cell<u64>,
    started: Instant,
    display: Display,
}

enum Display {
    Bar(ProgressBar),
    Lines { last: Cell<Instant> },
}

impl Progress {
    /// Starts progress towards a total.
    pub fn start(label: &'static str, total: u64) -> Self {
        Self::new(label, Some(total))
    }

    /// Starts progress without a known total.
    pub fn start_uncounted(label: &'static str) -> Self {
        Self::new(label, None)
    }

    fn new(label: &'static str, total: Option<u64>) -> Self {
        let started = Instant::now();
        let display = if io::stderr().is_terminal() {
            let style = ProgressStyle::with_template(if total.is_some() { BAR } else { COUNT })
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> ");
            let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
            Display::Bar(bar.with_style(style).with_message(label))
        } else {
            Display::Lines { last: Cell::new(started) }
        };
        Self { label, total, done: Cell::new(0), started, display }
    }

    /// Adds to the completed count.
    pub fn add(&self, count: u64) {
        self.done.set(self.done.get() + count);
        match &self.display {
            Display::Bar(bar) => bar.inc(count),
            Display::Lines { last } if last.get().elapsed() >= LINE_INTERVAL => {
                last.set(Instant::now());
                match self.total {
                    Some(total) => eprintln!("{}: {} of {total}", self.label, self.done.get()),
                    None => eprintln!("{}: {}", self.label, self.done.get()),
                }
            }
            Display::Lines { .. } => {}
        }
    }

    /// Starts again.
    pub fn restart(&self) {
        self.done.set(0);
        if let Display::Bar(bar) = &self.display {
            bar.reset();
        }
    }

    /// Prints a line above the progress.
    pub fn note(&self, text: &str) {
        let line = format!("{}: {text}", self.label);
        match &self.display {
            Display::Bar(bar) => bar.println(line),
            Display::Lines { .. } => eprintln!("{line}"),
        }
    }

    /// Ends the progress and returns its duration.
    pub fn finish(self) -> Duration {
        if let Display::Bar(bar) = &self.display {
            bar.finish();
        }
        self.started.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // Keeps the bar from overwriting an error message.
        if let Display::Bar(bar) = &self.display
            && !bar.is_finished()
        {
            bar.abandon();
        }
    }
}
