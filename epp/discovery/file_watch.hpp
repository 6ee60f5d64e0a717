#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <string>

namespace handoff::epp {

// Tells when something happened that may have changed a file: it was written and closed, another was renamed
// to it, a link was put in its place. Watches the directory, since an atomic replace ends the old file's
// inode. May tell too often, never too seldom on a local file system; where there are no such events, and
// after the directory itself was replaced, it tells nothing: read the file now and then as well.
//
// Belongs to the loop; `on_change` runs there and may not destroy it.
class FileWatch {
 public:
  FileWatch(boost::asio::io_context& loop, const std::string& path, std::function<void()> on_change);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // Begins anew after the directory was replaced. False: it can't be watched now.
  bool watch_again();

 private:
  void wait();

  std::string directory_;
  std::function<void()> on_change_;
  boost::asio::posix::stream_descriptor events_;
  alignas(8) std::array<char, 4096> buffer_{};
};

}  // namespace handoff::epp
