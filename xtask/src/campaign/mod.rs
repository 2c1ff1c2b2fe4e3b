//! `cargo xtask campaign`: the real executables as processes, under death, failing calls, tampering, crowds, wrong clocks
//! and storms of signals. Each campaign ends in a line of counts; any violation of a promise fails the command.

mod clock;
mod io;
mod kill;
mod lab;
mod mix;
mod operations;
mod signals;
mod tamper;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use lab::Lab;

/// The arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The form for every day, about a minute in all (the default).
    #[arg(long, conflicts_with = "long")]
    short: bool,
    /// The form for a release: every step, a thousand instants, a thousand edits.
    #[arg(long)]
    long: bool,
    /// Only these campaigns.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Chooses the instants and the edits; the same number gives the same edits.
    #[arg(long, default_value_t = 20_261_129, value_name = "N")]
    seed: u64,
    /// End each campaign after so many minutes, whatever it has done by then; its counts say how much that was.
    #[arg(long, value_name = "N", default_value_t = 600)]
    minutes: u64,
}

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Size {
    Short,
    Long,
}

impl Size {
    /// One of two numbers.
    pub(crate) fn pick<T>(self, short: T, long: T) -> T {
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// What a campaign counted, and which promises it saw broken.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    counts: BTreeMap<String, u64>,
    violations: Vec<String>,
    notes: Vec<String>,
}

impl Tally {
    /// One more of that name.
    pub(crate) fn count(&mut self, what: impl Into<String>) {
        self.add(what, 1);
    }

    /// Several more of that name.
    pub(crate) fn add(&mut self, what: impl Into<String>, by: u64) {
        *self.counts.entry(what.into()).or_default() += by;
    }

    /// How many of that name.
    pub(crate) fn of(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }

    /// A broken promise.
    pub(crate) fn violation(&mut self, what: impl Into<String>) {
        let what = what.into();
        eprintln!("  VIOLATION {what}");
        self.violations.push(what);
    }

    /// What was not tried, and why.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    /// Takes over what another counted.
    pub(crate) fn merge(&mut self, other: Self) {
        for (what, by) in other.counts {
            self.add(what, by);
        }
        self.violations.extend(other.violations);
        self.notes.extend(other.notes);
    }
}

type Campaign = fn(&Lab, Size, u64, &mut Tally) -> Result<(), Failure>;

const CAMPAIGNS: [(&str, Campaign); 6] = [
    ("kill", kill::run),
    ("io", io::run),
    ("tamper", tamper::run),
    ("mix", mix::run),
    ("clock", clock::run),
    ("signals", signals::run),
];

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let names = CAMPAIGNS.map(|(name, _)| name);
    if let Some(unknown) = args.only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(Failure::new(
            format!("no campaign is named {unknown}"),
            format!("choose of: {}", names.join(", ")),
        ));
    }
    let size = if args.long { Size::Long } else { Size::Short };
    let executables = lab::build()?;
    let mut broken = 0;
    for (name, campaign) in CAMPAIGNS {
        if !args.only.is_empty() && !args.only.iter().any(|wanted| wanted == name) {
            continue;
        }
        let (began, mut tally) = (Instant::now(), Tally::default());
        let lab = Lab::new(&executables, Duration::from_secs(args.minutes * 60))?;
        campaign(&lab, size, args.seed, &mut tally)?;
        let counts: Vec<String> = tally.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        println!(
            "campaign {name}: {}; {} violations; {:.1} s",
            counts.join(", "),
            tally.violations.len(),
            began.elapsed().as_secs_f64()
        );
        if lab.is_late() {
            println!("  ended by --minutes before it was through");
        }
        for note in &tally.notes {
            println!("  not tried: {note}");
        }
        broken += tally.violations.len();
    }
    if broken == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::check(
        format!("{broken} promises were broken"),
        "read the lines marked VIOLATION above; --only NAME --seed N repeats one campaign",
    ))
}
