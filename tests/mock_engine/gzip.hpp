// A valid gzip member without compression (stored deflate blocks): enough to see whether a proxy copes with
// the encoding.
#pragma once

#include <string>

namespace handoff::mock {

std::string gzip_stored(const std::string& data);

}  // namespace handoff::mock
