#include "shared/config/codec.hpp"

#include <gtest/gtest.h>

namespace handoff::config {
namespace {

using Millis = std::chrono::milliseconds;

template <class T>
void expect_refused(const Codec<T>& codec, std::initializer_list<std::string_view> values) {
  for (const auto value : values) EXPECT_FALSE(codec.read(value).has_value()) << value;
}

TEST(PortCodec, Range) {
  EXPECT_EQ(port().read("1"), 1);
  EXPECT_EQ(port().read("65535"), 65535);
  EXPECT_EQ(port(ZeroPort::allowed).read("0"), 0);
  expect_refused(port(),
                 {"0", "65536", "-1", "+1", "80a", "0x50", "", "8 0", "80.0", "99999999999999999999"});
}

TEST(WholeNumberCodec, Limits) {
  EXPECT_EQ(whole_number(2, 5).read("2"), 2U);
  EXPECT_EQ(whole_number(2, 5).read("5"), 5U);
  EXPECT_EQ(whole_number().read("18446744073709551615"), UINT64_MAX);
  expect_refused(whole_number(2, 5), {"1", "6", "x", ""});
  expect_refused(whole_number(), {"18446744073709551616", "1e3", "-0"});
  EXPECT_EQ(whole_number(2, 5).accepts, "a whole number from 2 to 5");
}

TEST(MillisecondsCodec, ZeroOnlyWhereAllowed) {
  EXPECT_EQ(config::milliseconds().read("250"), Millis(250));
  EXPECT_EQ(config::milliseconds(Millis(0)).read("0"), Millis(0));
  expect_refused(config::milliseconds(), {"0", "10s", "604800001", "-5"});
  EXPECT_EQ(config::milliseconds().write(Millis(30000)), "30000");
}

TEST(ByteCountCodec, Suffixes) {
  EXPECT_EQ(byte_count().read("512"), 512U);
  EXPECT_EQ(byte_count().read("64KiB"), 65536U);
  EXPECT_EQ(byte_count().read("32 MiB"), 33554432U);
  EXPECT_EQ(byte_count().read("1GiB"), 1073741824U);
  expect_refused(byte_count(), {"KiB", "1MB", "1kib", "1.5MiB", "17179869184GiB", ""});
  expect_refused(byte_count(1, 1024), {"0", "2KiB"});
}

TEST(BooleanCodec, Words) {
  for (const char* yes : {"true", "1", "yes", "on", "TRUE", "On"})
    EXPECT_EQ(boolean().read(yes), true) << yes;
  for (const char* no : {"false", "0", "no", "off", "False"}) EXPECT_EQ(boolean().read(no), false) << no;
  expect_refused(boolean(), {"", "2", "y", "enabled"});
}

TEST(OneOfCodec, ExactWords) {
  EXPECT_EQ(one_of({"a", "b"}).read("b"), "b");
  expect_refused(one_of({"a", "b"}), {"B", "", "ab"});
  EXPECT_EQ(one_of({"a", "b"}).accepts, "one of a, b");
}

TEST(ChoiceCodec, MapsWordsToAnEnumeration) {
  enum class Policy { error, decode_only };
  const auto codec = choice<Policy>({{"error", Policy::error}, {"decode-only", Policy::decode_only}});
  EXPECT_EQ(codec.read("decode-only"), Policy::decode_only);
  EXPECT_EQ(codec.write(Policy::error), "error");
  expect_refused(codec, {"ERROR", "decode"});
}

TEST(CommaListCodec, Items) {
  EXPECT_EQ(comma_list().read("a, b ,c"), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(comma_list().read(""), std::vector<std::string>{});
  expect_refused(comma_list(), {",", "a,,b", "a,"});
  EXPECT_EQ(comma_list().write({"a", "b"}), "a,b");
}

TEST(FilePathCodec, PresenceIsCheckedWhereAsked) {
  EXPECT_EQ(file_path().read("/no/such/file"), "/no/such/file");
  EXPECT_TRUE(file_path(FilePresence::must_be_readable).read("/dev/null"));
  expect_refused(file_path(FilePresence::must_be_readable), {"/no/such/file", ""});
}

TEST(Bind, NarrowFieldsRefuseWhatDoesNotFit) {
  std::uint32_t field = 7;
  const Binding binding = bind(field, whole_number());
  EXPECT_FALSE(binding.assign("4294967296"));
  EXPECT_EQ(field, 7U);
  EXPECT_TRUE(binding.assign("4294967295"));
  EXPECT_EQ(binding.show(), "4294967295");
}

TEST(Bind, OptionalFieldsMayHaveNoValue) {
  std::optional<std::uint16_t> field;
  const Binding binding = bind(field, port());
  EXPECT_EQ(binding.show(), "");
  EXPECT_TRUE(binding.assign("80"));
  EXPECT_EQ(field, 80);
  EXPECT_FALSE(binding.assign("x"));
  EXPECT_EQ(field, 80);
  EXPECT_TRUE(binding.assign(""));
  EXPECT_EQ(field, std::nullopt);
}

}  // namespace
}  // namespace handoff::config
