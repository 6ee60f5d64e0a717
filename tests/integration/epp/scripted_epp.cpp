// The Endpoint Picker with endpoints and tokens from a script, for tests of what happens on its streams. It
// reads commands from standard input, one a line, and answers each with "ok":
//
//   endpoint NAME ADDRESS PORT ROLE READY    ROLE: prefill, decode or none; READY: 1 or 0
//   remove NAME
//   synced 1|0
//   tokenizer answer|hold|release|refused|unavailable|timeout|garbage
//
// The tokenizer makes one token of each byte of the body.
#include <cstdio>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>
#include <utility>

#include "epp/server/epp_program.hpp"
#include "epp/server/start_up.hpp"
#include "shared/telemetry/log.hpp"

namespace {

using namespace handoff;
using namespace handoff::epp;

class ScriptedTokenizer final : public Tokenizer {
 public:
  std::unique_ptr<TokenizeCall> tokenize(TokenizeRequest request, TokenizeCallback done) override {
    {
      const std::lock_guard lock(mutex_);
      if (mode_ == "hold") {
        const auto number = ++last_;
        held_.emplace(number, Held{std::move(request), std::move(done)});
        return std::make_unique<Call>(*this, number);
      }
    }
    answer(request, done);
    return nullptr;
  }

  void set(const std::string& mode) {
    std::map<int, Held> held;
    {
      const std::lock_guard lock(mutex_);
      mode_ = mode == "release" ? "answer" : mode;
      if (mode == "release") held.swap(held_);
    }
    for (auto& [number, call] : held) answer(call.request, call.done);
  }

 private:
  struct Held {
    TokenizeRequest request;
    TokenizeCallback done;
  };
  class Call final : public TokenizeCall {
   public:
    Call(ScriptedTokenizer& tokenizer, int number) : tokenizer_(tokenizer), number_(number) {}
    void cancel() override {
      TokenizeCallback done;
      {
        const std::lock_guard lock(tokenizer_.mutex_);
        const auto found = tokenizer_.held_.find(number_);
        if (found == tokenizer_.held_.end()) return;
        done = std::move(found->second.done);
        tokenizer_.held_.erase(found);
      }
      done(TokenizeFailure{TokenizeError::kCancelled, {}});
    }

   private:
    ScriptedTokenizer& tokenizer_;
    int number_;
  };

  void answer(const TokenizeRequest& request, const TokenizeCallback& done) {
    static const std::map<std::string, TokenizeError> kErrors = {{"refused", TokenizeError::kRefused},
                                                                 {"unavailable", TokenizeError::kUnavailable},
                                                                 {"timeout", TokenizeError::kTimeout},
                                                                 {"garbage", TokenizeError::kBadAnswer}};
    std::string mode;
    {
      const std::lock_guard lock(mutex_);
      mode = mode_;
    }
    if (const auto error = kErrors.find(mode); error != kErrors.end()) {
      done(TokenizeFailure{error->second, "scripted"});
      return;
    }
    auto prompts = std::make_shared<std::vector<TokenizedPrompt>>(1);
    for (const char c : *request.body) prompts->front().token_ids.push_back(static_cast<unsigned char>(c));
    done(TokenizedPrompts(std::move(prompts)));
  }

  std::mutex mutex_;
  std::string mode_ = "answer";
  int last_ = 0;
  std::map<int, Held> held_;
};

class ScriptedSource final : public EndpointSource {
 public:
  explicit ScriptedSource(ScriptedTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void start(EndpointListener& listener) override {
    std::thread([this, &listener] {
      std::string line;
      while (std::getline(std::cin, line)) {
        std::istringstream words(line);
        obey(words, listener);
        std::cout << "ok" << std::endl;
      }
    }).detach();
  }
  void stop() override {}

 private:
  void obey(std::istringstream& words, EndpointListener& listener) {
    std::string command;
    std::string name;
    words >> command >> name;
    if (command == "endpoint") {
      Endpoint endpoint;
      std::string role;
      words >> endpoint.address >> endpoint.port >> role >> endpoint.ready;
      endpoint.name = name;
      endpoint.worker_id = std::hash<std::string>{}(name) >> 11;
      if (role == "prefill") endpoint.role = EndpointRole::kPrefill;
      if (role == "decode") endpoint.role = EndpointRole::kDecode;
      listener.on_endpoint(endpoint);
      while (listener.on_batch_end()) {
      }
    } else if (command == "remove") {
      listener.on_endpoint_removed(name);
      while (listener.on_batch_end()) {
      }
    } else if (command == "synced") {
      listener.on_synced(name == "1");
    } else if (command == "tokenizer") {
      tokenizer_.set(name);
    }
  }

  ScriptedTokenizer& tokenizer_;
};

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  EppConfig config;
  const auto start = read_settings(std::vector<std::string>(argv + 1, argv + argc),
                                   config::Environment::from_process(), config);
  if (start.what != StartUp::What::run) {
    std::fputs(start.text.c_str(), stderr);
    return 2;
  }
  ScriptedTokenizer tokenizer;
  ScriptedSource source(tokenizer);
  run_epp(config, source, config.tokenizer_protocol == TokenizerProtocol::kNone ? nullptr : &tokenizer,
          start.warnings);
  handoff::telemetry::flush_logging();
  std::_Exit(0);  // the reader of commands still waits for a line
}
