#pragma once

#include <cstddef>
#include <span>

namespace handoff::epp {

// What became of a batch.
struct KvApplyReport {
  bool is_decoded = true;  // false: nothing of it was applied
  bool has_gaps =
      false;  // something was left out (filtered, malformed, too much), so later events may not fit
  bool has_orphans = false;  // blocks behind a parent that is not there
};

// Where a KvEventStream puts its batches, in order. The interface between the order of events and their
// meaning.
class KvBatchSink {
 public:
  virtual ~KvBatchSink() = default;
  // `payload` is valid during the call.
  virtual KvApplyReport apply(std::span<const std::byte> payload) = 0;
  // The history is broken: forget everything this rank was said to hold.
  virtual void clear() = 0;

 protected:
  KvBatchSink() = default;
  KvBatchSink(const KvBatchSink&) = default;
  KvBatchSink& operator=(const KvBatchSink&) = default;
};

}  // namespace handoff::epp
