//! Deterministic Q4_0 x Q8_1 kernel fixtures, corpus status, focused test runner.
