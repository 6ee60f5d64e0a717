// GET /metrics: the series routers read, in Prometheus text form.
#include <string>

#include "exchange.hpp"

namespace handoff::mock {
namespace {

class MetricsText {
 public:
  explicit MetricsText(const std::string& model) : labels_("engine=\"0\",model_name=\"" + model + "\"") {}

  void family(const std::string& name, const char* type) {
    out_ += "# TYPE vllm:" + name + " " + type + "\n";
  }
  void sample(const std::string& name, double value, const std::string& more = "") {
    std::string number = std::to_string(value);
    out_ += "vllm:" + name + "{" + labels_ + (more.empty() ? "" : "," + more) + "} " + number + "\n";
  }
  void gauge(const std::string& name, double value) {
    family(name, "gauge");
    sample(name, value);
  }
  void counter(const std::string& name, std::int64_t value) {
    family(name, "counter");
    sample(name + "_total", static_cast<double>(value));
  }
  std::string take() { return std::move(out_); }

 private:
  std::string labels_;
  std::string out_;
};

}  // namespace

std::string metrics_text(Engine& engine) {
  const Counters& c = engine.counters();
  const Gauges& g = engine.gauges();
  MetricsText text(engine.config().models.front());
  text.gauge("num_requests_running", static_cast<double>(g.running));
  text.gauge("num_requests_waiting", static_cast<double>(g.queued + g.hanging));
  text.family("num_requests_waiting_by_reason", "gauge");
  text.sample("num_requests_waiting_by_reason", static_cast<double>(g.queued), "reason=\"capacity\"");
  text.sample("num_requests_waiting_by_reason", static_cast<double>(g.hanging), "reason=\"deferred\"");
  const double used = static_cast<double>(engine.blocks().total() - engine.blocks().free());
  text.gauge("kv_cache_usage_perc", used / static_cast<double>(engine.blocks().total()));
  text.family("cache_config_info", "gauge");
  text.sample("cache_config_info", 1,
              "block_size=\"" + std::to_string(engine.config().block_size) + "\",num_gpu_blocks=\"" +
                  std::to_string(engine.blocks().total()) + "\"");
  text.counter("prefix_cache_queries", c.cache_queries);
  text.counter("prefix_cache_hits", c.local_cache_hit);
  text.counter("external_prefix_cache_queries", c.cache_queries - c.local_cache_hit);
  text.counter("external_prefix_cache_hits", c.external_kv_transfer);
  text.counter("prompt_tokens", c.local_compute + c.local_cache_hit + c.external_kv_transfer);
  text.counter("prompt_tokens_cached", c.local_cache_hit + c.external_kv_transfer);
  text.counter("generation_tokens", c.generation);
  text.family("prompt_tokens_by_source", "counter");
  text.sample("prompt_tokens_by_source_total", static_cast<double>(c.local_compute),
              "source=\"local_compute\"");
  text.sample("prompt_tokens_by_source_total", static_cast<double>(c.local_cache_hit),
              "source=\"local_cache_hit\"");
  text.sample("prompt_tokens_by_source_total", static_cast<double>(c.external_kv_transfer),
              "source=\"external_kv_transfer\"");
  text.family("request_success", "counter");
  for (const auto& [reason, count] : c.by_finish_reason) {
    text.sample("request_success_total", static_cast<double>(count), "finished_reason=\"" + reason + "\"");
  }
  text.counter("num_preemptions", 0);
  text.counter("nixl_num_failed_transfers", c.kv_load_failures);
  text.counter("nixl_num_failed_notifications", 0);
  text.counter("nixl_num_kv_expired_reqs", engine.leases().counters().expired);
  return text.take();
}

}  // namespace handoff::mock
