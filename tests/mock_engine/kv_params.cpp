#include "kv_params.hpp"

#include "json_member.hpp"

namespace handoff::mock {
namespace {

// Null counts as not there.
// Where releases before the end of August 2026 read the parameters of /inference/v1/generate.
Json sampling_extra_params(const Json& body) {
  const Json* sampling = member(body, "sampling_params");
  if (!sampling || !sampling->is_object()) return nullptr;
  const Json* extra = member(*sampling, "extra_args");
  if (!extra || !extra->is_object()) return nullptr;
  const Json* params = member(*extra, "kv_transfer_params");
  return params ? *params : Json(nullptr);
}

Leg leg_of_params(const Json& params, const MockConfig& config) {
  if (!params.is_object()) return Leg::kPlain;
  if (config.vllm.connector == KvConnectorKind::kOffloading) {
    if (member(params, "remote_prefiller")) return Leg::kDecode;
    return member(params, "remote_decoder") ? Leg::kPrefill : Leg::kPlain;
  }
  const Json* decode = member(params, "do_remote_prefill");
  if (decode && *decode == true) return Leg::kDecode;
  const Json* prefill = member(params, "do_remote_decode");
  return prefill && *prefill == true ? Leg::kPrefill : Leg::kPlain;
}

}  // namespace

Leg leg_of(const Json& body, const MockConfig& config) {
  if (!body.is_object()) return Leg::kPlain;
  if (config.vllm.connector == KvConnectorKind::kSharedStorage) {
    if (config.role == Role::kProducer) return Leg::kPrefill;
    return config.role == Role::kConsumer ? Leg::kDecode : Leg::kPlain;
  }
  const Json* top = member(body, "kv_transfer_params");
  return leg_of_params(top ? *top : sampling_extra_params(body), config);
}

Json effective_kv_params(Api api, const Json& body, const MockConfig& config) {
  const Json* top = member(body, "kv_transfer_params");
  Json params;
  if (api != Api::kGenerate) {
    if (top) params = *top;
    return params;
  }
  // Which of the two places counts changed between releases.
  if (config.generate_params != GenerateParams::kExtraArgs && top) params = *top;
  if (config.generate_params != GenerateParams::kTopLevel && params.is_null())
    params = sampling_extra_params(body);
  return params.is_object() ? params : Json(nullptr);
}

}  // namespace handoff::mock
