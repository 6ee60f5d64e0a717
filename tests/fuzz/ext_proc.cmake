# Seeds: exchanges with every part that is read, and damaged ones.
handoff_fuzz_target(
  ext_proc_messages_fuzz
  SOURCES ext_proc_messages_fuzz.cpp
  LIBS handoff_ext_proc_wire handoff_ext_proc_messages handoff_ext_proc
  CORPUS ext_proc_messages)
