# Seeds: one batch per encoding that an engine ever used, named after it, and stream_*: short histories with gaps.
handoff_fuzz_target(
  kv_events_fuzz
  SOURCES kv_events_fuzz.cpp
  LIBS handoff_kv_index
  CORPUS kv_events)
