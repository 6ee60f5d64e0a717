#pragma once

#include <memory>
#include <string>

namespace grpc {
class ServerCredentials;
}

namespace handoff::epp {

// How the gateway's connections are secured: not at all, with a self-signed certificate of this process, or
// with the pair in these files, which is watched. Throws std::runtime_error that names the setting for a pair
// that can't be served.
std::shared_ptr<grpc::ServerCredentials> make_server_credentials(bool secure,
                                                                 const std::string& certificate_path,
                                                                 const std::string& key_path);

}  // namespace handoff::epp
