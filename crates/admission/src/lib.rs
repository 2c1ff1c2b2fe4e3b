//! Digests, file identity, trust receipts, locks, atomic publish, RAM model cache, artifact registry, fingerprints.
