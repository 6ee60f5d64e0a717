#include "shared/config/setting_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace handoff::config {
namespace {

class OpenFile {
 public:
  // Non-blocking, as opening a FIFO would wait for a writer.
  explicit OpenFile(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

SettingFile failed(const char* what, int error) {
  return {{}, std::string(what) + ": " + std::error_code(error, std::generic_category()).message()};
}

}  // namespace

SettingFile read_setting_file(const std::string& path, std::size_t max_bytes) {
  const OpenFile file(path);
  if (file.get() < 0) return failed("can't be opened", errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return failed("can't be read", errno);
  if (!S_ISREG(status.st_mode)) return {{}, "is not a regular file"};
  SettingFile out;
  // Piece by piece: room for the largest file allowed would cost more than reading a usual one.
  std::array<char, 16 * 1024> piece;
  while (true) {
    const ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed("can't be read", errno);
    if (got == 0) return out;
    out.text.append(piece.data(), static_cast<std::size_t>(got));
    if (out.text.size() > max_bytes) return {{}, "is larger than " + std::to_string(max_bytes) + " bytes"};
  }
}

}  // namespace handoff::config
