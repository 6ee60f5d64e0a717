// A sidecar without I/O for tests of plugins: it writes down what a backend asks for, one line per action,
// and lets the test play the engines. One StubHost plays one exchange at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "shared/backend_abi/decode_backend.h"
#include "sidecar/backend_host.hpp"

/// The handle that the ABI leaves to the sidecar.
struct handoff_turn {
  class StubHost* host;
};

class StubHost {
 public:
  StubHost();
  StubHost(const StubHost&) = delete;
  StubHost& operator=(const StubHost&) = delete;

  const handoff_host_api& api() const { return api_; }
  handoff_turn* turn() { return &turn_; }

  /// A POST of that flat JSON object to `path`. Lives as long as the host, and until the next call.
  const handoff_request& request(std::string_view path, std::string body, bool has_prefill);

  /// Runs a whole exchange: begin, a LEG_DONE with `status` for each leg that is started, END, end. Returns
  /// what the backend asked for; its last line is the status of an entry that failed.
  std::string run(handoff::sidecar::BackendInstance& instance, const handoff_request& request,
                  std::uint32_t status = 200);

 private:
  struct StartedLeg {
    std::uint32_t id;
    bool relayed;
  };

  handoff_status start(const handoff_leg& leg);
  void note(const std::string& line) { log_ += line + '\n'; }
  std::string body_text(const handoff_piece* pieces, std::size_t count) const;

  handoff_host_api api_{};
  handoff_turn turn_{this};
  std::string log_;
  std::deque<StartedLeg> legs_;
  std::string path_;
  std::string body_;
  std::vector<handoff_member> members_;
  handoff_request request_{};
};
