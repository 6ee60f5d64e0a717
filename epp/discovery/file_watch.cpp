#include "epp/discovery/file_watch.hpp"

#include <sys/inotify.h>

#include <boost/asio/buffer.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace handoff::epp {
namespace {

constexpr std::uint32_t kEvents =
    IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ATTRIB;

}  // namespace

FileWatch::FileWatch(boost::asio::io_context& loop, const std::string& path, std::function<void()> on_change)
    : directory_(std::filesystem::path(path).parent_path().string()),
      on_change_(std::move(on_change)),
      events_(loop) {
  if (directory_.empty()) directory_ = ".";
  watch_again();
}

FileWatch::~FileWatch() = default;

bool FileWatch::watch_again() {
  boost::system::error_code ignored;
  events_.close(ignored);
  const int descriptor = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  if (descriptor < 0) return false;
  events_.assign(descriptor);
  if (inotify_add_watch(descriptor, directory_.c_str(), kEvents | IN_ONLYDIR) < 0) {
    events_.close(ignored);
    return false;
  }
  wait();
  return true;
}

void FileWatch::wait() {
  events_.async_read_some(boost::asio::buffer(buffer_), [this](boost::system::error_code ec, std::size_t) {
    if (ec) return;
    // Which name changed does not matter: behind links any of them may be the one.
    on_change_();
    wait();
  });
}

}  // namespace handoff::epp
