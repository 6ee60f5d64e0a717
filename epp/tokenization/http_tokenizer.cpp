#include "epp/tokenization/http_tokenizer.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <exception>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

#include "epp/tokenization/prompt_cache.hpp"
#include "epp/tokenization/service_client.hpp"
#include "shared/telemetry/log.hpp"
#include "shared/telemetry/rate_limited_warning.hpp"

namespace handoff::epp {
namespace {

namespace net = boost::asio;
using telemetry::Level;
using telemetry::LogLine;
using Clock = std::chrono::steady_clock;

// Calls that wait for a connection. Beyond that the service is not keeping up.
constexpr std::size_t kMaxWaiting = 8192;
constexpr std::size_t kMaxRefusedModels = 256;
constexpr auto kRelaxed = std::memory_order_relaxed;

// One caller. Whoever claims it answers it.
struct Waiter {
  explicit Waiter(TokenizeCallback callback) : done(std::move(callback)) {}

  bool claim() { return !is_answered.exchange(true); }

  TokenizeCallback done;
  std::atomic<bool> is_answered{false};
};

// A running call to the service and who waits for it. On the loop only.
struct Flight {
  Flight(net::io_context& loop, TokenizerAsk what, std::string name)
      : ask(std::move(what)), model(std::move(name)), limit(loop) {}

  TokenizerAsk ask;
  std::string model;
  Clock::time_point deadline;
  net::steady_timer limit;
  std::vector<std::shared_ptr<Waiter>> waiters;
  bool is_running = false;  // has a connection
  bool is_over = false;
};

struct KeyHash {
  std::size_t operator()(const PromptKey& key) const { return key[1]; }
};

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(HttpTokenizerOptions options, ServiceUrl url)
      : options_(std::move(options)),
        cache_(options_.cache_bytes),
        client_(loop_, std::move(url), options_.max_response_bytes) {
    std::random_device random;
    seed_ = std::uint64_t{random()} << 32 | random();
  }

  void start() {
    thread_ = std::thread([this] { loop_.run(); });
  }

  void stop() {
    loop_.stop();
    if (thread_.joinable()) thread_.join();
    // Nothing runs any more: what is left is answered here.
    for (const auto& [key, flight] : std::exchange(flights_, {})) answer(*flight, cancelled());
    const std::lock_guard lock(arriving_mutex_);
    for (const auto& waiter : std::exchange(arriving_, {})) answer_one(*waiter, cancelled());
  }

  std::shared_ptr<Waiter> tokenize(TokenizeRequest request, TokenizeCallback done) {
    TokenizerStep step = plan_tokenization(options_.kind, request, seed_);
    if (auto* failure = std::get_if<TokenizeFailure>(&step)) {
      done(std::move(*failure));
      return nullptr;
    }
    if (auto* tokens = std::get_if<TokensAtHand>(&step)) {
      at_hand_.fetch_add(1, kRelaxed);
      done(std::make_shared<const std::vector<TokenizedPrompt>>(std::move(tokens->prompts)));
      return nullptr;
    }
    auto& ask = std::get<TokenizerAsk>(step);
    if (TokenizedPrompts known = cache_.find(ask.key)) {
      cached_.fetch_add(1, kRelaxed);
      done(std::move(known));
      return nullptr;
    }
    auto waiter = std::make_shared<Waiter>(std::move(done));
    {
      const std::lock_guard lock(arriving_mutex_);
      arriving_.insert(waiter);
    }
    net::post(loop_, [this, waiter, ask = std::move(ask), model = std::move(request.model)]() mutable {
      {
        const std::lock_guard lock(arriving_mutex_);
        arriving_.erase(waiter);
      }
      join(waiter, std::move(ask), std::move(model));
    });
    return waiter;
  }

  // From any thread.
  static void cancel(const std::shared_ptr<Core>& core, const std::shared_ptr<Waiter>& waiter) {
    if (!waiter->claim()) return;
    waiter->done(cancelled());
    net::post(core->loop_, [core = core.get()] { core->drop_unwanted(); });
  }

  TokenizerCounters counters() const {
    return {cached_.load(kRelaxed), at_hand_.load(kRelaxed), joined_.load(kRelaxed), asked_.load(kRelaxed),
            failed_.load(kRelaxed)};
  }

 private:
  static TokenizeFailure cancelled() { return {TokenizeError::kCancelled, "cancelled"}; }

  static void answer_one(Waiter& waiter, const TokenizeResult& result) {
    if (waiter.claim()) waiter.done(result);
  }

  static void answer(Flight& flight, const TokenizeResult& result) {
    flight.is_over = true;
    flight.limit.cancel();
    for (const auto& waiter : std::exchange(flight.waiters, {})) answer_one(*waiter, result);
  }

  void join(const std::shared_ptr<Waiter>& waiter, TokenizerAsk ask, std::string model) {
    if (waiter->is_answered) return;
    if (TokenizedPrompts known = cache_.find(ask.key)) {  // came in meanwhile
      cached_.fetch_add(1, kRelaxed);
      answer_one(*waiter, known);
      return;
    }
    const auto running = flights_.find(ask.key);
    if (running != flights_.end()) {
      joined_.fetch_add(1, kRelaxed);
      running->second->waiters.push_back(waiter);
      return;
    }
    if (waiting_.size() >= kMaxWaiting) {
      failed_.fetch_add(1, kRelaxed);
      answer_one(*waiter,
                 TokenizeFailure{TokenizeError::kUnavailable, "too many calls wait for the tokenizer"});
      return;
    }
    auto flight = std::make_shared<Flight>(loop_, std::move(ask), std::move(model));
    flight->waiters.push_back(waiter);
    flight->deadline = Clock::now() + options_.timeout;
    flight->limit.expires_at(flight->deadline);
    flight->limit.async_wait([this, flight](boost::system::error_code ec) {
      if (!ec) end(flight, TokenizeFailure{TokenizeError::kTimeout, "no answer in time"});
    });
    flights_.emplace(flight->ask.key, flight);
    waiting_.push_back(flight);
    run_next();
  }

  void run_next() {
    while (running_ < options_.max_connections && !waiting_.empty()) {
      auto flight = std::move(waiting_.front());
      waiting_.pop_front();
      if (flight->is_over) continue;
      flight->is_running = true;
      ++running_;
      net::co_spawn(loop_, run(flight), [this, flight](const std::exception_ptr& error) {
        --running_;
        if (error) end(flight, TokenizeFailure{TokenizeError::kUnavailable, message_of(error)});
        run_next();
      });
    }
  }

  // Flights that nobody waits for: those without a connection go, the others finish for the cache.
  void drop_unwanted() {
    std::erase_if(waiting_, [this](const std::shared_ptr<Flight>& flight) {
      std::erase_if(flight->waiters, [](const auto& waiter) { return waiter->is_answered.load(); });
      if (!flight->waiters.empty()) return false;
      flight->is_over = true;
      flight->limit.cancel();
      flights_.erase(flight->ask.key);
      return true;
    });
  }

  void end(const std::shared_ptr<Flight>& flight, const TokenizeResult& result) {
    if (flight->is_over) return;
    flights_.erase(flight->ask.key);
    if (const auto* failure = std::get_if<TokenizeFailure>(&result)) {
      failed_.fetch_add(1, kRelaxed);
      if (failure->error != TokenizeError::kRefused) warn(*failure);
    }
    answer(*flight, result);
  }

  void warn(const TokenizeFailure& failure) {
    if (const auto suppressed = warning_.try_pass()) {
      LogLine(Level::warn, "tokenizer_failed")
          .field("reason", failure.detail)
          .field("suppressed", *suppressed);
    }
  }

  net::awaitable<void> run(std::shared_ptr<Flight> flight) {
    asked_.fetch_add(1, kRelaxed);
    std::shared_ptr<const std::string> body = flight->ask.body;
    bool as_base = refused_models_.contains(flight->model);
    if (as_base) body = as_base_model(*flight);
    ServiceAnswer answer = co_await client_.post(flight->ask.path, body, flight->deadline);
    if (!as_base && refuses_model(*flight, answer)) {
      as_base = true;
      body = as_base_model(*flight);
      answer = co_await client_.post(flight->ask.path, body, flight->deadline);
      // Remembered, so that the next one is asked once only.
      if (answer.status == 200 && refused_models_.size() < kMaxRefusedModels)
        refused_models_.insert(flight->model);
    }
    if (flight->is_over && answer.status != 200) co_return;
    TokenizeResult result = judge(answer);
    if (const auto* prompts = std::get_if<TokenizedPrompts>(&result)) cache_.put(flight->ask.key, *prompts);
    end(flight, result);
  }

  bool refuses_model(const Flight& flight, const ServiceAnswer& answer) const {
    if (options_.base_model.empty() || flight.model.empty() || flight.model == options_.base_model)
      return false;
    return answer.status == 404 ||
           ((answer.status == 400 || answer.status == 422) && answer.body.find("model") != std::string::npos);
  }

  std::shared_ptr<const std::string> as_base_model(const Flight& flight) const {
    std::string body = with_model(*flight.ask.body, options_.base_model);
    return body.empty() ? flight.ask.body : std::make_shared<const std::string>(std::move(body));
  }

  static TokenizeResult judge(ServiceAnswer& answer) {
    using Outcome = ServiceAnswer::Outcome;
    switch (answer.outcome) {
      case Outcome::kTimeout:
        return TokenizeFailure{TokenizeError::kTimeout, "no answer in time"};
      case Outcome::kNoConnection:
      case Outcome::kBroken:
        return TokenizeFailure{TokenizeError::kUnavailable, std::move(answer.detail)};
      case Outcome::kTooLarge:
        return TokenizeFailure{TokenizeError::kBadAnswer, std::move(answer.detail)};
      case Outcome::kAnswered:
        break;
    }
    const std::string status = "status " + std::to_string(answer.status);
    if (answer.status == 400 || answer.status == 422) return TokenizeFailure{TokenizeError::kRefused, status};
    if (answer.status == 429 || answer.status == 503)
      return TokenizeFailure{TokenizeError::kUnavailable, status};
    if (answer.status != 200) return TokenizeFailure{TokenizeError::kBadAnswer, status};
    auto parsed = parse_tokens(answer.body);
    if (auto* wrong = std::get_if<std::string>(&parsed))
      return TokenizeFailure{TokenizeError::kBadAnswer, "the answer: " + *wrong};
    return std::make_shared<const std::vector<TokenizedPrompt>>(
        std::get<std::vector<TokenizedPrompt>>(std::move(parsed)));
  }

  static std::string message_of(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      return e.what();
    }
  }

  const HttpTokenizerOptions options_;
  std::uint64_t seed_ = 0;
  PromptCache cache_;
  net::io_context loop_{1};
  net::executor_work_guard<net::io_context::executor_type> work_ = net::make_work_guard(loop_);
  ServiceClient client_;
  // Between the caller's thread and the loop: what a stop would otherwise leave unanswered.
  std::mutex arriving_mutex_;
  std::set<std::shared_ptr<Waiter>> arriving_;
  std::unordered_map<PromptKey, std::shared_ptr<Flight>, KeyHash> flights_;
  std::deque<std::shared_ptr<Flight>> waiting_;
  std::size_t running_ = 0;
  std::set<std::string> refused_models_;
  std::atomic<std::uint64_t> cached_{0};
  std::atomic<std::uint64_t> at_hand_{0};
  std::atomic<std::uint64_t> joined_{0};
  std::atomic<std::uint64_t> asked_{0};
  std::atomic<std::uint64_t> failed_{0};
  telemetry::RateLimitedWarning warning_{std::chrono::seconds(10)};
  std::thread thread_;
};

class Call final : public TokenizeCall {
 public:
  Call(std::weak_ptr<Core> core, std::shared_ptr<Waiter> waiter)
      : core_(std::move(core)), waiter_(std::move(waiter)) {}

  void cancel() override {
    // After the tokenizer's end everything is answered.
    if (const auto core = core_.lock()) Core::cancel(core, waiter_);
  }

 private:
  std::weak_ptr<Core> core_;
  std::shared_ptr<Waiter> waiter_;
};

class HttpTokenizerImpl final : public HttpTokenizer {
 public:
  explicit HttpTokenizerImpl(std::shared_ptr<Core> core) : core_(std::move(core)) { core_->start(); }
  ~HttpTokenizerImpl() override { core_->stop(); }

  std::unique_ptr<TokenizeCall> tokenize(TokenizeRequest request, TokenizeCallback done) override {
    auto waiter = core_->tokenize(std::move(request), std::move(done));
    if (!waiter) return nullptr;
    return std::make_unique<Call>(core_, std::move(waiter));
  }

  TokenizerCounters counters() const override { return core_->counters(); }

 private:
  std::shared_ptr<Core> core_;
};

}  // namespace

std::unique_ptr<HttpTokenizer> make_http_tokenizer(HttpTokenizerOptions options, std::string& error) {
  auto url = parse_service_url(options.url);
  if (!url) {
    error = "the tokenizer's URL must be absolute, as http://host:port; TLS is not supported there";
    return nullptr;
  }
  options.max_connections = std::max<std::size_t>(options.max_connections, 1);
  return std::make_unique<HttpTokenizerImpl>(std::make_shared<Core>(std::move(options), std::move(*url)));
}

}  // namespace handoff::epp
