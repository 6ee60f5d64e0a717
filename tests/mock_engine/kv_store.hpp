// A store of KV that engines share: a directory with one empty file for each stored beginning of a prompt.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tokenizer.hpp"

namespace handoff::mock {

// Beginnings are kept in chunks, as LMCache does, and the last one block-aligned, as ExampleConnector does.
// Never all of a prompt's tokens: there must be one to sample from. File errors count as not stored.
class KvStore {
 public:
  KvStore(std::filesystem::path directory, std::int64_t block_size);

  void put(const Tokens& prompt, const std::string& salt);
  // How many of the prompt's first tokens are stored.
  std::int64_t find(const Tokens& prompt, const std::string& salt) const;

 private:
  struct Beginning {
    std::int64_t tokens = 0;
    std::string name;
  };
  std::vector<Beginning> beginnings(const Tokens& prompt, const std::string& salt) const;

  std::filesystem::path directory_;
  std::int64_t block_size_;
};

}  // namespace handoff::mock
