use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::CliError;

/// A flag that the first SIGINT or SIGTERM raises; the second ends the process at once with exit code 130.
///
/// Long operations watch the flag and stop between two steps, so that nothing half-written stays behind.
pub fn interrupt_flag() -> Result<Arc<AtomicBool>, CliError> {
    let told = |error| CliError::usage("signals", format!("cannot watch signals: {error}"));
    let raised = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // Registered first, so that it acts on a raised flag: the second signal.
        signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&raised)).map_err(told)?;
        signal_hook::flag::register(signal, Arc::clone(&raised)).map_err(told)?;
    }
    Ok(raised)
}

/// Lets a write past the limit of a file's size (`ulimit -f`) fail as one to a full disk does, instead of ending the process where it is.
pub(crate) fn outlive_file_size_limit() {
    // Where it cannot be registered the signal acts as it always did.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
}
