use std::io::{self, IsTerminal as _, Write as _};

use clap::{Args, ValueEnum};

use crate::ByteProgress;

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

/// Implements [`HasGlobal`] for a parser whose field `global` has the flags.
#[macro_export]
macro_rules! has_global {
    ($cli:ty) => {
        impl $crate::HasGlobal for $cli {
            fn global(&self) -> &$crate::Global {
                &self.global
            }
        }
    };
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
    pub fn progress(&self, label: &str, total: u64) -> ByteProgress {
        ByteProgress::new(label, total, self.terminal, self.quiet)
    }
}

/// Text from a file as a terminal may show it: control characters, which could move the cursor or fake a line, are escaped.
pub fn shown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(shown("größe \u{1b}[2K\r\nready"), "größe \\u{1b}[2K\\r\\nready");
    }

    #[test]
    fn sizes_and_durations() {
        assert_eq!((bytes_text(1023), bytes_text(1536)), ("1023 B".to_owned(), "1536 B (1.50 KiB)".to_owned()));
        assert_eq!(bytes_text(u64::MAX), "18446744073709551615 B (16384.00 PiB)");
        let texts = [0.001_5, 9.999_4, 12.34].map(seconds_text);
        assert_eq!(texts, ["1.50 ms", "9.999 s", "12.3 s"]);
    }
}
