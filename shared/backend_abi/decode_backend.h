/*
 * Handoff backend ABI: how the decode sidecar runs an engine's prefill/decode protocol.
 *
 * A backend is a shared object that holds one protocol as a state machine without I/O. It owns no socket,
 * thread, clock or random source. The sidecar tells it what happened (an event) and it says what to do next
 * (actions on the turn); the sidecar carries that out, with its own limits, time-outs and cancellation.
 *
 *   client request --> begin() --> [ actions ] --> event() --> [ actions ] --> ... --> end()
 *
 * Naming. `handoff_backend_api` is the table that the BACKEND fills in; `handoff_host_api` is the table that
 * the SIDECAR fills in. Every entry below says which side calls it.
 *
 * Versions. HANDOFF_ABI_MAJOR must be equal on both sides. HANDOFF_ABI_MINOR grows when something is
 * appended. A struct that begins with `struct_size` may grow at its end only: its writer sets struct_size to
 * sizeof(the struct) as it was compiled, its reader treats what lies beyond that size as zero. Structs
 * without `struct_size` are elements of arrays and are frozen for the major version. The sidecar loads a
 * backend whose minor is not newer than its own, and refuses all others at start.
 *
 * Threads. The sidecar calls create() once per event loop. A handoff_backend and all its exchanges are used
 * on that loop's thread only, one call at a time, never re-entered. Nothing in a backend needs a lock, and a
 * backend has no global mutable state.
 *
 * What may not be done in any backend entry: block, sleep, do I/O, start a thread, keep a borrowed pointer
 * longer than stated here, throw a C++ exception out of it, or call exit(). An entry should take
 * microseconds, since every connection of its loop waits for it.
 *
 * Memory. Each side frees what it allocated. A `handoff_bytes` is borrowed: a pointer and a length, not
 * terminated by NUL, {NULL, 0} when empty. What the backend passes to a host call is copied, or used up,
 * before that call returns. How long a view given to the backend lives is said where it is given.
 *
 * Errors. Entries return handoff_status. Anything but HANDOFF_OK from begin() or event() makes the sidecar
 * answer the client with 500 `backend_failed` (or break an answer already begun), close every leg, and call
 * end().
 */
#ifndef HANDOFF_DECODE_BACKEND_H
#define HANDOFF_DECODE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HANDOFF_ABI_MAJOR 1u
#define HANDOFF_ABI_MINOR 2u

/* The one exported symbol; see handoff_backend_entry. */
#define HANDOFF_BACKEND_SYMBOL "handoff_backend_get"

#if defined(__GNUC__)
#define HANDOFF_EXPORT __attribute__((visibility("default")))
#else
#define HANDOFF_EXPORT
#endif

typedef int32_t handoff_status;
#define HANDOFF_OK ((handoff_status)0)
/* An argument does not fit its description (unknown leg id, id used twice, bad range, too many legs). */
#define HANDOFF_INVALID ((handoff_status)1)
/* Not allowed now: the client has its answer already, or the exchange is over. */
#define HANDOFF_WRONG_STATE ((handoff_status)2)
/* The backend's own failure: an exception, memory, a broken invariant. */
#define HANDOFF_FAILED ((handoff_status)3)

typedef struct handoff_bytes {
  const char* data;
  size_t size;
} handoff_bytes;

/* One header field line. Names are compared without case. */
typedef struct handoff_header {
  handoff_bytes name;
  handoff_bytes value;
} handoff_header;

/* Opaque. The backend allocates these two in create() and begin(), and frees them in destroy() and end(). */
typedef struct handoff_backend handoff_backend;
typedef struct handoff_exchange handoff_exchange;
/* Opaque, the sidecar's. Valid only during the entry that received it. */
typedef struct handoff_turn handoff_turn;

/* ------------------------------------------------------------------------------------------------------------
 * JSON as member positions. The sidecar scans; nobody builds a tree or writes a body out again, so key order,
 * the spelling of numbers, duplicates, escapes and unknown fields survive.
 */

/* What kind of value a member has, read off its first byte. */
#define HANDOFF_JSON_OBJECT 0u
#define HANDOFF_JSON_ARRAY 1u
#define HANDOFF_JSON_STRING 2u
#define HANDOFF_JSON_NUMBER 3u
#define HANDOFF_JSON_TRUE 4u
#define HANDOFF_JSON_FALSE 5u
#define HANDOFF_JSON_NULL 6u
#define HANDOFF_JSON_OTHER 7u /* NaN, Infinity: accepted by some engines, not JSON */

/* One member of an object, in document order; a repeated key appears repeatedly (engines take the last one).
 */
typedef struct handoff_member {
  handoff_bytes name; /* decoded: escapes are resolved */
  size_t key_begin;   /* offset of the key's opening quote in the scanned text */
  size_t value_begin; /* offset of the value's first byte */
  size_t value_end;   /* offset just after the value's last byte */
  uint32_t kind;      /* HANDOFF_JSON_* */
  uint32_t reserved;
} handoff_member;

/* What a scanned text is. */
#define HANDOFF_TEXT_OBJECT 0u     /* a JSON object; its members are listed */
#define HANDOFF_TEXT_NOT_OBJECT 1u /* some other JSON value, or empty */
#define HANDOFF_TEXT_MALFORMED 2u  /* not JSON, or beyond the sidecar's limit on members */

/* An object's members. Offsets are relative to `text`. */
typedef struct handoff_object {
  uint32_t struct_size;
  uint32_t text_kind; /* HANDOFF_TEXT_* ; the rest is zero unless it is HANDOFF_TEXT_OBJECT */
  handoff_bytes text;
  const handoff_member* members;
  size_t member_count;
  size_t open_brace;  /* offset of '{' */
  size_t close_brace; /* offset of the matching '}' */
} handoff_object;

/* ------------------------------------------------------------------------------------------------------------
 * What a backend declares. All of it is constant and lives as long as the shared object.
 */

/* A request that the backend wants to see: exact method, exact path (no query; percent-encoded unreserved
 * characters are decoded before comparing). All other requests stream to the local engine untouched. */
typedef struct handoff_route {
  handoff_bytes method;
  handoff_bytes path;
} handoff_route;

/* A member of request bodies that only a sidecar may set: dotted path of at most four names, for example
 * "kv_transfer_params" or "sampling_params.extra_args.kv_transfer_params". A client that sends one with a
 * value other than null or {} is answered 400, on every POST path, before the backend sees the request. */
typedef struct handoff_reserved_field {
  handoff_bytes path;
} handoff_reserved_field;

#define HANDOFF_CONFIG_STRING 0u
#define HANDOFF_CONFIG_CHOICE 1u /* one of the comma-separated `accepts` */
#define HANDOFF_CONFIG_BOOL 2u
#define HANDOFF_CONFIG_UINT 3u
#define HANDOFF_CONFIG_DURATION_MS 4u
#define HANDOFF_CONFIG_BYTES 5u
#define HANDOFF_CONFIG_PORT 6u
#define HANDOFF_CONFIG_FILE 7u   /* the operator gives a path; create() gets what the file contains */
#define HANDOFF_CONFIG_SECRET 1u /* flag: never printed */

/* A setting of the backend's own. The sidecar parses, checks, documents and prints it like its own settings,
 * and hands the value to create() in canonical text: "true"/"false", decimal integers, the choice as spelled
 * here. A key whose name is that of an earlier one without "DYN_SIDECAR_" is another environment name for
 * it: it has no flag and no row of its own, and create() gets the same value for both. */
typedef struct handoff_config_key {
  handoff_bytes name; /* environment name, for example "DYN_SIDECAR_VLLM_CONNECTOR" */
  handoff_bytes accepts;
  handoff_bytes default_value; /* empty: no default, and create() gets an empty value */
  handoff_bytes help;          /* one sentence */
  uint32_t kind;               /* HANDOFF_CONFIG_STRING ... */
  uint32_t flags;
} handoff_config_key;

/* ------------------------------------------------------------------------------------------------------------
 * What a backend is told.
 */

typedef struct handoff_setting {
  handoff_bytes name;
  handoff_bytes value;
} handoff_setting;

/* Given to create(); borrowed for that call. One entry per declared key, in the order declared. */
typedef struct handoff_config {
  uint32_t struct_size;
  uint32_t reserved;
  const handoff_setting* settings;
  size_t setting_count;
} handoff_config;

/* A client request on one of the backend's routes, whole. What it points to lives until end() returns, with
 * one exception: the body and its members are gone once bytes of a leg's reply flow to the client (a stream
 * may last for minutes, and nothing is sent again by then); pieces of it are refused from then on. The struct
 * itself is gone when begin() returns. */
typedef struct handoff_request {
  uint32_t struct_size;
  uint32_t has_prefill; /* 1: a prefill endpoint was given (and is valid and allowed); 0: decode only */
  handoff_bytes method;
  handoff_bytes target;          /* request target as received */
  handoff_bytes path;            /* the route's path */
  const handoff_header* headers; /* as received, in order, orchestration headers included */
  size_t header_count;
  handoff_object body;        /* body.text is the whole body, whatever its kind */
  handoff_bytes prefill_host; /* bare: no brackets around IPv6 */
  uint32_t prefill_port;
  uint32_t reserved;
  handoff_bytes request_id; /* the client's x-request-id, or one the sidecar made */
  uint64_t now_ms;          /* as in handoff_event: for the age of what a backend remembers */
  uint64_t unix_ms;         /* and for ids that carry the time */
} handoff_request;

#define HANDOFF_EVENT_LEG_SENT 1u   /* the leg's request has been written out (only with WANT_SENT) */
#define HANDOFF_EVENT_LEG_HEAD 2u   /* status and headers have arrived (only with WANT_HEAD) */
#define HANDOFF_EVENT_LEG_BODY 3u   /* the next piece of body (STREAM, or HOLD with WANT_BODY) */
#define HANDOFF_EVENT_LEG_DONE 4u   /* the reply ended well; any status. COLLECT: `body` is all of it */
#define HANDOFF_EVENT_LEG_FAILED 5u /* no complete reply; see cause */
#define HANDOFF_EVENT_END 6u        /* the exchange is over; see outcome. Sent exactly once, before end() */
/* The leg has its connection, and nothing has been sent on it yet (only with WANT_CONNECTED; again for
 * another try). With REUSED it is one that was there before: the engine at its other end is still the one
 * that it was. Without, another engine may listen there by now than the one that a backend remembers. */
#define HANDOFF_EVENT_LEG_CONNECTED 7u

/* Why a leg failed. */
#define HANDOFF_CAUSE_CONNECT 1u /* refused, unreachable, name not found */
#define HANDOFF_CAUSE_CONNECT_TIMEOUT 2u
#define HANDOFF_CAUSE_READ_TIMEOUT 3u /* the engine was silent for too long */
#define HANDOFF_CAUSE_DEADLINE 4u     /* the leg took too long in all */
#define HANDOFF_CAUSE_RESET 5u        /* connection lost before the reply was complete */
#define HANDOFF_CAUSE_MALFORMED 6u    /* not HTTP, or broken framing */
#define HANDOFF_CAUSE_TOO_LARGE 7u    /* beyond reply_limit */
#define HANDOFF_CAUSE_OVERLOADED 8u   /* the sidecar's own memory bound */

/* How an exchange ended, as told by HANDOFF_EVENT_END. */
#define HANDOFF_OUTCOME_ANSWERED 1u    /* the client has a complete answer, good or bad */
#define HANDOFF_OUTCOME_CLIENT_GONE 2u /* the client left first */
#define HANDOFF_OUTCOME_BROKEN 3u      /* an answer was begun and could not be finished */
#define HANDOFF_OUTCOME_SHUTDOWN 4u    /* cancelled because the sidecar stops */

/* Event flags. In END they speak of the decode-role leg that was started last; no such leg: all zero. */
#define HANDOFF_REQUEST_SENT 1u   /* some byte of the leg's request may have reached the engine */
#define HANDOFF_REUSED 2u         /* the leg ran on a kept-alive connection */
#define HANDOFF_REPLY_STARTED 4u  /* some byte of the reply was received */
#define HANDOFF_CLIENT_STARTED 8u /* some byte of an answer went to the client: too late for another */

/* A leg that is the client's answer (RELAY, or after relay()) reports LEG_FAILED only while no byte of it has
 * gone to the client. From then on its end is the exchange's end: END with ANSWERED or BROKEN, and the
 * sidecar breaks the client's connection visibly by itself. LEG_BODY of a HOLD leg stops at relay(). */

/* Borrowed for the call to event(), pointers included. Copy what has to last. */
typedef struct handoff_event {
  uint32_t struct_size;
  uint32_t kind;    /* HANDOFF_EVENT_* */
  uint32_t leg;     /* LEG_*: the backend's id of the leg */
  uint32_t cause;   /* LEG_FAILED: HANDOFF_CAUSE_* */
  uint32_t outcome; /* END: HANDOFF_OUTCOME_* */
  uint32_t flags;
  uint32_t status; /* LEG_HEAD, LEG_BODY, LEG_DONE: HTTP status; LEG_FAILED: same, 0 if none arrived */
  uint32_t reserved;
  uint64_t now_ms;               /* monotonic milliseconds */
  uint64_t unix_ms;              /* wall clock, milliseconds since 1970 */
  const handoff_header* headers; /* LEG_HEAD, LEG_DONE: the reply's */
  size_t header_count;
  handoff_bytes body;
} handoff_event;

/* ------------------------------------------------------------------------------------------------------------
 * What a backend asks for.
 */

/* A piece of a body: with `data`, new bytes (copied before the call returns); with data == NULL, the range
 * [offset, offset + size) of the original request body, which is sent from where it lies. */
typedef struct handoff_piece {
  const char* data;
  size_t offset;
  size_t size;
} handoff_piece;

#define HANDOFF_ROLE_PREFILL 0u /* time-outs, retries and error codes of the prefill leg */
#define HANDOFF_ROLE_DECODE 1u
#define HANDOFF_ROLE_AUXILIARY 2u /* a question to an engine, such as GET /server_info */

#define HANDOFF_TARGET_PREFILL 0u /* the prefill endpoint of this request */
#define HANDOFF_TARGET_LOCAL 1u   /* the decode engine beside the sidecar */

#define HANDOFF_REPLY_COLLECT 0u /* keep the whole reply, up to reply_limit, and give it with LEG_DONE */
#define HANDOFF_REPLY_HOLD \
  1u /* read ahead up to the sidecar's bound, then by back-pressure, until relay() or cancel() */
#define HANDOFF_REPLY_RELAY 2u /* the reply is the client's answer, from its first byte */
#define HANDOFF_REPLY_STREAM                                                                             \
  3u /* each piece comes as LEG_BODY; the backend writes the client's answer itself. Before it has begun \
      * that, it is given as much as HOLD reads ahead; then the leg waits */
#define HANDOFF_REPLY_DISCARD 4u /* read to the end and drop */

#define HANDOFF_LEG_MAY_RESEND \
  1u /* sending this request twice does no harm: the sidecar may try again by itself */
#define HANDOFF_LEG_WANT_SENT 2u
#define HANDOFF_LEG_WANT_HEAD 4u
#define HANDOFF_LEG_WANT_BODY 8u
#define HANDOFF_LEG_NO_CLIENT_HEADERS 16u /* start from no headers, not from the client's end-to-end ones */
#define HANDOFF_LEG_CLIENT_BODY 32u       /* send the client's body unchanged; `body` is ignored */
#define HANDOFF_LEG_WANT_CONNECTED 64u

#define HANDOFF_MAX_LEGS 16u /* per exchange, background calls not counted */

/* One request to an engine. The sidecar adds host and framing headers and removes hop-by-hop and
 * orchestration ones; Accept-Encoding is removed where the backend has to read the reply. */
typedef struct handoff_leg {
  uint32_t struct_size;
  uint32_t id;     /* the backend's choice, not used before in this exchange */
  uint32_t role;   /* HANDOFF_ROLE_* */
  uint32_t target; /* HANDOFF_TARGET_* */
  uint32_t port;   /* 0: the target's own; else another port of the same host */
  uint32_t reply;  /* HANDOFF_REPLY_* */
  uint32_t flags;  /* HANDOFF_LEG_* */
  /* If the client leaves, or gets another answer, before a byte of the reply's body (heads come early): go on
   * connecting, sending and reading until that byte or for this long, then close. 0, or cancel(): close at
   * once. For requests that free something elsewhere by being accepted: it holds from start() on. A WANT_SENT
   * leg of which nothing is sent is closed at once: the backend's next step can't follow. */
  uint32_t linger_ms;
  uint32_t deadline_ms; /* for the whole leg; 0: the sidecar's setting for the role */
  uint32_t reserved;
  uint64_t reply_limit; /* COLLECT: bytes; 0: the sidecar's setting */
  handoff_bytes method; /* empty: the client's */
  handoff_bytes path;   /* request target; empty: the client's, query included */
  const handoff_header*
      headers; /* each replaces the client's fields of its name; an empty value removes them */
  size_t header_count;
  const handoff_piece* body;
  size_t piece_count;
  handoff_bytes name; /* for logs, for example "server_info"; empty: the role */
} handoff_leg;

/* An answer made by the backend. */
typedef struct handoff_reply {
  uint32_t struct_size;
  uint32_t status;
  const handoff_header* headers; /* without framing headers; content-type belongs here */
  size_t header_count;
  const handoff_piece* body;
  size_t piece_count;
  bool more; /* true: write() calls follow, the last one with last = true */
} handoff_reply;

/* An error made by the backend: sent as {"error":{"message","type","param","code"}}. Never put request or
 * engine text into it. */
typedef struct handoff_failure {
  uint32_t struct_size;
  uint32_t status; /* 400..599 */
  handoff_bytes code;
  handoff_bytes message;
  handoff_bytes param;    /* empty: null */
  uint32_t leg;           /* the leg at fault, for the log; HANDOFF_NO_LEG */
  uint32_t retry_after_s; /* 0: no Retry-After */
} handoff_failure;
#define HANDOFF_NO_LEG 0xffffffffu

#define HANDOFF_MAX_SCANS 1024u

/* The sidecar's table. The BACKEND calls these, on its loop's thread, inside begin() or event() (json and
 * random also inside create()). The pointer and its functions stay valid until destroy() returns.
 *
 * All functions that take a turn return HANDOFF_INVALID or HANDOFF_WRONG_STATE without doing anything if the
 * call does not fit. Actions are carried out after the entry has returned, in the order asked for. */
typedef struct handoff_host_api {
  uint32_t struct_size;
  uint16_t abi_major;
  uint16_t abi_minor;

  /* Lists the members of the JSON object that `text` is. `out` is overwritten; its members live until the
   * entry returns. HANDOFF_INVALID beyond HANDOFF_MAX_SCANS calls in one entry. */
  handoff_status (*json)(const struct handoff_host_api* host, handoff_bytes text, handoff_object* out);
  /* Fills `out` with unpredictable bytes. */
  void (*random)(const struct handoff_host_api* host, void* out, size_t size);
  /* A warning for the operator, at most one per minute for equal `key`; the rest is counted. No request data.
   */
  void (*warn)(const struct handoff_host_api* host, handoff_bytes key, handoff_bytes message);
  /* Adds one to a counter of the backend's, labelled by `name`: [a-z0-9_], a small fixed set. */
  void (*count)(const struct handoff_host_api* host, handoff_bytes name);

  /* Starts a leg. */
  handoff_status (*start)(handoff_turn* turn, const handoff_leg* leg);
  /* Gives a leg up: closes its connection at once; no further event of it is delivered. */
  handoff_status (*cancel)(handoff_turn* turn, uint32_t leg);
  /* Makes a HOLD leg, or a COLLECT leg that is done, the client's answer: status, headers and body. */
  handoff_status (*relay)(handoff_turn* turn, uint32_t leg);
  /* Answers the client. Legs still running are given up unless reply->more is set. */
  handoff_status (*respond)(handoff_turn* turn, const handoff_reply* reply);
  /* Continues an answer begun with reply->more. Reading of STREAM legs waits while the client is slow. */
  handoff_status (*write)(handoff_turn* turn, const handoff_piece* pieces, size_t count, bool last);
  /* Answers the client with an error and gives up all legs. */
  handoff_status (*fail)(handoff_turn* turn, const handoff_failure* failure);
  /* Ends the exchange because of what this leg did (LEG_DONE with a bad status, or LEG_FAILED), the same way
   * for every backend: 4xx of prefill is relayed with its body; 5xx and transport faults become our error
   * that names the leg, or, where the operator allows it and prefill failed, a decode-only run. */
  handoff_status (*fail_with_leg)(handoff_turn* turn, uint32_t leg);
  /* Sends the client's request unchanged to the local engine and relays the reply. `reason` is logged and
   * counted: [a-z0-9_]. `headers` as in handoff_leg. */
  handoff_status (*decode_only)(handoff_turn* turn, handoff_bytes reason, const handoff_header* headers,
                                size_t header_count);
  /* A call that nobody waits for: sent to its end in the background (5 s unless deadline_ms says otherwise),
   * reply dropped, result counted under leg->name. It outlives the exchange; shutdown waits for it. May be
   * asked for in any entry, END included: that is where engines are told of what is no longer wanted. leg->id
   * and leg->reply are ignored. */
  handoff_status (*background)(handoff_turn* turn, const handoff_leg* leg);
} handoff_host_api;

/* Flag of a backend: the engine beside the sidecar can't prefill. A request with a prefill endpoint is never
 * given to it alone: decode_only() is HANDOFF_WRONG_STATE for it, and a setting that falls back to that stops
 * the start. */
#define HANDOFF_BACKEND_NEEDS_PREFILL 1u

/* The backend's table. The SIDECAR calls these. */
typedef struct handoff_backend_api {
  uint32_t struct_size;
  uint16_t abi_major;     /* HANDOFF_ABI_MAJOR */
  uint16_t abi_minor;     /* HANDOFF_ABI_MINOR */
  handoff_bytes name;     /* for example "vllm" */
  handoff_bytes protocol; /* protocol revision, for example "vllm-v0.29.0-nixl-pull" */
  const handoff_route* routes;
  size_t route_count;
  const handoff_reserved_field* reserved_fields;
  size_t reserved_field_count;
  const handoff_config_key* config_keys;
  size_t config_key_count;
  /* A cheap GET of the engine that tells whether it serves, polled for /ready. */
  handoff_bytes health_path;
  uint32_t health_interval_ms;
  /* How long a connection to such an engine may be kept idle: below the engine's own limit. */
  uint32_t engine_idle_ms;

  /* Required. Called once per event loop at start, after the settings were checked one by one; may refuse
   * what does not fit together. On failure writes a NUL-terminated reason into error[0..error_size). */
  handoff_status (*create)(const handoff_host_api* host, const handoff_config* config, handoff_backend** out,
                           char* error, size_t error_size);
  /* Required. Called once, after the last exchange of this backend has ended. */
  void (*destroy)(handoff_backend* backend);
  /* Required. A request has arrived. Asks for the first actions. *out is passed to event() and end(); on a
   * status other than HANDOFF_OK it is ignored and end() is not called. */
  handoff_status (*begin)(handoff_backend* backend, const handoff_request* request, handoff_turn* turn,
                          handoff_exchange** out);
  /* Required. Something happened. An exchange in which no leg runs and no answer was given is answered with
   * 500 `backend_failed` by the sidecar; so is one whose event() returns an error. In END only background()
   * is allowed. */
  handoff_status (*event)(handoff_exchange* exchange, const handoff_event* event, handoff_turn* turn);
  /* Required. Frees the exchange. Called exactly once for each successful begin(). */
  void (*end)(handoff_exchange* exchange);

  /* Since 1.1. */
  uint32_t flags; /* HANDOFF_BACKEND_* */
  uint32_t reserved;
} handoff_backend_api;

/* The exported function, named by HANDOFF_BACKEND_SYMBOL. Called once after loading. Returns a constant
 * table, or NULL if the backend can't work with a sidecar of that version. */
typedef const handoff_backend_api* (*handoff_backend_entry)(uint32_t host_abi_major, uint32_t host_abi_minor);
HANDOFF_EXPORT const handoff_backend_api* handoff_backend_get(uint32_t host_abi_major,
                                                              uint32_t host_abi_minor);

#ifdef __cplusplus
}
#endif

#endif /* HANDOFF_DECODE_BACKEND_H */
