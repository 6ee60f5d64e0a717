#include "epp/tokenization/http_tokenizer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <semaphore>
#include <string>
#include <vector>

#include "tests/unit/epp/tokenization/fake_service.hpp"

namespace handoff::epp {
namespace {

using test::FakeService;

constexpr auto kMustNotExpire = std::chrono::seconds(60);
const std::string kTokens = R"({"token_ids":[1,2,3]})";

TokenizeRequest chat(const std::string& content, const std::string& model = "m",
                     const std::string& more = {}) {
  return {TokenizedApi::kChatCompletions,
          std::make_shared<const std::string>(R"({"model":")" + model + R"(","messages":[{"content":")" +
                                              content + R"("}])" + more + "}"),
          model};
}

std::unique_ptr<HttpTokenizer> tokenizer_for(const std::string& url, HttpTokenizerOptions options = {}) {
  std::string error;
  options.url = url;
  auto tokenizer = make_http_tokenizer(std::move(options), error);
  EXPECT_TRUE(tokenizer) << error;
  return tokenizer;
}

std::future<TokenizeResult> start(Tokenizer& tokenizer, TokenizeRequest request,
                                  std::unique_ptr<TokenizeCall>* call = nullptr) {
  auto promise = std::make_shared<std::promise<TokenizeResult>>();
  auto future = promise->get_future();
  auto handle = tokenizer.tokenize(
      std::move(request), [promise](TokenizeResult result) { promise->set_value(std::move(result)); });
  if (call != nullptr) *call = std::move(handle);
  return future;
}

TokenizeResult get(std::future<TokenizeResult>& future) {
  if (future.wait_for(kMustNotExpire) != std::future_status::ready) {
    ADD_FAILURE() << "never answered";
    return TokenizeFailure{};
  }
  return future.get();
}
TokenizeResult ask(Tokenizer& tokenizer, TokenizeRequest request) {
  auto future = start(tokenizer, std::move(request));
  return get(future);
}
std::vector<std::uint32_t> ids(const TokenizeResult& result) {
  const auto* prompts = std::get_if<TokenizedPrompts>(&result);
  return prompts ? (*prompts)->front().token_ids : std::vector<std::uint32_t>();
}
std::string failure(const TokenizeResult& result) {
  const auto* found = std::get_if<TokenizeFailure>(&result);
  if (!found) return "none";
  static const char* const kNames[] = {"refused", "unavailable", "timeout", "bad answer", "cancelled"};
  return kNames[static_cast<std::size_t>(found->error)];
}

TEST(HttpTokenizer, AsksOnceForEqualPrompts) {
  FakeService service([](const auto&) { return FakeService::Answer{FakeService::reply(200, kTokens)}; });
  const auto tokenizer = tokenizer_for(service.url());
  EXPECT_EQ(ids(ask(*tokenizer, chat("x"))), (std::vector<std::uint32_t>{1, 2, 3}));
  EXPECT_EQ(ids(ask(*tokenizer, chat("x", "m", R"(,"temperature":1)"))),
            (std::vector<std::uint32_t>{1, 2, 3}));
  ask(*tokenizer, chat("y"));
  const auto requests = service.requests();
  ASSERT_EQ(requests.size(), 2U);
  EXPECT_EQ(requests[0].target, "/base/v1/chat/completions/render");
  EXPECT_EQ(requests[0].body, *chat("x").body);
  EXPECT_EQ(requests[0].connection, requests[1].connection);
  EXPECT_EQ(tokenizer->counters().cached, 1U);
  EXPECT_EQ(tokenizer->counters().asked, 2U);
}

TEST(HttpTokenizer, JoinsACallThatRuns) {
  std::counting_semaphore<> arrived(0);
  std::counting_semaphore<> go(0);
  FakeService service([&](const auto&) {
    arrived.release();
    go.acquire();
    return FakeService::Answer{FakeService::reply(200, kTokens)};
  });
  HttpTokenizerOptions options;
  options.timeout = kMustNotExpire;
  const auto tokenizer = tokenizer_for(service.url(), options);
  auto first = start(*tokenizer, chat("x"));
  arrived.acquire();
  auto second = start(*tokenizer, chat("x"));
  auto other = start(*tokenizer, chat("y"));
  arrived.acquire();  // y is there, and so x has joined
  go.release(2);
  for (auto* future : {&first, &second, &other}) EXPECT_EQ(ids(get(*future)).size(), 3U);
  EXPECT_EQ(service.requests().size(), 2U);
  EXPECT_EQ(tokenizer->counters().joined, 1U);
}

TEST(HttpTokenizer, TellsFailuresApart) {
  const struct {
    std::string text;
    const char* expected;
  } rows[] = {
      {FakeService::reply(400, "{}"), "refused"},
      {FakeService::reply(422, "{}"), "refused"},
      {FakeService::reply(429, "{}"), "unavailable"},
      {FakeService::reply(503, "{}"), "unavailable"},
      {FakeService::reply(404, "{}"), "bad answer"},
      {FakeService::reply(500, "{}"), "bad answer"},
      {FakeService::reply(302, "", "Location: /x\r\n"), "bad answer"},
      {FakeService::reply(200, "{}"), "bad answer"},
      {FakeService::reply(200, "<html>"), "bad answer"},
      {FakeService::reply(200, std::string(2000, ' ')), "bad answer"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n" + std::string(2000, ' ') +
           "\r\n0\r\n\r\n",
       "bad answer"},
      {"nonsense\r\n\r\n", "unavailable"},
      {"", "unavailable"},
  };
  std::mutex mutex;  // the service answers on threads of its own
  std::string now;
  const auto answer_with = [&](std::string text) {
    const std::lock_guard lock(mutex);
    now = std::move(text);
  };
  FakeService service([&](const auto&) {
    const std::lock_guard lock(mutex);
    return FakeService::Answer{now, true};
  });
  HttpTokenizerOptions options;
  options.max_response_bytes = 1000;
  const auto tokenizer = tokenizer_for(service.url(), options);
  for (const auto& row : rows) {
    answer_with(row.text);
    EXPECT_EQ(failure(ask(*tokenizer, chat("x"))), row.expected) << row.text;
  }
  answer_with(FakeService::reply(200, kTokens));
  EXPECT_EQ(ids(ask(*tokenizer, chat("x"))).size(), 3U) << "failures are not remembered";
}

TEST(HttpTokenizer, SaysUnavailableWhenNobodyListens) {
  std::string url;
  {
    FakeService service([](const auto&) { return FakeService::Answer{}; });
    url = service.url();
  }
  EXPECT_EQ(failure(ask(*tokenizer_for(url), chat("x"))), "unavailable");
}

TEST(HttpTokenizer, TriesAgainWhenAKeptConnectionWasClosed) {
  // The second request on a connection is not answered.
  std::atomic<int> last{0};
  FakeService service([&](const FakeService::Request& request) {
    if (last.exchange(request.connection) == request.connection) return FakeService::Answer{};
    return FakeService::Answer{FakeService::reply(200, kTokens)};
  });
  const auto tokenizer = tokenizer_for(service.url());
  EXPECT_EQ(ids(ask(*tokenizer, chat("x"))).size(), 3U);
  EXPECT_EQ(ids(ask(*tokenizer, chat("y"))).size(), 3U);
  EXPECT_EQ(service.requests().size(), 3U);
}

TEST(HttpTokenizer, ReadsOverInterimAnswers) {
  FakeService service([](const auto&) {
    return FakeService::Answer{"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" +
                               FakeService::reply(200, kTokens)};
  });
  const auto tokenizer = tokenizer_for(service.url());
  EXPECT_EQ(ids(ask(*tokenizer, chat("x"))).size(), 3U);
  EXPECT_EQ(ids(ask(*tokenizer, chat("y"))).size(), 3U);
  EXPECT_EQ(service.requests().size(), 2U);
  EXPECT_EQ(service.requests()[1].connection, 1) << "it was read to its end";
}

TEST(HttpTokenizer, EndlessInterimAnswersAreNone) {
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "HTTP/1.1 102 Processing\r\n\r\n";
  FakeService service(
      [&](const auto&) { return FakeService::Answer{many + FakeService::reply(200, kTokens)}; });
  EXPECT_EQ(failure(ask(*tokenizer_for(service.url()), chat("x"))), "unavailable");
}

TEST(HttpTokenizer, AProtocolThatNobodyAskedForIsNoAnswer) {
  FakeService service([](const auto&) {
    return FakeService::Answer{"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n"};
  });
  EXPECT_EQ(failure(ask(*tokenizer_for(service.url()), chat("x"))), "unavailable");
}

// Each later prompt would get the tokens of the one before.
TEST(HttpTokenizer, AnAnswerThatNobodyAskedForIsNobodys) {
  for (const bool together : {true, false}) {
    std::promise<void> sent;
    FakeService service([&](const FakeService::Request& request) {
      const std::string asked = FakeService::reply(200, kTokens);
      if (request.connection > 1) return FakeService::Answer{asked};
      return FakeService::Answer{asked + FakeService::reply(200, R"({"token_ids":[7]})"), false,
                                 together ? 0 : asked.size(), &sent};
    });
    const auto tokenizer = tokenizer_for(service.url());
    EXPECT_EQ(ids(ask(*tokenizer, chat("x"))).size(), 3U);
    ASSERT_EQ(sent.get_future().wait_for(kMustNotExpire), std::future_status::ready);
    EXPECT_EQ(ids(ask(*tokenizer, chat("y"))).size(), 3U);
    EXPECT_EQ(ids(ask(*tokenizer, chat("z"))).size(), 3U);
    EXPECT_EQ(service.requests().back().connection, 2);
  }
}

TEST(HttpTokenizer, TriesAgainOnceOnly) {
  FakeService service([](const auto&) { return FakeService::Answer{}; });
  const auto tokenizer = tokenizer_for(service.url());
  EXPECT_EQ(failure(ask(*tokenizer, chat("x"))), "unavailable");
  EXPECT_EQ(service.requests().size(), 2U);
}

TEST(HttpTokenizer, AsksWithTheBaseModelWhereAnotherIsRefused) {
  FakeService service([](const FakeService::Request& request) {
    const bool base = request.body.find(R"("model":"base")") != std::string::npos;
    return FakeService::Answer{
        base ? FakeService::reply(200, kTokens)
             : FakeService::reply(404, R"({"error":{"message":"The model does not exist"}})")};
  });
  HttpTokenizerOptions options;
  options.base_model = "base";
  const auto tokenizer = tokenizer_for(service.url(), options);
  EXPECT_EQ(ids(ask(*tokenizer, chat("x", "lora"))).size(), 3U);
  EXPECT_EQ(service.requests().size(), 2U);
  EXPECT_EQ(ids(ask(*tokenizer, chat("y", "lora"))).size(), 3U);
  EXPECT_EQ(service.requests().size(), 3U) << "the name is remembered";
}

TEST(HttpTokenizer, GivesUpAfterTheTimeLimit) {
  std::counting_semaphore<> go(0);
  FakeService service([&](const auto&) {
    go.acquire();
    return FakeService::Answer{};
  });
  HttpTokenizerOptions options;
  options.timeout = std::chrono::milliseconds(20);
  options.max_connections = 1;
  const auto tokenizer = tokenizer_for(service.url(), options);
  auto first = start(*tokenizer, chat("x"));
  auto waiting = start(*tokenizer, chat("y"));  // has no connection yet
  EXPECT_EQ(failure(get(first)), "timeout");
  EXPECT_EQ(failure(get(waiting)), "timeout");
  go.release(100);
}

TEST(HttpTokenizer, CancelsOneOfTwoThatWaitForTheSame) {
  std::counting_semaphore<> arrived(0);
  std::counting_semaphore<> go(0);
  FakeService service([&](const auto&) {
    arrived.release();
    go.acquire();
    return FakeService::Answer{FakeService::reply(200, kTokens)};
  });
  HttpTokenizerOptions options;
  options.timeout = kMustNotExpire;
  const auto tokenizer = tokenizer_for(service.url(), options);
  std::unique_ptr<TokenizeCall> call;
  auto first = start(*tokenizer, chat("x"), &call);
  auto second = start(*tokenizer, chat("x"));
  arrived.acquire();
  call->cancel();
  EXPECT_EQ(failure(get(first)), "cancelled");
  call->cancel();
  go.release();
  EXPECT_EQ(ids(get(second)).size(), 3U);
  call->cancel();
}

TEST(HttpTokenizer, AnswersEverybodyWhenItGoes) {
  std::counting_semaphore<> go(0);
  FakeService service([&](const auto&) {
    go.acquire();
    return FakeService::Answer{};
  });
  HttpTokenizerOptions options;
  options.timeout = kMustNotExpire;
  options.max_connections = 2;
  auto tokenizer = tokenizer_for(service.url(), options);
  std::unique_ptr<TokenizeCall> call;
  std::vector<std::future<TokenizeResult>> futures;
  for (int i = 0; i < 20; ++i) futures.push_back(start(*tokenizer, chat(std::to_string(i)), &call));
  tokenizer.reset();
  for (auto& future : futures) EXPECT_EQ(failure(get(future)), "cancelled");
  call->cancel();
  go.release(100);
}

TEST(HttpTokenizer, AnswersTokenIdsWithoutACall) {
  const auto tokenizer = tokenizer_for("http://127.0.0.1:1");
  TokenizeRequest request{TokenizedApi::kCompletions,
                          std::make_shared<const std::string>(R"({"prompt":[7,8]})"), ""};
  std::unique_ptr<TokenizeCall> call;
  auto future = start(*tokenizer, request, &call);
  EXPECT_EQ(call, nullptr);
  EXPECT_EQ(ids(get(future)), (std::vector<std::uint32_t>{7, 8}));
  EXPECT_EQ(tokenizer->counters().at_hand, 1U);
}

TEST(HttpTokenizer, NeedsAUrlThatItCanUse) {
  std::string error;
  HttpTokenizerOptions options;
  options.url = "https://x";
  EXPECT_FALSE(make_http_tokenizer(options, error));
  EXPECT_NE(error.find("http://host:port"), std::string::npos);
}

}  // namespace
}  // namespace handoff::epp
