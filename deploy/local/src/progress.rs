//! Progress on standard error: a bar where there is a terminal, else a line now and then. Knows
//! nothing of what is being done.

use std::{
    cell::Cell,
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(3);
const BAR: &str = "{msg:9} [{bar:40}] {human_pos}/{human_len}  {per_sec}  {eta} left";
const COUNT: &str = "{msg:9} {human_pos}  {per_sec}";

/// How far one piece of work has come.
pub struct Progress {
    label: &'static str,
    total: Option<u64>,
    done: Cell<u64>,
    begun: Instant,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines { last: Cell<Instant> },
}

impl Progress {
    /// Starts to show progress towards a total.
    pub fn start(label: &'static str, total: u64) -> Self {
        Self::towards(label, Some(total))
    }

    /// Starts to show progress of what nobody knows the total of.
    pub fn start_uncounted(label: &'static str) -> Self {
        Self::towards(label, None)
    }

    fn towards(label: &'static str, total: Option<u64>) -> Self {
        let begun = Instant::now();
        let shown = if io::stderr().is_terminal() {
            let style = ProgressStyle::with_template(if total.is_some() { BAR } else { COUNT })
                .unwrap_or_else(|_| ProgressStyle::default_bar())
                .progress_chars("=> ");
            let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
            Shown::Bar(bar.with_style(style).with_message(label))
        } else {
            Shown::Lines { last: Cell::new(begun) }
        };
        Self { label, total, done: Cell::new(0), begun, shown }
    }

    /// Notes that so much more is done.
    pub fn add(&self, count: u64) {
        self.done.set(self.done.get() + count);
        match &self.shown {
            Shown::Bar(bar) => bar.inc(count),
            Shown::Lines { last } if last.get().elapsed() >= LINE_EVERY => {
                last.set(Instant::now());
                match self.total {
                    Some(total) => eprintln!("{}: {} of {total}", self.label, self.done.get()),
                    None => eprintln!("{}: {}", self.label, self.done.get()),
                }
            }
            Shown::Lines { .. } => {}
        }
    }

    /// Ends the bar and returns how long it all took.
    pub fn finish(self) -> Duration {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish();
        }
        self.begun.elapsed()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        // What is printed after an error must not be overwritten by the bar.
        if let Shown::Bar(bar) = &self.shown
            && !bar.is_finished()
        {
            bar.abandon();
        }
    }
}
