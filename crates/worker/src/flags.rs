//! The flags an installed llama-server accepts, as its own `--help` lists them.

use std::{collections::BTreeSet, io, path::Path, process::Command, time::Duration};

use b70_procguard::{ProgramEnd, run_program};

/// The help of a real server is 50 kB.
const MAX_HELP: usize = 4 << 20;
/// Fewer flags than this are not the help of a llama-server.
const PLAUSIBLE: usize = 20;

/// Flags of one build.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFlags {
    accepted: BTreeSet<String>,
    /// Flags that are listed only to say what replaced them.
    removed: BTreeSet<String>,
}

impl ServerFlags {
    /// Asks the executable. It is ended when it does not answer in time.
    pub fn ask(binary: &Path, deadline: Duration) -> io::Result<Self> {
        // Neither a card nor a configured default is needed for the list. A SYCL build may end without a word where the
        // selector leaves it no GPU: then it is asked as it is.
        match Self::ask_with(binary, deadline, Some("opencl:cpu")) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Self::ask_with(binary, deadline, None),
            answer => answer,
        }
    }

    fn ask_with(binary: &Path, deadline: Duration, selector: Option<&str>) -> io::Result<Self> {
        let mut command = Command::new(binary);
        command.arg("--help");
        if let Some(selector) = selector {
            command.env("ONEAPI_DEVICE_SELECTOR", selector);
        }
        let mut text = Vec::new();
        let run = run_program(command, false, deadline, &mut |piece| {
            text.extend_from_slice(piece);
            text.len() < MAX_HELP
        })?;
        if matches!(run.end, ProgramEnd::TimedOut) {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "--help did not end in time"));
        }
        Self::parse(&String::from_utf8_lossy(&text)).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "what --help prints is not the help of a llama-server")
        })
    }

    /// Reads the text of `--help`; `None` if it lists too few flags to be that.
    pub fn parse(help: &str) -> Option<Self> {
        let (mut accepted, mut removed) = (BTreeSet::new(), BTreeSet::new());
        for line in help.lines().filter(|line| line.starts_with('-')) {
            let into = if line.contains("argument has been removed") { &mut removed } else { &mut accepted };
            into.extend(flag_column(line).split([' ', ',']).filter(|w| is_flag(w)).map(normal));
        }
        (accepted.len() >= PLAUSIBLE).then_some(Self { accepted, removed })
    }

    /// The flags among these words that the server would refuse, each with what is known of it.
    pub fn refused(&self, words: &[String]) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for word in words.iter().filter(|word| is_flag(word)) {
            let flag = normal(word.split('=').next().unwrap_or(word));
            if self.removed.contains(&flag) {
                found.push((flag, "it was removed; its --help names what replaced it".to_owned()));
            } else if !self.accepted.contains(&flag) {
                found.push((flag.clone(), hint(&flag)));
            }
        }
        found
    }
}

/// Flags that guides still name.
fn hint(flag: &str) -> String {
    match flag {
        "--no-mmap" => "newer builds take --load-mode none".into(),
        "--mmap" => "newer builds take --load-mode mmap".into(),
        "--mlock" => "newer builds take --load-mode mlock".into(),
        "-dio" | "--direct-io" => "newer builds take --load-mode dio".into(),
        _ => "its --help does not list it".into(),
    }
}

/// The flags of a help line: up to the gap before the description, which no comma precedes.
fn flag_column(line: &str) -> &str {
    let mut from = 0;
    while let Some(gap) = line[from..].find("  ").map(|at| at + from) {
        if !line[..gap].trim_end().ends_with(',') {
            return &line[..gap];
        }
        from = gap + line[gap..].len() - line[gap..].trim_start().len();
    }
    line
}

/// A flag, not a negative number and not a lone dash.
fn is_flag(word: &str) -> bool {
    let name = word.trim_start_matches('-');
    word.starts_with('-') && name.starts_with(|c: char| c.is_ascii_alphabetic())
}

/// llama.cpp reads `_` in long options as `-`.
fn normal(flag: &str) -> String {
    if flag.starts_with("--") { flag.replace('_', "-") } else { flag.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help() -> String {
        let mut text = "----- common params -----\n\n".to_owned();
        text.push_str("-h,    --help, --usage                  print usage and exit, see --nothing\n");
        text.push_str("-fa,   --flash-attn [on|off|auto]       set Flash Attention\n");
        text.push_str("--spec-draft-model, -md, --model-draft FNAME\n");
        text.push_str("                                        draft --inner model\n");
        text.push_str(
            "--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max\n",
        );
        for n in 0..20 {
            text.push_str(&format!("--option-{n} N                           text\n", n = (b'a' + n) as char));
        }
        text
    }

    #[test]
    fn flags_are_found_in_their_column_only() {
        let flags = ServerFlags::parse(&help()).unwrap();
        for yes in ["-h", "--help", "--usage", "-fa", "--flash-attn", "-md", "--model-draft", "--option-a"] {
            assert!(flags.accepted.contains(yes), "{yes}");
        }
        for no in ["--nothing", "--inner", "--draft"] {
            assert!(!flags.accepted.contains(no), "{no}");
        }
        assert!(ServerFlags::parse("usage: tool [-h] [--x]\n-h help\n").is_none());
    }

    #[test]
    fn a_build_that_dies_without_a_gpu_is_asked_again_as_it_is() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("server");
        std::fs::write(dir.path().join("help.txt"), help()).unwrap();
        let script = "#!/bin/sh\n[ \"$ONEAPI_DEVICE_SELECTOR\" = opencl:cpu ] && exit 134\ncat \"${0%/*}/help.txt\"\n";
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let flags = ServerFlags::ask(&path, Duration::from_secs(30)).unwrap();
        assert!(flags.accepted.contains("--option-a"));
        assert!(ServerFlags::ask(Path::new("/bin/true"), Duration::from_secs(30)).is_err());
    }

    #[test]
    fn refused_words_are_named_with_what_is_known() {
        let flags = ServerFlags::parse(&help()).unwrap();
        let words: Vec<String> =
            ["--flash_attn", "on", "--no-mmap", "--option-b", "-1", "--draft-max", "3", "--help=x"]
                .map(String::from)
                .into();
        let refused = flags.refused(&words);
        assert_eq!(refused.iter().map(|(f, _)| f.as_str()).collect::<Vec<_>>(), ["--no-mmap", "--draft-max"]);
        assert!(refused[0].1.contains("--load-mode none") && refused[1].1.contains("removed"));
    }
}
