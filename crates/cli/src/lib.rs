//! What all b70kit binaries share: flags, exit codes, error envelope, progress.
