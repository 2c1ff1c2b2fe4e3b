//! Cold calibration of llama-server-like endpoints: metrics, gates, card-swap comparison, reports.
