#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shared/telemetry/level.hpp"

namespace handoff::telemetry {

namespace detail {
/// What `log_enabled` compares with; only `init_logging` sets it.
inline std::atomic<Level> log_threshold{Level::off};
}  // namespace detail

/// Starts logging to standard error, or to `descriptor`, which must stay open. Call it in `main` before
/// threads start; until then nothing is logged. A second call replaces the first, after writing what it can.
void init_logging(Level level, int descriptor = 2);

/// Writes what the descriptor takes without waiting. Lines are written by themselves when there are many, at
/// warn and above, and every 200 ms; this is for the end of `main`.
void flush_logging();

/// Whether lines of this level are written. As cheap as one load.
inline bool log_enabled(Level level) {
  return level >= detail::log_threshold.load(std::memory_order_relaxed) && level != Level::off;
}

/// The name of a field. A literal is checked by the compiler: letters, digits, `_`, `-` and `.`.
class FieldName {
 public:
  template <std::size_t Size>
  consteval FieldName(const char (&literal)[Size]) : text_(literal, Size - 1) {  // NOLINT(google-explicit-*)
    for (const char c : text_) {
      const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                        c == '_' || c == '-' || c == '.';
      if (!fine) throw "not a field's name";
    }
  }
  /// A name that is not known before; wrong characters become `_` in the line.
  static FieldName of(std::string_view text) { return FieldName(text, 0); }

  std::string_view text() const { return text_; }
  bool is_checked() const { return is_checked_; }

 private:
  FieldName(std::string_view text, int) : text_(text), is_checked_(false) {}
  std::string_view text_;
  bool is_checked_ = true;
};

/// One line of the log: `2026-01-02T03:04:05.678Z INFO event key=value …`, written when the object goes.
///
///     LogLine(Level::info, "request_done").field("request_id", id).field("bytes", size).field("ms",
///     elapsed);
///
/// When the level is off, fields cost a comparison. Values from strangers are safe: they are quoted, escaped
/// and cut. Never blocks on the reader of the log. Any thread may build its own lines. Must not be kept
/// across a co_await.
class LogLine {
 public:
  LogLine(Level level, std::string_view event) : level_(level), enabled_(log_enabled(level)) {
    if (enabled_) begin(event);
  }
  ~LogLine() {
    if (enabled_) finish();
  }
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;

  LogLine& field(FieldName name, std::string_view value) {
    if (enabled_) add_text(name, value);
    return *this;
  }
  LogLine& field(FieldName name, const char* value) { return field(name, std::string_view(value)); }
  LogLine& field(FieldName name, const std::string& value) { return field(name, std::string_view(value)); }
  LogLine& field(FieldName name, bool value) { return field(name, value ? "true" : "false"); }

  /// Three decimals.
  LogLine& field(FieldName name, double value) {
    if (enabled_) add_double(name, value);
    return *this;
  }

  template <std::integral T>
  LogLine& field(FieldName name, T value) {
    if (!enabled_) return *this;
    if constexpr (std::signed_integral<T>) {
      add_signed(name, value);
    } else {
      add_unsigned(name, value);
    }
    return *this;
  }

 private:
  void begin(std::string_view event);
  void finish();
  bool add_name(FieldName name);
  void add_text(FieldName name, std::string_view value);
  void add_double(FieldName name, double value);
  void add_signed(FieldName name, std::int64_t value);
  void add_unsigned(FieldName name, std::uint64_t value);

  Level level_;
  bool enabled_;
  std::string line_;
};

}  // namespace handoff::telemetry
