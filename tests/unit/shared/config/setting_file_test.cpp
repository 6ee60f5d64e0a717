#include "shared/config/setting_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace handoff::config {
namespace {

class SettingFileTest : public ::testing::Test {
 protected:
  SettingFileTest() {
    std::string made = ::testing::TempDir() + "setting_file_XXXXXX";
    folder_ = ::mkdtemp(made.data());
  }
  ~SettingFileTest() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

TEST_F(SettingFileTest, ReadsUpToTheLimit) {
  const auto path = folder_ / "file";
  std::ofstream(path) << std::string(20'000, 'x');
  EXPECT_EQ(read_setting_file(path, 20'000).text.size(), 20'000U);
  EXPECT_EQ(read_setting_file(path, 20'000).error, "");
  EXPECT_EQ(read_setting_file(path, 19'999).error, "is larger than 19999 bytes");
  EXPECT_EQ(read_setting_file(path, 19'999).text, "");
}

TEST_F(SettingFileTest, FollowsLinks) {
  std::ofstream(folder_ / "file") << "x";
  std::filesystem::create_symlink("file", folder_ / "link");
  EXPECT_EQ(read_setting_file(folder_ / "link", 10).text, "x");
}

// Opening a FIFO the usual way would wait for ever.
TEST_F(SettingFileTest, RefusesWhatIsNoRegularFile) {
  const auto fifo = folder_ / "fifo";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(read_setting_file(fifo, 10).error, "is not a regular file");
  EXPECT_EQ(read_setting_file(folder_, 10).error, "is not a regular file");
  EXPECT_EQ(read_setting_file("/dev/zero", 10).error, "is not a regular file");
  EXPECT_EQ(read_setting_file(folder_ / "none", 10).error, "can't be opened: No such file or directory");
}

}  // namespace
}  // namespace handoff::config
