/* A backend in C11: relays each request of its route to the local engine. A protocol grows from here. */
#include <stdio.h>
#include <stdlib.h>

#include "shared/backend_abi/decode_backend.h"

#define BYTES(literal) \
  { literal, sizeof(literal) - 1 }

enum { DECODE = 1 };

struct handoff_backend {
  const handoff_host_api* host;
};
struct handoff_exchange {
  handoff_backend* backend;
};

static handoff_status create(const handoff_host_api* host, const handoff_config* config,
                             handoff_backend** out, char* error, size_t error_size) {
  (void)config;
  handoff_backend* backend = malloc(sizeof *backend);
  if (backend == NULL) {
    snprintf(error, error_size, "out of memory");
    return HANDOFF_FAILED;
  }
  backend->host = host;
  *out = backend;
  return HANDOFF_OK;
}

static void destroy(handoff_backend* backend) {
  free(backend);
}

static handoff_status begin(handoff_backend* backend, const handoff_request* request, handoff_turn* turn,
                            handoff_exchange** out) {
  (void)request;
  handoff_exchange* exchange = malloc(sizeof *exchange);
  if (exchange == NULL) return HANDOFF_FAILED;
  exchange->backend = backend;

  const handoff_leg leg = {
      .struct_size = sizeof leg,
      .id = DECODE,
      .role = HANDOFF_ROLE_DECODE,
      .target = HANDOFF_TARGET_LOCAL,
      .reply = HANDOFF_REPLY_RELAY,
      .flags = HANDOFF_LEG_CLIENT_BODY,
  };
  const handoff_status status = backend->host->start(turn, &leg);
  if (status != HANDOFF_OK) {
    free(exchange); /* end() is not called after a begin() that failed */
    return status;
  }
  *out = exchange;
  return HANDOFF_OK;
}

static handoff_status event(handoff_exchange* exchange, const handoff_event* event, handoff_turn* turn) {
  const int answered = (event->flags & HANDOFF_CLIENT_STARTED) != 0;
  if (event->kind == HANDOFF_EVENT_LEG_FAILED && !answered) {
    return exchange->backend->host->fail_with_leg(turn, event->leg);
  }
  return HANDOFF_OK;
}

static void end(handoff_exchange* exchange) {
  free(exchange);
}

static const handoff_route routes[] = {{BYTES("POST"), BYTES("/v1/chat/completions")}};

static const handoff_backend_api table = {
    .struct_size = sizeof table,
    .abi_major = HANDOFF_ABI_MAJOR,
    .abi_minor = HANDOFF_ABI_MINOR,
    .name = BYTES("skeleton"),
    .protocol = BYTES("skeleton-1"),
    .routes = routes,
    .route_count = sizeof routes / sizeof routes[0],
    .health_path = BYTES("/health"),
    .health_interval_ms = 1000,
    .engine_idle_ms = 4000,
    .create = create,
    .destroy = destroy,
    .begin = begin,
    .event = event,
    .end = end,
};

const handoff_backend_api* handoff_backend_get(uint32_t host_abi_major, uint32_t host_abi_minor) {
  (void)host_abi_major;
  (void)host_abi_minor;
  return &table;
}
