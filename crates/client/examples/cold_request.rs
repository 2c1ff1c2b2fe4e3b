//! One cold request to a llama-server: when the first text came, how fast the rest, and whether anything was reused.
//!
//!     cargo run --example cold_request -- http://127.0.0.1:8080
#![expect(clippy::print_stdout, reason = "an example shows what it found")]

use b70_client::{Api, CompletionRequest, Endpoint};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).ok_or("give the address of a server, http://HOST:PORT")?;
    let mut endpoint = Endpoint::new(&url)?;
    let who = endpoint.identify()?;
    println!("{}: {}", endpoint.base_url(), who.model_path.as_deref().unwrap_or("no model path stated"));

    // Greedy, prompt reuse off. Whether the server obeyed is in its answer, not in the request.
    let record = endpoint.stream(&CompletionRequest::cold(Api::Chat, "Name three rivers.", 64))?;
    let offsets = record.text_offsets();
    println!("first text after {:?} s, {} events with text", record.first_output_s(), offsets.len());
    if let (Some(first), Some(last)) = (offsets.first(), offsets.last())
        && last > first
    {
        println!("{:.2} intervals per second", (offsets.len() - 1) as f64 / (last - first));
    }
    match record.usage.map(|usage| usage.cached_tokens) {
        Some(cached) if cached.count() == Some(0) => println!("the server says that it reused nothing"),
        other => println!("no proof that nothing was reused: {other:?}"),
    }
    Ok(())
}
