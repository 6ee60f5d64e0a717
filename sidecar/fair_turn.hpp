// Turns of a loop's coroutines.
#pragma once

#include <boost/asio/post.hpp>

#include "sidecar/net.hpp"

namespace handoff::sidecar {

/// How long a coroutine may go on without waiting. One whose peer always has more to give or to take never
/// waits, and all others of its loop would: they get their turn after so many steps.
class FairTurn {
 public:
  /// Counts a step, such as one read. True: it is time for let_others_run().
  bool is_over() {
    if (++steps_ < kSteps) return false;
    steps_ = 0;
    return true;
  }

 private:
  static constexpr unsigned kSteps = 32;
  unsigned steps_ = 0;
};

/// Suspends until everything else that the loop has to do has been done once.
inline Awaitable<> let_others_run(const Executor& executor) {
  return net::post(executor, kUseAwaitable);
}

}  // namespace handoff::sidecar
