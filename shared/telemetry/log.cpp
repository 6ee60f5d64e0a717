#include "shared/telemetry/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <thread>

#include "shared/telemetry/log_buffer.hpp"
#include "shared/telemetry/logfmt.hpp"

namespace handoff::telemetry {
namespace {

constexpr auto kFlushInterval = std::chrono::milliseconds(200);
/// Fields beyond this are left out, so that a line always fits one piece of the buffer.
constexpr std::size_t kLineBytes = 2500;

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::trace:
      return spdlog::level::trace;
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
    case Level::off:
      break;
  }
  return spdlog::level::off;
}

std::string_view printed_name(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
      return " TRACE ";
    case spdlog::level::debug:
      return " DEBUG ";
    case spdlog::level::info:
      return " INFO ";
    case spdlog::level::warn:
      return " WARN ";
    default:
      return " ERROR ";
  }
}

/// Time stamps in UTC; the part that changes once a second is kept.
class TimeStamp {
 public:
  void append_to(std::string& line, std::chrono::system_clock::time_point time) {
    const auto since_epoch = time.time_since_epoch();
    const auto second = std::chrono::floor<std::chrono::seconds>(since_epoch);
    if (second != second_ || text_.empty()) print(second);
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(since_epoch - second).count();
    line += text_;
    line += static_cast<char>('0' + ms / 100);
    line += static_cast<char>('0' + ms / 10 % 10);
    line += static_cast<char>('0' + ms % 10);
    line += 'Z';
  }

 private:
  void print(std::chrono::seconds second) {
    second_ = second;
    const std::time_t seconds = second.count();
    std::tm parts{};
    ::gmtime_r(&seconds, &parts);
    char buffer[32];
    text_.assign(buffer, std::strftime(buffer, sizeof(buffer), "%Y-%m-%dT%H:%M:%S.", &parts));
  }

  std::chrono::seconds second_{0};
  std::string text_;
};

std::string note_of_drops(std::uint64_t count) {
  std::string line;
  TimeStamp().append_to(line, std::chrono::system_clock::now());
  return line + " WARN log_lines_dropped count=" + std::to_string(count) + "\n";
}

/// Formats into a LogBuffer, under spdlog's lock.
class BufferSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit BufferSink(int descriptor) : buffer_(descriptor) {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    line_.clear();
    time_stamp_.append_to(line_, message.time);
    line_ += printed_name(message.level);
    line_.append(message.payload.data(), message.payload.size());
    line_ += '\n';
    buffer_.append(line_, note_of_drops);
    if (buffer_.wants_flush()) buffer_.flush();
  }

  void flush_() override { buffer_.flush(); }

 private:
  LogBuffer buffer_;
  TimeStamp time_stamp_;
  std::string line_;
};

/// The logger and the thread that flushes it. spdlog's own periodic flush counts in seconds.
class Logging {
 public:
  explicit Logging(int descriptor) : logger_("handoff", std::make_shared<BufferSink>(descriptor)) {
    logger_.set_level(spdlog::level::trace);
    logger_.flush_on(spdlog::level::warn);
    flusher_ = std::thread([this] { flush_periodically(); });
  }

  ~Logging() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    stop_.notify_one();
    flusher_.join();
    logger_.flush();
  }

  Logging(const Logging&) = delete;
  Logging& operator=(const Logging&) = delete;

  spdlog::logger& logger() { return logger_; }

 private:
  void flush_periodically() {
    std::unique_lock lock(mutex_);
    while (!stop_.wait_for(lock, kFlushInterval, [this] { return stopping_; })) logger_.flush();
  }

  spdlog::logger logger_;
  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopping_ = false;
  std::thread flusher_;
};

/// Never destroyed, since threads may log until the process ends.
Logging*& logging() {
  static Logging* instance = nullptr;
  return instance;
}

/// The memory of this thread's last line, for its next one.
std::string& spare_line() {
  thread_local std::string spare;
  return spare;
}

template <class Number>
void append_integer(std::string& line, Number number) {
  char digits[24];
  const auto result = std::to_chars(digits, digits + sizeof(digits), number);
  line.append(digits, result.ptr);
}

}  // namespace

void init_logging(Level level, int descriptor) {
  if (logging() == nullptr) std::atexit(flush_logging);
  delete logging();
  logging() = new Logging(descriptor);
  detail::log_threshold.store(level, std::memory_order_release);
}

void flush_logging() {
  if (logging() != nullptr) logging()->logger().flush();
}

void LogLine::begin(std::string_view event) {
  line_ = std::move(spare_line());
  line_.clear();
  append_name(line_, event);
}

void LogLine::finish() {
  logging()->logger().log(to_spdlog(level_), spdlog::string_view_t(line_.data(), line_.size()));
  spare_line() = std::move(line_);
}

bool LogLine::add_name(FieldName name) {
  const auto text = name.text();
  if (line_.size() + text.size() > kLineBytes) return false;
  if (!name.is_checked()) {
    line_ += ' ';
    append_name(line_, text);
    line_ += '=';
    return true;
  }
  const auto before = line_.size();
  line_.resize(before + text.size() + 2, ' ');
  text.copy(line_.data() + before + 1, text.size());
  line_.back() = '=';
  return true;
}

void LogLine::add_text(FieldName name, std::string_view value) {
  if (add_name(name)) append_value(line_, value);
}

void LogLine::add_double(FieldName name, double value) {
  if (add_name(name)) append_number(line_, value);
}

void LogLine::add_signed(FieldName name, std::int64_t value) {
  if (add_name(name)) append_integer(line_, value);
}

void LogLine::add_unsigned(FieldName name, std::uint64_t value) {
  if (add_name(name)) append_integer(line_, value);
}

}  // namespace handoff::telemetry
