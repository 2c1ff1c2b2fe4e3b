//! SIGKILL at random instants of every publishing command.

use std::time::{Duration, Instant};

use super::lab::{Lab, Numbers};
use super::{Size, Tally, operations};
use crate::failure::Failure;

pub(crate) fn run(lab: &Lab, size: Size, seed: u64, tally: &mut Tally) -> Result<(), Failure> {
    let operations = operations::all(lab)?;
    tally.add("commands", operations.len() as u64);
    let mut numbers = Numbers(seed);
    // How long each takes when nothing happens to it.
    let mut lengths = Vec::new();
    for operation in &operations {
        let mut longest = Duration::ZERO;
        for _ in 0..2 {
            operation.reset(lab)?;
            let began = Instant::now();
            lab.must(operation.call.0, &operation.call.1)?;
            longest = longest.max(began.elapsed());
        }
        lengths.push(longest);
    }
    let wanted = size.pick(60, 1000);
    let mut turn = 0;
    while tally.of("killed") < wanted && turn < wanted * 4 && !lab.is_late() {
        let index = usize::try_from(turn).unwrap_or(0) % operations.len();
        turn += 1;
        let operation = &operations[index];
        operation.reset(lab)?;
        let nanoseconds = u64::try_from(lengths[index].as_nanos()).unwrap_or(u64::MAX).max(1);
        // Most of what is measured is the start and the end of a process; the work lies before the last fifth.
        let instant = Duration::from_nanos(numbers.next() % nanoseconds) * 4 / 5;
        let mut running = lab.spawn(&mut lab.command(operation.call.0, &operation.call.1))?;
        let began = Instant::now();
        while began.elapsed() < instant && !running.has_ended() {
            std::thread::sleep(Duration::from_micros(100));
        }
        let _ = running.child.kill();
        let ran = running.finish();
        if ran.signal == Some(9) {
            tally.count("killed");
        } else {
            tally.count("ended before the signal");
        }
        operation.check(lab, &format!("killed after {instant:?} (turn {turn})"), &ran, tally)?;
    }
    Ok(())
}
