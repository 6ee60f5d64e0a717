#include "sidecar/shared_object_file.hpp"

#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <vector>

namespace handoff::sidecar {
namespace {

class OpenFile {
 public:
  // Non-blocking, so that a FIFO does not hold up the start.
  explicit OpenFile(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~OpenFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  int get() const { return descriptor_; }
  bool read_at(std::uint64_t offset, void* out, std::size_t size) const {
    return ::pread(descriptor_, out, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
  }

 private:
  int descriptor_;
};

/// How long the file must be to hold what is mapped of it. 0 if the header is of another kind of machine.
std::uint64_t mapped_size(const OpenFile& file, std::uint64_t size) {
  constexpr unsigned char kOurClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;
  ElfW(Ehdr) header{};
  if (size < sizeof(header)) return sizeof(header);
  if (!file.read_at(0, &header, sizeof(header)) || header.e_ident[EI_CLASS] != kOurClass ||
      header.e_phentsize != sizeof(ElfW(Phdr))) {
    return 0;
  }
  std::vector<ElfW(Phdr)> segments(header.e_phnum);
  const auto table_size = segments.size() * sizeof(ElfW(Phdr));
  std::uint64_t needed = header.e_phoff + table_size;
  if (needed > size || !file.read_at(header.e_phoff, segments.data(), table_size)) return needed;
  for (const auto& segment : segments) {
    if (segment.p_type == PT_LOAD) {
      needed = std::max<std::uint64_t>(needed, segment.p_offset + segment.p_filesz);
    }
  }
  return needed;
}

}  // namespace

std::string find_file_problem(const std::string& path) {
  const OpenFile file(path);
  if (file.get() < 0) {
    const int error = errno;
    if (error == ENOENT) return "the file does not exist";
    return "the file can't be read: " + std::error_code(error, std::generic_category()).message();
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "it is not a regular file";
  if (status.st_size == 0) return "the file is empty";
  char magic[SELFMAG] = {};
  if (!file.read_at(0, magic, sizeof(magic)) || std::memcmp(magic, ELFMAG, SELFMAG) != 0) {
    return "it is not a shared object (no ELF header)";
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const auto needed = mapped_size(file, size);
  if (size < needed) {
    return "the file is cut off: it has " + std::to_string(size) + " bytes, at least " +
           std::to_string(needed) + " are needed";
  }
  return {};
}

}  // namespace handoff::sidecar
