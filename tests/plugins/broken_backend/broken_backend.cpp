// A backend with one defect, chosen by a macro: each defect must be noticed when the backend is loaded,
// created or called. Without a macro it is sound.
#include <stdexcept>

#include "shared/backend_abi/backend_sdk.hpp"

namespace {

struct handoff_backend* const kBackend = reinterpret_cast<handoff_backend*>(1);

#if defined(UNRESOLVED_SYMBOL)
extern "C" void handoff_test_defined_nowhere();
#endif

handoff_status create(const handoff_host_api*, const handoff_config*, handoff_backend** out, char* error,
                      std::size_t error_size) {
#if defined(CREATE_THROWS)
  throw std::runtime_error("no luck today");
#elif defined(CREATE_REFUSES)
  std::strncpy(error, "the two settings contradict each other", error_size);
  return HANDOFF_FAILED;
#elif defined(CREATE_REFUSES_SILENTLY)
  return HANDOFF_INVALID;
#elif defined(UNRESOLVED_SYMBOL)
  handoff_test_defined_nowhere();
#endif
  static_cast<void>(error);
  static_cast<void>(error_size);
#if !defined(CREATE_GIVES_NOTHING)
  *out = kBackend;
#endif
  return HANDOFF_OK;
}

void destroy(handoff_backend*) {}

handoff_status begin(handoff_backend*, const handoff_request*, handoff_turn*, handoff_exchange**) {
#if defined(BEGIN_THROWS)
  throw 42;
#endif
  return HANDOFF_OK;
}

handoff_status event(handoff_exchange*, const handoff_event*, handoff_turn*) {
#if defined(EVENT_THROWS)
  throw std::runtime_error("leaked");
#endif
  return HANDOFF_OK;
}

void end(handoff_exchange*) {}

constexpr handoff_route kRoute {
  handoff::sdk::bytes("POST"),
#if defined(BAD_DECLARATION)
      handoff::sdk::bytes("v1/completions")
};
#else
      handoff::sdk::bytes("/v1/completions")
};
#endif

constexpr handoff_backend_api make_table() {
  handoff_backend_api table{};
  table.struct_size = sizeof(table);
  table.abi_major = HANDOFF_ABI_MAJOR;
  table.abi_minor = HANDOFF_ABI_MINOR;
  table.name = handoff::sdk::bytes("broken");
  table.protocol = handoff::sdk::bytes("broken-1");
  table.routes = &kRoute;
  table.route_count = 1;
  table.health_path = handoff::sdk::bytes("/health");
  table.health_interval_ms = 1000;
  table.create = &create;
  table.destroy = &destroy;
  table.begin = &begin;
  table.event = &event;
  table.end = &end;
#if defined(WRONG_MAJOR)
  table.abi_major = HANDOFF_ABI_MAJOR + 1;
#elif defined(NEWER_MINOR)
  table.abi_minor = HANDOFF_ABI_MINOR + 7;
#elif defined(TRUNCATED_TABLE)
    table.struct_size = offsetof(handoff_backend_api, end);
#elif defined(NULL_ENTRY)
    table.event = nullptr;
#endif
  return table;
}
constexpr auto kTable = make_table();

}  // namespace

#if !defined(MISSING_SYMBOL)
extern "C" HANDOFF_EXPORT const handoff_backend_api* handoff_backend_get(std::uint32_t, std::uint32_t) {
#if defined(ENTRY_THROWS)
  throw std::runtime_error("not in the mood");
#elif defined(ENTRY_RETURNS_NULL)
  return nullptr;
#endif
  return &kTable;
}
#endif
