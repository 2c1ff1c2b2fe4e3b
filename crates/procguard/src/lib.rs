//! Guards for physical GPUs: cards, owners, process identity, ports, leases, files in use.
