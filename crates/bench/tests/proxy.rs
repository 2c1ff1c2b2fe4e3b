//! A proxy that spoils answers, before a scripted server: every fault is classified. `real_server` does the same before a
//! real one.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a failed step is a failed test; the count is the result")]

#[path = "support/fake.rs"]
mod fake;
#[path = "../../client/tests/support/mod.rs"]
mod fault_server;
#[path = "support/proxy.rs"]
mod proxy;

#[test]
fn every_fault_of_the_proxy_is_classified() {
    let server = fake::llama(|_, _| fake::answer());
    let count = proxy::classify_all(&server.url(), fake::TOKENS);
    println!("{count} of {} faults and controls of the proxy classified as expected", proxy::FAULTS.len());
}
