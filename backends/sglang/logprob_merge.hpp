#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "backends/sglang/request_shape.hpp"

namespace handoff::sglang {

/// What prefill says about the prompt's tokens and decode can't: the lists in `meta_info` that begin with
/// `input_`. Copies of the reply's text, one set per item.
class PromptLogprobs {
 public:
  static constexpr std::array<std::string_view, 3> kNames{"input_token_logprobs", "input_top_logprobs",
                                                          "input_token_ids_logprobs"};
  PromptLogprobs() = default;
  /// From a prefill reply that has been found good.
  PromptLogprobs(std::string_view reply, const RequestShape& shape);

  /// The object of one item of decode's with prefill's lists before its own; as it is when there is nothing
  /// to add.
  std::string merged(std::string_view object, std::size_t item) const;
  /// Decode's whole reply: one object, or a list of them.
  std::string merged_reply(std::string_view reply, const RequestShape& shape) const;
  /// The data of one event of a stream; the item is told by `index`.
  std::string merged_event(std::string_view data, const RequestShape& shape) const;

 private:
  /// The inside of each list, without brackets; empty: none.
  using Lists = std::array<std::string, kNames.size()>;
  static Lists read(std::string_view object);
  std::vector<Lists> items_;
};

}  // namespace handoff::sglang
