#pragma once

#include <cstddef>
#include <string>

namespace handoff::config {

struct SettingFile {
  std::string text;
  std::string error;  // in words that follow the path, as "is not a regular file"; empty: it was read
};

// The content of a file that a setting names. Never waits for a writer: a FIFO, a device or a directory is
// an error, and so is a file of more than `max_bytes`. Any thread.
SettingFile read_setting_file(const std::string& path, std::size_t max_bytes);

}  // namespace handoff::config
