#include "epp/planning/request_life.hpp"

#include "epp/planning/request_planner.hpp"
#include "planning_fixture.hpp"

namespace handoff::epp {
namespace {

// Answers when the test says so, with one token per byte.
class HeldTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<TokenizeCall> tokenize(TokenizeRequest request, TokenizeCallback done) override {
    if (at_once) {
      done(tokens_of(*request.body));
      return nullptr;
    }
    body = request.body;
    callback = std::move(done);
    return std::make_unique<Call>(*this);
  }
  void answer() { std::exchange(callback, nullptr)(tokens_of(*body)); }

  static TokenizeResult tokens_of(const std::string& body) {
    auto prompts = std::make_shared<std::vector<TokenizedPrompt>>(1);
    for (const char c : body) prompts->front().token_ids.push_back(static_cast<unsigned char>(c));
    return TokenizedPrompts(std::move(prompts));
  }

  bool at_once = true;
  int cancelled = 0;
  std::shared_ptr<const std::string> body;
  TokenizeCallback callback;

 private:
  struct Call final : TokenizeCall {
    explicit Call(HeldTokenizer& owner) : tokenizer(owner) {}
    void cancel() override {
      ++tokenizer.cancelled;
      if (auto done = std::exchange(tokenizer.callback, nullptr)) {
        done(TokenizeFailure{TokenizeError::kCancelled, {}});
      }
    }
    HeldTokenizer& tokenizer;
  };
};

class RequestLifeTest : public PlanningFixture {
 protected:
  void begin() {
    RequestPlanner::Parts parts;
    parts.selectors = selectors;
    parts.directory = directory.get();
    parts.ledger = &ledger;
    parts.tokenizer = &tokenizer;
    parts.clock = [this] { return now; };
    parts.random = [this] { return ++random; };
    parts.wake_by = [this](SteadyTime when) {
      deadlines.emplace_back(when - now, prefill ? prefill->stats().waiting : 0);
    };
    planner = std::make_unique<RequestPlanner>(config, std::move(parts));
    services.config = &config;
    services.planner = planner.get();
    services.directory = directory.get();
    services.rates = &rates;
    services.clock = [this] { return now; };
    life = std::make_unique<RequestLife>(services, [this] { ++wakes; });
    stream = std::make_unique<ExtProcStream>(limits, *life);
    life->attach(*stream);
  }
  void start_pair() {
    start();
    add_prefill("p", 1);
    add_decode("d", 2);
    begin();
  }
  void send(
      std::string body =
          R"({"model":"m","stream":true,"x":"0123456789012345678901234567890123456789012345678901234567890123"})") {
    HeaderBlock headers;
    headers.add(":method", "POST");
    headers.add(":path", "/v1/chat/completions");
    if (!first_token_goal_ms.empty()) headers.add("x-dynamo-meta-slo-ttft-ms", first_token_goal_ms);
    stream->on_request_headers(std::move(headers), false, std::nullopt);
    stream->on_request_body(std::move(body), true);
  }
  std::optional<RouteAnswer> route() {
    auto answer = stream->next();
    if (!answer) return std::nullopt;
    auto* headers = std::get_if<HeadersAnswer>(&*answer);
    return headers == nullptr ? std::nullopt : headers->route;
  }
  void expect_tidy() {
    EXPECT_EQ(live(prefill), 0U);
    EXPECT_EQ(live(destination), 0U);
    EXPECT_EQ(ledger.open_plans(), 0U);
    EXPECT_EQ(planner->in_flight(), 0U);
  }

  HeldTokenizer tokenizer;
  PrefillRates rates;
  std::unique_ptr<RequestPlanner> planner;
  LifeServices services;
  ExtProcLimits limits;
  std::unique_ptr<RequestLife> life;
  std::unique_ptr<ExtProcStream> stream;
  int wakes = 0;
  std::string first_token_goal_ms;
  // By when maintenance was asked for, and how many waited then.
  std::vector<std::pair<SteadyTime::duration, std::uint64_t>> deadlines;
};

TEST_F(RequestLifeTest, RoutesFreesPrefillAtTheFirstByteAndDecodeAtTheEnd) {
  start_pair();
  send();
  EXPECT_EQ(wakes, 0) << "it was answered at once";
  const auto answer = route();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->destination, "127.0.0.1:2");
  ASSERT_EQ(answer->set_headers.size(), 1U);
  EXPECT_EQ(answer->set_headers[0],
            (std::pair<std::string_view, std::string>("x-prefiller-host-port", "127.0.0.1:1")));
  EXPECT_EQ(planner->in_flight(), 0U);
  EXPECT_GT(prefill_tokens(), 0U);
  const auto tokens = prefill_tokens();
  stream->on_response_headers("200", "text/event-stream", false);
  EXPECT_EQ(prefill_tokens(), tokens);
  now += std::chrono::milliseconds(100);
  stream->on_response_body("data: 1\n\n", false);
  EXPECT_EQ(prefill_tokens(), 0U);
  EXPECT_GT(decode_blocks(), 0U);
  EXPECT_EQ(rates.expected(1, tokens), std::chrono::milliseconds(100));
  stream->on_response_body("", true);
  expect_tidy();
}

TEST_F(RequestLifeTest, LearnsNothingFromErrors) {
  start_pair();
  send();
  stream->on_response_headers("500", "application/json", false);
  now += std::chrono::milliseconds(100);
  stream->on_response_body("{}", true);
  EXPECT_EQ(rates.expected(1, 100), std::nullopt);
  expect_tidy();
}

TEST_F(RequestLifeTest, IsWokenByAPlanThatComesLater) {
  start_pair();
  tokenizer.at_once = false;
  send();
  EXPECT_EQ(planner->in_flight(), 1U);
  EXPECT_FALSE(route());
  tokenizer.answer();
  EXPECT_EQ(wakes, 1);
  EXPECT_FALSE(route()) << "only on the stream's thread";
  life->on_wake();
  EXPECT_TRUE(route());
  life->on_stream_ended();
  expect_tidy();
}

TEST_F(RequestLifeTest, CancelsTokenizationWhenTheClientLeaves) {
  start_pair();
  tokenizer.at_once = false;
  send();
  life->on_stream_ended();
  EXPECT_EQ(tokenizer.cancelled, 1);
  EXPECT_EQ(wakes, 0);
  expect_tidy();
}

TEST_F(RequestLifeTest, UndoesAPlanThatNobodyTakes) {
  start_pair();
  tokenizer.at_once = false;
  send();
  tokenizer.answer();
  EXPECT_EQ(live(prefill), 1U) << "it lies in the mailbox";
  life->on_stream_ended();
  EXPECT_EQ(ledger.counts().published, 0U);
  expect_tidy();
}

TEST_F(RequestLifeTest, CancelsAQueuedBookingWhenTheClientLeaves) {
  prefill_queue_threshold = 0.5;
  config.max_num_batched_tokens = 100;
  start_pair();
  send();
  const auto first = std::exchange(life, nullptr);
  const auto first_stream = std::exchange(stream, nullptr);
  begin();
  send();
  EXPECT_FALSE(route());
  EXPECT_EQ(prefill->stats().waiting, 1U);
  EXPECT_EQ(live(destination), 2U);
  life->on_stream_ended();
  EXPECT_EQ(prefill->stats().waiting, 0U);
  EXPECT_EQ(live(destination), 1U);
  first->on_stream_ended();
  expect_tidy();
}

TEST_F(RequestLifeTest, GetsAQueuedBookingWhenThereIsRoom) {
  prefill_queue_threshold = 0.5;
  config.max_num_batched_tokens = 100;
  start_pair();
  send();
  const auto first = std::exchange(life, nullptr);
  const auto first_stream = std::exchange(stream, nullptr);
  begin();
  send();
  first->on_first_response_byte();
  EXPECT_EQ(wakes, 1);
  life->on_wake();
  EXPECT_TRUE(route());
  life->on_stream_ended();
  first->on_stream_ended();
  expect_tidy();
}

// A request that waits for a prefill worker, and what happens to its decode worker meanwhile.
class QueuedLifeTest : public RequestLifeTest {
 protected:
  void wait_in_queue() {
    prefill_queue_threshold = 0.5;
    config.max_num_batched_tokens = 100;
    start_pair();
    send();
    first_ = std::exchange(life, nullptr);
    first_stream_ = std::exchange(stream, nullptr);
    begin();
    send();
    ASSERT_EQ(prefill->stats().waiting, 1U);
    ASSERT_EQ(live(destination), 2U);
  }
  void let_it_go_on() {
    first_->on_first_response_byte();
    EXPECT_EQ(wakes, 1);
    life->on_wake();
  }
  void make_unready(const std::string& name, std::uint16_t port) {
    Endpoint down = endpoint(name, EndpointRole::kDecode, port);
    down.ready = false;
    tell(down);
  }
  void end() {
    life->on_stream_ended();
    first_->on_stream_ended();
    expect_tidy();
  }

  std::unique_ptr<RequestLife> first_;
  std::unique_ptr<ExtProcStream> first_stream_;
};

// When it waits, not before: maintenance in between would not see it, and the next one comes a second later.
TEST_F(QueuedLifeTest, HasItsDeadlineLookedAtOnceItWaits) {
  first_token_goal_ms = "700";
  wait_in_queue();
  ASSERT_FALSE(deadlines.empty());
  EXPECT_EQ(deadlines.back(),
            std::pair(SteadyTime::duration(std::chrono::milliseconds(700)), std::uint64_t{1}));
  let_it_go_on();
  EXPECT_TRUE(route());
  end();
}

TEST_F(QueuedLifeTest, HasItsDeadlineLookedAtWhenPrefillIsDecidedLater) {
  first_token_goal_ms = "700";
  config.conditional_disaggregation = true;
  wait_in_queue();
  ASSERT_FALSE(deadlines.empty());
  EXPECT_EQ(deadlines.back(),
            std::pair(SteadyTime::duration(std::chrono::milliseconds(700)), std::uint64_t{1}));
  let_it_go_on();
  EXPECT_TRUE(route());
  end();
}

TEST_F(QueuedLifeTest, GoesToAnotherWorkerWhenItsOwnIsNotReadyAnyMore) {
  wait_in_queue();
  add_decode("other", 3);
  make_unready("d", 2);
  let_it_go_on();
  const auto answer = route();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->destination, "127.0.0.1:3");
  EXPECT_EQ(planner->counts().rebooked, 1U);
  EXPECT_EQ(live(destination), 2U);
  end();
}

TEST_F(QueuedLifeTest, GoesToAnotherWorkerWhenItsOwnWasRemoved) {
  wait_in_queue();
  tell_removed("d");
  add_decode("other", 3);
  let_it_go_on();
  const auto answer = route();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->destination, "127.0.0.1:3");
  end();
}

TEST_F(QueuedLifeTest, IsRefusedWhenNoOtherWorkerIsReady) {
  wait_in_queue();
  make_unready("d", 2);
  let_it_go_on();
  const auto answer = stream->next();
  ASSERT_TRUE(answer && std::holds_alternative<Refusal>(*answer));
  EXPECT_EQ(std::get<Refusal>(*answer).error, EppError::no_ready_endpoint);
  EXPECT_EQ(ledger.open_plans(), 1U) << "the first one's";
  end();
}

TEST_F(QueuedLifeTest, StaysWhereItIsWhenItsWorkerIsBackInTime) {
  wait_in_queue();
  make_unready("d", 2);
  add_decode("d", 2);
  let_it_go_on();
  const auto answer = route();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->destination, "127.0.0.1:2");
  EXPECT_EQ(planner->counts().rebooked, 0U);
  end();
}

TEST_F(QueuedLifeTest, IsRefusedWhileItWaitsWhenNoOtherWorkerIsThere) {
  wait_in_queue();
  tell_removed("d");
  ledger.look_after_waiting();
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(prefill->stats().waiting, 0U) << "its place in the queue is free";
  EXPECT_EQ(live(prefill), 1U) << "the first one's";
  EXPECT_EQ(ledger.open_plans(), 1U);
  EXPECT_EQ(planner->in_flight(), 0U);
  life->on_wake();
  const auto answer = stream->next();
  ASSERT_TRUE(answer && std::holds_alternative<Refusal>(*answer));
  EXPECT_EQ(std::get<Refusal>(*answer).error, EppError::no_ready_endpoint);
  end();
}

TEST_F(QueuedLifeTest, IsBookedAtAnotherWorkerWhileItWaits) {
  wait_in_queue();
  tell_removed("d");
  add_decode("other", 3);
  EXPECT_EQ(decode_blocks(), 0U);
  ledger.look_after_waiting();
  EXPECT_EQ(wakes, 0);
  EXPECT_EQ(prefill->stats().waiting, 1U);
  EXPECT_EQ(live(destination), 1U);
  EXPECT_GT(decode_blocks(), 0U);
  ledger.look_after_waiting();
  EXPECT_EQ(planner->counts().rebooked, 1U) << "it is well where it is";
  let_it_go_on();
  const auto answer = route();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->destination, "127.0.0.1:3");
  EXPECT_EQ(planner->counts().rebooked, 1U);
  end();
}

TEST_F(QueuedLifeTest, IsBookedAgainWhileItWaitsAsOftenAsItsWorkerGoes) {
  wait_in_queue();
  std::string name = "d";
  for (std::uint16_t port = 10; port < 20; ++port) {
    make_unready(name, name == "d" ? 2 : port - 1);
    name = "d" + std::to_string(port);
    add_decode(name, port);
    ledger.look_after_waiting();
    EXPECT_EQ(live(destination), 2U);
  }
  EXPECT_EQ(planner->counts().rebooked, 10U);
  let_it_go_on();
  const auto answer = route();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->destination, "127.0.0.1:19");
  end();
}

TEST_F(QueuedLifeTest, LeavesNothingWhenTheClientGoesAfterItWasBookedAgain) {
  wait_in_queue();
  add_decode("other", 3);
  make_unready("d", 2);
  ledger.look_after_waiting();
  EXPECT_EQ(live(destination), 2U);
  life->on_stream_ended();
  EXPECT_EQ(prefill->stats().waiting, 0U);
  EXPECT_EQ(live(destination), 1U);
  ledger.look_after_waiting();
  EXPECT_EQ(planner->counts().rebooked, 1U);
  end();
}

// The other way round: it waits for a decode worker, with prefill booked.
class QueuedForDecodeTest : public QueuedLifeTest {
 protected:
  void wait_for_decode() {
    decode_queue_threshold = 0.5;
    config.max_num_batched_tokens = 100;
    start();
    add_prefill("p", 1);
    add_decode("d", 2);
    busy_ = std::move(destination->create_reservation(load_on_decode())).value();
    begin();
    send();
    ASSERT_EQ(destination->stats().waiting, 1U);
    ASSERT_EQ(live(prefill), 1U);
  }
  ReservationRequest load_on_decode() const {
    ReservationRequest load;
    load.model_name = "m";
    load.selection_id = "load";
    load.worker = WorkerRank{.worker = 2, .rank = 0};
    load.prompt = SizedPrompt{1000};
    load.track_prefill_tokens = true;
    return load;
  }
  void let_it_be_decoded() {
    ASSERT_TRUE(destination->free_reservation({"load", busy_.attempt}));
    EXPECT_EQ(wakes, 1);
    life->on_wake();
  }

  Selection busy_;
};

TEST_F(QueuedForDecodeTest, IsBookedAtAnotherPrefillWorkerWhileItWaits) {
  wait_for_decode();
  tell_removed("p");
  add_prefill("q", 4);
  ledger.look_after_waiting();
  EXPECT_EQ(live(prefill), 1U);
  EXPECT_GT(prefill_tokens(), 0U);
  let_it_be_decoded();
  const auto answer = route();
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->set_headers.size(), 1U);
  EXPECT_EQ(answer->set_headers[0].second, "127.0.0.1:4");
  life->on_stream_ended();
  expect_tidy();
}

TEST_F(QueuedForDecodeTest, IsRefusedWhileItWaitsWhenNoPrefillWorkerIsThere) {
  wait_for_decode();
  tell_removed("p");
  ledger.look_after_waiting();
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(destination->stats().waiting, 0U);
  EXPECT_EQ(ledger.open_plans(), 0U);
  life->on_wake();
  const auto answer = stream->next();
  ASSERT_TRUE(answer && std::holds_alternative<Refusal>(*answer));
  EXPECT_EQ(std::get<Refusal>(*answer).error, EppError::no_ready_endpoint);
}

TEST_F(QueuedForDecodeTest, GoesOnWithoutPrefillWhereThatIsAllowed) {
  config.on_no_prefill = OnNoPrefill::kDecodeOnly;
  wait_for_decode();
  tell_removed("p");
  ledger.look_after_waiting();
  EXPECT_EQ(wakes, 0);
  let_it_be_decoded();
  const auto answer = route();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->set_headers.empty());
  life->on_stream_ended();
  expect_tidy();
}

TEST_F(RequestLifeTest, IsAbandonedWhenTheGatewayAnswersItself) {
  start_pair();
  tokenizer.at_once = false;
  send();
  stream->on_response_headers("408", "", true);
  EXPECT_EQ(tokenizer.cancelled, 1);
  EXPECT_EQ(planner->in_flight(), 0U);
  life->on_stream_ended();
  expect_tidy();
}

TEST_F(RequestLifeTest, RefusesWithTheOtherHalfUndone) {
  start();
  add_decode("d", 2);
  begin();
  send();
  const auto answer = stream->next();
  ASSERT_TRUE(answer);
  ASSERT_TRUE(std::holds_alternative<Refusal>(*answer));
  EXPECT_EQ(std::get<Refusal>(*answer).error, EppError::no_ready_endpoint);
  expect_tidy();
}

TEST_F(RequestLifeTest, RefusesAnEndpointThatVanishedMeanwhile) {
  start_pair();
  tokenizer.at_once = false;
  send();
  tell_removed("d");
  tokenizer.answer();
  life->on_wake();
  const auto answer = stream->next();
  ASSERT_TRUE(answer && std::holds_alternative<Refusal>(*answer));
  expect_tidy();
}

TEST_F(RequestLifeTest, SetsRanksWhereThereAreSeveral) {
  start();
  Endpoint p = endpoint("p", EndpointRole::kPrefill, 1);
  Endpoint d = endpoint("d", EndpointRole::kDecode, 2);
  p.data_parallel_size = 2;
  d.data_parallel_size = 4;
  tell(p);
  tell(d);
  begin();
  send();
  const auto answer = route();
  ASSERT_TRUE(answer);
  std::map<std::string_view, std::string> set(answer->set_headers.begin(), answer->set_headers.end());
  EXPECT_EQ(set.count("x-dynamo-dp-rank"), 1U);
  EXPECT_EQ(set.count("x-dynamo-prefill-dp-rank"), 1U);
  EXPECT_EQ(set.count("x-data-parallel-rank"), 0U);
}

TEST_F(RequestLifeTest, MovesTheBookingToTheServedEndpoint) {
  start_pair();
  send();
  add_decode("e", 3);
  stream->on_served_endpoint("127.0.0.1:2");
  EXPECT_EQ(ledger.counts().moved, 0U);
  stream->on_served_endpoint("127.0.0.1:3");
  stream->on_served_endpoint("127.0.0.1:3");
  EXPECT_EQ(ledger.counts().moved, 1U);
  stream->on_served_endpoint("127.0.0.1:99");
  life->on_stream_ended();
  expect_tidy();
}

// A stream that only observes, behind a filter that routed (or with a gateway that tells where it went).
class ObservedTest : public RequestLifeTest {
 protected:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  void observe(const Headers& more, BodyMode mode = BodyMode::kStreamed) {
    start();
    add_prefill("p", 1);
    add_decode("d", 2);
    add_decode("e", 3);
    begin();
    stream->on_opening(
        {.modes = BodyModes{.request = mode, .response = BodyMode::kStreamed}, .observability = true});
    HeaderBlock headers;
    headers.add(":method", "POST");
    headers.add(":path", "/v1/chat/completions");
    for (const auto& [name, value] : more) headers.add(name, value);
    stream->on_request_headers(std::move(headers), false, std::nullopt);
    if (mode == BodyMode::kNone) return;
    stream->on_request_body(R"({"model":"m","stream":true,"x":")" + std::string(160, 'x') + "\"}", true);
  }
  std::uint64_t blocks_on(WorkerId worker) const {
    const auto partitions = destination->loads();
    for (const auto& load : partitions.at(0).loads) {
      if (load.rank.worker == worker) return load.active_decode_blocks;
    }
    return 0;
  }
  void respond() {
    stream->on_response_headers("200", "text/event-stream", false);
    stream->on_response_body("data: 1\n\n", false);
  }
};

TEST_F(ObservedTest, IsBookedWhereItWasSent) {
  observe({{"x-gateway-destination-endpoint", "127.0.0.1:3, 127.0.0.1:2"},
           {"x-prefiller-host-port", "127.0.0.1:1"}});
  EXPECT_FALSE(stream->next());
  EXPECT_EQ(live(prefill), 1U);
  EXPECT_GT(prefill_tokens(), 160U);
  EXPECT_GT(blocks_on(3), 10U);
  EXPECT_EQ(blocks_on(2), 0U);
  respond();
  EXPECT_EQ(prefill_tokens(), 0U);
  EXPECT_GT(blocks_on(3), 10U);
  stream->on_served_endpoint("127.0.0.1:2");
  EXPECT_EQ(ledger.counts().moved, 1U);
  EXPECT_EQ(live(destination), 1U);
  EXPECT_EQ(blocks_on(3), 0U);
  EXPECT_GT(blocks_on(2), 10U);
  stream->on_response_body("", true);
  EXPECT_FALSE(stream->next());
  expect_tidy();
}

TEST_F(ObservedTest, IsBookedWhereTheGatewaySaysThatItWasServed) {
  observe({});
  EXPECT_EQ(live(destination), 0U) << "nobody knows yet";
  EXPECT_EQ(live(prefill), 0U);
  stream->on_served_endpoint("127.0.0.1:3");
  EXPECT_EQ(live(destination), 1U);
  EXPECT_GT(blocks_on(3), 10U);
  EXPECT_EQ(ledger.counts().moved, 0U);
  respond();
  life->on_stream_ended();
  expect_tidy();
}

TEST_F(ObservedTest, IsNotBookedAtAnEndpointThatIsUnknown) {
  observe({{"x-gateway-destination-endpoint", "127.0.0.1:99"}, {"x-prefiller-host-port", "junk"}});
  EXPECT_EQ(live(destination), 0U);
  EXPECT_EQ(live(prefill), 0U);
  stream->on_served_endpoint("127.0.0.1:98");
  EXPECT_EQ(live(destination), 0U);
  stream->on_served_endpoint("127.0.0.1:2");
  EXPECT_EQ(live(destination), 1U);
  respond();
  stream->on_response_body("", true);
  expect_tidy();
}

TEST_F(ObservedTest, WaitsForItsTokensWithWhatCameMeanwhile) {
  tokenizer.at_once = false;
  observe({{"x-prefiller-host-port", "127.0.0.1:1"}});
  stream->on_served_endpoint("127.0.0.1:3");
  respond();
  EXPECT_EQ(live(destination), 0U);
  tokenizer.answer();
  life->on_wake();
  EXPECT_GT(blocks_on(3), 10U);
  EXPECT_EQ(prefill_tokens(), 0U) << "its first byte was there before";
  stream->on_response_body("", true);
  expect_tidy();
}

TEST_F(ObservedTest, IsNotBookedWhenItsAnswerIsOver) {
  tokenizer.at_once = false;
  observe({{"x-gateway-destination-endpoint", "127.0.0.1:3"}, {"x-prefiller-host-port", "127.0.0.1:1"}});
  respond();
  stream->on_response_body("", true);
  tokenizer.answer();
  life->on_wake();
  expect_tidy();
}

TEST_F(ObservedTest, IsSizedByItsLengthWhenItsBodyIsNotSent) {
  observe({{"x-gateway-destination-endpoint", "127.0.0.1:3"},
           {"x-prefiller-host-port", "127.0.0.1:1"},
           {"content-length", "6400"}},
          BodyMode::kNone);
  EXPECT_EQ(prefill_tokens(), 1600U);
  EXPECT_EQ(blocks_on(3), 100U);
  respond();
  stream->on_response_body("", true);
  expect_tidy();
}

}  // namespace
}  // namespace handoff::epp
