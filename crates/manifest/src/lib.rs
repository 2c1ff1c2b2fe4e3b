//! Typed documents of b70kit: canonical JSON, pack sets, evidence classes, gates, JSON Schema.
