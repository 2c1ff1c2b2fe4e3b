use std::io::{self, IsTerminal as _, Write as _};

use clap::{Args, ValueEnum};

use crate::Progress;

/// The flags every binary has.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Print one JSON document on standard output and nothing else there.
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress and no remarks on standard error.
    #[arg(long, global = true)]
    pub quiet: bool,
    /// When to use colour; NO_COLOR is honoured.
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub color: ColorChoice,
}

/// When to use colour.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A parsed command line that has the global flags.
pub trait HasGlobal {
    /// The global flags.
    fn global(&self) -> &Global;
}

/// A meaning to show by colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Proved, ready, passed.
    Good,
    /// Failed, refused.
    Bad,
    /// Worth a look.
    Warn,
    /// A heading or a name.
    Strong,
    /// Less important.
    Dim,
}

/// How a binary talks to its user: remarks and progress on standard error.
#[derive(Debug, Clone)]
pub struct Ui {
    json: bool,
    quiet: bool,
    color_out: bool,
    color_err: bool,
    terminal: bool,
}

impl Ui {
    /// From the parsed global flags and the environment.
    pub fn new(global: &Global) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let colored = |terminal: bool| match global.color {
            ColorChoice::Always => true,
            ColorChoice::Never => false,
            ColorChoice::Auto => terminal && !no_color,
        };
        Self {
            json: global.json,
            quiet: global.quiet,
            color_out: colored(io::stdout().is_terminal()),
            color_err: colored(io::stderr().is_terminal()),
            terminal: io::stderr().is_terminal(),
        }
    }

    /// Whether standard output carries a JSON document.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Whether remarks and progress are off.
    pub fn quiet(&self) -> bool {
        self.quiet
    }

    /// `text` in the colour of `style`, for standard output.
    pub fn paint(&self, style: Style, text: &str) -> String {
        if self.color_out { Self::colored(style, text) } else { text.to_owned() }
    }

    /// `text` in the colour of `style`, for standard error.
    pub fn paint_error(&self, style: Style, text: &str) -> String {
        if self.color_err { Self::colored(style, text) } else { text.to_owned() }
    }

    fn colored(style: Style, text: &str) -> String {
        let code = match style {
            Style::Good => "32",
            Style::Bad => "31",
            Style::Warn => "33",
            Style::Strong => "1",
            Style::Dim => "2",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }

    /// A remark on standard error; silent with `--quiet`.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.error(text);
        }
    }

    /// A line on standard error, also with `--quiet`.
    pub fn error(&self, text: &str) {
        // Nobody is left to tell when standard error is closed.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Progress over `total` bytes: a bar with rate and remaining time on a terminal, one line at the end otherwise.
    pub fn progress(&self, label: &str, total: u64) -> Progress {
        Progress::new(label, total, self.terminal, self.quiet)
    }
}

/// A size in bytes and in binary units: `9375252480 B (8.73 GiB)`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{bytes} B ({value:.2} {})", UNITS[unit])
}

/// A duration in seconds with a useful number of digits.
pub fn seconds_text(seconds: f64) -> String {
    if seconds < 0.01 {
        format!("{:.2} ms", seconds * 1e3)
    } else if seconds < 10.0 {
        format!("{seconds:.3} s")
    } else {
        format!("{seconds:.1} s")
    }
}
