// libzmq hands messages from thread to thread by means that ThreadSanitizer can't see, because Debian's is
// not built for it. What happens inside the library is ignored; all of our own code stays under watch.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "called_from_lib:libzmq.so\nrace:libzmq.so\n";
}
