#pragma once

#include <string>
#include <vector>

#include "epp/discovery/endpoint_source.hpp"
#include "epp/server/epp_config.hpp"
#include "epp/tokenization/tokenizer.hpp"

namespace handoff::epp {

// Runs the Endpoint Picker until SIGTERM, SIGINT or SIGHUP, then drains: not ready at once, serving on for
// the drain delay, then no new streams, then the rest up to the drain timeout. A second signal cuts this
// short.
//
// Call on the main thread, after prepare_process().
// `tokenizer` may be null. Throws std::runtime_error when it can't start.
void run_epp(EppConfig& config, EndpointSource& source, Tokenizer* tokenizer,
             const std::vector<std::string>& warnings = {});

// Before any other thread is there: keeps SIGTERM, SIGINT and SIGHUP for run_epp(), and says how gRPC is to
// wait.
void prepare_process();

}  // namespace handoff::epp
