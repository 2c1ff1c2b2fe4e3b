//! HTTP and SSE client for llama-server-like endpoints: health, slots, props, completions, timings.
