#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace handoff::epp {

// The tag of a field that holds bytes, text or a message, and of one that holds a number.
constexpr std::uint32_t bytes_tag(int field) {
  return static_cast<std::uint32_t>(field) << 3 | 2;
}
constexpr std::uint32_t number_tag(int field) {
  return static_cast<std::uint32_t>(field) << 3;
}

// The fields of an encoded protobuf message, one after another and where they lie: for messages of which
// little is needed. To build one from its generated class is dozens of allocations, which are most of what
// reading costs.
class FieldReader {
 public:
  // Views; `message` must outlive what is read from it.
  explicit FieldReader(std::string_view message)
      : input_(reinterpret_cast<const std::uint8_t*>(message.data()), static_cast<int>(message.size())) {}

  // False at the end, and where the message is damaged.
  bool next() {
    using Wire = google::protobuf::internal::WireFormatLite;
    tag_ = input_.ReadTagNoLastTag();
    if (tag_ == 0) {
      damaged_ = !input_.ConsumedEntireMessage();
      return false;
    }
    switch (Wire::GetTagWireType(tag_)) {
      case Wire::WIRETYPE_VARINT:
        damaged_ = !input_.ReadVarint64(&number_);
        break;
      case Wire::WIRETYPE_LENGTH_DELIMITED:
        damaged_ = !read_bytes();
        break;
      default:
        damaged_ = !Wire::SkipField(&input_, tag_);
    }
    return !damaged_;
  }
  // After next() was false.
  bool is_damaged() const { return damaged_; }

  // To be compared with bytes_tag() and number_tag().
  std::uint32_t tag() const { return tag_; }
  std::string_view bytes() const { return bytes_; }
  std::uint64_t number() const { return number_; }

 private:
  bool read_bytes() {
    int size = 0;
    if (!input_.ReadVarintSizeAsInt(&size)) return false;
    const void* data = nullptr;
    int left = 0;
    input_.GetDirectBufferPointerInline(&data, &left);
    if (size > left) return false;
    bytes_ = {static_cast<const char*>(data), static_cast<std::size_t>(size)};
    return input_.Skip(size);
  }

  google::protobuf::io::CodedInputStream input_;
  std::uint32_t tag_ = 0;
  std::string_view bytes_;
  std::uint64_t number_ = 0;
  bool damaged_ = false;
};

// What a field with so many bytes takes, itself included; for fields with numbers below 16.
constexpr std::size_t field_size(std::size_t bytes) {
  std::size_t size = 2 + bytes;
  for (std::size_t rest = bytes >> 7; rest != 0; rest >>= 7) ++size;
  return size;
}

// The tag and the length of a field whose content follows.
inline void append_head(std::string& out, int field, std::size_t bytes) {
  out += static_cast<char>(bytes_tag(field));
  for (; bytes >= 0x80; bytes >>= 7) out += static_cast<char>(bytes | 0x80);
  out += static_cast<char>(bytes);
}
inline void append_field(std::string& out, int field, std::string_view bytes) {
  append_head(out, field, bytes.size());
  out += bytes;
}
inline void append_number(std::string& out, int field, std::uint8_t small) {
  out += static_cast<char>(number_tag(field));
  out += static_cast<char>(small);
}

}  // namespace handoff::epp
