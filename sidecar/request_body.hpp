// A client's request body: read whole up to a limit, or passed on as it comes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sidecar/client_connection.hpp"
#include "sidecar/http1/message_parser.hpp"
#include "sidecar/memory_budget.hpp"
#include "sidecar/upstream_leg.hpp"

namespace handoff::sidecar {

/// Bytes in one piece, grown without filling, counted against the loop's budget.
class RequestBody {
 public:
  explicit RequestBody(MemoryBudget& budget) : share_(budget) {}
  /// Empty again. A small buffer is kept for the next body.
  void clear();
  /// Empty, and all memory given back.
  void release();

  std::string_view view() const { return {data_.get(), size_}; }
  std::size_t size() const { return size_; }
  /// The content is to have `bytes` in all: no more room than that is made for it, or counted.
  void expect(std::size_t bytes) { whole_ = bytes; }
  /// The content is whole: room that stayed empty counts no longer.
  void settle();
  /// Room for at least `more` bytes behind the content. False: the budget is used up.
  bool reserve_more(std::size_t more);
  bool append(std::string_view bytes);
  /// The reserved room; commit() says how much of it was filled.
  std::span<char> room() { return {data_.get() + size_, std::min(capacity_, charged_) - size_}; }
  void commit(std::size_t bytes) { size_ += bytes; }

 private:
  struct Free {
    void operator()(char* data) const;
  };
  bool charge(std::size_t bytes);
  BudgetShare share_;
  std::unique_ptr<char, Free> data_;
  static constexpr std::size_t kUnknown = static_cast<std::size_t>(-1);
  std::size_t size_ = 0;
  std::size_t whole_ = kUnknown;
  std::size_t capacity_ = 0;
  std::size_t charged_ = 0;  // what of it the budget knows of
};

enum class BodyReadEnd { complete, over_limit, timed_out, malformed, client_gone, overloaded };

/// Reads the body until its end or until it exceeds `limit` (what was read so far is kept). `time` bounds all
/// of it.
Awaitable<BodyReadEnd> read_body(ClientConnection& client, http1::RequestParser& parser,
                                 const http1::RequestHead& head, std::size_t limit, milliseconds time,
                                 std::span<char> scratch, RequestBody& out);

/// A body that is sent to the engine while it arrives: `prefix` was read already, the rest is with the
/// client. A fixed length stays fixed, chunks stay chunks (their boundaries may move). Owned by the
/// pass-through.
class ClientUpload final : public BodySource {
 public:
  ClientUpload(ClientConnection& client, http1::RequestParser& parser, const http1::RequestHead& head,
               std::string_view prefix, std::span<char> scratch, milliseconds silence_limit);

  bool try_next(std::string& wire) override;
  bool finished() const override { return finished_; }
  Awaitable<> wait() override;
  void cancel_wait() override { client_.interrupt(); }

  std::uint64_t bytes() const { return bytes_; }
  bool malformed() const { return malformed_; }
  bool timed_out() const { return timed_out_; }
  bool client_left() const { return lost_; }

 private:
  bool take(std::string_view data, std::string& wire, bool from_inbox);
  void frame(std::string_view piece, std::string& wire);

  ClientConnection& client_;
  http1::RequestParser& parser_;
  const http1::RequestHead& head_;
  std::string_view prefix_;
  std::span<char> scratch_;
  milliseconds silence_limit_;
  milliseconds silence_{0};  // so far
  std::vector<std::string_view> pieces_;
  std::uint64_t bytes_ = 0;
  bool prefix_sent_ = false;
  bool finished_ = false;
  bool malformed_ = false;
  bool timed_out_ = false;
  bool lost_ = false;
};

}  // namespace handoff::sidecar
