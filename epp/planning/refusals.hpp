#pragma once

#include "epp/ext_proc/protocol_messages.hpp"
#include "epp/selection/selection_error.hpp"
#include "epp/tokenization/tokenizer.hpp"

namespace handoff::epp {

// What a client is told about a failed selection. `of_prefill`: it was the prefill half of a pair.
Refusal refusal_of(const SelectionError& error, bool of_prefill);

// And about a failed tokenizer, where that may fail a request.
Refusal refusal_of(TokenizeError error);

}  // namespace handoff::epp
